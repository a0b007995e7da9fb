from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sluice.errors import SystemFault
from sluice.gguf.header import Header, read_header
from sluice.llama.quantize import quantize
from sluice.streaming.arena import POISON, Arena
from sluice.streaming.layout import ExpertLayout, ExpertTensor, expert_layout
from sluice.streaming.reader import ALIGNMENT, CHUNK_BYTES, Read, SliceReader

TYPES = ("Q8_0", "Q4_K_M", "MXFP4_MOE", "F16", "Q6_K", "IQ4_XS", "Q5_0")


@pytest.fixture(scope="module", params=TYPES)
def layout(
    request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Header, ExpertLayout]:
    folder = tmp_path_factory.mktemp("types")
    made = quantize(model, request.param, folder / "m.gguf") if request.param != "Q8_0" else model
    header = read_header(made)
    return header, expert_layout(header, with_head=True)


def tensors(layout: ExpertLayout) -> Iterator[ExpertTensor]:
    yield from layout.by_name.values()


def span(arena: Arena, part: str) -> tuple[int, int]:
    """First and last address of a part's buffer."""
    memory = arena._bytes[part]
    return int(memory.ctypes.data), int(memory.ctypes.data) + len(memory)


def address(read: Read) -> int:
    return int(np.frombuffer(read.window, np.uint8).ctypes.data)


def test_memory_and_file_are_congruent(layout: tuple[Header, ExpertLayout]) -> None:
    arena = Arena(layout[1])
    for tensor in tensors(layout[1]):
        assert (arena.address(tensor) - tensor.offset) % ALIGNMENT == 0


@pytest.mark.parametrize("alignment", [1, ALIGNMENT])
def test_every_window_lies_in_its_buffer(
    layout: tuple[Header, ExpertLayout], alignment: int
) -> None:
    arena = Arena(layout[1])
    for tensor in tensors(layout[1]):
        low, high = span(arena, tensor.part)
        assert low <= arena.address(tensor)
        assert arena.address(tensor) + tensor.size_bytes <= high
        last = tensor.n_expert - 1
        reads = [arena.slice_read(tensor, e, e, alignment) for e in (0, 1, last)]
        for read in (*reads, *arena.whole_reads(tensor, alignment)):
            assert low <= address(read)
            assert address(read) + len(read.window) <= high
            assert len(read.window) >= read.needed_bytes
            assert read.offset % alignment == len(read.window) % alignment == 0
            # In place: each byte of the file goes to the byte that llama.cpp will look at.
            assert address(read) - arena.address(tensor) == read.offset - tensor.offset
            assert read.aligned is (alignment == ALIGNMENT)


@pytest.mark.parametrize("alignment", [1, ALIGNMENT])
def test_whole_reads_cover_the_tensor_once(
    layout: tuple[Header, ExpertLayout], alignment: int
) -> None:
    arena = Arena(layout[1])
    for tensor in tensors(layout[1]):
        reads = arena.whole_reads(tensor, alignment)
        ends = [read.offset + read.needed_bytes for read in reads]
        assert ends[-1] == tensor.offset + tensor.size_bytes
        assert tensor.offset - reads[0].offset == tensor.offset % alignment
        for end, read in zip(ends, reads[1:], strict=False):
            assert end - alignment < read.offset <= end
        assert all(read.needed_bytes <= CHUNK_BYTES + alignment for read in reads)


@pytest.mark.parametrize("is_direct", [False, True])
def test_a_read_in_place_leaves_the_files_own_bytes(
    layout: tuple[Header, ExpertLayout], is_direct: bool
) -> None:
    header, experts = layout
    arena = Arena(experts)
    raw = header.path.read_bytes()
    reader = SliceReader(header.path, lanes=2, direct=is_direct, warn=lambda _text: None)
    try:
        for tensor in tensors(experts):
            arena.poison(tensor)
            chosen = [0, 3, tensor.n_expert - 1]
            reads = [arena.slice_read(tensor, e, e, reader.alignment) for e in chosen]
            reader.read(reads)
            for e in range(tensor.n_expert):
                start = tensor.offset + e * tensor.slice_bytes
                expected = raw[start : start + tensor.slice_bytes]
                got = bytes(arena.slice_view(tensor, e))
                if e in chosen:
                    assert got == expected
                else:
                    inner = slice(ALIGNMENT, -ALIGNMENT) if reader.is_direct else slice(None)
                    assert set(got[inner]) <= {POISON}
                    assert got != expected
    finally:
        reader.close()


def test_another_experts_bytes_are_read_into_place(model: Path, header: Header) -> None:
    """What a test plants: the neighbour's slice in the place of the routed one."""
    layout = expert_layout(header, with_head=False)
    arena = Arena(layout)
    tensor = layout.layers[1][0]
    reader = SliceReader(model, lanes=1, direct=True, warn=lambda _text: None)
    read = arena.slice_read(tensor, 2, 3, reader.alignment)
    reader.read([read])
    reader.close()
    start = tensor.offset + 3 * tensor.slice_bytes
    raw = model.read_bytes()[start : start + tensor.slice_bytes]
    assert bytes(arena.slice_view(tensor, 2)) == raw


def test_slices_that_are_no_multiple_of_a_page_fall_back_to_an_exact_read() -> None:
    tensor = ExpertTensor("t", 0, "up", 4096 * 3 + 32, 1000, 4)
    arena = Arena(ExpertLayout({0: (tensor,)}, 1))
    other = arena.slice_read(tensor, 1, 2, ALIGNMENT)
    assert (other.aligned, other.offset, len(other.window)) == (False, tensor.offset + 2000, 1000)
    own = arena.slice_read(tensor, 1, 1, ALIGNMENT)
    assert own.aligned
    assert own.offset == 4096 * 3


def test_a_long_tensor_is_read_in_chunks_that_lanes_can_share() -> None:
    tensor = ExpertTensor("t", 0, "up", 32, 3 << 20, 4)
    arena = Arena(ExpertLayout({0: (tensor,)}, 1))
    assert len(arena.whole_reads(tensor, ALIGNMENT)) == 3


def test_layers_share_the_buffers_of_the_widest() -> None:
    wide = ExpertTensor("a", 0, "up", 32, 1 << 20, 4)
    narrow = ExpertTensor("b", 1, "up", 64, 1 << 10, 4)
    other = ExpertTensor("c", 1, "down", 96, 1 << 10, 4)
    arena = Arena(ExpertLayout({0: (wide,), 1: (narrow, other)}, 2))
    assert span(arena, "up")[1] - span(arena, "up")[0] == (4 << 20) + 2 * ALIGNMENT
    assert arena.size_bytes == (4 << 20) + 2 * ALIGNMENT + 3 * ALIGNMENT
    assert arena.address(wide) + 32 == arena.address(narrow)


def test_no_address_space_is_a_fault() -> None:
    tensor = ExpertTensor("t", 0, "up", 32, 1 << 55, 4)
    with pytest.raises(SystemFault, match=r"no memory for the streamed experts: .* MiB of addr"):
        Arena(ExpertLayout({0: (tensor,)}, 1))

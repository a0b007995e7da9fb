from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sluice.errors import SystemFault
from sluice.gguf.header import Header, read_header
from sluice.llama.quantize import quantize
from sluice.streaming.arena import POISON, Arena, Buffer
from sluice.streaming.layout import ExpertLayout, ExpertTensor, expert_layout
from sluice.streaming.reader import CHUNK_BYTES, Channel, SliceReader

from .parts import PAGE, address_of, can_see_pages, present

TYPES = ("Q8_0", "Q4_K_M", "MXFP4_MOE", "F16", "Q6_K", "Q5_0")
ALIGNMENTS = (1, 512, PAGE)


@pytest.fixture(scope="module", params=TYPES)
def layout(
    request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Header, ExpertLayout]:
    folder = tmp_path_factory.mktemp("types")
    made = quantize(model, request.param, folder / "m.gguf") if request.param != "Q8_0" else model
    header = read_header(made)
    return header, expert_layout(header, with_head=True)


@pytest.fixture(params=[True, False], ids=["shared", "own"])
def arena(request: pytest.FixtureRequest, layout: tuple[Header, ExpertLayout]) -> Arena:
    return Arena(layout[1], PAGE, PAGE, shared=request.param)


def tensors(layout: ExpertLayout) -> Iterator[ExpertTensor]:
    yield from layout.by_name.values()


@pytest.mark.parametrize(
    ("alignment", "granule"), [(512, PAGE), (PAGE, PAGE), (4 * PAGE, 4 * PAGE), (1 << 16, 1 << 16)]
)
def test_memory_and_file_are_congruent(
    layout: tuple[Header, ExpertLayout], alignment: int, granule: int
) -> None:
    arena = Arena(layout[1], alignment, granule, shared=False)
    for tensor in tensors(layout[1]):
        assert (arena.address(tensor) - tensor.offset) % alignment == 0
        assert arena.buffer(tensor).address % granule == 0


@pytest.mark.parametrize("alignment", ALIGNMENTS)
def test_every_window_lies_in_its_buffer(
    layout: tuple[Header, ExpertLayout], arena: Arena, alignment: int
) -> None:
    for tensor in tensors(layout[1]):
        low = arena.buffer(tensor).address
        high = low + arena.buffer(tensor).size_bytes
        assert low <= arena.address(tensor)
        assert arena.address(tensor) + tensor.size_bytes <= high
        last = tensor.n_expert - 1
        reads = [r for e in (0, 1, last) for r in arena.slice_reads(tensor, e, e, 7, alignment)]
        assert all(read.shard == 7 for read in reads)
        for read in (*reads, *arena.whole_reads(tensor, alignment)):
            assert low <= address_of(read.window)
            assert read.address == address_of(read.window)
            assert address_of(read.window) + len(read.window) <= high
            assert len(read.window) >= read.needed_bytes
            assert read.offset % alignment == len(read.window) % alignment == 0
            # In place: each byte of the file goes to the byte that llama.cpp will look at.
            assert address_of(read.window) - arena.address(tensor) == read.offset - tensor.offset
            assert read.aligned is (alignment > 1)


@pytest.mark.parametrize("alignment", ALIGNMENTS)
def test_whole_reads_cover_the_tensor_once(
    layout: tuple[Header, ExpertLayout], arena: Arena, alignment: int
) -> None:
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
    layout: tuple[Header, ExpertLayout],
    channel: Callable[[SliceReader], Channel],
    arena: Arena,
    is_direct: bool,
) -> None:
    header, experts = layout
    raw = header.path.read_bytes()
    reader = SliceReader([header.path], direct=is_direct, warn=lambda _text: None)
    one = channel(reader)
    for tensor in tensors(experts):
        arena.poison(tensor)
        chosen = [0, 3, tensor.n_expert - 1]
        for e in chosen:
            for read in arena.slice_reads(tensor, e, e, 0, reader.alignment):
                one.read(read)
        for e in range(tensor.n_expert):
            start = tensor.offset + e * tensor.slice_bytes
            expected = raw[start : start + tensor.slice_bytes]
            got = bytes(arena.slice_view(tensor, e))
            if e in chosen:
                assert got == expected
            else:
                inner = slice(PAGE, -PAGE) if reader.is_direct else slice(None)
                assert set(got[inner]) <= {POISON}
                assert got != expected


def test_another_experts_bytes_are_read_into_place(
    model: Path, header: Header, channel: Callable[[SliceReader], Channel]
) -> None:
    """What a test plants: the neighbour's slice in the place of the routed one."""
    layout = expert_layout(header, with_head=False)
    arena = Arena(layout, PAGE, PAGE, shared=True)
    tensor = layout.layers[1][0]
    reader = SliceReader([model], direct=True, warn=lambda _text: None)
    for read in arena.slice_reads(tensor, 2, 3, 0, reader.alignment):
        channel(reader).read(read)
    start = tensor.offset + 3 * tensor.slice_bytes
    raw = model.read_bytes()[start : start + tensor.slice_bytes]
    assert bytes(arena.slice_view(tensor, 2)) == raw


def one_tensor(offset: int, slice_bytes: int) -> tuple[ExpertTensor, Arena]:
    tensor = ExpertTensor("t", 0, "up", offset, slice_bytes, 4)
    return tensor, Arena(ExpertLayout({0: (tensor,)}, 1), PAGE, PAGE, shared=True)


def test_a_place_that_is_not_congruent_falls_back_to_an_exact_read() -> None:
    tensor, arena = one_tensor(PAGE * 3 + 32, 1000)
    (other,) = arena.slice_reads(tensor, 1, 2, 0, PAGE)
    assert (other.aligned, other.offset, len(other.window)) == (False, tensor.offset + 2000, 1000)
    (own,) = arena.slice_reads(tensor, 1, 1, 0, PAGE)
    assert own.aligned
    assert own.offset == PAGE * 3


@pytest.mark.parametrize("shared", [True, False])
def test_slices_of_whole_pages_are_read_into_whole_pages(shared: bool) -> None:
    tensor = ExpertTensor("t", 0, "up", 3 * PAGE + 1504, 2 * PAGE, 4)
    arena = Arena(ExpertLayout({0: (tensor,)}, 1), 512, PAGE, shared=shared)
    for expert in range(4):
        for read in arena.slice_reads(tensor, expert, expert, 0, 512):
            assert read.aligned
            assert address_of(read.window) % PAGE == 0
    assert (arena.address(tensor) - tensor.offset) % 512 == 0


def test_long_reads_come_in_chunks_that_lanes_can_share() -> None:
    tensor, arena = one_tensor(32, 9 << 20)
    assert len(arena.slice_reads(tensor, 1, 1, 0, PAGE)) == 3
    assert len(arena.whole_reads(tensor, PAGE)) == 9


def test_layers_share_the_buffers_of_the_widest_where_there_is_no_cache() -> None:
    wide = ExpertTensor("a", 0, "up", 32, 1 << 20, 4)
    narrow = ExpertTensor("b", 1, "up", 64, 1 << 10, 4)
    other = ExpertTensor("c", 1, "down", 96, 1 << 10, 4)
    layout = ExpertLayout({0: (wide,), 1: (narrow, other)}, 2)
    arena = Arena(layout, PAGE, PAGE, shared=True)
    assert arena.buffer(wide) is arena.buffer(narrow)
    assert arena.buffer(wide).size_bytes == (4 << 20) + 2 * PAGE
    assert arena.size_bytes == (4 << 20) + 2 * PAGE + 3 * PAGE
    assert arena.address(wide) + 32 == arena.address(narrow)
    own = Arena(layout, PAGE, PAGE, shared=False)
    assert own.size_bytes == (4 << 20) + 2 * PAGE + 2 * 3 * PAGE
    spans = sorted((own.buffer(t).address, own.buffer(t).size_bytes) for t in tensors(layout))
    for (begin, size), (following, _) in itertools.pairwise(spans):
        assert begin + size <= following


def test_no_address_space_is_a_fault() -> None:
    with pytest.raises(SystemFault, match=r"no memory for the weights: .* MiB of addr.*ulimit -v"):
        one_tensor(32, 1 << 55)


@pytest.mark.skipif(not can_see_pages(), reason="this system does not tell of its pages")
def test_a_buffer_takes_no_page_before_it_is_touched() -> None:
    buffer = Buffer(64 * PAGE, 4 * PAGE)
    assert buffer.address % (4 * PAGE) == 0
    assert buffer.size_bytes == 64 * PAGE
    buffer.bytes[5 * PAGE] = 1
    buffer.view[9 * PAGE] = 2
    there = present(buffer.address, buffer.size_bytes)
    assert [page for page, is_there in enumerate(there) if is_there] == [5, 9]

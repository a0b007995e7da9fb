"""Reads, layouts and memory for tests: where bytes lie, and which pages are there."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sluice.streaming.layout import ExpertLayout, ExpertTensor
from sluice.streaming.plan import LayerPlan, StreamingPlan
from sluice.streaming.reader import Read

SIZE = 3 * 1024 * 1024 + 777
PAGE = mmap.PAGESIZE
_PAGEMAP = Path("/proc/self/pagemap")
_PRESENT = np.uint64(63)


def address_of(memory: memoryview) -> int:
    """Where it lies."""
    return int(np.frombuffer(memory, np.uint8).ctypes.data)


def slice_of(content: bytes, tensor: ExpertTensor, expert: int) -> bytes:
    """An expert's slice as it is in the file."""
    begin = tensor.offset + expert * tensor.slice_bytes
    return content[begin : begin + tensor.slice_bytes]


def exact(offset: int, size: int, shard: int = 0) -> Read:
    """A buffered read of just [offset, offset + size)."""
    return Read("t", offset, memoryview(bytearray(size)), 0, size, aligned=False, shard=shard)


def window(offset: int, size: int, *, alignment: int = PAGE, shift: int = 0) -> Read:
    """An aligned read of [offset, offset + size); ``shift`` spoils the address."""
    before = offset % alignment
    length = -(-(before + size) // alignment) * alignment
    buffer = memoryview(mmap.mmap(-1, length + alignment))[shift : shift + length]
    return Read("t", offset - before, buffer, address_of(buffer), before + size, aligned=True)


def layout(
    slice_bytes: Sequence[int], *, n_layers: int = 1, n_expert: int = 8, first: int = 1234
) -> ExpertLayout:
    """Layers of as many parts as there are ``slice_bytes``, one tensor behind the other."""
    layers: dict[int, tuple[ExpertTensor, ...]] = {}
    offset = first
    for layer in range(n_layers):
        tensors = []
        for part, size in zip(("up", "down", "gate"), slice_bytes, strict=False):
            name = f"blk.{layer}.ffn_{part}_exps.weight"
            tensors.append(ExpertTensor(name, layer, part, offset, size, n_expert))
            offset += size * n_expert + 32
        layers[layer] = tuple(tensors)
    assert offset <= SIZE
    return ExpertLayout(layers, n_layers)


def plan_of(layout: ExpertLayout, n_used: int = 1) -> StreamingPlan:
    """The plan of streaming ``layout``: layers beyond ``n_trunk`` are the head's."""
    layers = tuple(
        LayerPlan(
            layer=layer,
            is_head=layer >= layout.n_trunk,
            n_expert=tensors[0].n_expert,
            expert_bytes=sum(t.slice_bytes for t in tensors),
            expert_page_bytes=sum((-(-(t.slice_bytes - 1) // PAGE) + 1) * PAGE for t in tensors),
        )
        for layer, tensors in layout.layers.items()
    )
    return StreamingPlan(layers, n_used, trunk_dense_bytes=0, head_dense_bytes=0)


def can_see_pages() -> bool:
    """Whether this system says which pages are in memory."""
    try:
        with mmap.mmap(-1, 2 * PAGE) as memory:
            memory[0] = 1
            return present(_address(memory), 2 * PAGE) == [True, False]
    except OSError:
        return False


def present(address: int, size: int) -> list[bool]:
    """Which pages of [address, address + size) are in memory, in order."""
    first, last = address // PAGE, -(-(address + size) // PAGE)
    with _PAGEMAP.open("rb", buffering=0) as file:
        file.seek(8 * first)
        entries = np.frombuffer(file.read(8 * (last - first)), np.uint64)
    return [bool(entry >> _PRESENT) for entry in entries]


def _address(memory: mmap.mmap) -> int:
    return int(np.frombuffer(memory, np.uint8).ctypes.data)


def mapped_rss(path: Path) -> int:
    """Bytes of the file's mappings that are in this process's memory."""
    total, is_ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        fields = line.split()
        if "-" in fields[0] and not fields[0].endswith(":"):
            is_ours = line.endswith(str(path))
        elif is_ours and fields[0] == "Rss:":
            total += int(fields[1]) << 10
    return total


def descriptors() -> int:
    """How many files this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))

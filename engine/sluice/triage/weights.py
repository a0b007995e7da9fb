"""Two model files of one shape: which weights differ, by tensor and, for experts, by slice."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from sluice.gguf.header import TensorInfo, read_header
from sluice.streaming.layout import expert_of
from sluice.triage.finding import SliceDifference
from sluice.triage.observe import BadSlice, layer_of, read_at

MOST = 32
"""Differing slices that are listed; the rest is counted."""

_CHUNK_BYTES = 16 << 20


def differing(a: Path, b: Path) -> tuple[tuple[SliceDifference, ...], int]:
    """The first :data:`MOST` differing slices of two files with the same tensors, and the count.

    A tensor that is no expert's counts as one slice. Offsets are those of file ``b``.
    """
    left, right = read_header(a).tensors, read_header(b).tensors
    found: list[SliceDifference] = []
    count = 0
    for name, info in sorted(right.items(), key=lambda item: item[1].offset):
        for expert, at_a, at_b, size in _slices(left[name], info):
            if _same(a, at_a, b, at_b, size):
                continue
            count += 1
            if len(found) < MOST:
                found.append(_difference(a, at_a, b, at_b, size, info, expert))
    return tuple(found), count


def in_memory(bad: BadSlice, side: str, n_prompt: int) -> SliceDifference:
    """A slice that an observed run held wrongly."""
    step = bad.position - n_prompt + 1
    return SliceDifference(
        side=side,
        file=bad.file,
        tensor=bad.tensor.name,
        layer=bad.tensor.layer,
        part=bad.tensor.part,
        expert=bad.expert,
        offset=bad.tensor.offset + bad.expert * bad.tensor.slice_bytes,
        size_bytes=bad.tensor.slice_bytes,
        first_byte=bad.first_byte,
        n_bytes=bad.n_bytes,
        against="file",
        step=max(step, 0),
        holds=bad.holds,
    )


def _slices(a: TensorInfo, b: TensorInfo) -> Iterator[tuple[int | None, int, int, int]]:
    if expert_of(b.name) is None or len(b.shape) != 3:
        yield None, a.offset, b.offset, b.size_bytes
        return
    size = b.size_bytes // b.shape[2]
    for expert in range(b.shape[2]):
        yield expert, a.offset + expert * size, b.offset + expert * size, size


def _same(a: Path, at_a: int, b: Path, at_b: int, size: int) -> bool:
    for start in range(0, size, _CHUNK_BYTES):
        n = min(_CHUNK_BYTES, size - start)
        left, right = read_at(a, at_a + start, n), read_at(b, at_b + start, n)
        if hashlib.sha256(left).digest() != hashlib.sha256(right).digest():
            return False
    return True


def _difference(
    a: Path, at_a: int, b: Path, at_b: int, size: int, info: TensorInfo, expert: int | None
) -> SliceDifference:
    left = np.frombuffer(read_at(a, at_a, size), np.uint8)
    right = np.frombuffer(read_at(b, at_b, size), np.uint8)
    where = np.flatnonzero(left != right)
    known = expert_of(info.name)
    return SliceDifference(
        side="b",
        file=str(b),
        tensor=info.name,
        layer=layer_of(info.name),
        part=known[1] if known else None,
        expert=expert,
        offset=at_b,
        size_bytes=size,
        first_byte=int(where[0]),
        n_bytes=len(where),
        against="other file",
    )

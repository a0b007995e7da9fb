"""Two model files of one shape: which weights differ, by tensor and, for experts, by slice."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sluice.gguf.header import TensorInfo
from sluice.gguf.shards import read_model
from sluice.streaming.layout import expert_of
from sluice.triage.finding import SliceDifference
from sluice.triage.observe import BadSlice, layer_of, read_at

MOST = 32
"""Differing slices that are listed; the rest is counted."""

_CHUNK_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class _Place:
    """A slice in a file."""

    path: Path
    offset: int
    size_bytes: int

    def read(self, start: int, n: int) -> bytes:
        """At most ``n`` of its bytes, from its byte ``start`` on."""
        return read_at(self.path, self.offset + start, min(n, self.size_bytes - start))


def differing(a: Path, b: Path) -> tuple[tuple[SliceDifference, ...], int]:
    """The first :data:`MOST` differing slices of two models with the same tensors, and the count.

    A tensor that is no expert's counts as one slice. Files and offsets are those of model ``b``.
    """
    left, right = read_model(a), read_model(b)
    found: list[SliceDifference] = []
    count = 0
    for name, info in sorted(
        right.tensors.items(), key=lambda item: (item[1].shard, item[1].offset)
    ):
        twin = left.tensors[name]
        for expert, at_a, at_b, size in _slices(twin, info):
            mine = _Place(left.path_of(twin), at_a, size)
            other = _Place(right.path_of(info), at_b, size)
            if _same(mine, other):
                continue
            count += 1
            if len(found) < MOST:
                found.append(_difference(mine, other, info, expert))
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


def _same(a: _Place, b: _Place) -> bool:
    for start in range(0, a.size_bytes, _CHUNK_BYTES):
        left, right = a.read(start, _CHUNK_BYTES), b.read(start, _CHUNK_BYTES)
        if hashlib.sha256(left).digest() != hashlib.sha256(right).digest():
            return False
    return True


def _difference(a: _Place, b: _Place, info: TensorInfo, expert: int | None) -> SliceDifference:
    left = np.frombuffer(a.read(0, a.size_bytes), np.uint8)
    right = np.frombuffer(b.read(0, b.size_bytes), np.uint8)
    where = np.flatnonzero(left != right)
    known = expert_of(info.name)
    return SliceDifference(
        side="b",
        file=str(b.path),
        tensor=info.name,
        layer=layer_of(info.name),
        part=known[1] if known else None,
        expert=expert,
        offset=b.offset,
        size_bytes=b.size_bytes,
        first_byte=int(where[0]),
        n_bytes=len(where),
        against="other file",
    )

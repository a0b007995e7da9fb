"""What the disk gives for the reads that streaming makes, with nothing computed between them."""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sluice.errors import SystemFault
from sluice.gguf.shards import read_model
from sluice.streaming.layout import ExpertLayout, expert_layout
from sluice.streaming.reader import SliceReader

SECONDS_MAX = 20.0
SEED = 7
LANE_BYTES = 16 << 20

Window = tuple[int, int, int]
"""Shard, offset and length of one read."""


@dataclass(frozen=True, slots=True)
class RawRead:
    """What was read, and how long it took."""

    read_bytes: int
    wall_s: float


class RawDisk:
    """``lanes`` O_DIRECT reads at once, of slices of random experts.

    Raises:
        SystemFault: the file system takes no O_DIRECT.
    """

    def __init__(self, model: Path, lanes: int) -> None:
        self._model = model
        self._layout = expert_layout(read_model(model), with_head=False)
        reader = SliceReader(self._layout.paths, direct=True, warn=lambda _text: None)
        if not reader.is_direct:
            raise SystemFault(f"{model}: its file system does not take O_DIRECT")
        self._alignment = reader.alignment
        self._random = np.random.default_rng(SEED)
        longest = max(t.slice_bytes for t in self._layout.by_name.values()) + 2 * self._alignment
        self._memories = [_memory(longest) for _ in range(lanes)]

    def read(self, read_bytes: int) -> RawRead:
        """Read ``read_bytes`` or a bit more; less where that would take more than 20 s.

        Other slices every time: the host of a virtual machine may keep what has been read.

        Raises:
            SystemFault: a read failed.
        """
        queue = iter(slice_windows(self._layout, self._alignment, read_bytes, self._random))
        done = [0] * len(self._memories)
        failed: list[str] = []

        def lane(number: int) -> None:
            memory = self._memories[number]
            fds = [os.open(path, os.O_RDONLY | os.O_DIRECT) for path in self._layout.paths]
            at = 0
            try:
                for shard, offset, length in queue:
                    if at + length > len(memory):
                        at = 0
                    done[number] += os.preadv(fds[shard], [memory[at : at + length]], offset)
                    at += -(-length // mmap.PAGESIZE) * mmap.PAGESIZE
                    if time.perf_counter() > until:
                        break
            except OSError as err:
                failed.append(f"{self._model}: cannot be read: {err.strerror}")
            finally:
                for fd in fds:
                    os.close(fd)

        threads = [threading.Thread(target=lane, args=(n,)) for n in range(len(done))]
        began = time.perf_counter()
        until = began + SECONDS_MAX
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wall_s = time.perf_counter() - began
        if failed:
            raise SystemFault(failed[0])
        return RawRead(sum(done), wall_s)


def _memory(size: int) -> memoryview:
    """Memory of a lane, all of its pages taken.

    A disk fills large pages faster than small ones, small ones of private memory faster than
    those of shared, and memory that begins with a page faster than any other: the limit is what it
    gives to the best.
    """
    memory = mmap.mmap(-1, max(size, LANE_BYTES), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE] = 0
    return memoryview(memory)


def slice_windows(
    layout: ExpertLayout, alignment: int, read_bytes: int, random: np.random.Generator
) -> list[Window]:
    """Aligned windows of every slice of experts drawn at random, ``read_bytes`` or a bit more."""
    layers = list(layout.layers.values())
    windows: list[Window] = []
    total = 0
    while total < read_bytes:
        tensors = layers[random.integers(len(layers))]
        expert = int(random.integers(tensors[0].n_expert))
        for tensor in tensors:
            begin = tensor.offset + expert * tensor.slice_bytes
            first = begin // alignment * alignment
            end = -(-(begin + tensor.slice_bytes) // alignment) * alignment
            windows.append((tensor.shard, first, end - first))
            total += end - first
    return windows

"""What the disk gives for the reads that streaming makes, with nothing computed between them."""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import time
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


def raw_rate(model: Path, lanes: int, read_bytes: int) -> float:
    """MiB/s of O_DIRECT reads of slices of random experts, ``lanes`` of them at once.

    Ends after ``read_bytes``, or after 20 s on a slow disk.

    Raises:
        SystemFault: the file system takes no O_DIRECT, or a read failed.
    """
    layout = expert_layout(read_model(model), with_head=False)
    reader = SliceReader(layout.paths, direct=True, warn=lambda _text: None)
    if not reader.is_direct:
        raise SystemFault(f"{model}: its file system does not take O_DIRECT")
    windows = slice_windows(layout, reader.alignment, read_bytes)
    memories = [_memory(max(length for _, _, length in windows)) for _ in range(lanes)]
    queue = iter(windows)
    done = [0] * lanes
    failed: list[str] = []

    def lane(number: int) -> None:
        fds = [os.open(path, os.O_RDONLY | os.O_DIRECT) for path in layout.paths]
        at = 0
        try:
            for shard, offset, length in queue:
                if at + length > len(memories[number]):
                    at = 0
                window = memories[number][at : at + length]
                done[number] += os.preadv(fds[shard], [window], offset)
                at += -(-length // mmap.PAGESIZE) * mmap.PAGESIZE
                if time.perf_counter() > until:
                    break
        except OSError as err:
            failed.append(f"{model}: cannot be read: {err.strerror}")
        finally:
            for fd in fds:
                os.close(fd)

    threads = [threading.Thread(target=lane, args=(number,)) for number in range(lanes)]
    began = time.perf_counter()
    until = began + SECONDS_MAX
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    if failed:
        raise SystemFault(failed[0])
    return sum(done) / 2**20 / seconds


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


def slice_windows(layout: ExpertLayout, alignment: int, read_bytes: int) -> list[Window]:
    """Aligned windows of every slice of experts drawn at random, ``read_bytes`` or a bit more."""
    random = np.random.default_rng(SEED)
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

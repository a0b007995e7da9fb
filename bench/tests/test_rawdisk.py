from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rawdisk import RawDisk, slice_windows
from sluice.errors import SystemFault
from sluice.gguf.shards import read_model
from sluice.streaming.layout import expert_layout


@pytest.mark.parametrize("alignment", [1, 512, 4096])
def test_windows_hold_whole_experts_and_no_more_than_they_must(
    bundled: Path, alignment: int
) -> None:
    layout = expert_layout(read_model(bundled), with_head=False)
    slices = {
        t.offset + expert * t.slice_bytes: t.slice_bytes
        for tensors in layout.layers.values()
        for t in tensors
        for expert in range(t.n_expert)
    }
    windows = slice_windows(layout, alignment, 32 << 20, np.random.default_rng(7))
    assert sum(length for _, _, length in windows) >= 32 << 20
    assert len(windows) % 3 == 0
    held = set()
    for shard, offset, length in windows:
        assert shard == 0
        assert offset % alignment == length % alignment == 0
        inside = [
            begin
            for begin, size in slices.items()
            if offset <= begin < offset + alignment and begin + size <= offset + length
        ]
        assert len(inside) == 1
        assert length < slices[inside[0]] + 2 * alignment
        held.add(inside[0])
    assert len(held) > len(slices) / 2, "experts are drawn from everywhere"


def test_lanes_read_all_windows(bundled: Path) -> None:
    try:
        disk = RawDisk(bundled, lanes=3)
    except SystemFault as err:
        assert "does not take O_DIRECT" in str(err)  # noqa: PT017
        return
    read = disk.read(16 << 20)
    assert 16 << 20 <= read.read_bytes < 17 << 20
    assert read.wall_s > 0
    assert disk.read(1 << 20).read_bytes >= 1 << 20


def test_other_slices_are_read_every_time(bundled: Path) -> None:
    layout = expert_layout(read_model(bundled), with_head=False)
    random = np.random.default_rng(7)
    first, second = (slice_windows(layout, 512, 4 << 20, random) for _ in range(2))
    assert first != second

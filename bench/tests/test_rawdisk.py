from __future__ import annotations

from pathlib import Path

import pytest

from rawdisk import raw_rate, slice_windows
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
    windows = slice_windows(layout, alignment, 32 << 20)
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
        assert raw_rate(bundled, lanes=3, read_bytes=16 << 20) > 0
    except SystemFault as err:
        assert "does not take O_DIRECT" in str(err)  # noqa: PT017

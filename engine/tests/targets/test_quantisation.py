from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.errors import ModelError
from sluice.gguf.header import Header, read_header
from sluice.targets import quantize


def test_a_master_that_would_end_the_process_is_refused(
    tiny_gguf: Callable[..., Path], tmp_path: Path
) -> None:
    master = tiny_gguf(tmp_path / "m.gguf", {"output.weight": (32, 32)}, qwen35moe__block_count=600)
    with pytest.raises(ModelError, match=r"block_count is 600, must be 1 to 512"):
        quantize(master, "Q8_0", tmp_path / "q.gguf")
    assert list(tmp_path.iterdir()) == [master]


def test_what_is_made_has_the_users_permissions(model: Path, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        made = quantize(model, "F16", tmp_path / "f16.gguf")
    finally:
        os.umask(before)
    assert {t.type_name for t in read_header(made).tensors.values()} == {"F16", "F32"}
    assert stat.S_IMODE(made.stat().st_mode) == 0o644


def test_shards_are_quantised_to_one_file(
    model: Path, shards: tuple[Path, ...], tmp_path: Path
) -> None:
    made = [quantize(master, "Q5_0", tmp_path / f"{i}.gguf") for i, master in enumerate(
        (model, shards[1]))]  # fmt: skip
    assert len(list(tmp_path.iterdir())) == 2
    whole, other = (read_header(path) for path in made)
    assert whole.tensors.keys() == other.tensors.keys()
    for name, info in whole.tensors.items():
        assert _bytes(other, name) == _bytes(whole, name), name
        assert other.tensors[name].type_name == info.type_name


def _bytes(header: Header, name: str) -> bytes:
    info = header.tensors[name]
    return header.path.read_bytes()[info.offset : info.offset + info.size_bytes]

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import SystemFault
from sluice.telemetry import files
from sluice.telemetry.files import atomic, write_whole


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "e.json"
    path.write_text("x" * 100_000)
    write_whole(path, "short\n")
    assert path.read_bytes() == b"short\n"


def test_a_written_file_has_the_users_permissions(tmp_path: Path) -> None:
    path = tmp_path / "e.json"
    before = os.umask(0o027)
    try:
        write_whole(path, "x")
    finally:
        assert os.umask(before) == 0o027
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize("where", ["none/e.json", "file/e.json"])
def test_an_unwritable_folder_is_a_fault_and_leaves_nothing(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SystemFault, match=r"e\.json: cannot be written: "):
        write_whole(tmp_path / where, "x")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_failure_keeps_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "e.json"
    path.write_text("kept")
    (tmp_path / "folder").mkdir()
    with pytest.raises(SystemFault, match="cannot be written"):
        write_whole(tmp_path / "folder", "x")

    def full(_source: Any, _target: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(SystemFault, match="No space left on device"):
        write_whole(path, "x")
    assert path.read_text() == "kept"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["e.json", "folder"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def on_a_full_disk(out: Path) -> Path:
        part = out.with_name(f".{out.name}.x")
        part.symlink_to("/dev/full")
        return part

    path = tmp_path / "e.json"
    path.write_text("kept")
    monkeypatch.setattr(files, "_made_beside", on_a_full_disk)
    with pytest.raises(SystemFault, match="No space left"):
        write_whole(path, "x")
    assert path.read_text() == "kept"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_within_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_text("kept")

    def fail() -> None:
        with atomic(path) as part:
            part.write_text("half")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert path.read_text() == "kept"
    assert list(tmp_path.iterdir()) == [path]


def test_what_was_written_takes_the_place_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    with atomic(path) as part:
        part.write_bytes(b"whole")
        assert not path.exists()
        assert part.parent == tmp_path
    assert path.read_bytes() == b"whole"
    assert list(tmp_path.iterdir()) == [path]

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sluice.cli.files import check_output_file, check_output_folder
from sluice.errors import RequestError


def test_files(tmp_path: Path) -> None:
    assert check_output_file("--x", tmp_path / "new.json") == tmp_path / "new.json"
    (tmp_path / "old.json").touch()
    assert check_output_file("--x", tmp_path / "old.json") == tmp_path / "old.json"
    assert check_output_file("--x", Path("here.json"))


@pytest.mark.parametrize("name", ["none/x.json", "file/x.json", "folder", "pipe"])
def test_refused_files(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RequestError, match=rf"^--x {tmp_path / name}: "):
        check_output_file("--x", tmp_path / name)


def test_a_folder_without_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(RequestError, match="cannot be written"):
        check_output_file("--x", tmp_path / "x")
    with pytest.raises(RequestError, match="cannot be written"):
        check_output_folder("--x", tmp_path)


def test_folders(tmp_path: Path) -> None:
    assert check_output_folder("--x", tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(RequestError, match=r"--x .*file: cannot be made: "):
        check_output_folder("--x", tmp_path / "file")


def test_an_output_is_no_device_and_no_input(tmp_path: Path) -> None:
    read = tmp_path / "prompt.txt"
    read.write_text("x")
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "target.json")
    for path in (Path("/dev/stdout"), Path("/proc/self/fd/1"), Path(), Path("-")):
        with pytest.raises(RequestError, match="give the name of a file"):
            check_output_file("--evidence", path)
    with pytest.raises(RequestError, match="the run reads that file"):
        check_output_file("--evidence", read, inputs=[read])
    assert check_output_file("--evidence", link) == tmp_path / "target.json"

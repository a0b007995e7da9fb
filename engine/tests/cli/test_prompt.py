from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from sluice.cli.prompt import read_prompt
from sluice.errors import RequestError


def test_the_text_itself() -> None:
    assert read_prompt("né\n", None) == "né\n"
    assert read_prompt("", None) == ""


def test_a_file_is_taken_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_bytes("é\r\n\n".encode())
    assert read_prompt(None, str(file)) == "é\r\n\n"


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("日本\n".encode()), "ascii"))
    assert read_prompt(None, "-") == "日本\n"


def test_closed_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(RequestError, match="-f -: standard input is closed"):
        read_prompt(None, "-")


@pytest.mark.parametrize(
    ("text", "file", "says"),
    [("a", "b", "-p with -f"), (None, None, "no prompt"), ("a\ud800", None, "-p: not UTF-8")],
)
def test_refusals(text: str | None, file: str | None, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        read_prompt(text, file)


def test_bytes_that_the_shell_gave() -> None:
    with pytest.raises(RequestError, match="-p: not UTF-8"):
        read_prompt("caf\udce9", None)


def test_file_refusals(tmp_path: Path) -> None:
    latin = tmp_path / "latin.txt"
    latin.write_bytes(b"caf\xe9 au lait")
    for file, says in (
        (tmp_path / "none", "none: cannot be read: No such file"),
        (tmp_path, "cannot be read: Is a directory"),
        (latin, "latin.txt: not UTF-8 at byte 3"),
        (tmp_path / "nul\0", "cannot be read: "),
    ):
        with pytest.raises(RequestError, match=says):
            read_prompt(None, str(file))

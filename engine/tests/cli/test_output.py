from __future__ import annotations

import errno
import io
import sys
from typing import NoReturn

import pytest

from sluice.cli.faults import PipeClosed
from sluice.cli.output import Output
from sluice.errors import SystemFault


class Broken(io.BytesIO):
    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error = error

    def write(self, _: object) -> NoReturn:
        raise self.error


def on(monkeypatch: pytest.MonkeyPatch, raw: io.BytesIO, encoding: str = "utf-8") -> Output:
    stream = io.TextIOWrapper(raw, encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    return Output()


def test_utf8_whatever_the_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    on(monkeypatch, raw, "ascii").write("é\n")
    assert raw.getvalue() == b"\xc3\xa9\n"


def test_a_closed_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    output = on(monkeypatch, Broken(BrokenPipeError()))
    with pytest.raises(PipeClosed):
        output.write("x")


def test_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    output = on(monkeypatch, Broken(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(SystemFault, match="standard output cannot be written: No space"):
        output.write("x")


def test_no_standard_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(SystemFault, match="closed"):
        Output()

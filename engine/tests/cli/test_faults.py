from __future__ import annotations

import click
import pytest

from sluice.cli.faults import PipeClosed, complain, guarded, one_line
from sluice.errors import GateFailure, ModelError, ReadFault, RequestError, SystemFault


def raising(error: BaseException) -> int:
    def act() -> int:
        raise error

    return guarded(act)


def test_one_line() -> None:
    assert one_line("a\nb\r\n") == "a\\nb"
    assert one_line("\x1b[31mred\u2028\ud800") == "\\x1b[31mred\\u2028\\ud800"
    assert one_line("  two  spaces, é 日 ") == "two  spaces, é 日"


def test_results_pass() -> None:
    assert guarded(lambda: None) == 0
    assert guarded(lambda: 1) == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RequestError("r"), 2),
        (GateFailure("g"), 1),
        (ModelError("m"), 3),
        (SystemFault("s"), 3),
        (ReadFault("f"), 3),
    ],
)
def test_every_sluice_error_is_one_line(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert raising(error) == code
    assert capsys.readouterr().err == f"sluice: error: {error}\n"


def test_line_ends_in_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert raising(ModelError("llama.cpp said:\none\ntwo\n")) == 3
    assert capsys.readouterr().err == "sluice: error: llama.cpp said:\\none\\ntwo\n"


def test_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert raising(click.UsageError("No such thing.")) == 2
    assert capsys.readouterr().err == "sluice: error: No such thing; try `sluice --help`\n"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()])
def test_interrupts(error: BaseException, capsys: pytest.CaptureFixture[str]) -> None:
    assert raising(error) == 130
    assert capsys.readouterr().err == "sluice: interrupted\n"


@pytest.mark.parametrize("error", [PipeClosed(), BrokenPipeError()])
def test_closed_pipes_are_quiet(
    error: Exception, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.cli.faults._silence_stdout", lambda: None)
    assert raising(error) == 141
    assert capsys.readouterr() == ("", "")


def test_defects(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLUICE_TRACEBACK", raising=False)
    assert raising(ZeroDivisionError("by\nzero")) == 3
    assert capsys.readouterr().err == (
        "sluice: internal error: ZeroDivisionError: by\\nzero;"
        " run with SLUICE_TRACEBACK=1 to see where\n"
    )
    assert raising(AssertionError()) == 3
    assert "internal error: AssertionError; run" in capsys.readouterr().err
    monkeypatch.setenv("SLUICE_TRACEBACK", "1")
    assert raising(ZeroDivisionError("x")) == 3
    assert "Traceback" in capsys.readouterr().err


def test_a_dead_stderr_does_not_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(click, "echo", broken)
    with pytest.raises(BrokenPipeError):
        complain("x")
    assert raising(RequestError("x")) == 141

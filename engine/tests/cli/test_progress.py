from __future__ import annotations

import pytest

from sluice.cli.progress import Progress


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_quick_stage_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    progress = Progress(shown=True, clock=clock)
    for done in range(5):
        clock.now_s = done / 10
        progress("load", done, 4)
        assert not progress.showing
    assert capsys.readouterr() == ("", "")


def test_a_long_stage_shows_a_bar_on_stderr_until_it_is_done(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    progress = Progress(shown=True, clock=clock)
    progress("load", 0, 4)
    clock.now_s = 0.6
    progress("load", 1, 4)
    assert progress.showing
    progress("load", 4, 4)
    assert not progress.showing
    assert capsys.readouterr().out == ""


def test_the_wait_counts_from_the_end_of_the_stage_before() -> None:
    clock = Clock()
    progress = Progress(shown=True, clock=clock)
    progress("load", 4, 4)
    clock.now_s = 3.0
    progress("prefill", 1, 4)
    assert progress.showing
    progress.close()
    progress.close()
    assert not progress.showing


def test_nothing_off_a_terminal() -> None:
    clock = Clock()
    progress = Progress(clock=clock)
    clock.now_s = 9.0
    progress("load", 1, 4)
    assert not progress.showing

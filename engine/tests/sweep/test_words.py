from __future__ import annotations

import pytest

from sluice.sweep.words import listed, milliseconds, number, percent, rate


def test_numbers_are_written_one_way() -> None:
    assert [rate(v) for v in (None, 1.234, 12.34, 1234.0)] == ["–", "1.23", "12.3", "1234.0"]
    assert [milliseconds(v) for v in (None, 0.0238, 0.000456)] == ["–", "23.8", "0.456"]
    assert [percent(0.235), percent(0.0123, 1), percent(None)] == ["24%", "1.2%", "–"]
    assert [number(0.666), number(None)] == ["0.67", "–"]


@pytest.mark.parametrize(
    ("names", "words"),
    [([], ""), (["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")],
)
def test_lists(names: list[str], words: str) -> None:
    assert listed(names) == words

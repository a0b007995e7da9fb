from __future__ import annotations

import pytest

from sluice.errors import RequestError
from sluice.sweep.prose import estimate, long_prose, short_prose


def test_short_prose_is_about_800_tokens() -> None:
    assert 700 <= estimate(short_prose()) <= 900


@pytest.mark.parametrize("n_tokens", [200, 1000, 24_000])
def test_long_prose_is_as_long_as_is_asked(n_tokens: int) -> None:
    assert n_tokens - 200 <= estimate(long_prose(n_tokens)) <= n_tokens


def test_long_prose_can_be_measured_by_a_tokenizer() -> None:
    def characters(text: str) -> int:
        return len(text) // 4

    text = long_prose(3000, characters)
    assert 2800 <= characters(text) <= 3000


def test_long_prose_is_the_same_every_time_and_begins_the_same() -> None:
    text = long_prose(2000)
    assert text == long_prose(2000)
    assert long_prose(4000).startswith(text[:5000])


def test_no_two_entries_are_the_same() -> None:
    days = [line for line in long_prose(24_000).splitlines() if line.startswith("Day ")]
    bodies = {line.partition(". ")[2] for line in days}
    assert len(days) > 100
    assert len(bodies) == len(days)


def test_too_short_is_refused() -> None:
    with pytest.raises(RequestError, match="200 is the least"):
        long_prose(199)

"""The drafter that is always right and the one that is always wrong."""

from __future__ import annotations

import pytest

from sluice_gates.drafters import AlwaysWrong, Oracle

SEQUENCE = (3, 4, 5, 6)


def test_the_oracle_drafts_what_comes() -> None:
    assert Oracle(SEQUENCE).draft([3, 4], 2, 10) == [5, 6]


def test_beyond_the_end_a_draft_is_as_wide_as_asked() -> None:
    assert Oracle(SEQUENCE).draft([3, 4, 5], 3, 10) == [6, 6, 6]
    assert Oracle(SEQUENCE).draft([3, 4, 5, 6, 7], 2, 10) == [6, 6]


@pytest.mark.parametrize("confirmed", [[3], [3, 4], [3, 4, 5]])
def test_the_wrong_one_never_drafts_what_comes(confirmed: list[int]) -> None:
    wrong = AlwaysWrong(SEQUENCE).draft(confirmed, 3, 7)
    right = Oracle(SEQUENCE).draft(confirmed, 3, 7)
    assert all(mine != other for mine, other in zip(wrong, right, strict=True))
    assert all(0 <= token < 7 for token in wrong)


def test_drafters_that_draft_alike_are_equal() -> None:
    assert Oracle((1, 2)) == Oracle((1, 2))
    assert hash(Oracle((1, 2))) == hash(Oracle((1, 2)))
    assert Oracle((1, 2)) != AlwaysWrong((1, 2))

"""The first difference between two runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from sluice.telemetry.evidence import Evidence, Stop
from sluice_gates.compare import difference, digest, first_differing, first_step

Make = Callable[..., Evidence]


def test_a_run_has_no_difference_from_itself(make_evidence: Make) -> None:
    for level in ("ids", "text", "logits", "drafts"):
        assert difference(make_evidence(), make_evidence(), level) is None


def test_one_moved_logits_row_shows_at_the_level_of_logits_only(make_evidence: Make) -> None:
    left = make_evidence()
    hashes = [*left.logits_sha256[:1], "ff" * 32, *left.logits_sha256[2:]]
    right = dataclasses.replace(left, logits_sha256=hashes)
    assert difference(left, right, "ids") is None
    assert difference(left, right, "text") is None
    found = difference(left, right, "logits")
    assert found is not None
    assert found.startswith("step 1: token 6 / 6, logits ")
    assert "ffffffff" in found
    assert found.endswith("top-2 margin 0.5 / 0.5")


def test_the_first_differing_token_is_named(make_evidence: Make) -> None:
    found = difference(make_evidence([5, 6, 7]), make_evidence([5, 9, 8]), "ids")
    assert found is not None
    assert found.startswith("step 1: token 6 / 9")


def test_a_longer_run_differs_unless_a_prefix_is_asked_for(make_evidence: Make) -> None:
    short, long = make_evidence([5, 6]), make_evidence([5, 6, 7])
    assert difference(short, long, "logits") == "2 / 3 tokens, equal up to there"
    assert difference(short, long, "logits", prefix=True) is None
    assert difference(long, short, "logits", prefix=True) == "3 / 2 tokens, equal up to there"


def test_a_prefix_may_end_inside_a_character(make_evidence: Make) -> None:
    short = make_evidence([5, 6], text="f\ufffd")
    long = make_evidence([5, 6, 7], text="fé")
    assert difference(short, long, "ids", prefix=True) is None
    assert difference(dataclasses.replace(short, text="x"), long, "ids", prefix=True) is not None


def test_the_end_of_a_run_counts(make_evidence: Make) -> None:
    left = make_evidence(stop=Stop("eog", 9, "aa" * 32))
    right = make_evidence(stop=Stop("eog", 9, "bb" * 32))
    assert difference(left, right, "ids") is None
    assert difference(left, right, "logits") == (
        "the end: eog 9 from logits aaaaaaaa / eog 9 from logits bbbbbbbb"
    )


def test_other_prompts_are_another_run(make_evidence: Make) -> None:
    assert difference(make_evidence(), make_evidence(prompt_ids=[1]), "ids") == (
        "prompts of 2 / 1 tokens"
    )


def test_groups_are_compared_one_by_one(make_speculated: Make) -> None:
    left = make_speculated([5, 6, 7], (1, (6, 9), 1))
    right = make_speculated([5, 6, 7], (1, (6, 8), 1))
    assert difference(left, right, "logits") is None
    assert difference(left, right, "drafts") == (
        "group 0 at step 1 / 1: drafted [6, 9] / [6, 8], accepted 1 / 1"
    )
    none = make_speculated([5, 6, 7])
    assert difference(left, none, "drafts") == "1 / 0 groups, equal up to there"


@pytest.mark.parametrize(
    ("left", "right", "place"), [("ab", "ab", 2), ("ab", "ac", 1), ("a", "ab", 1), ("", "", 0)]
)
def test_first_differing_character(left: str, right: str, place: int) -> None:
    assert first_differing(left, right) == place


def test_first_step_is_none_for_a_prefix(make_evidence: Make) -> None:
    assert first_step(make_evidence([5, 6]), make_evidence([5, 6, 7])) is None
    assert first_step(make_evidence([5, 6]), make_evidence([5, 7])) == 1


def test_a_digest_covers_every_row_in_order(make_evidence: Make) -> None:
    one, other = make_evidence([5, 6]), make_evidence([6, 5])
    assert digest([one, other]) != digest([other, one])
    assert digest([one]) == digest([make_evidence([5, 6])])

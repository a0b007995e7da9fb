from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import pytest

from sluice.sweep.answered import answered, by_place, steps
from sluice.sweep.arm import parse
from sluice.sweep.row import Row
from sluice.targets.server_reply import Reply

OFF, FIXED, VARIABLE = parse("off"), parse("n_max=3"), parse("n_max=3,p_min=0.7")
REPLY = Reply("text", (), 5, 0, 10.0, 21, 400.0, 0, 0, verify_steps=0, accepted_by_position=())
DRAFTED = dataclasses.replace(
    REPLY, drafted=23, accepted=11, verify_steps=8, accepted_by_position=(6, 3, 2)
)


def blank(arm: str) -> Row:
    return Row(identity="i", arm=arm, workload="w", workload_key="k", prompt="p", repeat=0)


def changed(**changes: Any) -> Reply:
    return dataclasses.replace(DRAFTED, **changes)


def test_an_answer_without_drafts_is_as_many_steps_as_tokens() -> None:
    row = answered(blank("off"), OFF, REPLY, is_greedy=True)
    assert (row.outcome, row.n_prompt, row.prompt_s) == ("ok", 5, 0.01)
    assert (row.n_decoded, row.n_verify, row.n_undrafted, row.effective_s) == (20, 0, 20, 0.4)
    assert row.decode_s is None, "a server does not tell it apart"
    assert row.text_sha256 == hashlib.sha256(b"text").hexdigest()
    assert answered(blank("off"), OFF, REPLY, is_greedy=False).text_sha256 == ""


def test_counters_of_the_server_are_taken_as_they_are() -> None:
    row = answered(blank("n_max=3"), FIXED, DRAFTED, is_greedy=True)
    assert (row.n_drafted, row.n_accepted, row.n_verify, row.n_undrafted) == (23, 11, 8, 1)
    assert (row.offered_at, row.accepted_at) == ((8, 8, 7), (6, 3, 2))


def test_steps_follow_at_a_fixed_length_where_the_server_does_not_count_them() -> None:
    silent = changed(verify_steps=None, accepted_by_position=None)
    assert steps(FIXED, silent) == (8, 1)
    assert steps(VARIABLE, silent) == (None, None)
    assert steps(parse("n_max=3,n_min=2"), silent) == (None, None)


@pytest.mark.parametrize(
    ("arm", "changes"),
    [
        (VARIABLE, {}),  # who knows which drafts reached a place
        (FIXED, {"verify_steps": 9}),  # more than one draft was cut short
        (FIXED, {"verify_steps": 0}),
        (FIXED, {"accepted_by_position": None}),
        (FIXED, {"accepted_by_position": (6, 3, 1, 1)}),  # longer than the arm drafts
        (FIXED, {"accepted_by_position": (2, 1, 8)}),  # more than can have been offered there
    ],
)
def test_places_are_not_made_up(arm: Any, changes: dict[str, Any]) -> None:
    assert by_place(arm, changed(**changes)) == (None, None)


def test_a_server_that_drafts_where_nothing_should_costs_the_row() -> None:
    row = answered(blank("off"), OFF, DRAFTED, is_greedy=True)
    assert row.outcome == "failed"
    assert "drafted 23 tokens, and the arm is off" in row.error


def test_a_time_that_cannot_be_costs_the_row() -> None:
    row = answered(blank("off"), OFF, dataclasses.replace(REPLY, predicted_ms=0.0), is_greedy=True)
    assert (row.outcome, row.error) == ("failed", "20 tokens decoded in no time")


@pytest.mark.parametrize(
    ("arm", "changes"),
    [
        ("n_max=3", {"drafted": 0, "accepted": 0, "verify_steps": 0}),  # started with MTP off
        ("n_max=3", {"drafted": 60, "accepted": 10}),  # 8 steps of 3 are 24 at most
        ("n_max=3,p_min=0.7", {"drafted": 60, "accepted": 10}),
        ("n_max=1", {"drafted": 60, "accepted": 10, "verify_steps": None}),
    ],
)
def test_drafts_of_a_server_that_was_started_otherwise_cost_the_row(
    arm: str, changes: dict[str, Any]
) -> None:
    row = answered(blank(arm), parse(arm), changed(**changes), is_greedy=True)
    assert row.outcome == "failed"
    assert f"and the arm is {arm}: it was started otherwise" in row.error


@pytest.mark.parametrize("arm", ["n_max=3,p_min=0.7", "n_max=3,n_min=2"])
def test_an_arm_that_may_draft_nothing_may_draft_nothing(arm: str) -> None:
    assert answered(blank(arm), parse(arm), REPLY, is_greedy=True).outcome == "ok"

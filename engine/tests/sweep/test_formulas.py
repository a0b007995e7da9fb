from __future__ import annotations

import pytest

from sluice.sweep import formulas


def test_acceptance_and_mean_len() -> None:
    assert formulas.acceptance(3, 4) == 0.75
    assert formulas.mean_len(6, 4) == 2.5
    assert formulas.tokens_per_step(12, 5) == 2.4


def test_nothing_divided_by_nothing_is_not_known() -> None:
    assert formulas.acceptance(0, 0) is None
    assert formulas.mean_len(0, 0) is None
    assert formulas.tok_s(5, 0) is None
    assert formulas.mib_per_token(1, 0) is None
    assert formulas.step_time_s(2.0, 0) is None


def test_acceptance_of_a_fixed_length_both_ways() -> None:
    assert formulas.acceptance_of_fixed(3.1, 3) == pytest.approx(0.7)
    assert formulas.step_tokens_of_fixed(0.7, 3) == pytest.approx(3.1)


@pytest.mark.parametrize(("n_drafted", "n_steps"), [(0, 0), (9, 3), (10, 4), (11, 4), (12, 4)])
def test_steps_of_a_fixed_length_count_the_last_short_draft(n_drafted: int, n_steps: int) -> None:
    assert formulas.steps_of_fixed(n_drafted, 3) == n_steps


def test_steps_are_the_tokens_that_no_draft_gave() -> None:
    # Steps that give 1 + accepted tokens: 1 + 0, 1 + 2, 1 + 3.
    assert formulas.steps_of_counts(8, 5) == 3
    assert formulas.steps_of_counts(0, 2) == 0


def test_costs_of_slots() -> None:
    cost = formulas.slot_cost_s(0.040, 0.025, 3)
    assert cost == pytest.approx(0.005)
    assert formulas.slot_share(0.005, 0.025) == pytest.approx(0.2)


@pytest.mark.parametrize("tokens", [1.0, 2.2, 3.6])
@pytest.mark.parametrize("seconds", [0.006, 0.024])
@pytest.mark.parametrize("cost_s", [0.0005, 0.003])
def test_a_slot_that_adds_just_what_it_must_leaves_the_rate_as_it_was(
    tokens: float, seconds: float, cost_s: float
) -> None:
    rate = tokens / seconds
    gain = formulas.gain_to_pay(cost_s, rate)
    assert (tokens + gain) / (seconds + cost_s) == pytest.approx(rate)
    assert (
        (tokens + gain * 1.1) / (seconds + cost_s)
        > rate
        > (tokens + gain * 0.9) / (seconds + cost_s)
    )


def test_mebibytes() -> None:
    assert formulas.mib_per_token(6 << 20, 3) == 2.0

from __future__ import annotations

import dataclasses

import pytest

from sluice.errors import RequestError
from sluice.sweep.figures import ArmFigures, figures
from sluice.sweep.ranking import rankings
from sluice.sweep.row import Row

from .making import row


def of(rows: list[Row], arm: str, is_cold: bool | None = None) -> ArmFigures:
    (found,) = [f for f in figures(rows) if (f.arm.name, f.is_cold) == (arm, is_cold)]
    return found


def test_acceptance_over_requests_and_over_tokens_come_apart() -> None:
    # A short text that the head knows, and a long one that it does not.
    rows = [row("n_max=2", "a", step_tokens=3, n_steps=10),
            row("n_max=2", "b", step_tokens=1.5, n_steps=100)]  # fmt: skip
    found = of(rows, "n_max=2")
    assert found.acceptance_requests == pytest.approx((20 / 20 + 50 / 200) / 2)
    assert found.acceptance_tokens == pytest.approx(70 / 220)
    assert (found.n_drafted, found.n_accepted) == (220, 70)


def test_a_request_that_drafted_nothing_has_no_acceptance() -> None:
    nothing = row("n_max=6,p_min=0.9", n_drafted=0, n_accepted=0, n_verify=0, n_undrafted=100)
    some = row("n_max=6,p_min=0.9", "b", step_tokens=2, n_drafted=200)
    assert of([nothing, some], "n_max=6,p_min=0.9").acceptance_requests == 0.5
    assert of([nothing], "n_max=6,p_min=0.9").acceptance_requests is None
    assert of([nothing], "n_max=6,p_min=0.9").mean_len is None


def test_mean_len_leaves_out_steps_that_verified_nothing() -> None:
    found = of([row("n_max=6,p_min=0.9", n_drafted=60, n_accepted=50, n_verify=40, n_undrafted=60,
                    n_decoded=150)], "n_max=6,p_min=0.9")  # fmt: skip
    assert found.mean_len == 1 + 50 / 40
    assert found.n_undrafted == 60
    assert found.tokens_per_step is not None
    assert found.tokens_per_step.mean == 1.5
    assert found.drafted_per_step == 0.6


def test_acceptance_by_place_sums_first() -> None:
    a = row("n_max=2", "a", step_tokens=2, offered_at=(100, 100), accepted_at=(60, 40))
    b = row("n_max=2", "b", step_tokens=2, offered_at=(100, 50), accepted_at=(90, 10))
    unknown = row("n_max=2", "c", step_tokens=2)
    places = of([a, b, unknown], "n_max=2").places
    assert [(p.place, p.n_offered, p.n_accepted) for p in places] == [(1, 200, 150), (2, 150, 50)]
    assert places[0].acceptance == 0.75


def test_rates_are_the_mean_of_prompts_each_the_mean_of_its_repeats() -> None:
    rows = [row(prompt="a", rate=10), row(prompt="a", repeat=1, rate=12), row(prompt="b", rate=21)]
    rate = of(rows, "off").effective_tok_s
    assert rate is not None
    assert (rate.mean, rate.low, rate.high, rate.n) == pytest.approx((16, 11, 21, 2))
    assert of(rows, "off").n_requests == 3


def test_decode_and_effective_rates_are_two() -> None:
    found = of([row("n_max=2", step_tokens=2, rate=50, decode_s=2.0)], "n_max=2")
    assert found.tok_s is not None
    assert found.tok_s.mean == 100
    assert of([row()], "off").tok_s is None


def test_step_time_is_tokens_per_step_over_the_effective_rate() -> None:
    assert of([row("n_max=3", step_tokens=2.5, rate=62.5)], "n_max=3").step_s == pytest.approx(0.04)
    assert of([row(rate=50)], "off").step_s == pytest.approx(0.02)


def test_slots_cost_against_off_and_against_the_next_shorter_length() -> None:
    rows = [row(rate=50), row("n_max=2", step_tokens=2, rate=2 / 0.030),
            row("n_max=4", step_tokens=2.4, rate=2.4 / 0.044),
            row("n_max=6,p_min=0.5", step_tokens=2, rate=2 / 0.030, n_drafted=250)]  # fmt: skip
    off, two, four, dynamic = figures(rows)
    assert off.slot_off is None
    assert two.slot_off is not None
    assert two.slot_off.cost_s == pytest.approx(0.005)
    assert two.slot_off.share == pytest.approx(0.25)
    assert two.slot_next == two.slot_off
    assert four.slot_next is not None
    assert four.slot_next.against == "n_max=2"
    assert four.slot_next.cost_s == pytest.approx(0.007)
    assert four.slot_next.gain == pytest.approx(0.2)
    assert four.slot_next.gain_to_pay == pytest.approx(0.007 * 2 / 0.030)
    assert not four.slot_next.pays
    assert two.slot_next is not None
    assert two.slot_next.pays
    assert (dynamic.slot_off, dynamic.slot_next) == (None, None)
    assert dynamic.drafted_per_step == 2.5


def test_costs_are_taken_over_the_prompts_that_both_arms_have() -> None:
    rows = [row(prompt="a", rate=50), row(prompt="slow", rate=1),
            row("n_max=2", "a", step_tokens=2, rate=2 / 0.030)]  # fmt: skip
    slot = of(rows, "n_max=2").slot_off
    assert slot is not None
    assert slot.cost_s == pytest.approx(0.005)
    assert slot.share == pytest.approx(0.25)
    assert of([rows[1], rows[2]], "n_max=2").slot_off is None


def test_a_streamed_arm_is_held_against_its_own_off_cold_and_warm() -> None:
    arms = "off,moe_stream", "n_max=2,moe_stream"
    rows = [row("off", rate=1000)]
    for repeat, (cold, rate) in enumerate([(True, 5), (False, 20)]):
        rows += [
            row(arms[0], repeat=repeat, rate=rate, is_cold=cold, read_bytes=100 << 20),
            row(arms[1], repeat=repeat, step_tokens=2, rate=rate, is_cold=cold,
                read_bytes=300 << 20, stall_s=2.0),
        ]  # fmt: skip
    order = [(f.arm.name, f.is_cold) for f in figures(rows)]
    assert order == [("off", None), (arms[0], True), (arms[0], False), (arms[1], True),
                     (arms[1], False)]  # fmt: skip
    warm = of(rows, arms[1], is_cold=False)
    assert warm.slot_off is not None
    assert warm.slot_off.against == arms[0]
    assert warm.slot_off.cost_s == pytest.approx((2 / 20 - 1 / 20) / 2)
    assert warm.mib_per_token == pytest.approx(1.5)
    assert warm.mib_per_accepted == pytest.approx(3.0)
    assert warm.stall_s_per_token == pytest.approx(0.01)
    assert of(rows, arms[0], is_cold=True).mib_per_accepted is None
    assert of(rows, "off").mib_per_token is None


def test_a_shorter_arm_that_streams_in_another_way_is_no_neighbour() -> None:
    rows = [row("off,moe_stream", rate=20), row("n_max=2", step_tokens=2, rate=60),
            row("n_max=3,moe_stream", step_tokens=2, rate=25)]  # fmt: skip
    slot = of(rows, "n_max=3,moe_stream").slot_next
    assert slot is not None
    assert slot.against == "off,moe_stream"


def test_a_failure_of_an_arm_that_was_cold_and_warm_is_counted_once() -> None:
    rows = [row("off,moe_stream", is_cold=True), row("off,moe_stream", repeat=1, is_cold=False),
            row("off,moe_stream", "b", outcome="failed", error="died")]  # fmt: skip
    assert [f.n_failed for f in figures(rows)] == [1, 0]


def test_what_is_not_told_is_not_made_up() -> None:
    silent = row("n_max=2", step_tokens=2, n_verify=None, n_undrafted=None)
    found = of([row(), silent], "n_max=2")
    assert (found.mean_len, found.tokens_per_step, found.step_s) == (None, None, None)
    assert (found.slot_off, found.places) == (None, ())
    assert found.effective_tok_s is not None
    assert of([silent, row("n_max=2", "b", step_tokens=2)], "n_max=2").mean_len is None


def test_failed_and_refused_requests_count_for_nothing_but_their_reasons() -> None:
    rows = [row(), row(prompt="b", outcome="failed", error="died", n_decoded=7, text_sha256="x"),
            row("n_max=2", outcome="refused", error="a rule")]  # fmt: skip
    off, two = figures(rows)
    assert (off.n_requests, off.n_failed, off.failures, off.n_decoded) == (1, 1, ("died",), 100)
    assert dict(off.hashes) == {"a": ("t",)}
    assert (two.n_requests, two.n_refused, two.refusals) == (0, 1, ("a rule",))
    assert two.effective_tok_s is None
    assert two.step_s is None


def test_a_text_that_ended_with_its_first_token_is_no_rate_and_is_not_ranked() -> None:
    rows = [row(repeat=repeat, n_decoded=0, decode_s=0.01, effective_s=0.01) for repeat in (0, 1)]
    found = of(rows, "off")
    assert (found.effective_tok_s, found.tok_s) == (None, None)
    assert rankings(rows) == ()


def test_a_request_of_one_token_is_no_rate() -> None:
    found = of([row(n_steps=0, effective_s=0.0)], "off")
    assert (found.n_requests, found.effective_tok_s, found.step_s) == (1, None, None)


def test_workloads_come_in_their_order_each_with_every_arm_in_its_order() -> None:
    rows = [row("n_max=2", workload="x"), row("off", workload="y"), row("off", workload="x"),
            row("n_max=2", workload="y")]  # fmt: skip
    assert [(f.workload, f.arm.name) for f in figures(rows)] == [
        ("x", "n_max=2"), ("x", "off"), ("y", "n_max=2"), ("y", "off"),
    ]  # fmt: skip
    assert figures([]) == ()


def test_a_row_whose_arm_is_spelled_another_way_is_refused() -> None:
    with pytest.raises(RequestError, match="its name is n_max=3"):
        figures([row("n_max= 3")])


def test_a_row_of_no_arm_is_refused() -> None:
    with pytest.raises(RequestError, match="fast is no setting of an arm"):
        figures([dataclasses.replace(row(), arm="fast")])

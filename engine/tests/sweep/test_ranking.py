from __future__ import annotations

from sluice.sweep.ranking import Ranking, noise_of, rankings
from sluice.sweep.row import Row

from .making import row


def repeated(arm: str, rate: float, spread: float = 0.01, prompts: str = "abc") -> list[Row]:
    """Three repeats of each prompt, a standard deviation of ``spread`` apart."""
    return [row(arm, prompt, repeat, rate=rate * (1 + spread * (repeat - 1)), is_cold=None)
            for prompt in prompts for repeat in range(3)]  # fmt: skip


def one(rows: list[Row]) -> Ranking:
    (found,) = rankings(rows)
    return found


def test_the_fastest_arm_outside_the_noise() -> None:
    found = one([*repeated("off", 50), *repeated("n_max=3", 89), *repeated("n_max=4", 92)])
    assert [(a.arm, a.rank) for a in found.arms] == [("n_max=4", 1), ("n_max=3", 2), ("off", 3)]
    assert found.is_settled
    assert found.fastest == ("n_max=4",)
    assert found.noise is not None
    assert found.noise.freedom == 18


def test_differences_inside_the_noise_are_not_ranked() -> None:
    found = one([*repeated("off", 50), *repeated("n_max=2", 62.9), *repeated("n_max=3", 62.5)])
    assert [(a.arm, a.rank) for a in found.arms] == [("n_max=2", 1), ("n_max=3", 1), ("off", 3)]
    assert found.fastest == ("n_max=2", "n_max=3")
    assert not found.is_apart("n_max=3", "n_max=2")
    assert found.is_apart("n_max=3", "off")
    assert not found.is_settled


def test_one_repeated_arm_gives_the_noise_of_all() -> None:
    rows = [*repeated("off", 50, prompts="a"), row("n_max=2", "a", rate=51),
            row("n_max=3", "a", rate=70)]  # fmt: skip
    found = one(rows)
    assert found.noise is not None
    assert found.noise.freedom == 2
    assert [(a.arm, a.rank) for a in found.arms] == [("n_max=3", 1), ("n_max=2", 2), ("off", 2)]


def test_without_repeats_nothing_is_ranked() -> None:
    found = one([row("off", rate=50), row("n_max=3", rate=90)])
    assert [(a.arm, a.rank, a.floor) for a in found.arms] == [
        ("n_max=3", None, None), ("off", None, None),
    ]  # fmt: skip
    assert found.fastest == ()
    assert not found.is_settled


def test_arms_are_compared_on_the_prompts_that_both_have() -> None:
    rows = [row("off", "a", rate=50), row("off", "b", rate=50), row("n_max=2", "b", rate=60),
            row("off", "c", rate=500), row("n_max=2", "a", rate=60)]  # fmt: skip
    found = one(rows)
    assert [a.arm for a in found.arms] == ["n_max=2", "off"]
    assert found.n_prompts == 2


def test_an_arm_with_few_prompts_takes_none_from_the_others() -> None:
    rows = [row(arm, p, rate=50) for arm in ("off", "n_max=2") for p in "abc"]
    found = one([*rows, row("n_max=3", "a", rate=99)])
    assert {a.arm for a in found.arms} == {"off", "n_max=2"}
    assert found.n_prompts == 3


def test_cold_and_unmeasured_rows_are_left_out() -> None:
    rows = [row(rate=50, is_cold=True), row(repeat=1, rate=90, is_cold=False),
            row("n_max=2", rate=95, is_cold=False), row("n_max=3", outcome="failed")]  # fmt: skip
    found = one(rows)
    assert [(a.arm, a.n_requests) for a in found.arms] == [("n_max=2", 1), ("off", 1)]
    assert noise_of(rows) is None
    assert rankings([row(outcome="failed")]) == ()


def test_each_workload_is_ranked_by_itself() -> None:
    rows = [row(workload="x", rate=10), row("n_max=2", workload="x", rate=20),
            row(workload="y", rate=20), row("n_max=2", workload="y", rate=10)]  # fmt: skip
    assert [(r.workload, r.arms[0].arm) for r in rankings(rows)] == [("x", "n_max=2"), ("y", "off")]

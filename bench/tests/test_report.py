from __future__ import annotations

import pytest

from arms import MIB, Arm, Budgets, all_arms
from report import (
    Bar,
    Spread,
    Taken,
    bars,
    ideal_tok_s,
    of_ideal,
    rate_to,
    spread,
    summary,
    table,
    tok_s,
)
from worker import Measured

ARMS = {arm.name: arm for arm in all_arms(Budgets(third=100, all=300, third_head=1, all_head=1))}


def run(tok_s: float, **reads: float) -> Taken:
    """A run of 10 tokens at ``tok_s``."""
    return Taken(
        Measured(n_tokens=10, wall_s=10 / tok_s, reads=dict(reads), peak_rss_bytes=7 * MIB)
    )


def disk(mib_s: float) -> Taken:
    """The disk alone, for 2 s."""
    return Taken(Measured(raw_bytes=round(2 * mib_s * MIB), wall_s=2.0))


def reading(tok_s: float, mib_token: float, stall: float, **more: float) -> Taken:
    """A run that reads, and waits for a share of its time."""
    more |= {"read_bytes": 10 * mib_token * MIB, "stall_s": stall * 10 / tok_s}
    return run(tok_s, **more)


ROUND = {
    "raw": disk(1000.0),
    "resident": run(20.0),
    "off": reading(5.0, 100.0, 0.6),
    "third": reading(10.0, 40.0, 0.5, n_hits=70, n_misses=30),
    "third+predict": reading(16.0, 60.0, 0.1, n_hits=90, n_misses=10, n_ahead=40, n_ahead_used=30),
    "all": run(19.0, n_hits=100),
    "limit-mmap": run(2.0),
    "limit-auto": reading(8.0, 45.0, 0.4, n_hits=60, n_misses=40),
}


def test_a_row_is_what_its_counters_say() -> None:
    row = summary(ARMS["off"], [ROUND])
    assert row.tok_s == Spread(5.0, 5.0, 5.0)
    assert row.to_resident is not None
    assert row.to_resident.median == 0.25
    assert row.mib_token is not None
    assert row.mib_token.median == 100.0
    assert row.stall is not None
    assert row.stall.median == pytest.approx(0.6)
    assert row.of_raw is not None
    assert row.of_raw.median == pytest.approx(1000 / 1.2 / 1000)  # 1,000 MiB in 1.2 s of waiting
    assert row.disk_use is not None
    assert row.disk_use.median == pytest.approx(0.5)
    assert row.hit_rate is None
    ahead = summary(ARMS["third+predict"], [ROUND])
    assert ahead.of_raw is None, "it also reads while nobody waits"
    assert ahead.hit_rate is not None
    assert ahead.hit_rate.median == 0.9
    assert ahead.ahead_used is not None
    assert ahead.ahead_used.median == 0.75


def test_ratios_are_within_a_round_and_the_median_is_over_them() -> None:
    rounds = [{"resident": run(a), "off": run(b)} for a, b in ((20, 10), (2, 1.5), (10, 4))]
    assert spread(rounds, "off", rate_to("resident")) == Spread(0.5, 0.4, 0.75)
    assert spread(rounds, "off", tok_s) == Spread(4.0, 1.5, 10.0)
    rounds.append({"off": run(1.0)})  # a round whose reference failed has no ratio
    assert spread(rounds, "off", rate_to("resident")) == Spread(0.5, 0.4, 0.75)


def test_a_ratio_is_to_what_took_turns_with_the_arm() -> None:
    # The machine was twice as fast while this arm was measured as it was before.
    beside = {"resident": run(40.0).own, "raw": disk(2000.0).own}
    fast = Taken(reading(20.0, 60.0, 0.1).own, beside)
    here = ROUND | {"third+predict": fast}
    assert rate_to("resident")(here, "third+predict") == 0.5
    assert rate_to("resident")(here, "all") == 0.95, "nothing took turns with that"
    assert ideal_tok_s(here, "third+predict") == pytest.approx(40.0)
    assert of_ideal(here, "third+predict") == pytest.approx(0.5)
    failed = Taken(fast.own, {"resident": Measured(error="ended with -9")})
    assert rate_to("resident")({**here, "third+predict": failed}, "third+predict") is None


def test_the_ideal_is_the_slower_of_compute_and_of_the_reads_that_are_needed() -> None:
    assert ideal_tok_s(ROUND, "third+predict") == pytest.approx(20.0)  # 40 MiB take 40 ms, not 60
    slow_disk = ROUND | {"raw": disk(500.0)}
    assert ideal_tok_s(slow_disk, "third+predict") == pytest.approx(12.5)
    assert ideal_tok_s({"resident": run(1.0)}, "third+predict") is None


def test_the_bars() -> None:
    lines = [bar.line for bar in bars([ROUND])]
    assert lines == [
        "everything cached, to resident: wanted 0.95, got 0.95, holds",
        "cache off, serial: reads to the raw bandwidth: wanted 0.85, got 0.83, does not hold",
        "overlap and read-ahead (third+predict), to the ideal time: wanted 0.80, got 0.80, holds",
        "in memory of a third of the file, to plain mmap: wanted 3.00, got 4.00, holds",
    ]


def test_a_bar_that_was_not_measured_says_why() -> None:
    found = bars([{"resident": run(1.0)}], "no memory cgroup: none is mounted")
    assert [bar.holds for bar in found] == [None] * 4
    assert found[0].line.endswith("wanted 0.95, not measured: its arms were not all measured")
    assert found[3].line.endswith("not measured: no memory cgroup: none is mounted")


def test_a_bar_goes_by_the_median_and_shows_the_range() -> None:
    bar = Bar("x", 0.95, Spread(0.96, 0.9, 1.0), "")
    assert bar.holds
    assert bar.line == "x: wanted 0.95, got 0.96 (0.90 to 1.00), holds"


def test_the_table_has_a_row_an_arm_and_the_words_of_what_failed() -> None:
    here = ROUND | {"limit-mmap": Taken(Measured(error="killed: 10 MiB of memory were not enough"))}
    lines = list(table([*ARMS.values()], [here]))
    rows = {line.split(" | ")[0]: line for line in lines if line.startswith("| ")}
    assert set(rows) == {"| ", *(f"| {ARMS[name].label}" for name in ROUND if name != "raw")}
    assert rows["| cache off"] == (
        "| cache off | 5.0 | 0.25 | 100.0 |  | 60% | 83% | 50% |  |  | 7 |"
    )
    assert rows["| memory of a third: mmap"].startswith("| memory of a third: mmap | failed |")
    assert "the disk alone, same blocks and lanes: 1000 MiB/s" in lines
    assert lines[-1] == "memory of a third: mmap: killed: 10 MiB of memory were not enough"


def test_what_failed_beside_an_arm_is_said_too() -> None:
    lost = Taken(ROUND["off"].own, {"raw": Measured(error="ended with -9")})
    here = ROUND | {"off": lost, "raw": Taken(Measured(error="no O_DIRECT"))}
    lines = list(table([*ARMS.values()], [here]))
    assert lines[-2:] == [
        f"{ARMS['raw'].label}: no O_DIRECT",
        "cache off: raw beside it: ended with -9",
    ]
    own = Taken(disk(1000.0).own, {"raw": Measured(error="ended with -9")})
    said = list(table([*ARMS.values()], [ROUND | {"raw": own}]))
    assert "the disk alone, same blocks and lanes: 1000 MiB/s" in said


def test_a_failed_run_counts_nowhere() -> None:
    broken = run(100.0)
    broken.own.error = "ended with -11"
    rounds = [{"resident": run(10.0), "off": broken}, {"resident": run(10.0), "off": run(5.0)}]
    row = summary(Arm("off", "off", changes={"moe_stream": True}), rounds)
    assert row.tok_s == Spread(5.0, 5.0, 5.0)
    assert row.error == "ended with -11"

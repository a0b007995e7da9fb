from __future__ import annotations

from collections.abc import Callable

import pytest

from sluice.config import Config
from sluice.errors import SystemFault
from sluice.triage import switches
from sluice.triage.attribute import Attributor
from sluice.triage.side import Outcome, Side

BASE = Config(model="m", threads=1, ctx=256)


def attribute(evidence, b: Config, flips: Callable[[Side], bool], **rest):
    """Side B's answer comes wherever ``flips`` says so."""
    mine, other = evidence([5, 6, 7]), evidence([5, 6, 8])
    ran: list[Side] = []

    def runner(side: Side) -> Outcome:
        ran.append(side)
        return Outcome(other if flips(side) else mine)

    setups = switches.setup(BASE), switches.setup(b)
    made = Attributor(
        Side(b, "x"), *setups, mine, other, step=2, level="ids", runner=rest.get("runner", runner)
    )
    return made.attribute(), ran


def test_one_switch_of_many(evidence) -> None:
    b = BASE.replace(ubatch=64, mtp=True, draft=5, threads=2, ctx=512)
    found, ran = attribute(evidence, b, lambda side: side.config.ubatch == 64)
    assert found.flips == ("ubatch",)
    assert [one.name for one in found.tried] == ["threads", "context", "ubatch", "mtp",
                                                 "draft width"]  # fmt: skip
    assert {side.config.n for side in ran} == {3}


def test_two_switches_that_need_each_other(evidence) -> None:
    b = BASE.replace(ubatch=64, mtp=True, draft=5, threads=2)
    found, _ = attribute(evidence, b, lambda side: side.config.mtp and side.config.draft == 5)
    assert found.flips == ("mtp", "draft width")


def test_the_kernels_that_a_flip_acts_through(evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.llama.kernels.present", lambda _name: True)
    monkeypatch.setattr("sluice.llama.kernels.switchable", lambda _name: True)
    found, _ = attribute(
        evidence, BASE.replace(ubatch=1),
        lambda side: side.config.ubatch == 1 and "tiled" not in side.off,
    )  # fmt: skip
    assert (found.flips, found.kernels, found.kernels_tried) == (("ubatch",), ("tiled",), True)


def test_an_answer_that_does_not_come_again(evidence) -> None:
    found, _ = attribute(evidence, BASE.replace(threads=2), lambda _side: False)
    assert found.flips == ()
    assert "did not give side B's answer again" in (found.note or "")


def test_a_combination_that_is_refused_is_an_arm_that_failed(evidence) -> None:
    # --draft 8 with --ubatch 4 is refused, --ubatch 4 alone is not.
    b = BASE.replace(ubatch=10, mtp=True, draft=8)
    found, _ = attribute(evidence, b, lambda side: side.config.ubatch == 10)
    assert found.flips == ("ubatch",)

    def broken(_side: Side) -> Outcome:
        raise SystemFault("no such machine")

    found, _ = attribute(evidence, b, lambda _side: True, runner=broken)
    assert {(arm.outcome, arm.detail) for arm in found.arms} == {("failed", "no such machine")}


def test_arms_of_switches_and_of_kernels_share_one_limit(
    evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.llama.kernels.present", lambda _name: True)
    monkeypatch.setattr("sluice.llama.kernels.switchable", lambda _name: True)

    def found(most: int):
        monkeypatch.setattr("sluice.triage.attribute.MOST_ARMS", most)
        return attribute(
            evidence, BASE.replace(ubatch=1),
            lambda side: side.config.ubatch == 1 and not {"tiled", "sgemm"} <= side.off,
        )[0]  # fmt: skip

    whole = found(40)
    assert (whole.kernels, whole.note) == (("sgemm", "tiled"), None)
    needed = len(whole.arms)
    assert needed > 3
    assert found(needed) == whole  # the limit is reached and nothing was refused
    for most in range(1, needed):
        cut = found(most)
        assert cut.arms == whole.arms[:most]
        assert (cut.flips, cut.kernels, cut.kernels_tried) == (("ubatch",), (), False)
        assert cut.note == f"stopped after {most} arms"

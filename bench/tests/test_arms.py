from __future__ import annotations

import pytest

from arms import Arm, Budgets, all_arms, chosen
from sluice.config import Config, validate

BUDGETS = Budgets(third=100, all=300, third_head=110, all_head=330)
PEER = "peer -m {model} -n {n} --cache {cache_mb}"


def named(name: str, peer: str = "") -> Arm:
    return chosen(all_arms(BUDGETS, peer), [name])[0]


def test_every_engine_arm_is_a_run_that_the_engine_takes() -> None:
    arms = all_arms(BUDGETS)
    assert len({arm.name for arm in arms}) == len({arm.label for arm in arms}) == len(arms)
    for arm in arms:
        if arm.kind == "engine":
            validate(Config(model="m.gguf").replace(**arm.changes))


def test_what_an_arm_is_follows_from_its_settings() -> None:
    assert not named("resident").is_streamed
    assert named("off").is_serial
    assert not named("off").is_cached
    assert named("third").is_serial
    for name in ("third+overlap", "third+predict", "third+prefetch"):
        assert named(name).is_cached
        assert not named(name).is_serial
    assert named("mtp3-third").changes["cache_mb"] == BUDGETS.third_head
    assert named("limit-auto").limited
    assert named("limit-mmap").limited


def test_without_a_cache_nothing_is_read_ahead() -> None:
    names = {arm.name for arm in all_arms(BUDGETS) if arm.name.startswith("off")}
    assert names == {"off", "off+overlap"}


def test_a_peer_runs_at_every_size_that_it_can_be_told() -> None:
    sizes = {a.name: a.cache_mb for a in all_arms(BUDGETS, PEER) if a.kind == "peer"}
    assert sizes == {"peer-off": 0, "peer-third": 100, "peer-all": 300}
    plain = all_arms(BUDGETS, "peer {model} {n}")
    assert [arm.name for arm in plain if arm.kind == "peer"] == ["peer-given"]
    assert not any(arm.kind == "peer" for arm in all_arms(BUDGETS))


def test_arms_keep_the_order_of_the_table_and_an_unknown_one_is_named() -> None:
    arms = all_arms(BUDGETS)
    assert [arm.name for arm in chosen(arms, ["off", "raw"])] == ["raw", "off"]
    assert chosen(arms, []) == arms
    with pytest.raises(KeyError, match="half"):
        chosen(arms, ["off", "half"])

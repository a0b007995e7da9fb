from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from sluice.config import Config
from sluice.errors import RequestError
from sluice.sweep.row import Counts, Identity, Row
from sluice.targets import EngineTarget
from sluice.telemetry.evidence import Group

from .making import IDENTITY, row


def test_a_row_is_read_back_as_it_was_written() -> None:
    full = row("n_max=2", step_tokens=2, offered_at=(100, 90), accepted_at=(60, 40), decode_s=1.5,
               read_bytes=5, stall_s=0.1, is_cold=False, error="é\n")  # fmt: skip
    line = full.to_line()
    assert line.endswith("\n")
    assert line.count("\n") == 1
    assert json.loads(line)["schema"] == "sluice-sweep/1"
    assert Row.from_dict(json.loads(line), "here") == full


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "sluice-sweep/2"}, "schema sluice-sweep/2, this Sluice reads sluice-sweep/1"),
        ({"arm": 3}, "arm is 3, not str"),
        ({"repeat": True}, "repeat is True, not int"),
        ({"n_verify": 1.5}, "n_verify is 1.5, not int | None"),
        ({"effective_s": "1"}, "effective_s is '1', not float"),
        ({"effective_s": None}, "effective_s is None, not float"),
        ({"is_cold": 1}, "is_cold is 1, not bool | None"),
        ({"offered_at": [1, "x"]}, "offered_at is"),
        ({"outcome": "maybe"}, "outcome 'maybe' is none of ok, failed, refused"),
        ({"colour": 1}, "colour is no field"),
    ],
)
def test_a_foreign_row_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message.replace("|", r"\|")) as caught:
        Row.from_dict(row().as_dict() | change, "rows.jsonl line 3")
    assert str(caught.value).startswith("rows.jsonl line 3: ")


def test_a_row_without_a_field_is_refused() -> None:
    raw = row().as_dict()
    del raw["prompt"]
    with pytest.raises(RequestError, match="prompt is missing"):
        Row.from_dict(raw, "here")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"n_drafted": 3, "n_accepted": 4}, "4 drafts accepted of 3"),
        ({"n_decoded": -1}, "n_decoded is -1: no count and no time"),
        ({"effective_s": float("nan")}, "effective_s is nan"),
        ({"effective_s": 0.0}, "tokens decoded in no time"),
        ({"offered_at": (3,), "accepted_at": (4,)}, "by place in the draft (4,) accepted of (3,)"),
        ({"offered_at": (3, 1), "accepted_at": (2,)}, "by place in the draft"),
        ({"n_verify": 0}, "drafts accepted in no verify step"),
        ({"n_decoded": 10**400}, "n_decoded is 100000000000000000000000000000: no count"),
    ],
)
def test_nonsense_costs_its_row(change: dict[str, Any], error: str) -> None:
    good = row("n_max=2", step_tokens=2)
    assert good.checked() is good
    bad = dataclasses.replace(good, **change).checked()
    assert bad.outcome == "failed"
    assert error in bad.error
    # A file of rows that holds it was edited.
    edited = good.as_dict() | {k: list(v) if isinstance(v, tuple) else v for k, v in change.items()}
    with pytest.raises(RequestError, match="line 3: ") as err:
        Row.from_dict(edited, "line 3")
    assert error in str(err.value)
    assert "\n" not in str(err.value)


def test_half_a_character_in_a_row_is_refused() -> None:
    with pytest.raises(RequestError, match="line 3: prompt holds half a character"):
        Row.from_dict(row(prompt="\ud800").as_dict(), "line 3")


def test_what_was_not_measured_is_not_judged() -> None:
    failed = row(outcome="failed", error="timed out", n_decoded=-1)
    assert failed.checked() is failed


def test_an_identity_says_what_differs() -> None:
    other = dataclasses.replace(IDENTITY, threads=8, settings={"ctx": "8192", "numerics": "x"})
    assert other.key != IDENTITY.key
    assert IDENTITY.differences(other) == [
        "ctx: 4096 here, 8192 there",
        "threads: 2 here, 8 there",
        "numerics: not set here, x there",
    ]
    assert IDENTITY.differences(IDENTITY) == []
    again = Identity.from_dict(json.loads(json.dumps(IDENTITY.as_dict())), "here")
    assert (again, again.key) == (IDENTITY, IDENTITY.key)


def test_counts_by_place_and_steps_without_a_draft() -> None:
    groups = [
        Group(1, (5, 6, 7), (5, 6)),
        Group(4, (), ()),
        Group(5, (8,), ()),
        Group(6, (9,), (9,)),
    ]
    assert Counts.of(groups, 3) == Counts(5, 3, 3, 1, (3, 1, 1), (2, 1, 0))
    assert Counts.of([], 0) == Counts()


def test_counts_of_a_real_run_are_those_of_its_metrics() -> None:
    config = Config(model="bundled", threads=1, n=40, mtp=True, draft=3, mtp_p_min=0.5)
    run = EngineTarget().run(config, "def walk(tree, depth=0):\n")
    counts = Counts.of(run.evidence.groups, 3)
    assert (counts.n_drafted, counts.n_accepted) == (run.metrics.n_drafted, run.metrics.n_accepted)
    assert counts.n_verify + counts.n_undrafted == run.metrics.n_decodes
    assert counts.n_undrafted > 0
    assert sum(counts.offered_at) == counts.n_drafted
    assert list(counts.offered_at) == sorted(counts.offered_at, reverse=True)

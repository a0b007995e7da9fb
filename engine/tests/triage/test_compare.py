from __future__ import annotations

import dataclasses
import json

from sluice.telemetry.evidence import Group, Stop, Top2
from sluice.triage import compare
from sluice.triage.finding import Classification, Finding, Subject


def kinds(a, b):
    return [d.kind for d in compare.differences(a, b)]


def test_equal_runs(evidence) -> None:
    assert compare.differences(evidence([5, 6]), evidence([5, 6])) == ()


def test_tokens(evidence) -> None:
    a = evidence([5, 6, 7], [5, 6, 70], top2=[Top2((i, 9), (2.0, 1.5)) for i in (5, 6, 7)])
    b = evidence([5, 6, 9], [5, 6, 90], top2=[Top2((i, 7), (2.25, 1.75)) for i in (5, 6, 9)])
    (ids, logits) = compare.differences(a, b, {5: "f", 6: "g", 7: "h", 9: "j"})
    assert (ids.kind, ids.step, ids.position, ids.character) == ("ids", 2, 5, 2)
    assert (ids.a.text, ids.b.text, ids.a.margin, ids.a.margin_ulp) == ("h", "j", 0.5, 1 << 22)
    # Token 7 had 2.0 and has 1.75, token 9 had 1.5 and has 2.25.
    assert ids.movement == 0.75
    assert (logits.kind, logits.step, logits.character) == ("logits", 2, 2)


def test_the_order_is_that_of_causes(evidence) -> None:
    a = evidence([5, 6])
    b = evidence([7, 8], config=a.config | {"ubatch": 1}, prompt_ids=[1, 2])
    assert kinds(a, b) == ["config", "prompt", "ids"]
    assert compare.decisive(compare.differences(a, b)).kind == "prompt"


def test_only_logits_moved(evidence) -> None:
    found = compare.differences(evidence([5, 6, 7]), evidence([5, 6, 7], [5, 60, 70]))
    assert [(d.kind, d.step, d.first_moved_step) for d in found] == [("logits", 1, 1)]


def test_logits_after_another_token_say_nothing(evidence) -> None:
    a, b = evidence([5, 6, 7], [1, 2, 3]), evidence([5, 9, 7], [1, 2, 4])
    assert kinds(a, b) == ["ids"]


def test_a_prefix_and_another_end(evidence) -> None:
    a = evidence([5, 6, 7])
    shorter = dataclasses.replace(evidence([5, 6]), config=a.config)
    assert kinds(a, shorter) == ["end"]
    assert kinds(a, dataclasses.replace(a, stop=Stop("eog", 3, "00"))) == ["end"]


def test_groups_are_compared_where_the_drafts_were_asked_alike(evidence) -> None:
    a = evidence([5, 6, 7], groups=[Group(1, (6,), (6,))])
    b = dataclasses.replace(a, groups=[Group(1, (8,), ())])
    assert kinds(a, b) == ["groups"]
    assert kinds(a, dataclasses.replace(b, config=b.config | {"draft": 1})) == ["config"]


def test_the_fingerprint_is_part_of_the_configuration(evidence) -> None:
    a = evidence([5])
    b = dataclasses.replace(a, fingerprint=dataclasses.replace(a.fingerprint, system_info="x"))
    (found,) = compare.differences(a, b)
    assert [(s.name, s.a, s.b) for s in found.settings] == [("system_info", "none", "x")]


def test_steps_beyond_the_first_other_token_have_not_moved(evidence) -> None:
    a, b = evidence([5, 6, 7], [1, 2, 3]), evidence([5, 9], [1, 20])
    assert [t.moved for t in compare.traces(a, b)] == [False, True, None]
    assert [(t.id_a, t.id_b) for t in compare.traces(a, b)] == [(5, 5), (6, 9), (7, None)]


def test_a_finding_is_plain_json(evidence) -> None:
    a, b = evidence([5]), evidence([6])
    side = Subject("A", {}, {}, "", 1, True)
    found = compare.differences(a, b)
    moved = dataclasses.replace(found[0], movement=float("inf"))
    finding = Finding(side, side, Classification("UNKNOWN", ("x",)), moved, found, ())
    read = json.loads(finding.to_json())
    assert read["schema"] == "sluice-finding/1"
    assert read["difference"]["movement"] == "inf"

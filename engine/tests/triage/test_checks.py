from __future__ import annotations

import dataclasses

from sluice.telemetry.evidence import Group, Stop, Top2
from sluice.triage import checks


def speculated(evidence, ids, *groups, **changes):
    made = evidence(ids, groups=list(groups), **changes)
    return dataclasses.replace(made, config=made.config | {"mtp": True})


def test_nothing_to_say_of_a_right_run(evidence) -> None:
    right = speculated(evidence, [5, 6, 7, 8], Group(1, (6, 9), (6,)), Group(3, (8,), (8,)))
    assert checks.incomplete(right) == []
    assert checks.illogical(right) == []


def test_incomplete(evidence) -> None:
    right = evidence([5, 6, 7])
    cases = {
        "entries in logits_sha256": dataclasses.replace(right, logits_sha256=[]),
        "entries in top2": dataclasses.replace(right, top2=right.top2[:1]),
        "ended by the limit": dataclasses.replace(right, config=right.config | {"n": 4}),
        "not the text that was hashed": dataclasses.replace(right, text="x"),
        "settings say numerics": dataclasses.replace(
            right, config=right.config | {"numerics": "invariant"}
        ),
        "groups account for 1 of 3": dataclasses.replace(
            right, config=right.config | {"mtp": True}
        ),
    }
    for words, case in cases.items():
        assert any(words in found for found in checks.incomplete(case)), words


def test_a_token_that_is_not_the_largest_logits(evidence) -> None:
    top = [Top2((5, 6), (2.0, 1.0)), Top2((7, 6), (2.0, 1.0))]
    (words,) = checks.illogical(evidence([5, 6], top2=top))
    assert "took token 6" in words
    sampled = evidence([5, 6], top2=top)
    assert not checks.illogical(dataclasses.replace(sampled, config=sampled.config | {"temp": 0.8}))


def test_wrong_accept_counts(evidence) -> None:
    cases = {
        "with the next one, 7, too": (Group(1, (6, 7), (6,)),),
        "tokens before it end at step 3": (Group(1, (6,), (6,)), Group(2, (9,), ())),
        "accepted what was not drafted": (Group(1, (6,), (7,)),),
        "but the tokens there are [6]": (Group(1, (9,), (9,)),),
    }
    for words, groups in cases.items():
        found = checks.illogical(speculated(evidence, [5, 6, 7, 8], *groups))
        assert any(words in one for one in found), (words, found)


def test_limits(evidence) -> None:
    (words,) = checks.illogical(evidence([5, 6, 7]), 2)
    assert words == "3 tokens were handed out where 2 were asked for"
    right = evidence([5, 6])
    kept = dataclasses.replace(right, stop=Stop("eog", 6, right.logits_sha256[-1]))
    assert any("end-of-generation" in one for one in checks.illogical(kept))


def test_repeated_and_dropped() -> None:
    text = [1, 2, 3, 4, 5, 6, 7]
    (twice,) = checks.repeated(text, [1, 2, 2, 3, 4, 5, 6])
    assert "token 2 is there twice" in twice
    (missing,) = checks.repeated(text, [1, 2, 4, 5, 6, 7, 8])
    assert "token 3 is missing" in missing
    assert checks.repeated(text, [1, 2, 9, 4, 5, 6, 7]) == []
    assert checks.repeated(text, text[:4]) == []


def test_runaway() -> None:
    assert checks.runaway([9, *[1, 2] * 8]) == "the last 16 tokens are [1, 2] over and over"
    assert checks.runaway(list(range(40))) is None

from __future__ import annotations

import dataclasses

from sluice.telemetry.evidence import Group, Top2
from sluice.triage import compare
from sluice.triage.classify import Case, classify
from sluice.triage.finding import (
    Arm,
    Attribution,
    Control,
    Localisation,
    NodeDifference,
    Setting,
    SliceDifference,
)
from sluice.triage.localise import Parting
from sluice.triage.widths import WidthVerdict

EXPLAINED = WidthVerdict(True, "1 and 4 rows are in other width classes")
FLIPPED = Attribution((Setting("mtp", False, True),), (Arm(("mtp",), "b"),), ("mtp",))


def case(a, b, **rest) -> Case:
    return Case(a=a, b=b, differences=compare.differences(a, b), **rest)


def name(*args, **rest) -> str:
    return classify(case(*args, **rest)).name


def node(op: str, label: str, step: int | None = 2, context: str = "target") -> NodeDifference:
    return NodeDifference(context, 1, label, op, "f32", None, None, (4,), (4,), 1, 4, 0, 0, 9, step)


def at(first: NodeDifference) -> Localisation:
    return Localisation(first, "layer 1 norm", (first,), 10, 0)


def flip(evidence, margin: float = 0.001):
    """Two runs that part at step 2, where tokens 7 and 9 lead."""
    tops = [Top2((5, 6), (2.0, 1.0)), Top2((6, 7), (2.0, 1.0))]
    a = evidence([5, 6, 7], top2=[*tops, Top2((7, 9), (2.0 + margin, 2.0))])
    b = evidence([5, 6, 9], [5, 6, 90], top2=[*tops, Top2((9, 7), (2.0 + margin, 2.0))])
    return a, b


def test_a_near_tie_needs_an_explanation(evidence) -> None:
    a, b = flip(evidence)
    assert name(a, b) == "UNKNOWN"
    assert name(a, b, width=EXPLAINED) == "NEAR_TIE_FLIP"
    assert name(a, b, width=WidthVerdict(False, "the same kernels")) == "UNKNOWN"
    assert name(a, b, width=EXPLAINED, drafts={1: 2, 2: 2, 3: 2}) == "NEAR_TIE_FLIP"


def test_no_near_tie_where_the_control_differs(evidence) -> None:
    a, b = flip(evidence)
    assert name(a, b, width=EXPLAINED, control=Control(True, "alike")) == "NEAR_TIE_FLIP"
    assert name(a, b, width=EXPLAINED, control=Control(False, "differ", 2)) == "UNKNOWN"
    kept = Control(False, "differ", 2, at(node("VIEW", "attn_output")), "the group at step 1", 2)
    assert name(a, b, width=EXPLAINED, control=kept) == "STATE_ROLLBACK"


def test_no_near_tie_where_other_tokens_lead(evidence) -> None:
    a, b = flip(evidence)
    b = dataclasses.replace(b, top2=[*b.top2[:2], Top2((9, 8), (2.001, 2.0))])
    assert name(a, b, width=EXPLAINED) == "UNKNOWN"


def test_the_draft_width_decides(evidence) -> None:
    a, b = flip(evidence)
    assert name(a, b, width=EXPLAINED, drafts={1: 2, 3: None}) == "STATE_ROLLBACK"


def test_numeric(evidence) -> None:
    a, b = evidence([5, 6]), evidence([5, 6], [5, 60])
    found = classify(case(a, b, localisation=at(node("MUL", "ffn_norm")), attribution=FLIPPED))
    assert found.name == "NUMERIC"
    assert any("layer 1 ffn_norm" in words for words in found.evidence)


def test_identical_says_which_settings_changed_nothing(evidence) -> None:
    a = evidence([5, 6])
    found = classify(case(a, dataclasses.replace(a, config=a.config | {"threads": 2})))
    assert found.name == "IDENTICAL"
    assert found.evidence[1].endswith("threads")


def test_a_slice_that_is_not_the_files(evidence) -> None:
    bad = SliceDifference("b", "m.gguf", "blk.2.ffn_up_exps.weight", 2, "up", 5, 100, 64, 3, 7,
                          "file", holds="the bytes of expert 6")  # fmt: skip
    found = classify(case(*flip(evidence), slices=(bad,), n_slices=9, width=EXPLAINED))
    assert found.name == "WEIGHT_BYTES"
    assert "m.gguf offset 103" in found.evidence[0]
    assert found.evidence[1] == "9 slices differ in all"


def test_configuration(evidence) -> None:
    a, b = flip(evidence)
    assert name(a, dataclasses.replace(b, prompt_ids=[1])) == "CONFIG"
    assert name(a, b, same_shape=False) == "CONFIG"
    other = dataclasses.replace(b.fingerprint, llama_cpp_python="0.1")
    assert name(a, dataclasses.replace(b, fingerprint=other)) == "CONFIG"
    sampled = dataclasses.replace(b, config=b.config | {"temp": 0.5})
    assert name(a, sampled) == "CONFIG"
    assert name(a, b, asked_b=b.config | {"mtp": True}) == "CONFIG"


def test_harness_comes_before_all(evidence) -> None:
    a, b = flip(evidence)
    assert name(a, dataclasses.replace(b, top2=[]), asked_b={"n": 9}) == "HARNESS"


def test_partings_of_the_loop(evidence) -> None:
    a, b = evidence([5, 6]), evidence([5, 6], [5, 60])
    target = Parting("tokens", 3, False, "target [1] at position 4 / target [2] at position 4")
    head = Parting("hidden", 3, True, "the head starts from another hidden state")
    assert name(a, b, parting=target) == "LOGIC"
    assert name(a, b, parting=head) == "STATE_ROLLBACK"
    assert name(a, b, wrong_rows=("side B: step 1: another row",)) == "LOGIC"


def test_state_read_after_a_rejection(evidence) -> None:
    group = [Group(1, (9, 9), ())]
    a = evidence([5, 6, 7], groups=group)
    a = dataclasses.replace(a, config=a.config | {"mtp": True, "draft": 2}, groups=[
        *group, Group(2, (8, 8), ())])  # fmt: skip
    b = dataclasses.replace(a, logits_sha256=[*a.logits_sha256[:2], "0" * 64])
    found = classify(case(a, b, localisation=at(node("GATED_DELTA_NET", "delta"))))
    assert found.name == "STATE_ROLLBACK"
    assert "rejected 2 of 2 drafts" in found.evidence[0]
    assert name(a, b, localisation=at(node("MUL", "ffn_norm"))) == "NUMERIC"


def test_a_run_that_could_not_go_on_after_a_rejection(evidence) -> None:
    a = evidence([5, 6, 7, 8])
    b = evidence([5, 6], groups=[Group(1, (9, 9), ())])
    assert name(a, b, failed_b="llama_decode returned -1 for 3 rows at position 5: no reason given"
                ) == "STATE_ROLLBACK"  # fmt: skip
    assert name(a, b, failed_b="the disk is on fire") == "UNKNOWN"

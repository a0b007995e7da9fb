"""Triage of evidence: run again where that can be done, and said where it cannot."""

from __future__ import annotations

import dataclasses

import pytest

from sluice.config import Config
from sluice.errors import RequestError, SystemFault
from sluice.triage.arm import in_own_process
from sluice.triage.side import Side, from_evidence
from sluice.triage.triage import triage


def test_evidence_is_run_again_and_arms_have_their_own_process(lab) -> None:
    a, b = lab.run(lab.f32.replace(n=4)), lab.run(lab.f32.replace(n=4, ubatch=1))
    found = triage(a, b)
    assert found.classification.name == "NUMERIC"
    assert found.localisation.first.where == "layer 0 mul_mat(attn_qkv)"
    assert found.localisation.first.max_ulp > 0
    assert found.localisation.last_agreed == "layer 0 attn_norm"
    assert found.attribution.flips == ("ubatch",)
    assert found.attribution.kernels == ("sgemm",)
    assert found.control.agrees
    assert found.difference.movement > 0
    assert [t.text_a for t in found.steps] == [t.text_b for t in found.steps]
    assert "".join(t.text_a for t in found.steps) == a.text


def test_evidence_of_a_model_that_is_gone(lab) -> None:
    a = lab.run(lab.q8.replace(n=3))
    gone = dataclasses.replace(a, config=a.config | {"model": "/no/such.gguf"},
                               logits_sha256=[*a.logits_sha256[:2], "0" * 64])  # fmt: skip
    found = triage(gone, gone)
    assert found.classification.name == "IDENTICAL"
    found = triage(a, gone)
    assert found.classification.name == "NUMERIC"
    assert found.localisation is None
    assert any("cannot be run again" in note for note in found.notes)


def test_evidence_of_another_model_file_is_not_run_on_this_one(lab) -> None:
    a = lab.run(lab.q8.replace(n=3))
    other = dataclasses.replace(a.fingerprint, model_sha256="00")
    said = from_evidence(dataclasses.replace(a, fingerprint=other))
    assert isinstance(said, str)
    assert "model file" in said


def test_settings_need_a_prompt() -> None:
    config = Config(model="m")
    with pytest.raises(RequestError, match="with a prompt"):
        triage(config, config)


def test_an_arm_answers_as_this_process_does(lab) -> None:
    side = Side(lab.q8.replace(n=4), lab.prompt)
    assert in_own_process(side) == side.run()
    off = side.with_config(lab.f32.replace(n=4, ubatch=2), {"sgemm"})
    assert in_own_process(off) == off.run()


def test_an_arm_that_is_refused_says_why(lab) -> None:
    with pytest.raises(SystemFault, match="the prompt is empty"):
        in_own_process(Side(lab.q8, ""))


def test_the_side_that_drafts_may_be_either(lab) -> None:
    mtp = lab.f32.replace(n=8, mtp=True)
    found = triage(mtp, lab.f32.replace(n=8), prompt=lab.prompt, isolated=False)
    assert found.classification.name == "NUMERIC"
    assert found.control.agrees
    assert found.attribution.flips == ("mtp",)

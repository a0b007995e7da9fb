from __future__ import annotations

import copy
from typing import Any

from sluice.triage.releases import changes, counted, fingerprint_changes

SHA = "ab" * 32
PLAIN = {"tokens": 9, "characters": 30, "text_sha256": SHA, "logits_sha256": SHA, "stop": "n"}
PLACE = {"diverges": True, "step": 4, "character": 9, "tokens": [1, 2], "margin": 0.01}
OLD: dict[str, Any] = {
    "model": "bundled Q8_0",
    "fingerprint": {"llama_cpp_python": "1", "numerics": "default"},
    "master_sha256": SHA,
    "prompts_sha256": SHA,
    "sections": {"golden-plain": {"one": PLAIN}, "mtp-divergence": {"one": PLACE}},
}


def new(**changed: dict[str, Any]) -> dict[str, Any]:
    made = copy.deepcopy(OLD)
    for section, values in changed.items():
        made["sections"][section.replace("_", "-")]["one"] |= values
    return made


def classes(found: dict[str, Any]) -> list[str]:
    return [change.name for change in changes(OLD, found)]


def test_what_moved_is_put_in_a_class() -> None:
    assert classes(new()) == ["IDENTICAL", "IDENTICAL"]
    assert classes(new(golden_plain={"logits_sha256": "cd" * 32}))[0] == "NUMERIC"
    assert classes(new(golden_plain={"text_sha256": "cd" * 32}))[0] == "UNKNOWN"
    assert classes(new(mtp_divergence={"margin": 0.02}))[1] == "NUMERIC"
    assert classes(new(mtp_divergence={"step": 7}))[1] == "NEAR_TIE_FLIP"
    assert classes(new(mtp_divergence={"step": 7, "margin": 3.0}))[1] == "UNKNOWN"


def test_other_prompts_or_models_are_not_compared() -> None:
    (only,) = changes(OLD, OLD | {"prompts_sha256": "00"})
    assert (only.name, only.words) == ("CONFIG", "recorded of other prompts: abababababab / 00")


def test_a_run_on_one_side_only_is_named() -> None:
    found = new()
    found["sections"]["golden-plain"]["two"] = PLAIN
    assert [(c.run, c.name) for c in changes(OLD, found)][1] == ("two", "CONFIG")


def test_words() -> None:
    change = changes(OLD, new(golden_plain={"logits_sha256": "cd" * 32}))[0]
    assert change.words == "logits_sha256 abababababab / cdcdcdcdcdcd"
    assert counted(changes(OLD, new())) == "2 IDENTICAL"
    other = OLD | {"fingerprint": {"llama_cpp_python": "2", "numerics": "default"}}
    assert fingerprint_changes(OLD, other) == ["llama_cpp_python: 1 / 2"]

"""Recorded values: what is compared, what is refused, and that nothing bad is ever green."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from sluice.errors import GateFailure
from sluice.targets import ModelFacts
from sluice.telemetry.evidence import Evidence
from sluice_gates.bench import Bench
from sluice_gates.gate import NotRecorded
from sluice_gates.goldens import (
    SECTIONS,
    divergence_place,
    first_change,
    load,
    plain_divergence,
    plain_values,
)
from sluice_gates.models import Model
from sluice_gates.prompts import prompt_set
from sluice_gates.test_goldens import test_golden_orphans as golden_orphans
from sluice_gates.test_goldens import test_golden_plain as golden_plain

BenchMaker = Callable[..., Bench]
Make = Callable[..., Evidence]
SECTION = SECTIONS[0]


def writing(data: dict[str, Any], path: Path) -> None:
    """What pytest-regressions does when it records."""
    path.write_text(yaml.safe_dump(data), encoding="utf-8", newline="\n")


def recorded(bench: Bench, values: dict[str, Any] | None = None) -> Bench:
    """The bench with a golden that holds ``values`` for every gate."""
    for section in SECTIONS:
        dataclasses.replace(bench.goldens, recording=True, check=writing).compare(
            section, values or {"one": {"tokens": 3}}
        )
    return bench


def edit(bench: Bench, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the recorded file as a whole."""
    golden = load(bench.goldens.path)
    change(golden)
    writing(golden, bench.goldens.path)


def test_the_file_is_named_by_the_fingerprint(make_bench: BenchMaker) -> None:
    bench = make_bench()
    assert bench.goldens.path.name == f"{bench.model.facts.fingerprint.key}.yml"


def test_no_golden_is_not_recorded_and_says_how_to_record(make_bench: BenchMaker) -> None:
    bench = make_bench()
    with pytest.raises(NotRecorded, match=r"pytest --pyargs sluice_gates .* --force-regen"):
        bench.goldens.compare(SECTION, {})
    assert list(bench.goldens.folder.iterdir()) == []


def test_recorded_values_pass(make_bench: BenchMaker) -> None:
    bench = recorded(make_bench())
    bench.goldens.compare(SECTION, {"one": {"tokens": 3}})


def test_a_changed_digit_fails_with_its_place(make_bench: BenchMaker) -> None:
    bench = recorded(make_bench())
    edit(bench, lambda g: g["sections"][SECTION]["one"].update(tokens=4))
    with pytest.raises(GateFailure, match=r"golden-plain: one\.tokens 4 / 3 \(recorded / now\)"):
        bench.goldens.compare(SECTION, {"one": {"tokens": 3}})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda g: g.update(prompts_sha256="00"), "stale golden .*: its prompts_sha256 is another"),
        (lambda g: g.update(model="bundled F16"), "stale golden .*: its model is another"),
        (lambda g: g["fingerprint"].update(numerics="x"), "stale golden .*: its fingerprint is"),
        (lambda g: g["sections"].pop("mtp-divergence"), "stale golden .*: it has no mtp-diverg"),
        (lambda g: g["sections"].update(gone={}), "stale golden .*: no gate reads its gone"),
        (lambda g: g.update(schema="sluice-golden/0"), "schema sluice-golden/0"),
        (lambda g: g.pop("sections"), "is no golden"),
    ],
)
def test_a_stale_golden_is_never_green(
    change: Callable[[dict[str, Any]], object], words: str, make_bench: BenchMaker
) -> None:
    bench = recorded(make_bench())
    golden = load(bench.goldens.path)
    change(golden)
    writing(golden, bench.goldens.path)
    with pytest.raises(GateFailure, match=words):
        bench.goldens.compare(SECTION, {"one": {"tokens": 3}})


def test_crlf_fails_in_words(make_bench: BenchMaker) -> None:
    bench = recorded(make_bench())
    path = bench.goldens.path
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    with pytest.raises(GateFailure, match="has CRLF line ends"):
        bench.goldens.compare(SECTION, {"one": {"tokens": 3}})


@pytest.mark.parametrize("raw", [b"\xff\xfe", b"{", b"[1]", b"", b"sections: {}\n"])
def test_what_is_no_golden_fails_in_words(raw: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.yml"
    path.write_bytes(raw)
    with pytest.raises(GateFailure, match=r"x\.yml is no golden"):
        load(path)


def test_speculated_output_is_refused_by_the_writer(
    make_speculated: Make, make_evidence: Make
) -> None:
    run = make_speculated([5, 6, 7], (1, (6, 9), 1))
    with pytest.raises(GateFailure, match="speculated output never enters a byte-identity golden"):
        plain_values(run)
    with pytest.raises(GateFailure, match="speculated output never enters"):
        plain_divergence(make_evidence(), run)
    assert plain_values(make_evidence())["tokens"] == 3


def test_a_speculated_divergence_is_a_place_two_tokens_and_a_margin(
    make_evidence: Make, make_speculated: Make
) -> None:
    place = divergence_place(make_evidence([5, 6, 7]), make_speculated([5, 9, 7]))
    assert place == {
        "diverges": True, "step": 1, "character": 1, "tokens": [6, 9], "margin": 0.5
    }  # fmt: skip


def test_a_plain_divergence_has_lengths_and_hashes(make_evidence: Make) -> None:
    left, right = make_evidence([5, 6]), make_evidence([5, 7, 8])
    found = plain_divergence(left, right)
    assert found["characters"] == [2, 3]
    assert found["text_sha256"] == [left.text_sha256, right.text_sha256]
    assert plain_divergence(left, left)["diverges"] is False


def test_recording_under_xdist_is_refused(make_bench: BenchMaker) -> None:
    goldens = dataclasses.replace(make_bench().goldens, recording=True, check=writing, worker="gw0")
    with pytest.raises(GateFailure, match="--force-regen under xdist"):
        goldens.compare(SECTION, {})
    assert list(goldens.folder.iterdir()) == []


def test_values_of_a_named_model_do_not_enter_the_shipped_folder(make_bench: BenchMaker) -> None:
    bench = make_bench()
    named = Model(bench.model.path, "m", False, bench.model.facts)
    goldens = dataclasses.replace(bench.goldens, model=named, recording=True, check=writing)
    with pytest.raises(GateFailure, match=r"m\.gguf do not belong among the shipped goldens"):
        goldens.compare(SECTION, {})
    own = dataclasses.replace(goldens, shipped=False)
    own.compare(SECTION, {"one": {}})
    assert load(own.path)["model"] == "m.gguf"


def test_a_recording_is_never_green(make_bench: BenchMaker) -> None:
    def regenerating(data: dict[str, Any], path: Path) -> None:
        writing(data, path)
        pytest.fail("Files differ and --force-regen set")

    goldens = dataclasses.replace(make_bench().goldens, recording=True, check=regenerating)
    with pytest.raises(GateFailure, match=r"recorded in .*: read the diff, then run again"):
        goldens.compare(SECTION, {"one": {}})


def test_recording_keeps_the_other_gates_values(make_bench: BenchMaker) -> None:
    bench = recorded(make_bench(), {"one": {"tokens": 1}})
    edit(bench, lambda g: g["sections"].update(gone={}))
    again = dataclasses.replace(bench.goldens, recording=True, check=writing)
    again.compare(SECTION, {"one": {"tokens": 2}})
    sections = load(bench.goldens.path)["sections"]
    assert list(sections) == sorted(SECTIONS)
    assert sections[SECTION] == {"one": {"tokens": 2}}
    assert sections["mtp-divergence"] == {"one": {"tokens": 1}}


def test_recording_drops_values_of_other_prompts(make_bench: BenchMaker) -> None:
    bench = recorded(make_bench())
    other = dataclasses.replace(bench.goldens, prompts_sha256="00", recording=True, check=writing)
    other.compare(SECTION, {"one": {"tokens": 2}})
    assert list(load(bench.goldens.path)["sections"]) == [SECTION]


@pytest.mark.parametrize(
    ("recorded_", "now", "words"),
    [
        ({"a": 1}, {"a": 1}, None),
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3]}}, "a.b [1, 2] / [1, 3]"),
        ({"a": 1}, {}, "a is only recorded"),
        ({}, {"a": 1}, "a is only now"),
        ({"a": 0.1}, {"a": 0.1}, None),
    ],
)
def test_first_change(recorded_: object, now: object, words: str | None) -> None:
    assert first_change(recorded_, now) == words


def test_the_gate_compares_every_prompt(make_bench: BenchMaker, make_evidence: Make) -> None:
    bench = make_bench()
    recorded(bench, {"one": plain_values(make_evidence())})
    golden_plain(bench)
    assert bench.notes[0].endswith(f"as recorded in {bench.goldens.path.name}")
    changed = make_bench(lambda _config: make_evidence([5, 6, 8]))
    with pytest.raises(GateFailure, match=r"golden-plain: one\.logits_sha256"):
        golden_plain(changed)


@pytest.fixture
def known(make_bench: BenchMaker, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A bench whose golden belongs to the bundled model's Q8_0, as far as it can tell."""
    bench = make_bench()
    sha256 = prompt_set("Q8_0").sha256
    bench = dataclasses.replace(
        bench, goldens=dataclasses.replace(bench.goldens, prompts_sha256=sha256)
    )
    monkeypatch.setattr(
        "sluice_gates.test_goldens.open_model", lambda _name, _label, _scratch: bench.model
    )
    return recorded(bench)


def test_a_golden_of_a_known_model_is_no_orphan(known: Bench) -> None:
    golden_orphans(known)
    assert known.notes == ["1 goldens, 1 of this build, none orphaned"]


def test_no_golden_at_all_is_not_recorded(make_bench: BenchMaker) -> None:
    with pytest.raises(pytest.skip.Exception, match="no golden at all"):
        golden_orphans(make_bench())


def test_a_renamed_golden_is_orphaned(known: Bench) -> None:
    known.goldens.path.rename(known.goldens.folder / "other.yml")
    with pytest.raises(GateFailure, match=r"orphaned golden other\.yml: its fingerprint is"):
        golden_orphans(known)


def test_a_golden_of_an_unknown_model_is_orphaned(known: Bench) -> None:
    edit(known, lambda g: g.update(model="bundled Q9_9"))
    with pytest.raises(GateFailure, match="bundled Q9_9 is no model of this project"):
        golden_orphans(known)


def test_a_golden_of_another_master_is_orphaned(known: Bench) -> None:
    edit(known, lambda g: g.update(master_sha256="cd" * 32))
    with pytest.raises(GateFailure, match="of another bundled model"):
        golden_orphans(known)


def test_a_golden_of_other_prompts_is_stale_on_any_build(known: Bench) -> None:
    edit(known, lambda g: g.update(prompts_sha256="00"))
    with pytest.raises(GateFailure, match=r"stale golden .* of other prompts"):
        golden_orphans(known)


def test_a_golden_of_other_bytes_of_a_known_model_is_orphaned(
    known: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    print_ = dataclasses.replace(known.model.facts.fingerprint, model_sha256="cd" * 32)
    other = Model(known.model.path, "Q8_0", True, ModelFacts("qwen35moe", 8, 1, print_), "ab" * 32)
    monkeypatch.setattr("sluice_gates.test_goldens.open_model", lambda *_args: other)
    with pytest.raises(GateFailure, match="bundled Q8_0 now has the fingerprint"):
        golden_orphans(known)


def test_goldens_of_another_build_only_are_not_recorded(known: Bench) -> None:
    facts = dataclasses.replace(
        known.model.facts,
        fingerprint=dataclasses.replace(known.model.facts.fingerprint, system_info="other"),
    )
    model = dataclasses.replace(known.model, facts=facts)
    bench = dataclasses.replace(known, model=model)
    with pytest.raises(pytest.skip.Exception, match="none of 1 goldens is of this build"):
        golden_orphans(bench)


def test_a_folder_of_ones_own_may_hold_other_models(known: Bench) -> None:
    edit(known, lambda g: g.update(model="mine.gguf"))
    own = dataclasses.replace(known, goldens=dataclasses.replace(known.goldens, shipped=False))
    golden_orphans(own)


def test_how_to_record_names_the_model(make_bench: BenchMaker) -> None:
    bench = make_bench()
    named = dataclasses.replace(
        bench.goldens, model=Model(bench.model.path, "m", False, bench.model.facts)
    )
    assert f"--sluice-model {bench.model.path}" in named.how_to_record
    assert "--sluice-goldens DIR" in named.how_to_record
    assert "--sluice-quants" not in bench.goldens.how_to_record
    other = dataclasses.replace(bench.model, label="F16")
    how = dataclasses.replace(bench.goldens, model=other).how_to_record
    assert "--sluice-quants F16" in how


def test_every_section_is_a_gate() -> None:
    from sluice_gates.gate import all_gates

    assert set(SECTIONS) <= {gate.name for gate in all_gates()}

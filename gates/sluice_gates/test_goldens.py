"""Goldens: values recorded for a fingerprint, and that none is missing, stale or orphaned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sluice.bundled import BUNDLED
from sluice.errors import GateFailure
from sluice.telemetry.evidence import Fingerprint
from sluice_gates.bench import LONG, Bench, measured
from sluice_gates.gate import NotRecorded, gate
from sluice_gates.goldens import load, plain_values
from sluice_gates.models import ALL_TYPES, MASTER_TYPE, open_model
from sluice_gates.prompts import prompt_set


@gate(
    level="logits",
    claims="plain runs give the recorded bytes",
)
def test_golden_plain(bench: Bench) -> str:
    """Text and logits of every general prompt hash to what was recorded for this fingerprint.

    No golden of this fingerprint is "not recorded", never green. Its planted faults are in
    its own tests: a changed digit, line ends, another prompt, another section.
    """
    runs = [bench.run(prompt, n=LONG) for prompt in bench.prompts.general]
    observed = {
        prompt.name: plain_values(run.evidence)
        for prompt, run in zip(bench.prompts.general, runs, strict=True)
    }
    bench.goldens.compare("golden-plain", observed)
    return f"{measured(runs)}, as recorded in {bench.goldens.path.name}"


@gate(level="words", claims="every golden belongs to a model of this project", once=True)
def test_golden_orphans(bench: Bench) -> str:
    """Each file is named by its own fingerprint, and of this build only known models have one.

    Its planted faults are in its own tests: a renamed file, a file of another model.
    """
    folder = bench.goldens.folder
    files = sorted(p for p in folder.glob("*") if p.is_file() and not p.name.startswith("."))
    goldens = [p for p in files if p.suffix in (".yml", ".yaml")]
    if not goldens:
        how = bench.goldens.how_to_record
        raise NotRecorded(f"no golden at all in {folder}; record with {how}")
    ours = 0
    for path in goldens:
        golden = load(path)
        print_ = _fingerprint(path, golden["fingerprint"])
        if path.name != f"{print_.key}.yml":
            raise GateFailure(f"orphaned golden {path.name}: its fingerprint is {print_.key}")
        same_build = _build(print_) == _build(bench.model.facts.fingerprint)
        ours += same_build
        _check_model(bench, path, golden, print_ if same_build else None)
    if not ours and not bench.goldens.recording:
        raise NotRecorded(f"none of {len(goldens)} goldens is of this build")
    return f"{len(goldens)} goldens, {ours} of this build, none orphaned"


def _fingerprint(path: Path, raw: dict[str, str]) -> Fingerprint:
    try:
        return Fingerprint(**raw)
    except TypeError:
        raise GateFailure(f"{path.name} is no golden: its fingerprint is incomplete") from None


def _build(print_: Fingerprint) -> tuple[str, str, str]:
    return print_.llama_cpp_python, print_.system_info, print_.numerics


def _check_model(
    bench: Bench, path: Path, golden: dict[str, Any], print_: Fingerprint | None
) -> None:
    """The golden's model must be one that we have; of this build (``print_``), byte for byte."""
    name = str(golden.get("model"))
    bundled, _, label = name.partition(" ")
    record_again = f"delete it and record with {bench.goldens.how_to_record}"
    if bundled == BUNDLED and label in ALL_TYPES:
        master = open_model(BUNDLED, MASTER_TYPE, bench.scratch)
        if golden.get("master_sha256") != master.master_sha256:
            raise GateFailure(
                f"orphaned golden {path.name}: of another bundled model; {record_again}"
            )
        if golden.get("prompts_sha256") != prompt_set(label).sha256:
            raise GateFailure(f"stale golden {path.name}: of other prompts; {record_again}")
        known = open_model(BUNDLED, label, bench.scratch) if print_ else None
    elif name == bench.model.name:
        known = bench.model if print_ else None
    elif bench.goldens.shipped:
        raise GateFailure(f"orphaned golden {path.name}: {name} is no model of this project")
    else:
        return
    if known is not None and known.facts.fingerprint != print_:
        raise GateFailure(
            f"orphaned golden {path.name}: {name} now has the fingerprint"
            f" {known.facts.fingerprint.key}; {record_again}"
        )

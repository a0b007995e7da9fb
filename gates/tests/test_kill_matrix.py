"""The kill matrix: every fault is caught, and every gate catches what it says it does."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from sluice.bundled import BUNDLED
from sluice.errors import GateFailure
from sluice_gates.bench import Bench, Target
from sluice_gates.fault import Fault
from sluice_gates.faults import ENGINE_FAULTS, FAULTS
from sluice_gates.gate import Gate, all_gates
from sluice_gates.goldens import Goldens
from sluice_gates.matrix import Healthy, Matrix, kill_matrix
from sluice_gates.models import MASTER_TYPE, open_model
from sluice_gates.prompts import prompt_set

STREAMING = ("streaming", "overlap", "sessions", "layouts")
FAMILIES = ("identity", "speculation", *STREAMING, "drafts", "divergence")
N_TOKENS = 64
N_STREAMED = 32
N_LAYOUTS = 3
RECORDED = ("golden-plain",)
"""Gates that fill the matrix's own golden, and stand in no column: plain resident runs have no
seam to plant a fault in. Their planted faults are in test_goldens.py."""


def bench_maker(folder: Path) -> Callable[[Target], Bench]:
    """Benches of few and short runs, with a golden that the healthy engine records."""
    model = open_model(BUNDLED, MASTER_TYPE, folder)
    whole = prompt_set(model.quantisation)
    prompts = dataclasses.replace(
        whole,
        general=whole.general[:1],
        divergence=tuple(p for p in whole.divergence if whole.table in (None, p)),
        endings=whole.endings[:1],
    )

    def write(data: dict[str, Any], path: Path) -> None:
        path.write_text(yaml.safe_dump(data), encoding="utf-8")

    def make(target: Target) -> Bench:
        goldens = Goldens(
            folder / "goldens", model, prompts.sha256, write, recording=isinstance(target, Healthy)
        )
        return Bench(
            model,
            prompts,
            folder,
            goldens,
            target=target,
            n=N_TOKENS,
            n_streamed=N_STREAMED,
            n_layouts=N_LAYOUTS,
        )

    return make


def complaints(matrix: Matrix) -> list[str]:
    """Everything that is not as it must be."""
    found = [f"no gate catches {fault}" for fault in matrix.survivors()]
    for gate in matrix.gates:
        kills = matrix.kills(gate)
        if not kills:
            found.append(f"{gate.name} catches nothing")
        found += [f"{gate.name} does not catch {f}" for f in gate.kills if f not in kills]
    return found


def meets(gate: Gate, fault: type[Fault]) -> bool:
    """The gates of streaming run long: of the faults elsewhere they meet those that they list."""
    return (
        gate.family not in STREAMING or fault.name not in ENGINE_FAULTS or fault.name in gate.kills
    )


@pytest.mark.xdist_group("kill-matrix")
def test_kill_matrix(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    gates = [g for g in all_gates() if g.family in FAMILIES or g.name in RECORDED]
    matrix = kill_matrix(gates, FAULTS.values(), bench_maker(tmp_path), meets)
    matrix.gates = [gate for gate in matrix.gates if gate.name not in RECORDED]
    record_property("sluice-summary", matrix.text())
    assert complaints(matrix) == []


OTHERS = [g for g in all_gates() if g.family not in FAMILIES and g.kills]


@pytest.mark.xdist_group("kill-matrix")
@pytest.mark.parametrize("gate", OTHERS, ids=lambda gate: gate.name)
def test_what_a_gate_beside_the_matrix_lists_is_caught(gate: Gate, tmp_path: Path) -> None:
    """These run long, so each is run under its own faults only."""
    matrix = kill_matrix([gate], [FAULTS[name] for name in gate.kills], bench_maker(tmp_path))
    assert complaints(matrix) == []


def test_a_gate_that_fails_without_a_fault_is_told_apart(
    make_bench: Callable[..., Bench],
) -> None:
    gates = [g for g in all_gates() if g.name == "resident-is-streamed"]
    bench = make_bench()
    with pytest.raises(GateFailure, match="no evidence: nothing streamed"):
        kill_matrix(gates, FAULTS.values(), lambda _target: broken(bench))


def broken(bench: Bench) -> Bench:
    """A bench whose streamed runs stream nothing, fault or no fault."""
    run = bench.target.run(bench.config(), "")
    bench.target.made = lambda _config: run  # type: ignore[attr-defined]
    return bench

"""The kill matrix: which fault which gate catches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sluice.config import Config
from sluice.errors import SluiceError
from sluice.targets import Drafter, EngineTarget, Run
from sluice_gates.bench import Bench, RunKey, Target
from sluice_gates.faults import Fault, FaultyTarget, Probe, planted
from sluice_gates.gate import Gate, NotApplicable

BenchOf = Callable[[Target], Bench]
"""A bench over a target, with an empty cache of runs."""


@dataclass(slots=True)
class Healthy:
    """The engine without a fault; keeps every run, and the hooks that it came by."""

    runs: dict[RunKey, tuple[Run, set[str]]] = field(default_factory=dict)

    def run(
        self,
        config: Config,
        prompt: str | Sequence[int],
        *,
        drafter: Drafter | None = None,
        overrides: dict[str, Any] | None = None,
    ) -> Run:
        """As :meth:`EngineTarget.run`."""
        probe = Probe()
        run = EngineTarget(probe).run(config, prompt, drafter=drafter, overrides=overrides)
        # Whatever looks at the graph's nodes sees those of every run.
        seen = {"nodes", *probe.called}
        self.runs[_key(config.replace(**(overrides or {})), prompt, drafter)] = run, seen
        return run


@dataclass(slots=True)
class Sick:
    """The engine with a fault. A run that comes by none of its hooks is not run again.

    Exact, not an estimate: such a run executes the same code on the same bytes.
    """

    fault: Fault
    healthy: Healthy

    def run(
        self,
        config: Config,
        prompt: str | Sequence[int],
        *,
        drafter: Drafter | None = None,
        overrides: dict[str, Any] | None = None,
    ) -> Run:
        """As :meth:`EngineTarget.run`."""
        wanted = config.replace(**(overrides or {}))
        known = self.healthy.runs.get(_key(self.fault.config(wanted), prompt, drafter))
        if known is not None and not known[1] & planted(self.fault):
            return self.fault.finish(wanted, known[0])
        return FaultyTarget(self.fault).run(wanted, prompt, drafter=drafter)


@dataclass(slots=True)
class Matrix:
    """What came of every gate under every fault: the words that it failed with, or ``None``."""

    gates: list[Gate]
    caught: dict[str, dict[str, str | None]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def kills(self, gate: Gate) -> set[str]:
        """The faults that a gate caught."""
        return {fault for fault, row in self.caught.items() if row[gate.name] is not None}

    def survivors(self) -> list[str]:
        """The faults that no gate caught."""
        return [fault for fault, row in self.caught.items() if not any(row.values())]

    def text(self) -> str:
        """Faults by gates, which are numbered in their order.

        An x is a catch that the gate lists in its ``kills``, a + one that it does not promise.
        """
        width = max(len(name) for name in self.caught)
        head = " ".join(f"{i:2d}" for i in range(1, len(self.gates) + 1))
        lines = [f"kill matrix: {len(self.caught)} faults by {len(self.gates)} gates"]
        lines.append(f"{'':{width}}  {head}")
        for fault, row in self.caught.items():
            marks = [_mark(gate, fault, row[gate.name]) for gate in self.gates]
            lines.append(f"{fault:{width}}  {' '.join(marks)}")
        lines += [
            f"{i:2d} {gate.name} ({len(self.kills(gate))})" for i, gate in enumerate(self.gates, 1)
        ]
        lines += [f"left out: {name}: {why}" for name, why in self.left_out.items()]
        return "\n".join(lines)


def kill_matrix(gates: Iterable[Gate], faults: Iterable[type[Fault]], bench_of: BenchOf) -> Matrix:
    """Run every gate without a fault, then under each fault.

    Args:
        gates: must pass without a fault, or be not applicable.
        faults: one fresh instance of each is used for one gate after the other.
        bench_of: makes a bench over a target.

    Raises:
        SluiceError: a gate fails without a fault.
    """
    healthy = Healthy()
    matrix = Matrix([])
    bench = bench_of(healthy)
    for gate in gates:
        try:
            gate.run(bench)
        except NotApplicable as why:
            matrix.left_out[gate.name] = str(why)
        else:
            matrix.gates.append(gate)
    for kind in faults:
        row: dict[str, str | None] = {}
        fault = kind()
        bench = bench_of(Sick(fault, healthy))
        for gate in matrix.gates:
            row[gate.name] = _failure(gate, bench)
        matrix.caught[fault.name] = row
    return matrix


def _mark(gate: Gate, fault: str, words: str | None) -> str:
    if words is None:
        return " ."
    return " x" if fault in gate.kills else " +"


def _failure(gate: Gate, bench: Bench) -> str | None:
    try:
        gate.run(bench)
    except NotApplicable as why:
        return f"no longer applicable: {why}"
    except SluiceError as err:
        return str(err)
    return None


def _key(config: Config, prompt: str | Sequence[int], drafter: Drafter | None) -> RunKey:
    return RunKey(config, prompt if isinstance(prompt, str) else tuple(prompt), drafter, ())

"""The kill matrix: which fault which gate catches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sluice.config import Config
from sluice.errors import SluiceError
from sluice.targets import Drafter, EngineTarget, Run
from sluice_gates.bench import Bench, RunKey, Target
from sluice_gates.fault import Calls, Fault, FaultyTarget, Probe, planted
from sluice_gates.gate import Gate, NotApplicable

BenchOf = Callable[[Target], Bench]
"""A bench over a target, with an empty cache of runs."""


SessionKey = tuple[tuple[RunKey, ...], ...]
"""Generations of one session, or of several that are open at once."""


@dataclass(slots=True)
class Healthy:
    """The engine without a fault; keeps every run, and the hooks that it came by."""

    runs: dict[RunKey, tuple[Run, set[str]]] = field(default_factory=dict)
    sessions: dict[SessionKey, tuple[list[Run], set[str]]] = field(default_factory=dict)

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
        self.runs[_key(config.replace(**(overrides or {})), prompt, drafter)] = run, _seen(probe)
        return run

    def run_all(self, config: Config, prompt: str | Sequence[int], calls: Calls) -> list[Run]:
        """As :meth:`EngineTarget.run_all`."""
        probe = Probe()
        runs = EngineTarget(probe).run_all(config, prompt, calls)
        self.sessions[_session([config], prompt, calls)] = runs, _seen(probe)
        return runs

    def run_together(self, configs: Sequence[Config], prompt: str | Sequence[int]) -> list[Run]:
        """As :meth:`EngineTarget.run_together`."""
        probe = Probe()
        runs = EngineTarget(probe).run_together(configs, prompt)
        self.sessions[_session(configs, prompt, [{}])] = runs, _seen(probe)
        return runs


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
        given = self.fault.config(wanted)
        known = self.healthy.runs.get(_key(given, prompt, drafter))
        if known is not None and not self._bears_on([given], known[1]):
            return self.fault.finish(wanted, known[0])
        return FaultyTarget(self.fault).run(wanted, prompt, drafter=drafter)

    def run_all(self, config: Config, prompt: str | Sequence[int], calls: Calls) -> list[Run]:
        """As :meth:`EngineTarget.run_all`."""
        merged = [config.replace(**overrides) for overrides in calls]
        is_asked = all(self.fault.config(one) == one for one in (config, *merged))
        known = self.healthy.sessions.get(_session([config], prompt, calls))
        if (
            known is not None
            and is_asked
            and self.fault.sessions(calls) == [calls]
            and not self._bears_on([config, *merged], known[1])
        ):
            return [self.fault.finish(config, run) for run in known[0]]
        return FaultyTarget(self.fault).run_all(config, prompt, calls)

    def run_together(self, configs: Sequence[Config], prompt: str | Sequence[int]) -> list[Run]:
        """As :meth:`EngineTarget.run_together`."""
        is_asked = all(self.fault.config(one) == one for one in configs)
        known = self.healthy.sessions.get(_session(configs, prompt, [{}]))
        if known is not None and is_asked and not self._bears_on(configs, known[1]):
            pairs = zip(configs, known[0], strict=True)
            return [self.fault.finish(config, run) for config, run in pairs]
        return FaultyTarget(self.fault).run_together(configs, prompt)

    def _bears_on(self, configs: Sequence[Config], seen: set[str]) -> bool:
        acts = any(self.fault.acts_in(config) for config in configs)
        return acts and bool(seen & planted(self.fault))


@dataclass(slots=True)
class Matrix:
    """What came of every gate under every fault: the words that it failed with, or ``None``.

    A gate that was not run under a fault is not in its row.
    """

    gates: list[Gate]
    caught: dict[str, dict[str, str | None]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def kills(self, gate: Gate) -> set[str]:
        """The faults that a gate caught."""
        return {fault for fault, row in self.caught.items() if row.get(gate.name) is not None}

    def survivors(self) -> list[str]:
        """The faults that no gate caught."""
        return [fault for fault, row in self.caught.items() if not any(row.values())]

    def text(self) -> str:
        """Faults by gates, which are numbered in their order.

        An x is a catch that the gate lists in its ``kills``, a + one that it does not promise, a
        blank a gate that was not run.
        """
        width = max(len(name) for name in self.caught)
        head = " ".join(f"{i:2d}" for i in range(1, len(self.gates) + 1))
        lines = [f"kill matrix: {len(self.caught)} faults by {len(self.gates)} gates"]
        lines.append(f"{'':{width}}  {head}")
        for fault, row in self.caught.items():
            marks = [_mark(gate, fault, row) for gate in self.gates]
            lines.append(f"{fault:{width}}  {' '.join(marks)}".rstrip())
        lines += [
            f"{i:2d} {gate.name} ({len(self.kills(gate))})" for i, gate in enumerate(self.gates, 1)
        ]
        lines += [f"left out: {name}: {why}" for name, why in self.left_out.items()]
        return "\n".join(lines)


def kill_matrix(
    gates: Iterable[Gate],
    faults: Iterable[type[Fault]],
    bench_of: BenchOf,
    meets: Callable[[Gate, type[Fault]], bool] = lambda _gate, _fault: True,
) -> Matrix:
    """Run every gate without a fault, then under each fault.

    Args:
        gates: must pass without a fault, or be not applicable.
        faults: one fresh instance of each is used for one gate after the other.
        bench_of: makes a bench over a target.
        meets: whether a gate is run under a fault.

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
            if meets(gate, kind):
                row[gate.name] = _failure(gate, bench)
        matrix.caught[fault.name] = row
    return matrix


def _mark(gate: Gate, fault: str, row: dict[str, str | None]) -> str:
    if gate.name not in row:
        return "  "
    if row[gate.name] is None:
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


def _session(configs: Sequence[Config], prompt: str | Sequence[int], calls: Calls) -> SessionKey:
    return tuple(
        tuple(_key(config.replace(**overrides), prompt, None) for overrides in calls)
        for config in configs
    )


def _seen(probe: Probe) -> set[str]:
    # Whatever looks at the graph's nodes sees those of every run.
    return {"nodes", *probe.called}

"""What a fault is, the engine with one in it, and which hooks a run comes by."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from sluice.config import Config
from sluice.targets import Drafter, EngineTarget, Run, Seams

Rows = npt.NDArray[np.int32]
Calls = Sequence[Mapping[str, Any]]
"""The generations of one session, each as its overrides."""


class Fault(Seams):
    """A fault; ``name`` is what gates list in ``kills``."""

    name: ClassVar[str]

    def config(self, config: Config) -> Config:
        """The configuration that the engine gets in the place of ``config``."""
        return config

    def acts_in(self, config: Config) -> bool:
        """Whether the fault is in sessions of ``config`` at all."""
        return True

    def sessions(self, calls: Calls) -> list[Calls]:
        """What is run in the place of one session of ``calls``: each in a session of its own."""
        return [calls]

    def finish(self, config: Config, run: Run) -> Run:
        """What the caller gets in the place of ``run``."""
        return run


@dataclasses.dataclass(slots=True)
class FaultyTarget:
    """The engine with a fault in it; the fault keeps its state from run to run."""

    fault: Fault

    def run(
        self,
        config: Config,
        prompt: str | Sequence[int],
        *,
        drafter: Drafter | None = None,
        overrides: dict[str, Any] | None = None,
    ) -> Run:
        """As :meth:`EngineTarget.run`."""
        given = self.fault.config(config.replace(**(overrides or {})))
        run = self._engine(given).run(given, prompt, drafter=drafter)
        return self.fault.finish(config, run)

    def run_all(self, config: Config, prompt: str | Sequence[int], calls: Calls) -> list[Run]:
        """As :meth:`EngineTarget.run_all`."""
        given, runs = self.fault.config(config), []
        for mine in self.fault.sessions(calls):
            merged = [self.fault.config(config.replace(**overrides)) for overrides in mine]
            left = [
                {name: getattr(one, name) for name in overrides}
                for one, overrides in zip(merged, mine, strict=True)
            ]
            runs += self._engine(given).run_all(given, prompt, left)
        return [self.fault.finish(config, run) for run in runs]

    def run_together(self, configs: Sequence[Config], prompt: str | Sequence[int]) -> list[Run]:
        """As :meth:`EngineTarget.run_together`."""
        given = [self.fault.config(config) for config in configs]
        runs = self._engine(*given).run_together(given, prompt)
        return [self.fault.finish(*pair) for pair in zip(configs, runs, strict=True)]

    def _engine(self, *configs: Config) -> EngineTarget:
        acts = any(self.fault.acts_in(config) for config in configs)
        return EngineTarget(self.fault) if acts else EngineTarget()


class Probe(Seams):
    """Passes everything through and remembers which hooks a run came by."""

    is_passive = True

    def __init__(self) -> None:
        self.called: set[str] = set()

    def slice_source(self, layer: int, part: str, expert: int, n_expert: int) -> int | None:
        self.called.add("slice_source")
        return expert

    def slice_read(self, layer: int, part: str, expert: int, data: memoryview) -> None:
        self.called.add("slice_read")

    def slice_shard(self, shard: int, n_shards: int) -> int:
        if n_shards > 1:  # no fault can take another than the only one
            self.called.add("slice_shard")
        return shard

    def lane_reads(self, tensor: str, is_ahead: bool) -> None:
        self.called.add("lane_reads")

    def lane_has_read(self, tensor: str, is_ahead: bool) -> None:
        self.called.add("lane_has_read")

    def hands_over(self, tensor: str, is_ahead: bool) -> bool:
        self.called.add("hands_over")
        return True

    def waits(self, layer: int, part: str) -> bool:
        self.called.add("waits")
        return True

    def waits_for_ahead(self, layer: int, expert: int) -> bool:
        self.called.add("waits_for_ahead")
        return True

    def forgets(self, layer: int, expert: int) -> bool:
        self.called.add("forgets")
        return True

    def spares_in_flight(self) -> bool:
        self.called.add("spares_in_flight")
        return True

    def spares_shared_page(self) -> bool:
        self.called.add("spares_shared_page")
        return True

    def takes_for_whole(self, layer: int, is_whole: bool) -> bool:
        self.called.add("takes_for_whole")
        return is_whole

    def computes_late(self, layer: int) -> bool:
        self.called.add("computes_late")
        return True

    def routing(self, selected: Rows, flat: Rows) -> Any:
        self.called.add("routing")
        return selected

    def accepted(self, n_accepted: int, n_drafted: int) -> int:
        self.called.add("accepted")
        return n_accepted

    def rolls_back(self, n_rejected: int) -> bool:
        self.called.add("rolls_back")
        return True

    def catch_up_rows(self, n_prefix: int, n_batch: int) -> int:
        self.called.add("catch_up_rows")
        return n_prefix

    def drops_surplus(self) -> bool:
        self.called.add("drops_surplus")
        return True

    def hidden_row(self, row: int) -> int:
        self.called.add("hidden_row")
        return row

    def logits_row(self, row: int, n_rows: int) -> int:
        self.called.add("logits_row")
        return row


def hooks() -> set[str]:
    """Every hook of the seam."""
    return {name for name, value in vars(Seams).items() if callable(value) and name[0] != "_"}


def planted(fault: Fault) -> set[str]:
    """The hooks that a fault replaces."""
    return {name for name in hooks() if getattr(type(fault), name) is not getattr(Seams, name)}

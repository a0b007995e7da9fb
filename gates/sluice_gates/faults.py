"""Faults that engines of this kind have had, one class each, for the kill matrix.

Most sit in a seam of the reader, the eval hook or the decode loop. The others stand before or
behind the engine: a setting that is silently ignored, a run that is handed back wrongly.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from sluice.config import Config
from sluice.targets import Drafter, EngineTarget, Run, Seams

Rows = npt.NDArray[np.int32]
Calls = Sequence[Mapping[str, Any]]
"""The generations of one session, each as its overrides."""

LATE_S = 0.003
"""How late a read is that a fault holds up: longer than a layer takes, so that it shows."""


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


class SliceNeighbour(Fault):
    """Expert 0 is read from the place of expert 1, in one part of one layer."""

    name = "slice-neighbour"

    def slice_source(self, layer: int, part: str, expert: int, n_expert: int) -> int | None:
        return 1 if (layer, part, expert) == (0, "up", 0) else expert


class SliceMissing(Fault):
    """One part of layer 1 is never read: computed on what another layer left in the buffer."""

    name = "slice-missing"

    def slice_source(self, layer: int, part: str, expert: int, n_expert: int) -> int | None:
        return None if (layer, part) == (1, "down") else expert


class SliceStale(Fault):
    """A slice is read once only: later layers have overwritten it when it is used again."""

    name = "slice-stale"

    def __init__(self) -> None:
        self._read: set[tuple[int, str, int]] = set()

    def slice_source(self, layer: int, part: str, expert: int, n_expert: int) -> int | None:
        key = (layer, part, expert)
        if layer != 2 or key in self._read:
            return None if layer == 2 else expert
        self._read.add(key)
        return expert


class SliceRaced(Fault):
    """One read in a hundred delivers the neighbour's bytes, at other places in every run."""

    name = "slice-raced"

    def __init__(self) -> None:
        self._count = 0

    def slice_source(self, layer: int, part: str, expert: int, n_expert: int) -> int | None:
        self._count += 1
        return (expert + 1) % n_expert if self._count % 101 == 0 else expert


class SliceBitFlip(Fault):
    """One bit of one slice is flipped, every time that the slice is read."""

    name = "slice-bit-flip"

    def __init__(self) -> None:
        self._chosen: tuple[int, str, int] | None = None

    def slice_read(self, layer: int, part: str, expert: int, data: memoryview) -> None:
        self._chosen = self._chosen or (layer, part, expert)
        if (layer, part, expert) == self._chosen:
            data[len(data) // 2] ^= 0x40


class RoutingFlat(Fault):
    """The router's strided view is read as if its rows lay one after the other."""

    name = "routing-flat"

    def routing(self, selected: Rows, flat: Rows) -> Any:
        return flat


class RoutingFirstRow(Fault):
    """Only the first row of a batch has its experts read."""

    name = "routing-first-row"

    def routing(self, selected: Rows, flat: Rows) -> Any:
        return selected[:1]


class AcceptOneMore(Fault):
    """One draft more is accepted than matched."""

    name = "accept-one-more"

    def accepted(self, n_accepted: int, n_drafted: int) -> int:
        return min(n_accepted + 1, n_drafted)


class AcceptOneLess(Fault):
    """One draft fewer is accepted than matched."""

    name = "accept-one-less"

    def accepted(self, n_accepted: int, n_drafted: int) -> int:
        return max(n_accepted - 1, 0)


class RollbackSkipped(Fault):
    """The rejected tail stays in the target's state."""

    name = "rollback-skipped"

    def rolls_back(self, n_rejected: int) -> bool:
        return False


class LogitsStaleRow(Fault):
    """The token after a group is chosen from the last row, not the first unverified one."""

    name = "logits-stale-row"

    def logits_row(self, row: int, n_rows: int) -> int:
        return n_rows - 1


class CatchUpTailKept(Fault):
    """The head catches up on the rejected tail, too, and keeps it."""

    name = "catch-up-tail-kept"

    def catch_up_rows(self, n_prefix: int, n_batch: int) -> int:
        return n_batch

    def drops_surplus(self) -> bool:
        return False


class CatchUpShort(Fault):
    """The head catches up on the confirmed token only, not on the accepted drafts."""

    name = "catch-up-short"

    def catch_up_rows(self, n_prefix: int, n_batch: int) -> int:
        return 1


class HiddenShifted(Fault):
    """The next draft starts from the hidden state of the row before."""

    name = "hidden-shifted"

    def hidden_row(self, row: int) -> int:
        return max(row - 1, 0)


class HiddenOfTail(Fault):
    """The next draft starts from the hidden state of the first rejected draft."""

    name = "hidden-of-tail"

    def hidden_row(self, row: int) -> int:
        return row + 1 if self._wide > row + 1 else row

    def logits_row(self, row: int, n_rows: int) -> int:
        self._wide = n_rows
        return row


class OvershootsLimit(Fault):
    """A group that is accepted beyond ``-n`` is handed out whole."""

    name = "n-overshot"

    def config(self, config: Config) -> Config:
        return config.replace(n=config.n + config.draft) if config.mtp else config


class EndKept(Fault):
    """The end-of-generation token is handed out, and the token list is longer than the text."""

    name = "eog-kept"

    def finish(self, config: Config, run: Run) -> Run:
        stop = run.evidence.stop
        if not config.mtp or stop.id is None or stop.logits_sha256 is None:
            return run
        longer = dataclasses.replace(
            run.evidence,
            ids=[*run.evidence.ids, stop.id],
            logits_sha256=[*run.evidence.logits_sha256, stop.logits_sha256],
            top2=[*run.evidence.top2, run.evidence.top2[-1]],
        )
        return dataclasses.replace(run, evidence=longer)


class PMinIgnored(Fault):
    """``--mtp-p-min`` does nothing."""

    name = "p-min-ignored"

    def config(self, config: Config) -> Config:
        return config.replace(mtp_p_min=0.0)


class DraftMinIgnored(Fault):
    """``--draft-min`` does nothing."""

    name = "draft-min-ignored"

    def config(self, config: Config) -> Config:
        return config.replace(draft_min=0)


class StreamIgnored(Fault):
    """The experts stay resident though they should be streamed."""

    name = "stream-ignored"

    def config(self, config: Config) -> Config:
        return config.replace(moe_stream=False, load_all=False, poison=False)


class LoadAllIgnored(Fault):
    """The control reads the routed experts only."""

    name = "load-all-ignored"

    def config(self, config: Config) -> Config:
        return config.replace(load_all=False)


class CatchUpIgnored(Fault):
    """The control catches up on the accepted prefix only."""

    name = "catch-up-ignored"

    def config(self, config: Config) -> Config:
        return config.replace(catch_up="prefix")


class UbatchIgnored(Fault):
    """``--ubatch`` does nothing."""

    name = "ubatch-ignored"

    def config(self, config: Config) -> Config:
        return config.replace(ubatch=512)


class StreamingFault(Fault):
    """A fault of the cache, of reads that run under compute, or of what is read ahead."""


class EvictedSlotRead(StreamingFault):
    """An expert whose pages were given back is still taken for resident."""

    name = "evicted-slot-read"

    def forgets(self, layer: int, expert: int) -> bool:
        return False


class SlotInFlightDropped(StreamingFault):
    """Eviction takes the pages of an expert that a lane is still writing into."""

    name = "slot-in-flight-dropped"

    def acts_in(self, config: Config) -> bool:
        return _reads_ahead(config)

    def lane_has_read(self, tensor: str, is_ahead: bool) -> None:
        if is_ahead:
            time.sleep(LATE_S)

    def spares_in_flight(self) -> bool:
        return False


class ReadAheadReadyEarly(StreamingFault):
    """An expert that is read ahead is taken for resident before its read is done."""

    name = "read-ahead-ready-early"

    def acts_in(self, config: Config) -> bool:
        return _reads_ahead(config)

    def lane_reads(self, tensor: str, is_ahead: bool) -> None:
        if is_ahead:
            time.sleep(LATE_S)

    def waits_for_ahead(self, layer: int, expert: int) -> bool:
        return False


class SecondShardOnFirst(StreamingFault):
    """Every slice is read from the first shard, at the place that it has in its own."""

    name = "second-shard-on-first"

    def slice_shard(self, shard: int, n_shards: int) -> int:
        return 0


class SharedPageDropped(StreamingFault):
    """Eviction gives back a page that a resident neighbour has a part of."""

    name = "shared-page-dropped"

    def spares_shared_page(self) -> bool:
        return False


class OverlapWaitForgotten(StreamingFault):
    """The down projection does not wait for its reads, which come late."""

    name = "overlap-wait-forgotten"

    def acts_in(self, config: Config) -> bool:
        return config.overlap

    def lane_reads(self, tensor: str, is_ahead: bool) -> None:
        if "_down_" in tensor and not is_ahead:
            time.sleep(LATE_S)

    def waits(self, layer: int, part: str) -> bool:
        return part != "down"


class CacheIgnored(StreamingFault):
    """Nothing is cached, and so nothing read ahead."""

    name = "cache-ignored"

    def config(self, config: Config) -> Config:
        return config.replace(cache_mb=0, prefetch=0, predict_prefetch=False)


class CacheUnbounded(StreamingFault):
    """The cache grows until it holds every expert."""

    name = "cache-unbounded"

    def config(self, config: Config) -> Config:
        return config.replace(cache_mb=1 << 20) if config.cache_mb else config


class OverlapIgnored(StreamingFault):
    """``--overlap`` does nothing."""

    name = "overlap-ignored"

    def config(self, config: Config) -> Config:
        return config.replace(overlap=False)


class PrefetchIgnored(StreamingFault):
    """``--prefetch`` does nothing."""

    name = "prefetch-ignored"

    def config(self, config: Config) -> Config:
        return config.replace(prefetch=0)


class PredictPrefetchIgnored(StreamingFault):
    """``--predict-prefetch`` does nothing."""

    name = "predict-prefetch-ignored"

    def config(self, config: Config) -> Config:
        return config.replace(predict_prefetch=False)


class PrefetchSyncIgnored(StreamingFault):
    """What is read ahead is not waited for, though the control asks for it, and comes late."""

    name = "prefetch-sync-ignored"

    def acts_in(self, config: Config) -> bool:
        return _reads_ahead(config)

    def config(self, config: Config) -> Config:
        return config.replace(prefetch_sync=False)

    def lane_reads(self, tensor: str, is_ahead: bool) -> None:
        if is_ahead:
            time.sleep(LATE_S)


class PredictLogIgnored(StreamingFault):
    """``--predict-log`` counts nothing."""

    name = "predict-log-ignored"

    def config(self, config: Config) -> Config:
        return config.replace(predict_log=False)


class DenseIgnored(StreamingFault):
    """``--dense-weights`` does nothing: they stay mapped."""

    name = "dense-ignored"

    def config(self, config: Config) -> Config:
        return config.replace(dense_weights="mmap")


class DenseAlwaysOwned(StreamingFault):
    """``--dense-weights`` does nothing: they are read into our own memory."""

    name = "dense-always-owned"

    def config(self, config: Config) -> Config:
        return config.replace(dense_weights="anon")


class NoOdirectIgnored(StreamingFault):
    """``--no-odirect`` does nothing."""

    name = "no-odirect-ignored"

    def config(self, config: Config) -> Config:
        return config.replace(odirect=True)


class BudgetChangeIgnored(StreamingFault):
    """The cache keeps its first budget."""

    name = "budget-change-ignored"

    def sessions(self, calls: Calls) -> list[Calls]:
        return [[{k: v for k, v in call.items() if k != "cache_mb"} for call in calls]]


class SessionReopened(StreamingFault):
    """Every generation of a session begins with an empty cache."""

    name = "session-reopened"

    def sessions(self, calls: Calls) -> list[Calls]:
        return [[call] for call in calls]


def _reads_ahead(config: Config) -> bool:
    return bool(config.prefetch) or config.predict_prefetch


ENGINE_FAULTS: dict[str, type[Fault]] = {
    fault.name: fault for fault in Fault.__subclasses__() if fault is not StreamingFault
}
STREAMING_FAULTS: dict[str, type[Fault]] = {
    fault.name: fault for fault in StreamingFault.__subclasses__()
}
FAULTS = {**ENGINE_FAULTS, **STREAMING_FAULTS}


class Probe(Seams):
    """Passes everything through and remembers which hooks a run came by."""

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
    return {name for name in vars(Seams) if not name.startswith("_")}


def planted(fault: Fault) -> set[str]:
    """The hooks that a fault replaces."""
    return {name for name in hooks() if getattr(type(fault), name) is not getattr(Seams, name)}

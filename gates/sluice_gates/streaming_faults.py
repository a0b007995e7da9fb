"""Faults of the cache, of shards, of reads that run under compute, and of what is read ahead."""

from __future__ import annotations

import dataclasses
import time

from sluice.config import Config
from sluice.targets import Run
from sluice_gates.fault import Calls, Fault

LATE_S = 0.003
"""How late a read is that a fault holds up: longer than a layer takes, so that it shows."""

IN_FLIGHT_S = 0.01
"""How long a read stays in flight: until its slot is old enough to be evicted."""


class EvictedSlotRead(Fault):
    """An expert whose slot or pages were given back is still taken for resident."""

    name = "evicted-slot-read"

    def forgets(self, layer: int, expert: int) -> bool:
        return False


class SlotInFlightDropped(Fault):
    """Eviction takes the slot or the pages of an expert that a lane is still writing into."""

    name = "slot-in-flight-dropped"

    def acts_in(self, config: Config) -> bool:
        return config.reads_ahead

    def lane_has_read(self, tensor: str, is_ahead: bool) -> None:
        if is_ahead:
            time.sleep(IN_FLIGHT_S)

    def spares_in_flight(self) -> bool:
        return False


class ReadAheadReadyEarly(Fault):
    """An expert that is read ahead is taken for resident before its read is done."""

    name = "read-ahead-ready-early"

    def acts_in(self, config: Config) -> bool:
        return config.reads_ahead

    def lane_reads(self, tensor: str, is_ahead: bool) -> None:
        if is_ahead:
            time.sleep(LATE_S)

    def waits_for_ahead(self, layer: int, expert: int) -> bool:
        return False


class SecondShardOnFirst(Fault):
    """Every slice is read from the first shard, at the place that it has in its own."""

    name = "second-shard-on-first"

    def slice_shard(self, shard: int, n_shards: int) -> int:
        return 0


class SharedPageDropped(Fault):
    """Eviction gives back a page that a resident neighbour has a part of."""

    name = "shared-page-dropped"

    def spares_shared_page(self) -> bool:
        return False


class OverlapWaitForgotten(Fault):
    """The down projection does not wait for its reads, which come late."""

    name = "overlap-wait-forgotten"

    def acts_in(self, config: Config) -> bool:
        return config.overlap

    def lane_reads(self, tensor: str, is_ahead: bool) -> None:
        if "_down_" in tensor and not is_ahead:
            time.sleep(LATE_S)

    def waits(self, layer: int, part: str) -> bool:
        return part != "down"


class LateRowsForgotten(Fault):
    """Experts that are computed after the others of their layer are left out."""

    name = "late-rows-forgotten"

    def acts_in(self, config: Config) -> bool:
        return config.overlap

    def computes_late(self, layer: int) -> bool:
        return False


class ReadHandedOverLost(Fault):
    """A read that the kernel was to perform is taken for done, and was never made."""

    name = "read-handed-over-lost"

    def acts_in(self, config: Config) -> bool:
        return config.hides_reads

    def hands_over(self, tensor: str, is_ahead: bool) -> bool:
        return False


class KernelReadsIgnored(Fault):
    """``--no-kernel-reads`` does nothing."""

    name = "kernel-reads-ignored"

    def config(self, config: Config) -> Config:
        return config.replace(kernel_reads=True)


class LayerWholeEarly(Fault):
    """A layer computes as if all its experts were in the cache, before they are."""

    name = "layer-whole-early"

    def takes_for_whole(self, layer: int, is_whole: bool) -> bool:
        return True


class CacheFillIgnored(Fault):
    """``--cache-fill`` does nothing."""

    name = "cache-fill-ignored"

    def config(self, config: Config) -> Config:
        return config.replace(cache_fill=False)


class CacheIgnored(Fault):
    """Nothing is cached, and so nothing read ahead."""

    name = "cache-ignored"

    def config(self, config: Config) -> Config:
        return config.replace(cache_mb=0, prefetch=0, predict_prefetch=False)


class CacheUnbounded(Fault):
    """The cache grows until it holds every expert."""

    name = "cache-unbounded"

    def config(self, config: Config) -> Config:
        return config.replace(cache_mb=1 << 20) if config.cache_mb else config


class OverlapIgnored(Fault):
    """``--overlap`` does nothing."""

    name = "overlap-ignored"

    def config(self, config: Config) -> Config:
        return config.replace(overlap=False)


class PrefetchIgnored(Fault):
    """``--prefetch`` does nothing."""

    name = "prefetch-ignored"

    def config(self, config: Config) -> Config:
        return config.replace(prefetch=0)


class PredictPrefetchIgnored(Fault):
    """``--predict-prefetch`` does nothing."""

    name = "predict-prefetch-ignored"

    def config(self, config: Config) -> Config:
        return config.replace(predict_prefetch=False)


class PrefetchSyncIgnored(Fault):
    """What is read ahead is not waited for, though the control asks for it, and comes late."""

    name = "prefetch-sync-ignored"

    def acts_in(self, config: Config) -> bool:
        return config.reads_ahead

    def config(self, config: Config) -> Config:
        return config.replace(prefetch_sync=False)

    def lane_reads(self, tensor: str, is_ahead: bool) -> None:
        if is_ahead:
            time.sleep(LATE_S)


class PredictLogIgnored(Fault):
    """``--predict-log`` counts nothing."""

    name = "predict-log-ignored"

    def config(self, config: Config) -> Config:
        return config.replace(predict_log=False)


class ControlWrong(Fault):
    """One expert that the control of ``--predict-log`` names is not what the model chose."""

    name = "control-wrong"

    def finish(self, config: Config, run: Run) -> Run:
        counts = dict(run.metrics.predictions)
        control = counts.get("control")
        if control is None:
            return run
        counts["control"] = dataclasses.replace(control, n_right=control.n_right - 1)
        metrics = dataclasses.replace(run.metrics, predictions=counts)
        return dataclasses.replace(run, metrics=metrics)


class DenseWarmIgnored(Fault):
    """Dense weights that should be paged in at load are left alone."""

    name = "dense-warm-ignored"

    def config(self, config: Config) -> Config:
        return config.replace(dense_weights="mmap") if config.dense_weights == "warm" else config


class DenseMappedWhenBuffered(Fault):
    """Without O_DIRECT the dense weights stay mapped."""

    name = "dense-mapped-when-buffered"

    def config(self, config: Config) -> Config:
        return config if config.odirect else config.replace(dense_weights="mmap")


class DenseAlwaysOwned(Fault):
    """``--dense-weights`` does nothing: they are always read into our own memory."""

    name = "dense-always-owned"

    def config(self, config: Config) -> Config:
        return config.replace(dense_weights="anon")


class NoOdirectIgnored(Fault):
    """``--no-odirect`` does nothing."""

    name = "no-odirect-ignored"

    def config(self, config: Config) -> Config:
        return config.replace(odirect=True)


class BudgetChangeIgnored(Fault):
    """The cache keeps its first budget."""

    name = "budget-change-ignored"

    def sessions(self, calls: Calls) -> list[Calls]:
        return [[{k: v for k, v in call.items() if k != "cache_mb"} for call in calls]]


class SessionReopened(Fault):
    """Every generation of a session begins with an empty cache."""

    name = "session-reopened"

    def sessions(self, calls: Calls) -> list[Calls]:
        return [[call] for call in calls]


STREAMING_FAULTS: dict[str, type[Fault]] = {
    fault.name: fault for fault in Fault.__subclasses__() if fault.__module__ == __name__
}

"""Faults that engines of this kind have had, one class each, for the kill matrix.

Most sit in a seam of the reader, the eval hook or the decode loop. The others stand before or
behind the engine: a setting that is silently ignored, a run that is handed back wrongly.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from sluice.config import Config
from sluice.targets import Run
from sluice_gates.fault import Fault, Rows
from sluice_gates.streaming_faults import STREAMING_FAULTS


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
        if part == "down":
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
        return config.replace(
            moe_stream=False,
            load_all=False,
            poison=False,
            cache_mb=0,
            overlap=False,
            prefetch=0,
            predict_prefetch=False,
            predict_log=False,
        )


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


ENGINE_FAULTS: dict[str, type[Fault]] = {
    fault.name: fault for fault in Fault.__subclasses__() if fault.__module__ == __name__
}

FAULTS = {**ENGINE_FAULTS, **STREAMING_FAULTS}

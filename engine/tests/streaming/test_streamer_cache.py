"""Cache, overlap and read-ahead: what they say that they did, and that no bit changes by it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from sluice.decoding.session import Session
from sluice.gguf.header import Header
from sluice.seams import Nodes, Seams

TOP_K, N_EXPERT, N_TRUNK, N_PARTS = 2, 8, 4, 3
Open = Callable[..., Session]


def slice_bytes(session: Session) -> int:
    """Of one expert, all parts, one layer."""
    assert session._streamer is not None
    sizes = {sum(t.slice_bytes for t in ts) for ts in session._streamer.layout.layers.values()}
    assert len(sizes) == 1
    return sizes.pop()


def logits(session: Session, prompt: str) -> list[str]:
    return session.generate(prompt).run().evidence().logits_sha256


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize(
    "changes",
    [
        {"overlap": True},
        {"cache_mb": 2},
        {"cache_mb": 2, "overlap": True},
        {"cache_mb": 1, "force_cache": True, "overlap": True},
        {"cache_mb": 4, "prefetch": 2},
        {"cache_mb": 4, "prefetch": 2, "prefetch_sync": True},
        {"cache_mb": 4, "predict_prefetch": True, "overlap": True},
        {"cache_mb": 4, "predict_prefetch": True, "predict_spec_max": 1, "mtp": True},
        {"cache_mb": 7, "prefetch": 64, "overlap": True, "mtp": True},
        {"cache_mb": 2, "cache_memory": "pages", "overlap": True},
        {"cache_mb": 4, "cache_memory": "pages", "prefetch": 2, "overlap": True, "mtp": True},
        {"cache_mb": 64, "cache_memory": "pages"},
        {"predict_log": True, "overlap": True, "poison": True},
    ],
    ids=str,
)
def test_how_bytes_come_in_changes_no_bit(
    opened: Open, prompt: str, changes: dict[str, Any], lanes: int
) -> None:
    resident = logits(opened(mtp=changes.get("mtp", False)), prompt)
    session = opened(moe_stream=True, io_threads=lanes, **changes)
    assert logits(session, prompt) == resident
    assert logits(session, prompt) == resident  # warm


def test_a_cache_counts_hits_and_what_it_evicted(opened: Open, prompt: str) -> None:
    session = opened(moe_stream=True, cache_mb=2, odirect=False)
    metrics = session.generate(prompt).run().metrics
    decode, cache = metrics.decode, metrics.cache
    assert decode.n_hits + decode.n_misses == 23 * N_TRUNK * TOP_K
    assert decode.n_hits > 0
    assert decode.n_slices == decode.n_misses * N_PARTS
    assert decode.slice_bytes == decode.read_bytes == decode.n_misses * slice_bytes(session)
    assert cache is not None
    assert 0 < cache.peak_bytes <= cache.budget_bytes == 2 << 20
    assert set(cache.evicted_by_layer) == set(range(N_TRUNK))
    evicted = metrics.prefill.n_evicted + decode.n_evicted
    assert evicted == sum(cache.evicted_by_layer.values()) > 0


def test_a_cache_that_holds_all_reads_nothing_the_second_time(opened: Open, prompt: str) -> None:
    session = opened(moe_stream=True, cache_mb=64, mtp=True)
    first = session.generate(prompt).run().metrics
    assert first.read_bytes > 0
    second = session.generate(prompt).run().metrics
    assert second.read_bytes == 0
    for counter in (second.prefill, second.decode, second.head):
        assert counter.hit_rate == 1.0
    assert second.cache is not None
    assert second.cache.evicted_by_layer == {}


def test_no_cache_has_no_report_and_only_misses(opened: Open) -> None:
    metrics = opened(moe_stream=True).generate([5, 6], n=4).run().metrics
    assert metrics.cache is None
    assert metrics.decode.n_misses == 3 * N_TRUNK * TOP_K
    assert metrics.decode.n_hits == metrics.decode.n_evicted == 0


class Slow(Seams):
    """The down projection's reads wait until compute has gone on."""

    def __init__(self) -> None:
        self.started = threading.Event()

    def lane_reads(self, tensor: str, is_ahead: bool) -> None:
        if "down_exps" in tensor:
            self.started.wait(0.002)


def test_overlap_goes_on_before_the_last_part_is_there(opened: Open, prompt: str) -> None:
    session = opened(moe_stream=True, overlap=True, n=6, session={"seams": Slow()})
    metrics = session.generate(prompt).run().metrics
    assert 0 < metrics.decode.overlapped_bytes < metrics.decode.read_bytes
    serial = opened(moe_stream=True, n=6, session={"seams": Slow()})
    assert serial.generate(prompt).run().metrics.decode.overlapped_bytes == 0


class Breaks(Slow):
    """Raises when the first part is there, and the last is still on its way."""

    def __init__(self) -> None:
        super().__init__()
        self.at = 2
        self.n_on_their_way = 0
        self._counting = threading.Lock()

    def lane_reads(self, tensor: str, is_ahead: bool) -> None:
        with self._counting:
            self.n_on_their_way += 1
        super().lane_reads(tensor, is_ahead)

    def lane_has_read(self, tensor: str, is_ahead: bool) -> None:
        with self._counting:
            self.n_on_their_way -= 1

    def slice_read(self, layer: int, part: str, expert: int, data: memoryview) -> None:
        self.at -= 1
        if self.at == 0:
            raise ArithmeticError("planted")


@pytest.mark.parametrize("changes", [{}, {"cache_mb": 4}, {"cache_mb": 4, "prefetch": 2}], ids=str)
def test_after_an_error_nothing_is_on_its_way(
    opened: Open, prompt: str, changes: dict[str, Any]
) -> None:
    breaks = Breaks()
    session = opened(
        moe_stream=True, overlap=True, n=6, io_threads=2, session={"seams": breaks}, **changes
    )
    with pytest.raises(ArithmeticError, match="planted"):
        session.generate(prompt).run()
    assert session.streamer is not None
    assert not session.streamer._pending
    assert breaks.n_on_their_way == 0
    assert logits(session, prompt) == logits(opened(n=6), prompt)


class SlowAhead(Seams):
    """The down projections that are read ahead are on their way when they are routed to."""

    def lane_reads(self, tensor: str, is_ahead: bool) -> None:
        if is_ahead and "down_exps" in tensor:
            threading.Event().wait(0.01)


def test_overlap_counts_nothing_that_was_read_ahead(opened: Open) -> None:
    session = opened(
        moe_stream=True, overlap=True, cache_mb=7, predict_prefetch=True, io_threads=1, n=40,
        session={"seams": SlowAhead(), "nodes": Nodes()},  # looked at: no expert is late
    )  # fmt: skip
    made = session.generate("def main(").run().metrics.decode
    assert made.n_ahead_awaited
    # Two of the three parts of what was not read ahead, at the most.
    assert made.overlapped_bytes < 0.7 * (made.read_bytes - made.ahead_bytes)


def test_all_that_is_late_overlaps_and_nothing_that_was_read_ahead(opened: Open) -> None:
    session = opened(
        moe_stream=True, overlap=True, cache_mb=7, predict_prefetch=True, io_threads=1, n=40,
        session={"seams": SlowAhead()},
    )  # fmt: skip
    made = session.generate("def main(").run().metrics.decode
    assert made.n_ahead_awaited
    assert made.n_late
    assert 0 < made.overlapped_bytes <= made.read_bytes - made.ahead_bytes


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("changes", [{"prefetch": 2}, {"predict_prefetch": True}], ids=str)
def test_what_was_read_ahead_is_counted_with_its_use(
    opened: Open, prompt: str, changes: dict[str, Any], sync: bool
) -> None:
    # Hardly more than one token's experts: the previous token's are about to go.
    session = opened(moe_stream=True, cache_mb=2, prefetch_sync=sync, odirect=False, **changes)
    made = session.generate(prompt).run().metrics.generated
    assert 0 < made.n_ahead_used <= made.n_ahead
    assert made.n_ahead_awaited <= made.n_ahead_used
    if sync:
        assert made.n_ahead_awaited == 0
    assert made.ahead_bytes == made.n_ahead * slice_bytes(session)
    assert made.read_bytes == made.ahead_bytes + made.n_misses * slice_bytes(session)
    assert made.n_hits + made.n_misses == 23 * N_TRUNK * TOP_K


def test_no_more_is_read_ahead_than_may_be(opened: Open, prompt: str) -> None:
    most = {}
    for spec_max in (1, 2):
        session = opened(
            moe_stream=True, cache_mb=4, predict_prefetch=True, predict_spec_max=spec_max
        )
        made = session.generate(prompt).run().metrics.generated
        most[spec_max] = made.n_ahead
        assert 0 < made.n_ahead <= 23 * N_TRUNK * spec_max
    assert most[1] < most[2]


@pytest.mark.parametrize("mtp", [False, True])
def test_our_copy_of_a_router_chooses_what_the_models_own_did(
    opened: Open, prompt: str, mtp: bool
) -> None:
    session = opened(moe_stream=True, predict_log=True, mtp=mtp, n=48)
    found = session.generate(prompt).run().metrics.predictions
    assert set(found) == {"previous token", "early router", "control"}
    control = found["control"]
    assert control.n_right == control.n_named >= 47 * N_TRUNK * TOP_K
    for name in ("previous token", "early router"):
        assert 0 < found[name].n_right < found[name].n_named


def test_what_the_model_uses_is_found_in_its_graph(opened: Open, header: Header) -> None:
    streamer = opened(moe_stream=True, mtp=True).streamer
    assert streamer is not None
    capture = streamer._capture
    assert set(capture.orders) == set(capture.routers) == set(range(N_TRUNK + 1))
    for layer, order in capture.orders.items():
        assert sorted(order) == ["down", "gate", "up"]
        assert order[-1] == "down"
        # Stops are before the second and the third part that is needed.
        stops = [part for one, part in capture.stops.values() if one == layer]
        assert stops == order[1:]
    unused = set(header.tensors) - set(capture.found)
    assert not [name for name in unused if "_exps" in name]
    assert sum(header.tensors[name].size_bytes for name in unused) < header.file_bytes // 10

"""Layers that are whole in the cache: nothing is read or stopped for, and no bit changes by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sluice.decoding.session import Session
from sluice.llama import tensor as node
from sluice.seams import Nodes, Seams
from sluice.streaming.whole import WholeLayers

TOP_K, N_EXPERT, N_TRUNK = 2, 8, 4
Open = Callable[..., Session]
KINDS = ("slots", "pages")
FULL = {"moe_stream": True, "cache_mb": 64, "io_threads": 2}


def made(session: Session, prompt: str, **overrides: Any) -> tuple[list[int], list[str]]:
    """The ids and the logits of a generation."""
    found = session.generate(prompt, **overrides).run().evidence()
    return list(found.ids), found.logits_sha256


def whole_of(session: Session) -> WholeLayers:
    assert session.streamer is not None
    assert session.streamer._whole is not None
    return session.streamer._whole


@pytest.mark.parametrize("memory", KINDS)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"overlap": True},
        {"mtp": True},
        {"mtp": True, "overlap": True, "predict_prefetch": True},
        {"predict_prefetch": True},
        {"prefetch": 2, "overlap": True},
        {"ubatch": 1},
        {"threads": 2},
        {"odirect": False},
        {"dense_weights": "mmap"},
    ],
    ids=str,
)
def test_a_filled_cache_changes_no_bit_and_reads_nothing(
    opened: Open, prompt: str, memory: str, changes: dict[str, Any]
) -> None:
    kept = ("mtp", "ubatch", "threads")
    right = made(opened(**{k: v for k, v in changes.items() if k in kept}), prompt)
    session = opened(**FULL | changes, cache_memory=memory, cache_fill=True)
    layers = N_TRUNK + bool(changes.get("mtp"))
    assert session.streamer is not None
    assert session.streamer.cache is not None
    assert len(session.streamer.cache) == layers * N_EXPERT
    for _ in range(3):
        done = session.generate(prompt).run()
        found = done.evidence()
        assert (list(found.ids), found.logits_sha256) == right
        metrics = done.metrics
        assert metrics.read_bytes == metrics.decode.n_slices == 0
        for counter in (metrics.prefill, metrics.decode, metrics.head):
            assert counter.n_misses == counter.n_ahead == counter.n_evicted == 0
        assert metrics.prefill.n_hits > 0
        assert bool(metrics.head.n_hits) == bool(changes.get("mtp"))
        if not changes.get("mtp"):
            assert metrics.decode.n_hits == 23 * N_TRUNK * TOP_K
        assert all(layer in whole_of(session) for layer in range(layers))
        assert len(whole_of(session).passed_by) == layers
    assert made(opened(**FULL | changes, cache_memory=memory), prompt) == right


@pytest.mark.parametrize("memory", KINDS)
def test_hits_are_the_experts_that_are_asked_for(opened: Open, prompt: str, memory: str) -> None:
    """In passes of several rows, too, whose rows have experts in common."""
    changes = {"mtp": True, "ubatch": 8, "draft": 3}
    plain = opened(moe_stream=True, **changes).generate(prompt).run().metrics
    session = opened(**FULL | changes, cache_memory=memory, cache_fill=True)
    filled = session.generate(prompt).run().metrics
    for name in ("prefill", "decode", "head"):
        counter = getattr(filled, name)
        assert counter.n_misses == 0
        assert counter.n_hits == getattr(plain, name).n_misses > 0, name


@pytest.mark.parametrize("memory", KINDS)
@pytest.mark.parametrize("mtp", [False, True])
def test_layers_that_become_whole_in_the_middle_change_no_bit(
    opened: Open, prompt: str, memory: str, mtp: bool
) -> None:
    right = made(opened(mtp=mtp, n=64), prompt)
    session = opened(**FULL, cache_memory=memory, mtp=mtp, n=64)
    # Every pass of one row: few experts at a time, and the graphs are used again.
    narrow = made(opened(mtp=mtp, n=64, ubatch=5), prompt)
    slow = opened(**FULL, cache_memory=memory, mtp=mtp, n=64, ubatch=5)
    for _ in range(2):
        assert made(session, prompt) == right
        assert made(slow, prompt) == narrow
    assert len(whole_of(session).passed_by) >= N_TRUNK
    assert len(whole_of(slow).passed_by) >= N_TRUNK


@pytest.mark.parametrize("memory", KINDS)
@pytest.mark.parametrize(
    "changes",
    [{}, {"overlap": True, "predict_prefetch": True}, {"mtp": True, "prefetch": 1}],
    ids=str,
)
def test_another_budget_streams_again(
    opened: Open, prompt: str, memory: str, changes: dict[str, Any]
) -> None:
    right = made(opened(mtp=changes.get("mtp", False)), prompt)
    session = opened(**FULL | changes, cache_memory=memory, cache_fill=True)
    assert made(session, prompt) == right
    for cache_mb in (3, 64, 2, 5, 64, 64):
        done = session.generate(prompt, cache_mb=cache_mb).run()
        found = done.evidence()
        assert (list(found.ids), found.logits_sha256) == right, cache_mb
        if cache_mb < 6:
            assert done.metrics.decode.n_misses > 0
            assert not whole_of(session).passed_by
    last = session.generate(prompt).run().metrics
    assert last.read_bytes == last.decode.n_misses == 0


@pytest.mark.parametrize("memory", KINDS)
def test_a_prompt_of_another_width_goes_between(opened: Open, prompt: str, memory: str) -> None:
    resident, session = opened(n=6), opened(**FULL, cache_memory=memory, cache_fill=True, n=6)
    for text in (prompt, "a", prompt * 4, "def f", prompt):
        assert made(session, text) == made(resident, text)


class Told(Exception):
    pass


class Breaks(Nodes):
    """Raises before the ``at``-th matmul over experts; counts them where there is none."""

    def __init__(self) -> None:
        self.at = -1
        self.n_seen = 0

    def wants(self, is_head: bool, address: int) -> bool:
        return node.op(address) == "MUL_MAT_ID"

    def computed(self, is_head: bool, address: int) -> None:
        self.n_seen += 1
        if self.n_seen == self.at:
            raise Told


@pytest.mark.parametrize("memory", KINDS)
@pytest.mark.parametrize("mtp", [False, True])
@pytest.mark.parametrize("fill", [False, True])
def test_what_was_broken_off_leaves_nothing_behind(
    opened: Open, prompt: str, memory: str, mtp: bool, fill: bool
) -> None:
    """Whichever matmul it was that was not come to: of layers on the way to whole, too."""
    right = made(opened(mtp=mtp, n=6), prompt)
    breaks = Breaks()
    session = opened(
        **FULL, cache_memory=memory, cache_fill=fill, mtp=mtp, n=6, session={"nodes": breaks}
    )
    for at in (1, 2, 5, 7, 10, 12, 13, 14, 20, 26, 28, 35, 40):
        breaks.n_seen, breaks.at = 0, at
        with pytest.raises(Told):
            session.generate(prompt).run()
        breaks.at = -1
        assert made(session, prompt) == right, at
    if memory == "pages":  # slots of a cache that was small are out of order
        for at in (13, 14, 20, 27):
            session.generate(prompt, cache_mb=3).run()
            breaks.n_seen, breaks.at = 0, at
            with pytest.raises(Told):
                session.generate(prompt, cache_mb=64).run()
            breaks.at = -1
            assert made(session, prompt) == right, at


class WhenWhole(Seams):
    """Lets a generation break off at the ``after``-th matmul since ``layer`` was found whole."""

    def __init__(self, breaks: Breaks, layer: int, after: int) -> None:
        self.breaks = breaks
        self.layer = layer
        self.after = after

    def takes_for_whole(self, layer: int, is_whole: bool) -> bool:
        if is_whole and layer == self.layer and self.after:
            self.breaks.n_seen, self.breaks.at = 0, self.after
            self.after = 0
        return is_whole


@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize("after", [1, 2, 3, 4, 12])
def test_a_graph_that_was_broken_off_on_its_way_to_whole_is_right_again(
    opened: Open, prompt: str, layer: int, after: int
) -> None:
    """Some of its matmuls still take slots, and the next generation uses the graph again."""
    right = made(opened(n=24, ubatch=1), prompt)
    breaks = Breaks()
    session = opened(
        **FULL, cache_memory="slots", n=24, ubatch=1,
        session={"nodes": breaks, "seams": WhenWhole(breaks, layer, after)},
    )  # fmt: skip
    with pytest.raises(Told):
        session.generate(prompt).run()
    breaks.at = -1
    for _ in range(2):
        assert made(session, prompt) == right
    assert layer in whole_of(session).passed_by


class BreaksRead(Seams):
    """Raises in the hook, when the ``at``-th slice is shown."""

    def __init__(self, at: int) -> None:
        self.at = at

    def slice_read(self, layer: int, part: str, expert: int, data: memoryview) -> None:
        self.at -= 1
        if self.at == 0:
            raise Told


@pytest.mark.parametrize("memory", KINDS)
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("at", [1, 3, 30, 80])
def test_a_seam_that_breaks_off_leaves_nothing_behind(
    opened: Open, prompt: str, memory: str, overlap: bool, at: int
) -> None:
    right = made(opened(n=6), prompt)
    session = opened(
        **FULL, cache_memory=memory, overlap=overlap, n=6, session={"seams": BreaksRead(at)}
    )
    with pytest.raises(Told):
        session.generate(prompt).run()
    for _ in range(2):
        assert made(session, prompt) == right


def test_a_progress_that_breaks_off_leaves_nothing_behind(opened: Open, prompt: str) -> None:
    right = made(opened(n=6, ubatch=8), prompt)
    breaking = [False]

    def progress(stage: str, _done: int, _total: int) -> None:
        if stage == "prefill" and breaking[0]:
            raise Told

    session = opened(**FULL, cache_fill=True, n=6, ubatch=8, session={"progress": progress})
    for _ in range(2):
        breaking[0] = True
        with pytest.raises(Told):
            session.generate(prompt).run()
        breaking[0] = False
        assert made(session, prompt) == right


# What keeps layers from being passed by.


class Routes(Seams):
    def __init__(self) -> None:
        self.n_passes = 0

    def routing(self, selected: Any, flat: Any) -> Any:
        self.n_passes += 1
        return selected


def test_a_seam_that_may_change_the_routing_sees_all_of_it(opened: Open, prompt: str) -> None:
    seams = Routes()
    session = opened(**FULL, cache_fill=True, session={"seams": seams})
    assert made(session, prompt) == made(opened(), prompt)
    assert seams.n_passes == 24 * N_TRUNK


@pytest.mark.parametrize("memory", KINDS)
def test_predictions_are_counted_in_layers_that_are_whole(
    opened: Open, prompt: str, memory: str
) -> None:
    session = opened(**FULL, cache_memory=memory, cache_fill=True, predict_log=True, n=48)
    done = session.generate(prompt).run()
    assert not whole_of(session).passed_by
    assert all(layer in whole_of(session) for layer in range(N_TRUNK))
    control = done.metrics.predictions["control"]
    assert control.n_right == control.n_named >= 47 * N_TRUNK * TOP_K
    assert done.evidence().logits_sha256 == made(opened(n=48), prompt)[1]


def test_without_room_for_all_as_many_are_filled_as_go_in(opened: Open, prompt: str) -> None:
    right = made(opened(), prompt)
    session = opened(moe_stream=True, cache_mb=3, cache_fill=True)
    assert session.streamer is not None
    cache = session.streamer.cache
    assert cache is not None
    assert 0 < len(cache) < N_TRUNK * N_EXPERT
    assert cache.resident_bytes <= cache.budget_bytes == 3 << 20
    done = session.generate(prompt).run()
    assert done.evidence().logits_sha256 == right[1]
    assert done.metrics.prefill.n_hits > 0
    assert done.metrics.decode.n_misses > 0
    assert not whole_of(session).passed_by


def test_filling_says_how_far_it_is(opened: Open) -> None:
    steps: list[tuple[str, int, int]] = []
    opened(**FULL, cache_fill=True, session={"progress": lambda *step: steps.append(step)})
    experts = [(done, total) for stage, done, total in steps if stage == "experts"]
    assert experts[-1] == (N_TRUNK * N_EXPERT, N_TRUNK * N_EXPERT)
    assert experts == sorted(experts)

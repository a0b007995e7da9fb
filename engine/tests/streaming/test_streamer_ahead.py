"""Reading ahead for the first layer by the token's embedding, and which layers are read ahead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from sluice.decoding.generation import Generation
from sluice.decoding.session import Session
from sluice.errors import ReadFault
from sluice.llama import tensor as node
from sluice.seams import Nodes, Seams
from sluice.streaming.ahead import EARLY, ROWS_MAX
from sluice.streaming.readahead import ReadAhead

TOP_K, N_EXPERT, N_TRUNK, N_PARTS = 2, 8, 4, 3
Open = Callable[..., Session]


def ahead_of(session: Session) -> ReadAhead:
    assert session.streamer is not None
    assert session.streamer._ahead is not None
    return session.streamer._ahead


class Reads(Seams):
    """Counts what lanes read ahead, by layer."""

    def __init__(self) -> None:
        self.n_slices: Counter[int] = Counter()

    def lane_has_read(self, tensor: str, is_ahead: bool) -> None:
        if is_ahead:
            self.n_slices[int(tensor.split(".")[1])] += 1


class Watch(Nodes):
    """What was read ahead for the first layer, when a pass begins and when it routes."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self.begun: list[tuple[int, list[int]]] = []
        self.routed: list[int] = []

    def begins(
        self, is_head: bool, tokens: Sequence[int], position: int, outputs: str, hidden: Any
    ) -> None:
        assert self.session is not None
        assert self.session.streamer is not None
        cache = self.session.streamer.cache
        assert cache is not None
        named = [e for e in range(N_EXPERT) if (0, e) in cache and cache._entries[0, e].is_ahead]
        self.begun.append((len(tokens), named))

    def wants(self, is_head: bool, address: int) -> bool:
        return node.name(address) == "ffn_moe_topk-0"

    def computed(self, is_head: bool, address: int) -> None:
        self.routed.append(len(self.begun))


def test_the_first_layer_is_read_ahead_before_its_router_runs(opened: Open, prompt: str) -> None:
    watch, reads = Watch(), Reads()
    session = opened(
        moe_stream=True, cache_mb=2, predict_prefetch=True, odirect=False,
        session={"nodes": watch, "seams": reads},
    )  # fmt: skip
    watch.session = session
    done = session.generate(prompt).run()
    assert done.evidence().logits_sha256 == opened().generate(prompt).run().evidence().logits_sha256
    widths = [n for n, _ in watch.begun]
    assert widths == [len(session.tokenize(prompt))] + [1] * 23
    assert watch.routed == list(range(1, 25)), "each pass began before it routed"
    wide, *narrow = (named for _, named in watch.begun)
    assert wide == [], "a wide pass routes to most experts"
    assert sum(map(len, narrow)) > 5
    assert all(len(named) <= TOP_K for named in narrow)
    made = done.metrics.generated
    # What is taken back before a lane has begun counts as well.
    assert sum(reads.n_slices.values()) <= N_PARTS * made.n_ahead
    assert 0 < reads.n_slices[0] <= N_PARTS * sum(map(len, narrow))
    assert set(reads.n_slices) == set(range(N_TRUNK))


def test_what_is_read_ahead_for_the_first_layer_is_counted(opened: Open, prompt: str) -> None:
    """One layer alone is read ahead for: what is counted is its own."""
    reads = Reads()
    session = opened(
        moe_stream=True, cache_mb=2, predict_prefetch=True, prefetch_sync=True, odirect=False,
        session={"seams": reads},
    )  # fmt: skip
    ahead_of(session)._following = {}
    made = session.generate(prompt).run().metrics
    assert set(reads.n_slices) == {0}
    assert reads.n_slices[0] == N_PARTS * made.decode.n_ahead > 0
    assert made.prefill.n_ahead == made.prefill.ahead_bytes == 0
    assert 0 < made.decode.n_ahead_used <= made.decode.n_ahead
    assert made.decode.n_ahead_awaited == 0
    assert made.decode.ahead_bytes > 0


@pytest.mark.parametrize("spec_max", [1, 2])
def test_no_more_is_read_ahead_for_the_first_layer_than_may_be(
    opened: Open, prompt: str, spec_max: int
) -> None:
    watch = Watch()
    watch.session = opened(
        moe_stream=True, cache_mb=2, predict_prefetch=True, predict_spec_max=spec_max,
        session={"nodes": watch},
    )  # fmt: skip
    watch.session.generate(prompt).run()
    assert max(len(named) for _, named in watch.begun) == spec_max


def test_a_prompt_of_few_tokens_is_read_ahead_for_too(opened: Open) -> None:
    for n, reads_ahead in ((ROWS_MAX, True), (ROWS_MAX + 1, False)):
        watch = Watch()
        watch.session = opened(
            moe_stream=True, cache_mb=4, predict_prefetch=True, predict_spec_max=8, n=2,
            session={"nodes": watch},
        )  # fmt: skip
        watch.session.generate(list(range(5, 5 + n))).run()
        assert bool(watch.begun[0][1]) == reads_ahead, n


def test_the_first_layers_prediction_is_counted(opened: Open, prompt: str) -> None:
    session = opened(moe_stream=True, predict_log=True, n=48)
    early = session.generate(prompt).run().metrics.predictions[EARLY]
    assert early.n_named == 47 * N_TRUNK * TOP_K
    without = opened(moe_stream=True, predict_log=True, n=48)
    ahead_of(without)._embedding = None
    early_ = without.generate(prompt).run().metrics.predictions[EARLY]
    assert early_.n_named == 47 * (N_TRUNK - 1) * TOP_K
    # Better than any two of eight.
    n_right = early.n_right - early_.n_right
    assert n_right > 47 * TOP_K * TOP_K / N_EXPERT


def test_the_previous_tokens_experts_need_no_embedding(opened: Open, prompt: str) -> None:
    watch = Watch()
    watch.session = opened(moe_stream=True, cache_mb=2, prefetch=2, session={"nodes": watch})
    watch.session.generate(prompt).run()
    assert all(named == [] for _, named in watch.begun)


@pytest.mark.parametrize(
    ("changes", "targets"),
    [
        ({"predict_prefetch": True}, [[1], [2], [3], []]),
        ({"prefetch": 1}, [[1], [2], [3], []]),
        ({"prefetch": 2}, [[1, 2], [2, 3], [3], []]),
        ({"prefetch": 64}, [[1, 2, 3], [2, 3], [3], []]),
        ({"prefetch": 2, "predict_log": True}, [None] * 4),
        ({"predict_log": True}, [None] * 4),
    ],
    ids=str,
)
def test_the_layers_that_a_layer_reads_ahead_for(
    opened: Open, changes: dict[str, Any], targets: list[list[int] | None]
) -> None:
    ahead = ahead_of(opened(moe_stream=True, cache_mb=4, **changes))
    assert [ahead.targets(layer) for layer in range(N_TRUNK)] == targets


def test_the_heads_layer_reads_ahead_for_nobody(opened: Open) -> None:
    session = opened(moe_stream=True, cache_mb=4, predict_prefetch=True, mtp=True)
    assert ahead_of(session).targets(N_TRUNK) == []
    assert ahead_of(session).targets(N_TRUNK - 1) == []


def test_a_file_that_changes_between_two_tokens_is_not_read_ahead_from(
    changed_midway: Callable[..., tuple[Session, Generation]],
) -> None:
    """The first read of a token is that of the embeddings' router, before any layer runs."""
    _, generation = changed_midway(moe_stream=True, cache_mb=2, predict_prefetch=True)
    n_ahead = generation.metrics.generated.n_ahead
    with pytest.raises(ReadFault, match="changed since it was opened"):
        generation.run()
    assert generation.metrics.generated.n_ahead <= n_ahead + TOP_K

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from routing import Watcher, agreement, foreseen, hit_rate, router_of
from sluice.config import Config
from sluice.decoding.session import Session

ROUTED = [{0: [1, 2], 1: [1, 2]}, {0: [1, 3], 1: [1, 2]}, {0: [2, 3], 1: [3, 1]}]


@pytest.mark.parametrize(
    ("capacity", "hits"),
    # Of 12 accesses; the order in a layer counts. By hand.
    [(1, 0), (4, 4), (12, 6)],
)
def test_the_hit_rate_is_that_of_an_lru_cache(capacity: int, hits: int) -> None:
    assert hit_rate(ROUTED, capacity) == pytest.approx(hits / 12)


def test_agreement_counts_the_experts_of_the_token_before() -> None:
    assert agreement(ROUTED) == pytest.approx((1 + 2 + 1 + 1) / 8)


def test_what_is_foreseen_is_what_the_next_router_names() -> None:
    identity = np.eye(4, dtype=np.float32)
    inputs = [{0: np.array([0, 3, 2, 1], np.float32), 1: np.zeros(4, np.float32)}]
    assert foreseen([{0: [0, 1], 1: [1, 3]}], inputs, {1: identity}) == 0.5


def test_the_watched_input_is_the_one_that_was_routed(routed_model: Path) -> None:
    watcher = Watcher()
    with Session(Config(model=str(routed_model), n=5, ctx=64, threads=1), nodes=watcher) as session:
        session.generate([3, 4, 5], record=False).run()
    assert len(watcher.routed) == 4
    for routed, inputs in zip(watcher.routed, watcher.inputs, strict=True):
        assert sorted(routed) == sorted(inputs) == [0, 1, 2, 3]
        for layer, experts in routed.items():
            logits = router_of(routed_model, layer) @ inputs[layer]
            assert np.argsort(-logits)[:2].tolist() == experts

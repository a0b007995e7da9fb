from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.llama.context import Context, ContextShape
from sluice.llama.model import Model
from sluice.llama.sampler import Sampler


@pytest.fixture(scope="module")
def context(model: Path) -> Iterator[Context]:
    loaded = Model(model, load_mtp=False, by_header=False)
    one = Context(loaded, ContextShape(n_ctx=256, rows_max=16, outputs_max=1))
    one.decode(loaded.tokenize("def f("), 0, outputs="last")
    yield one
    one.close()
    loaded.close()


@pytest.fixture
def draws(context: Context) -> Callable[..., list[int]]:
    last = context.model.tokenize("def f(")

    def draw(n: int = 40, **changes: Any) -> list[int]:
        wanted = {"top_k": 0, "top_p": 1.0, "temp": 1.0, "seed": 1} | changes
        sampler = Sampler(**wanted)
        ids = [sampler.choose(context, len(last) - 1) for _ in range(n)]
        sampler.close()
        sampler.close()
        return ids

    return draw


def test_the_same_seed_draws_the_same_tokens(draws: Callable[..., list[int]]) -> None:
    assert draws() == draws()
    assert len(set(draws())) > 5


def test_another_seed_draws_others(draws: Callable[..., list[int]]) -> None:
    assert len({tuple(draws(seed=s)) for s in (0, 1, 2, 0xFFFFFFFE)}) == 4


def test_one_candidate_is_the_greedy_choice(
    draws: Callable[..., list[int]], context: Context
) -> None:
    best = int(context.logits(len(context.model.tokenize("def f(")) - 1).argmax())
    assert set(draws(top_k=1)) == {best}
    assert set(draws(top_p=0.0)) == {best}
    assert set(draws(temp=1e-6)) == {best}


def test_top_k_bounds_the_candidates(draws: Callable[..., list[int]], context: Context) -> None:
    logits = context.logits(len(context.model.tokenize("def f(")) - 1)
    likeliest = {int(i) for i in logits.argsort()[::-1][:5]}
    drawn = set(draws(200, top_k=5, temp=5.0))
    assert drawn <= likeliest
    assert len(drawn) > 2
    assert not set(draws(200, temp=5.0)) <= likeliest

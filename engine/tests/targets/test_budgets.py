from __future__ import annotations

from collections.abc import Callable

import pytest

from sluice.config import Config
from sluice.decoding.session import Session
from sluice.errors import RequestError
from sluice.targets import cache_budgets

Open = Callable[..., Session]


@pytest.mark.parametrize("mtp", [False, True])
@pytest.mark.parametrize("ubatch", [2, 512])
def test_the_smallest_budget_is_the_smallest_that_is_taken(
    config: Config, opened: Open, mtp: bool, ubatch: int
) -> None:
    changes = {"mtp": mtp, "draft": 1, "ubatch": max(ubatch, 3 if mtp else 0)}
    found = cache_budgets(config.replace(**changes))
    opened(moe_stream=True, cache_mb=found.smallest_mb, **changes)
    if found.smallest_mb > 1:
        with pytest.raises(RequestError, match=f"set --cache-mb to {found.smallest_mb} or more"):
            opened(moe_stream=True, cache_mb=found.smallest_mb - 1, **changes)
    assert 1 <= found.scant_mb <= found.smallest_mb <= found.whole_mb


def test_the_whole_budget_evicts_nothing(config: Config, opened: Open, prompt: str) -> None:
    found = cache_budgets(config)
    session = opened(moe_stream=True, cache_mb=found.whole_mb)
    cache = session.generate(prompt).run().metrics.cache
    assert cache is not None
    assert cache.evicted_by_layer == {}


def test_layers_are_those_that_stream(config: Config) -> None:
    assert cache_budgets(config).layers == (0, 1, 2, 3)
    assert cache_budgets(config.replace(mtp=True)).layers == (0, 1, 2, 3, 4)


def test_a_scant_budget_is_below_what_a_token_routes_to(config: Config) -> None:
    found = cache_budgets(config)
    assert found.scant_mb << 20 < found.token_bytes <= found.smallest_mb << 20

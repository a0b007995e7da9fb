from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from sluice.config import Config
from sluice.decoding.session import Session
from sluice.errors import RequestError
from sluice.gguf.header import Header
from sluice.streaming import memory
from sluice.streaming.budget import HEADROOM_BYTES, MIB, cache_bytes
from sluice.streaming.layout import expert_layout
from sluice.streaming.plan import StreamingPlan, streaming_plan

Open = Callable[..., Session]
N_TRUNK, TOP_K = 4, 2


@pytest.fixture(scope="module")
def plan(header: Header) -> StreamingPlan:
    return streaming_plan(header, expert_layout(header, with_head=False))


def budget(
    plan: StreamingPlan, *, available: int | None = 64 << 30, mapped: int = 0, **changes: Any
) -> int:
    config = Config(model="m", moe_stream=True, **{"cache_mb": "auto", "ubatch": 1} | changes)
    return cache_bytes(config, plan, available_bytes=available, mapped_bytes=mapped)


def refusal(plan: StreamingPlan, **changes: Any) -> str:
    with pytest.raises(RequestError) as refused:
        budget(plan, **changes)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_number_is_taken_as_it_is(plan: StreamingPlan) -> None:
    assert budget(plan, cache_mb=64) == 64 * MIB
    assert budget(plan, cache_mb=1 << 24, available=None) == 1 << 44


def test_less_than_one_token_is_refused_with_the_figure(plan: StreamingPlan) -> None:
    said = refusal(plan, cache_mb=1)
    smallest = -(-plan.token_page_bytes // MIB)
    assert said == (
        f"--cache-mb 1: one token routes to {TOP_K} experts in each of {N_TRUNK} layers,"
        f" {plan.token_page_bytes / MIB:.2f} MiB, and a cache below that has a hit rate of exactly"
        f" 0; set --cache-mb to {smallest} or more, or to 0; --force-cache takes it all the same"
    )
    # Its own remedies hold.
    assert budget(plan, cache_mb=smallest) == smallest * MIB
    assert budget(plan, cache_mb=1, force_cache=True) == MIB


def test_less_than_one_pass_is_refused_with_the_figure(plan: StreamingPlan) -> None:
    shallow = dataclasses.replace(plan, layers=plan.layers[:1])
    widest = shallow.pass_page_bytes_max(64)
    assert shallow.token_page_bytes < MIB < widest < 2 * MIB
    said = refusal(shallow, cache_mb=1, ubatch=64)
    assert said == (
        "--cache-mb 1: one layer of a prompt pass of --ubatch 64 can route to"
        f" {widest / MIB:.2f} MiB of experts, which must be in memory at once; set --cache-mb to"
        " 2 or more, or to 0; --force-cache takes it all the same, and a narrower --ubatch needs"
        " less"
    )
    assert budget(shallow, cache_mb=2, ubatch=64) == 2 * MIB
    assert budget(shallow, cache_mb=1, ubatch=2) == MIB
    assert budget(shallow, cache_mb=1, ubatch=64, force_cache=True) == MIB


def test_auto_leaves_room_for_what_comes_later(plan: StreamingPlan) -> None:
    free = HEADROOM_BYTES + 5 * MIB
    assert budget(plan, available=free) == 5 * MIB
    assert budget(plan, available=free + 3 * MIB, mapped=3 * MIB) == 5 * MIB


def test_auto_is_no_larger_than_all_experts(plan: StreamingPlan) -> None:
    assert budget(plan) == plan.total_page_bytes
    assert budget(plan, cache_floor_mb=4096) == 4096 * MIB


def test_auto_of_much_memory_leaves_a_share_of_it(header: Header) -> None:
    layout = expert_layout(header, with_head=False)
    large = {
        n: tuple(dataclasses.replace(t, slice_bytes=t.slice_bytes << 13) for t in tensors)
        for n, tensors in layout.layers.items()
    }
    plan = streaming_plan(header, dataclasses.replace(layout, layers=large))
    assert plan.total_page_bytes > 32 << 30
    assert budget(plan, available=32 << 30, cache_mb="auto") == 30 << 30


def test_auto_within_floor_and_ceiling(plan: StreamingPlan) -> None:
    assert budget(plan, cache_ceil_mb=6) == 6 * MIB
    little = HEADROOM_BYTES + 4 * MIB
    assert budget(plan, available=little, cache_floor_mb=8) == 8 * MIB
    assert budget(plan, available=little, cache_floor_mb=8, cache_ceil_mb=8) == 8 * MIB
    assert budget(plan, available=little, cache_ceil_mb=8) == 4 * MIB
    assert budget(plan, available=0, cache_floor_mb=9) == 9 * MIB


@pytest.mark.parametrize("available", [0, HEADROOM_BYTES, HEADROOM_BYTES + MIB])
def test_auto_that_comes_to_too_little_is_refused(plan: StreamingPlan, available: int) -> None:
    left = max(available - HEADROOM_BYTES, 0) >> 20
    said = refusal(plan, available=available)
    assert said.startswith(f"--cache-mb auto: comes to {left} MiB: one token routes to ")
    assert budget(plan, available=available, force_cache=True) == left * MIB
    assert refusal(plan, available=available, mapped=1 << 40).startswith(
        "--cache-mb auto: comes to 0 MiB: "
    )
    assert refusal(plan, cache_ceil_mb=1).startswith("--cache-mb auto: comes to 1 MiB: ")


def test_auto_needs_a_system_that_says(plan: StreamingPlan) -> None:
    said = refusal(plan, available=None, force_cache=True)
    assert said == (
        "--cache-mb auto: this system does not say how much memory is free; give a number"
    )


# A real run.


def test_below_one_token_nothing_ever_hits_and_above_it_something_does(
    opened: Open, plan: StreamingPlan
) -> None:
    """What the refusal says is so: plain greedy decoding, one token a pass."""
    below = plan.token_page_bytes // MIB
    for changes, hits in (({"cache_mb": below}, False), ({"cache_mb": 3 * below}, True)):
        session = opened(moe_stream=True, force_cache=True, ubatch=1, n=32, **changes)
        made = session.generate([5, 6, 7]).run().metrics
        for counter in (made.prefill, made.decode):
            assert (counter.hit_rate > 0) is hits
            assert counter.n_hits + counter.n_misses == N_TRUNK * TOP_K * (
                31 if counter is made.decode else 3
            )
        assert made.generated.n_evicted > 0


def test_a_session_refuses_in_the_same_words(opened: Open, plan: StreamingPlan) -> None:
    with pytest.raises(RequestError, match=r"^--cache-mb 1: one token routes to 2 experts in"):
        opened(moe_stream=True, cache_mb=1)
    with pytest.raises(RequestError, match=r"^--cache-mb auto: comes to 1 MiB: one token"):
        opened(moe_stream=True, cache_mb="auto", cache_ceil_mb=1)


def test_auto_is_made_explicit(
    opened: Open, plan: StreamingPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = opened(moe_stream=True, cache_mb="auto", cache_ceil_mb=5)
    assert session.config.cache_mb == 5
    assert session.generate([5, 6], n=2).run().evidence().config["cache_mb"] == 5
    monkeypatch.setattr(memory, "available_bytes", lambda: HEADROOM_BYTES + 3 * MIB)
    # The dense weights are in memory already, or will come where they are left mapped.
    for mode in ("anon", "warm"):
        assert opened(moe_stream=True, cache_mb="auto", dense_weights=mode).config.cache_mb == 3
    with pytest.raises(RequestError, match=r"^--cache-mb auto: comes to 0 MiB: one token "):
        opened(moe_stream=True, cache_mb="auto", dense_weights="mmap")

"""Which layers compute as if they were resident, and which of them nothing stops at."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from sluice.seams import NO_SEAMS, Seams
from sluice.streaming.whole import WholeLayers

from .rig import Rig

N_LAYERS, N_EXPERT = 4, 8
Make = Callable[..., Rig]


def nobody(_layer: int) -> Sequence[int] | None:
    return ()


def whole_of(
    one: Rig,
    targets: Callable[[int], Sequence[int] | None] = nobody,
    seams: Seams = NO_SEAMS,
) -> WholeLayers:
    return WholeLayers(one.layout.layers, one.cache, None, targets, seams)


@pytest.fixture
def full(rig: Make) -> Rig:
    """A cache that holds every expert of every layer."""
    one = rig()
    one.cache.fill(dict.fromkeys(range(N_LAYERS), N_EXPERT), lambda _done, _total: None)
    return one


def test_a_layer_is_whole_when_it_is_looked_at_and_waits_for_nothing(full: Rig) -> None:
    whole = whole_of(full)
    assert 1 not in whole
    assert not whole.check(1, has_all=False)
    assert 1 not in whole
    assert whole.check(1, has_all=True)
    assert 1 in whole
    assert 0 not in whole
    assert whole.passed_by == {1}


def test_a_layer_that_lacks_an_expert_is_not_whole(rig: Make) -> None:
    one = rig()
    one.route(2, range(N_EXPERT - 1))
    whole = whole_of(one)
    assert not whole.check(2, has_all=True)
    assert whole.passed_by == frozenset()
    one.route(2, {N_EXPERT - 1})
    assert whole.check(2, has_all=True)


def test_a_layer_stays_whole_until_it_is_forgotten(full: Rig) -> None:
    whole = whole_of(full)
    whole.check(0, has_all=True)
    assert whole.check(0, has_all=False)
    full.cache.resize(full.cost_bytes(3))
    whole.forget()
    assert 0 not in whole
    assert whole.passed_by == frozenset()
    assert not whole.check(0, has_all=True)


def test_nothing_passes_by_a_layer_that_reads_ahead_for_one_that_is_not_whole(full: Rig) -> None:
    whole = whole_of(full, {0: [1, 2], 1: [2, 3], 2: [3], 3: []}.__getitem__)
    passed = []
    for layer in (0, 3, 2, 1):
        assert whole.check(layer, has_all=True)
        passed.append(set(whole.passed_by))
    assert passed == [set(), {3}, {2, 3}, {0, 1, 2, 3}]


def test_nothing_passes_by_a_layer_with_other_work(full: Rig) -> None:
    whole = whole_of(full, lambda layer: None if layer == 1 else [])
    assert [whole.check(layer, has_all=True) for layer in range(N_LAYERS)] == [True] * 4
    assert 1 in whole
    assert whole.passed_by == {0, 2, 3}


class Says(Seams):
    def __init__(self, answer: bool) -> None:
        self.answer = answer
        self.asked: list[tuple[int, bool]] = []

    def takes_for_whole(self, layer: int, is_whole: bool) -> bool:
        self.asked.append((layer, is_whole))
        return self.answer


@pytest.mark.parametrize("answer", [True, False])
def test_a_seam_has_the_last_word(rig: Make, answer: bool) -> None:
    one, seams = rig(), Says(answer)
    one.route(1, range(N_EXPERT))
    whole = whole_of(one, seams=seams)
    assert whole.check(1, has_all=True) == answer
    assert whole.check(2, has_all=True) == answer
    assert seams.asked == [(1, True), (2, False)]
    assert ((1 in whole), (2 in whole)) == (answer, answer)

from __future__ import annotations

import pytest

from sluice.decoding.looking import Looking
from sluice.seams import Nodes


class Inner:
    """Wants the nodes it is told of, and keeps every call."""

    def __init__(self, *wanted: int) -> None:
        self._wanted = wanted
        self.calls: list[tuple[int, bool]] = []

    def __call__(self, address: int, ask: bool) -> bool:
        self.calls.append((address, ask))
        return address in self._wanted


class Looker(Nodes):
    def __init__(self, *wanted: int) -> None:
        self._wanted = wanted
        self.computed_: list[int] = []

    def wants(self, is_head: bool, address: int) -> bool:
        return address in self._wanted

    def computed(self, is_head: bool, address: int) -> None:
        self.computed_.append(address)


def decode(looking: Looking, *addresses: int) -> list[bool]:
    """As the scheduler does: each node is asked for, and shown if it was wanted."""
    wanted = []
    looking.begins([1], 0, "last", None)
    for address in addresses:
        wanted.append(looking.hook(address, True))
        if wanted[-1]:
            assert looking.hook(address, False)
    return wanted


def test_the_inner_hook_is_asked_once_a_node() -> None:
    """It counts what it is asked for."""
    inner, looker = Inner(1, 3), Looker(2, 3)
    looking = Looking([looker], False, inner)
    assert decode(looking, 1, 2, 3, 4) == [True, True, True, False]
    assert inner.calls == [(1, True), (1, False), (2, True), (3, True), (3, False), (4, True)]
    assert looker.computed_ == [2, 3]
    # The same memory has other nodes in the next graph.
    inner.calls.clear()
    assert decode(looking, 3, 2) == [True, True]
    assert inner.calls == [(3, True), (3, False), (2, True)]


def test_what_was_asked_in_a_decode_that_broke_off_is_forgotten() -> None:
    inner, looker = Inner(1), Looker(1)
    looking = Looking([looker], False, inner)
    looking.begins([1], 0, "last", None)
    assert looking.hook(1, True)
    inner._wanted = ()
    inner.calls.clear()
    assert decode(looking, 1) == [True]
    assert inner.calls == [(1, True)]
    assert looker.computed_ == [1]


@pytest.mark.parametrize("wanted", [(), (1,)])
def test_in_a_capture_pass_nobody_looks(wanted: tuple[int, ...]) -> None:
    inner, looker = Inner(*wanted), Looker(1)
    looking = Looking([looker], False, inner)
    assert looking.hook(1, True) == bool(wanted)
    assert inner.calls == [(1, True)]
    assert looker.computed_ == []


def test_without_an_inner_hook() -> None:
    looker = Looker(2)
    assert decode(Looking([looker], True, None), 1, 2) == [False, True]
    assert looker.computed_ == [2]

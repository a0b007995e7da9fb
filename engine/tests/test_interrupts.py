from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from sluice import interrupts


@pytest.fixture(autouse=True)
def pythons_own_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupted(done: list[int], error: Exception | None = None, *, asks: bool = False) -> None:
    with interrupts.held_back():
        signal.raise_signal(signal.SIGINT)
        done.append(1)
        if asks:
            interrupts.raise_if_pending()
        if error is not None:
            raise error
        done.append(2)


def test_it_is_raised_after_the_block() -> None:
    done: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted(done)
    assert done == [1, 2]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    interrupts.raise_if_pending()  # once only


def test_it_is_raised_where_the_block_may_end() -> None:
    done: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted(done, asks=True)
    assert done == [1]
    with interrupts.held_back():
        done.append(3)
    assert done == [1, 3]


def test_it_comes_in_the_place_of_what_the_block_raised() -> None:
    with pytest.raises(KeyboardInterrupt) as caught:
        interrupted([], ValueError("of the block"))
    assert isinstance(caught.value.__context__, ValueError)


def test_nothing_is_changed_without_one() -> None:
    with pytest.raises(ValueError, match="of the block"), interrupts.held_back():
        raise ValueError("of the block")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_another_handler_is_left_alone() -> None:
    seen: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _frame: seen.append(number))
    with interrupts.held_back():
        signal.raise_signal(signal.SIGINT)
        assert seen == [signal.SIGINT]


def test_another_thread_sets_no_handler() -> None:
    seen: list[object] = []

    def run() -> None:
        with interrupts.held_back():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]

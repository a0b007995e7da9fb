"""Work that is done beside a matmul, on real graphs."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from sluice.llama import aside as module
from sluice.llama import machine_code
from sluice.llama.aside import Aside, _Graph, aside

pytestmark = pytest.mark.skipif(
    not machine_code.runs_here() or aside() is None, reason="no such barrier here"
)


@pytest.fixture
def beside() -> Iterator[Aside]:
    found = aside()
    assert found is not None
    yield found
    found.take_back()


@pytest.fixture(params=["MUL_MAT", "MUL_MAT_ID"])
def graph(request: pytest.FixtureRequest) -> Iterator[_Graph]:
    made = _Graph(request.param)
    yield made
    made.close()


class Log(list[int]):
    def work(self) -> None:
        self.append(threading.get_ident())


def test_work_is_done_once_in_the_next_matmul_by_who_gave_it(beside: Aside, graph: _Graph) -> None:
    log = Log()
    assert beside.give(log.work, graph.operation)
    assert log == []
    graph.compute()
    assert log == [threading.get_ident()]
    graph.compute()
    assert len(log) == 1
    assert beside.take_back() is None


def test_it_is_done_before_the_matmul_has_ended(beside: Aside, graph: _Graph) -> None:
    seen: list[bytes] = []
    graph.fill(1.0)
    graph.compute()
    done = bytes(graph.out)
    assert any(done)
    graph.fill(0.0)
    graph.compute()
    assert not any(bytes(graph.out))
    graph.fill(1.0)
    beside.give(lambda: seen.append(bytes(graph.out)), graph.operation)
    graph.compute()
    assert seen != [done]  # the rows of this thread, at least, were still to come
    assert bytes(graph.out) == done


def test_other_operations_pass_and_so_do_as_many_as_are_said(beside: Aside) -> None:
    log = Log()
    graphs = {name: _Graph(name) for name in ("MUL", "MUL_MAT", "MUL_MAT_ID")}
    beside.give(log.work, "MUL_MAT", after=2)
    for name, expected in (("MUL", 0), ("MUL_MAT", 0), ("MUL_MAT_ID", 0), ("MUL_MAT", 0),
                           ("MUL_MAT_ID", 0), ("MUL_MAT", 1), ("MUL_MAT", 1)):  # fmt: skip
        graphs[name].compute()
        assert len(log) == expected, name
    for graph in graphs.values():
        graph.close()


def test_what_is_taken_back_is_not_done(beside: Aside, graph: _Graph) -> None:
    log = Log()
    beside.give(log.work, graph.operation)
    work = beside.take_back()
    graph.compute()
    assert log == []
    assert work is not None
    work()
    assert len(log) == 1


def test_what_is_given_later_takes_the_place_of_what_was_not_begun(
    beside: Aside, graph: _Graph
) -> None:
    first, second = Log(), Log()
    beside.give(first.work, graph.operation)
    beside.give(second.work, graph.operation)
    graph.compute()
    graph.compute()
    assert (len(first), len(second)) == (0, 1)


def test_work_may_give_more(beside: Aside, graph: _Graph) -> None:
    log = Log()

    def work() -> None:
        log.work()
        beside.give(log.work, graph.operation)

    beside.give(work, graph.operation)
    for expected in (1, 2, 2):
        graph.compute()
        assert len(log) == expected


@pytest.mark.parametrize("error", [ValueError("it"), KeyboardInterrupt()])
def test_an_error_waits_for_who_gave_the_work(
    beside: Aside, graph: _Graph, error: BaseException
) -> None:
    def work() -> None:
        raise error

    beside.give(work, graph.operation)
    graph.compute()
    with pytest.raises(type(error)):
        beside.take_back()
    assert beside.take_back() is None


def test_another_thread_is_refused_until_the_work_is_begun(beside: Aside, graph: _Graph) -> None:
    log, other, answers = Log(), Log(), list[bool]()
    beside.give(log.work, graph.operation)

    def elsewhere() -> None:
        theirs = aside()
        assert theirs is not None
        answers.append(theirs.give(other.work, graph.operation))
        theirs.drop()
        mine = _Graph(graph.operation)
        mine.compute()  # nor does it do what this one gave
        mine.close()

    def run() -> None:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()

    run()
    assert (answers, log, other) == ([False], [], [])
    graph.compute()
    run()
    assert answers == [False, True]
    assert (log, other) == ([threading.get_ident()], [])


def test_an_error_is_its_owners(beside: Aside, graph: _Graph) -> None:
    other = aside()
    assert other is not None

    def work() -> None:
        raise ValueError("it")

    beside.give(work, graph.operation)
    graph.compute()
    assert other.take_back() is None
    with pytest.raises(ValueError, match=r"^it$"):
        beside.take_back()


def test_another_owner_on_the_thread_comes_first(beside: Aside, graph: _Graph) -> None:
    first, second, other = Log(), Log(), aside()
    assert other is not None
    beside.give(first.work, graph.operation)
    other.give(second.work, graph.operation)
    assert beside.take_back() == first.work
    graph.compute()
    assert (len(first), len(second)) == (0, 1)


def test_what_is_dropped_is_neither_done_nor_raised(beside: Aside, graph: _Graph) -> None:
    log = Log()
    beside.give(log.work, graph.operation)
    beside.drop()
    graph.compute()
    assert log == []
    beside.give(lambda: [][0], graph.operation)
    graph.compute()
    beside.drop()
    assert beside.take_back() is None


def test_what_a_thread_that_ended_gave_can_be_dropped_by_another(
    beside: Aside, graph: _Graph
) -> None:
    log, other = Log(), aside()
    assert other is not None
    thread = threading.Thread(target=lambda: other.give(log.work, graph.operation))
    thread.start()
    thread.join()
    other.drop()
    assert beside.give(log.work, graph.operation)
    graph.compute()
    assert len(log) == 1


def test_one_thread_meets_no_barrier(beside: Aside) -> None:
    log, alone = Log(), _Graph("MUL_MAT", threads=1)
    beside.give(log.work, "MUL_MAT")
    alone.compute()
    assert log == []
    alone.close()


def test_no_slot_no_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_slot", lambda *_: None)
    assert module._barrier.__wrapped__() is None


def test_nothing_is_left_in_the_slot_where_no_code_can_be_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "executable", lambda _code: None)
    assert module._barrier.__wrapped__() is None

"""What a layer waits for, and when."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from sluice.errors import ReadFault, SystemFault
from sluice.seams import NO_SEAMS, Seams
from sluice.streaming.lanes import Job, Lanes
from sluice.streaming.layout import ExpertTensor
from sluice.streaming.pending import Pending, Stops
from sluice.telemetry.metrics import ReadCounter

from .parts import exact
from .rig import WAIT_S

ORDER = ["gate", "up", "down"]
STOPS: Stops = {"ffn_moe_gate-3": (3, "up"), "ffn_moe_act-3": (3, "down")}
LAST = {3: "ffn_moe_down-3"}
Start = Callable[..., Lanes]


def tensor(part: str) -> ExpertTensor:
    return ExpertTensor(f"blk.3.ffn_{part}_exps.weight", 3, part, 0, 10, 8)


class Gate(Seams):
    """Lanes wait before they read until they are let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()

    def lane_reads(self, tensor: str, is_ahead: bool) -> None:
        assert self.let_go.wait(WAIT_S)


class Watch(Seams):
    def __init__(self) -> None:
        self.seen: list[tuple[int, str, int, bytes]] = []

    def slice_read(self, layer: int, part: str, expert: int, data: memoryview) -> None:
        self.seen.append((layer, part, expert, bytes(data)))


class NeverWaits(Seams):
    def waits(self, layer: int, part: str) -> bool:
        return False


def view_of(one: ExpertTensor, expert: int) -> memoryview:
    return memoryview(f"{one.part}{expert}".encode())


def pending(lanes: Lanes, seams: Seams = NO_SEAMS, stops: Stops | None = None) -> Pending:
    made = Pending(lanes, seams, stops or {}, view_of, LAST)
    made.begin(3)
    return made


def filled(one: Pending, size: int = 50, *, is_ahead: bool = False) -> dict[str, Job]:
    jobs = {part: Job(exact(100 * i, size), is_ahead=is_ahead) for i, part in enumerate(ORDER)}
    for part, job in jobs.items():
        one.add(part, [job])
    return jobs


def test_without_stops_all_is_waited_for_at_once(start: Start) -> None:
    one, counter = pending(start()), ReadCounter()
    assert not one
    jobs = filled(one)
    assert one
    assert one.submit(ORDER) == list(jobs.values())
    one.wait(3, ORDER, counter)
    assert all(job.is_done for job in jobs.values())
    assert not one
    assert counter.overlapped_bytes == 0
    assert counter.stall_s > 0
    assert not one.stops_after("ffn_moe_gate-3")
    assert not one.wait_after("ffn_moe_gate-3", counter)


def test_with_stops_only_the_first_part_is_waited_for_at_once(start: Start, content: bytes) -> None:
    gate = Gate()
    one, counter = pending(start(seams=gate), gate, STOPS), ReadCounter()
    jobs = filled(one)
    first = Job(exact(7, 5))
    first.claim()
    first.finish()  # as if it had been read
    one.begin(3)
    one.add("gate", [first])
    for part in ("up", "down"):
        one.add(part, [jobs[part]])
    one.submit(["up", "down"])
    one.wait(3, ORDER, counter)
    assert counter.overlapped_bytes == 100
    assert not jobs["up"].is_done
    assert one.stops_after("ffn_moe_gate-3")
    assert one.stops_after("ffn_moe_act-3")
    assert not one.stops_after("ffn_moe_up-3")  # no stop of this layer
    gate.let_go.set()
    assert one.wait_after("ffn_moe_gate-3", counter)
    assert jobs["up"].is_done
    assert bytes(jobs["up"].read.window) == content[100:150]
    assert one, "the last part is still to come"
    assert one.wait_after("ffn_moe_act-3", counter)
    assert jobs["down"].is_done
    assert not one


def test_a_stop_is_skipped_where_its_part_is_there(start: Start) -> None:
    one = pending(start(), stops=STOPS)
    jobs = filled(one)
    one.submit(ORDER)
    for job in jobs.values():
        job.wait()
    assert not one.stops_after("ffn_moe_gate-3")
    jobs["down"].error = ReadFault("planted")
    assert one.stops_after("ffn_moe_act-3")
    with pytest.raises(ReadFault, match="planted"):
        one.wait_after("ffn_moe_act-3", ReadCounter())


def test_a_part_of_another_layer_is_not_put_off(start: Start) -> None:
    one, counter = pending(start(), stops=STOPS), ReadCounter()
    jobs = filled(one)
    one.submit(ORDER)
    one.wait(2, ORDER, counter)
    assert all(job.is_done for job in jobs.values())
    assert counter.overlapped_bytes == 0
    assert not one


def test_what_is_needed_first_is_read_first_and_read_ahead_hurries_with_its_part(
    start: Start,
) -> None:
    order: list[str] = []

    class Order(Seams):
        def lane_reads(self, tensor: str, is_ahead: bool) -> None:
            order.append(tensor)
            if tensor == "held":
                gate.lane_reads(tensor, is_ahead)

    gate, seams = Gate(), Order()
    lanes = start(1, helps=False, seams=seams)
    one, counter = pending(lanes, seams), ReadCounter()
    for part in ("down", "gate", "up"):
        read = exact(0, 10)
        read.tensor = part
        one.add(part, [Job(read)])
    held, ahead = Job(exact(0, 10)), Job(exact(0, 10), is_ahead=True)
    held.read.tensor, ahead.read.tensor = "held", "ahead"
    lanes.submit([held])  # the one lane has it until it is let go
    late = [Job(exact(0, 10), is_ahead=True) for _ in range(2)]
    one.add("gate", [ahead])
    lanes.submit([*late, ahead])
    assert ahead not in one.submit(ORDER)
    gate.let_go.set()
    lanes.wait(late)
    one.wait(3, ORDER, counter)
    assert order[:5] == ["held", "gate", "ahead", "up", "down"]
    assert ahead.is_done


def test_what_was_read_ahead_is_not_counted_as_overlapped(start: Start) -> None:
    lanes = start()
    one, counter = pending(lanes, stops=STOPS), ReadCounter()
    jobs = filled(one, is_ahead=True)
    mine = Job(exact(0, 30))
    one.add("down", [mine])
    assert one.submit(ORDER) == [mine]
    lanes.submit(jobs.values())
    one.wait(3, ORDER, counter)
    assert counter.overlapped_bytes == 30
    one.wait_for_all()
    assert all(job.is_done for job in (*jobs.values(), mine))
    assert one, "its stops are still to come"


def test_slices_are_shown_once_their_part_was_waited_for(start: Start) -> None:
    watch = Watch()
    one, counter = pending(start(seams=watch), watch, STOPS), ReadCounter()
    filled(one)
    one.watch([tensor(part) for part in ORDER], [5, 6])
    one.submit(ORDER)
    one.wait(3, ORDER, counter)
    assert watch.seen == [(3, "gate", 5, b"gate5"), (3, "gate", 6, b"gate6")]
    one.wait_for_all()
    assert one.stops_after("ffn_moe_gate-3"), "it is watched"
    one.wait_after("ffn_moe_gate-3", counter)
    one.wait_after("ffn_moe_act-3", counter)
    assert [(part, e) for _, part, e, _ in watch.seen[2:]] == [
        ("up", 5), ("up", 6), ("down", 5), ("down", 6),
    ]  # fmt: skip
    one.begin(3)
    one.wait(3, ORDER, counter)
    assert len(watch.seen) == 6


def test_a_fault_that_does_not_wait_is_possible(start: Start) -> None:
    gate = Gate()
    one, counter = pending(start(seams=gate), NeverWaits()), ReadCounter()
    jobs = filled(one)
    one.submit(ORDER)
    one.wait(3, ORDER, counter)
    assert not any(job.is_done for job in jobs.values())
    assert counter.stall_s == 0
    gate.let_go.set()


def test_after_an_error_nothing_is_on_its_way(start: Start) -> None:
    gate = Gate()
    one = pending(start(1, seams=gate), gate, STOPS)
    jobs = filled(one)
    one.submit(ORDER)
    threading.Timer(0.02, gate.let_go.set).start()
    one.cancel()
    assert all(job.is_done for job in jobs.values())
    assert not one


def test_a_stop_of_another_layer_waits_for_nothing(start: Start) -> None:
    one = pending(start(), stops=STOPS)
    jobs = filled(one)
    one.begin(2)
    one.add("up", [jobs["up"]])
    assert not one.stops_after("ffn_moe_gate-3")
    assert one.wait_after("ffn_moe_gate-3", ReadCounter())
    assert one, "it was not waited for"


def test_what_is_late_is_waited_for_after_the_last_matmul(start: Start, content: bytes) -> None:
    gate = Gate()
    one, counter = pending(start(seams=gate), gate, STOPS), ReadCounter()
    jobs = filled(one)
    one.begin_late()
    assert one.submit(ORDER) == list(jobs.values())
    one.wait(3, ORDER, counter)
    assert counter.overlapped_bytes == 150
    assert not any(job.is_done for job in jobs.values())
    assert [name for name in (*STOPS, *LAST.values()) if one.stops_after(name)] == [LAST[3]]
    gate.let_go.set()
    assert one.wait_after(LAST[3], counter)
    assert all(job.is_done for job in jobs.values())
    assert bytes(jobs["up"].read.window) == content[100:150]
    assert counter.stall_s > 0
    assert not one
    assert not one.stops_after(LAST[3])


def test_what_is_late_has_its_stop_though_it_is_there(start: Start) -> None:
    one, counter = pending(start(), stops=STOPS), ReadCounter()
    jobs = filled(one)
    one.begin_late()
    one.submit(ORDER)
    for job in jobs.values():
        job.wait()
    assert one.stops_after(LAST[3])
    assert one.wait_after(LAST[3], counter)


def test_the_last_matmul_is_no_stop_where_nothing_is_late(start: Start) -> None:
    one, counter = pending(start(), stops=STOPS), ReadCounter()
    filled(one)
    assert not one.stops_after(LAST[3])
    assert not one.wait_after(LAST[3], counter)


def test_a_layer_that_never_came_to_its_end_is_seen(start: Start) -> None:
    one = pending(start(), stops=STOPS)
    filled(one)
    one.begin_late()
    with pytest.raises(SystemFault, match=r"^layer 3: the graph went on without the experts"):
        one.begin(4)
    one.cancel()
    one.begin(4)
    assert not one.is_late


def test_what_is_late_is_shown_to_the_seams(start: Start) -> None:
    watch = Watch()
    one, counter = pending(start(), watch, STOPS), ReadCounter()
    filled(one)
    one.begin_late()
    one.watch([tensor(part) for part in ORDER], [5])
    one.submit(ORDER)
    one.wait(3, ORDER, counter)
    assert not watch.seen
    one.wait_after(LAST[3], counter)
    assert watch.seen == [(3, part, 5, f"{part}5".encode()) for part in ORDER]


def test_an_error_of_what_is_late_is_raised_at_its_stop(start: Start) -> None:
    one, counter = pending(start(), stops=STOPS), ReadCounter()
    filled(one, size=4 << 20)
    one.begin_late()
    one.submit(ORDER)
    one.wait(3, ORDER, counter)
    with pytest.raises(ReadFault):
        one.wait_after(LAST[3], counter)
    assert not one

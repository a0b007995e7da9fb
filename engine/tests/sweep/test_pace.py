from __future__ import annotations

from sluice.sweep.arm import parse
from sluice.sweep.pace import Pace
from sluice.sweep.schedule import Request
from sluice.sweep.workload import Prompt, Workload


def request(name: str, n: int) -> Request:
    prompt = Prompt("a", "x")
    return Request(parse("off"), Workload(name, (prompt,), n=n), prompt, 0)


def test_what_is_left_takes_as_long_as_its_workload_took_so_far() -> None:
    short, long = request("short", 10), request("long", 100)
    pace = Pace()
    assert pace.left_s([short, long]) is None
    pace.note(short, 1.0)
    pace.note(short, 3.0)
    assert pace.left_s([short, short]) == 4.0
    assert pace.left_s([long]) == 20.0, "by its tokens, before one of it was made"
    pace.note(long, 50.0)
    assert pace.left_s([short, long]) == 52.0
    assert pace.left_s([]) == 0.0

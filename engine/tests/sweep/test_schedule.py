from __future__ import annotations

from sluice.sweep.arm import default_arms, parse
from sluice.sweep.schedule import schedule
from sluice.sweep.workload import Prompt, Workload

CODE = Workload("code", (Prompt("a", "x"), Prompt("b", "y")), n=8)
PROSE = Workload("prose", (Prompt("a", "z"),), n=8, temp=1.0)


def test_every_repeat_goes_through_all_arms_before_the_next_in_an_order_of_its_own() -> None:
    arms = default_arms()
    visits = schedule(arms, [CODE, PROSE], 3)
    rounds = [visits[i : i + len(arms)] for i in range(0, len(visits), len(arms))]
    orders = [[visit.arm.name for visit in visits] for visits in rounds]
    assert [{visit.repeat for visit in visits} for visits in rounds] == [{0}, {1}, {2}]
    assert [sorted(order) for order in orders] == [sorted(arm.name for arm in arms)] * 3
    assert orders[0] != orders[1] != orders[2] != [arm.name for arm in arms]
    assert visits == schedule(arms, [CODE, PROSE], 3), "a sweep that goes on keeps its order"
    assert visits != schedule(arms, [CODE, PROSE], 3, seed=2)


def test_a_visit_asks_every_prompt_and_streamed_arms_cold_and_then_warm() -> None:
    (plain,) = schedule([parse("off")], [CODE, PROSE], 1)
    keys = [request.key for request in plain.requests]
    assert keys == [("off", "code", "a", 0, None), ("off", "code", "b", 0, None),
                    ("off", "prose", "a", 0, None)]  # fmt: skip
    (streamed,) = schedule([parse("off,moe_stream")], [CODE], 1)
    asked = [(request.prompt.name, request.is_cold) for request in streamed.requests]
    assert asked == [("a", True), ("a", False), ("b", True), ("b", False)]
    assert len({request.key for request in streamed.requests}) == 4

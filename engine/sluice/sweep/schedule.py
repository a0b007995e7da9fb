"""Which request comes when: every repeat goes through all arms before the next one begins. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sluice.sweep.arm import Arm
from sluice.sweep.row import Identity, Key, Row
from sluice.sweep.workload import Prompt, Workload

ORDER_SEED: Final = 1
"""Of the order of the arms, so that a sweep that goes on keeps it."""


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt for one arm; ``repeat`` counts from 0, ``is_cold`` is as in the rows."""

    arm: Arm
    workload: Workload
    prompt: Prompt
    repeat: int
    is_cold: bool | None = None

    @property
    def key(self) -> Key:
        """The key of the row that answers it."""
        return Key(self.arm.name, self.workload.name, self.prompt.name, self.repeat, self.is_cold)

    def blank(self, identity: Identity) -> Row:
        """The row that answers it, before anything was measured."""
        return Row(
            identity=identity.key,
            arm=self.arm.name,
            workload=self.workload.name,
            workload_key=self.workload.key,
            prompt=self.prompt.name,
            repeat=self.repeat,
            is_cold=self.is_cold,
        )


@dataclass(frozen=True, slots=True)
class Visit:
    """One arm in one repeat: what is asked of it while it is open, in order."""

    arm: Arm
    repeat: int
    requests: tuple[Request, ...]


def schedule(
    arms: Sequence[Arm], workloads: Sequence[Workload], repeats: int, *, seed: int = ORDER_SEED
) -> tuple[Visit, ...]:
    """Arms by workloads by prompts by repeats, interleaved.

    Every repeat visits all arms, in a random order of its own that ``seed`` fixes: what a
    machine does over time (heat, other work) then falls on all arms alike. Each request of a
    streamed arm is made twice, cold and then warm.
    """
    visits = []
    for repeat in range(repeats):
        order = list(arms)
        random.Random(f"{seed} {repeat}").shuffle(order)  # a text: the same on every Python
        visits += [Visit(arm, repeat, tuple(_requests(arm, workloads, repeat))) for arm in order]
    return tuple(visits)


def _requests(arm: Arm, workloads: Sequence[Workload], repeat: int) -> Iterator[Request]:
    for workload in workloads:
        for prompt in workload.prompts:
            for is_cold in (True, False) if arm.is_streamed else (None,):
                yield Request(arm, workload, prompt, repeat, is_cold)

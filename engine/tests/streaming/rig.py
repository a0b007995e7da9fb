"""A cache over the file of random bytes, and what a streamer does with it."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

from sluice.seams import Seams
from sluice.streaming.arena import Buffer
from sluice.streaming.cache import Entry, ExpertCache
from sluice.streaming.lanes import Job, Lanes
from sluice.streaming.layout import ExpertLayout
from sluice.streaming.pages import PagedMemory
from sluice.streaming.slots import SlotMemory

from .parts import PAGE, present, slice_of

WAIT_S = 20
UNEVEN = (5000, 2500)
EVEN = (PAGE,)
"""Every expert has two pages, but that neighbours have one in common."""


@dataclass
class Rig:
    """A cache over the file of random bytes, and what a streamer does with it."""

    layout: ExpertLayout
    memory: PagedMemory | SlotMemory
    lanes: Lanes
    cache: ExpertCache
    content: bytes
    number: int = 0

    def plan(self, layer: int, expert: int, is_ahead: bool) -> dict[str, list[Job]]:
        return {
            tensor.part: [
                Job(read, is_ahead=is_ahead)
                for read in self.memory.slice_reads(tensor, expert, expert, 0, 1)
            ]
            for tensor in self.layout.layers[layer]
        }

    def route(self, layer: int, experts: Iterable[int]) -> tuple[set[int], set[int]]:
        """A pass through a layer: experts that were there, and that were read."""
        self.number += 1
        experts = list(experts)
        found = self.cache.request(layer, experts, self.number)
        missing = set(found.missing)
        hits = set(experts) - missing
        assert found.n_hits == len(hits)
        waiting = [job for slot in found.in_flight for job in jobs_of(slot)]
        loaded = self.cache.load(layer, sorted(missing), self.number) if missing else []
        jobs = [job for slot in loaded for job in jobs_of(slot)]
        self.lanes.submit(jobs)
        self.lanes.hurry(waiting)
        self.lanes.wait([*waiting, *jobs])
        return hits, missing

    def ahead(self, layer: int, expert: int) -> Entry | None:
        """Reads an expert ahead, as the pass that runs now would."""
        slot = self.cache.load_ahead(layer, expert, self.number)
        if slot is not None:
            self.lanes.submit(jobs_of(slot))
        return slot

    def is_there(self, layer: int, expert: int) -> bool:
        """Whether its bytes are in memory as in the file."""
        memory = self.memory
        if isinstance(memory, SlotMemory) and memory._pool_of[layer].table[layer][expert] < 0:
            return False
        return all(
            bytes(self.memory.slice_view(t, expert)) == slice_of(self.content, t, expert)
            for t in self.layout.layers[layer]
        )

    def cost_bytes(self, n_expert: int = 1) -> int:
        """What so many experts of a layer take at most."""
        return n_expert * each_bytes(self.layout, self.memory)

    def held_bytes(self) -> int:
        """What the experts take that the cache says it has, counted one by one."""
        if isinstance(self.memory, SlotMemory):
            return len(self.cache) * self.cost_bytes()
        pages = {
            (t.name, page)
            for layer, tensors in self.layout.layers.items()
            for expert in range(tensors[0].n_expert)
            if (layer, expert) in self.cache
            for t in tensors
            for page in range(
                (t.offset % PAGE + expert * t.slice_bytes) // PAGE,
                (t.offset % PAGE + (expert + 1) * t.slice_bytes - 1) // PAGE + 1,
            )
        }
        return len(pages) * PAGE

    def may_hold(self, held_bytes: int) -> bool:
        """Whether the system may say that ``held_bytes`` are in memory, by what the cache says.

        A slot that nobody has stays in memory within the budget; the last ones end in a page.
        """
        if isinstance(self.memory, SlotMemory):
            budget = self.cache.budget_bytes
            return held_bytes <= budget + PAGE * len(buffers(self.memory)) * bool(budget)
        return held_bytes == self.cache.resident_bytes

    def memory_bytes(self) -> int:
        """What the system says is in memory."""
        return PAGE * sum(sum(present(one.address, one.size_bytes)) for one in buffers(self.memory))


def buffers(memory: PagedMemory | SlotMemory) -> list[Buffer]:
    if isinstance(memory, SlotMemory):
        return [one for pool in memory.pools for one in pool._buffers.values()]
    return list(memory._arena._buffers.values())


def each_bytes(layout: ExpertLayout, memory: PagedMemory | SlotMemory) -> int:
    """What one expert of a layer takes at most."""
    if isinstance(memory, SlotMemory):
        return max(pool.slot_bytes for pool in memory.pools)
    return max(
        sum((-(-(t.slice_bytes - 1) // PAGE) + 1) * PAGE for t in tensors)
        for tensors in layout.layers.values()
    )


def jobs_of(slot: Entry) -> list[Job]:
    return [job for part in slot.jobs.values() for job in part]


class Held(Seams):
    """A lane begins to read a tensor of ``layer`` when it is let go."""

    def __init__(self, layer: int) -> None:
        self.prefix = f"blk.{layer}."
        self.holding, self.let_go = threading.Event(), threading.Event()

    def lane_reads(self, tensor: str, is_ahead: bool) -> None:
        if tensor.startswith(self.prefix):
            self.holding.set()
            assert self.let_go.wait(WAIT_S)

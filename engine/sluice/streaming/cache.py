"""The expert cache: which experts stay in memory, least recently used out first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence

from sluice.seams import Seams
from sluice.streaming.lanes import Job, Lanes
from sluice.streaming.layout import ExpertLayout
from sluice.streaming.pages import Pages
from sluice.telemetry.metrics import CacheReport

Key = tuple[int, int]
"""Layer and expert."""

PlanJobs = Callable[[int, int, bool], dict[str, list[Job]]]
"""The reads of an expert by part: layer, expert, whether it is read ahead."""


class Slot:
    """An expert in memory, or on its way there.

    ``jobs`` are its reads by part, empty once they are known to be done. ``needed_in`` is the
    number of the last pass that routed to it; ``is_ahead`` says that it was read ahead and not
    asked for yet.
    """

    __slots__ = ("expert", "is_ahead", "jobs", "layer", "needed_in")

    def __init__(self, layer: int, expert: int, jobs: dict[str, list[Job]]) -> None:
        self.layer = layer
        self.expert = expert
        self.jobs = jobs
        self.is_ahead = False
        self.needed_in = -1

    @property
    def key(self) -> Key:
        """Layer and expert."""
        return self.layer, self.expert

    def is_in_flight(self) -> bool:
        """Whether a lane may still write; forgets jobs that are done without an error."""
        if not self.jobs:
            return False
        jobs = [job for part in self.jobs.values() for job in part]
        if not all(job.is_done for job in jobs):
            return True
        if all(job.error is None for job in jobs):
            self.jobs = {}
        return False

    def has_failed(self) -> bool:
        """Whether one of its reads ended in an error."""
        return any(job.error is not None for part in self.jobs.values() for job in part)


class ExpertCache:
    """Slots of at most ``budget_bytes`` of pages together.

    The one exception is a pass that is wider than the budget, where ``--force-cache`` allows
    it: what it needs is kept until the next layer.

    Args:
        layout: what can be cached.
        pages: counts and gives back memory.
        lanes: reads.
        plan: makes the reads of an expert.
        budget_bytes: of pages.
        seams: see :mod:`sluice.seams`.

    :attr:`report` is what the generation that runs now is told of it.
    """

    def __init__(
        self,
        layout: ExpertLayout,
        pages: Pages,
        lanes: Lanes,
        plan: PlanJobs,
        budget_bytes: int,
        seams: Seams,
    ) -> None:
        self.budget_bytes = budget_bytes
        self.n_evicted = 0
        self.report = CacheReport(budget_bytes)
        self._layout = layout
        self._pages = pages
        self._lanes = lanes
        self._plan = plan
        self._seams = seams
        self._slots: OrderedDict[Key, Slot] = OrderedDict()  # the least recently used first
        self._whole_bytes = sum(pages.whole_bytes(t) for t in layout.by_name.values())
        self._size_pages()

    @property
    def resident_bytes(self) -> int:
        """Pages in memory, those on their way counted."""
        return self._pages.resident_bytes

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, key: Key) -> bool:
        return key in self._slots

    def get(self, key: Key) -> Slot | None:
        """The slot of an expert that is here or on its way, now the most recently used."""
        slot = self._slots.get(key)
        if slot is None:
            return None
        if not slot.is_in_flight() and slot.has_failed():
            self.drop(slot)
            return None
        self._slots.move_to_end(key)
        return slot

    def load(self, layer: int, experts: Iterable[int], number: int) -> list[Slot]:
        """Make room for ``experts`` and begin to read them; pass ``number`` needs them."""
        experts = list(experts)
        self._make_room(layer, experts, number)
        return [self._insert(layer, expert, number) for expert in experts]

    def load_ahead(self, layer: int, expert: int, number: int) -> Slot | None:
        """Begin to read ahead, where that evicts nothing that pass ``number`` needs."""
        if not self._make_room(layer, [expert], number, is_ahead=True):
            return None
        slot = self._insert(layer, expert, -1, is_ahead=True)
        slot.is_ahead = True
        return slot

    def resize(self, budget_bytes: int) -> None:
        """Another budget from now on; what is too much for it is evicted."""
        self.budget_bytes = budget_bytes
        self.drain()
        if self._pages.has_huge_pages and budget_bytes < self._whole_bytes:
            # A part of a huge page is not given back: begin anew.
            for slot in self._slots.values():
                self._count_evicted(slot)
            self._slots.clear()
            self._pages.empty()
        self._make_room(-1, [], -1)
        self._size_pages()

    def _size_pages(self) -> None:
        if self.budget_bytes >= self._whole_bytes and not self._slots:
            self._pages.use_huge_pages()  # nothing will ever be evicted

    def drop(self, slot: Slot) -> None:
        """Give its pages back; nothing may be writing into them."""
        stays = slot.is_in_flight()  # never, but in tests
        for tensor in self._layout.layers[slot.layer]:
            self._pages.give_back(
                tensor, slot.expert, spare_shared=self._seams.spares_shared_page()
            )
        if not stays and self._seams.forgets(slot.layer, slot.expert):
            del self._slots[slot.key]

    def drain(self) -> None:
        """Wait for every read on its way, and drop what has failed."""
        for slot in list(self._slots.values()):
            self._lanes.cancel(job for part in slot.jobs.values() for job in part)
            if slot.has_failed():
                self.drop(slot)

    def _insert(self, layer: int, expert: int, number: int, *, is_ahead: bool = False) -> Slot:
        for tensor in self._layout.layers[layer]:
            self._pages.take(tensor, expert)
        slot = Slot(layer, expert, self._plan(layer, expert, is_ahead))
        slot.needed_in = number
        self._slots[slot.key] = slot
        self.report.peak_bytes = max(self.report.peak_bytes, self.resident_bytes)
        return slot

    def _cost_bytes(self, layer: int, experts: Iterable[int]) -> int:
        return sum(
            self._pages.cost_bytes(t, e) for e in experts for t in self._layout.layers[layer]
        )

    def _make_room(
        self, layer: int, experts: Sequence[int], number: int, *, is_ahead: bool = False
    ) -> bool:
        """Evict until ``experts`` fit; False where what may go is not enough."""
        needed_bytes = self._cost_bytes(layer, experts)
        if self.resident_bytes + needed_bytes <= self.budget_bytes:
            return True
        for slot in self._victims(number, is_ahead):
            self.drop(slot)
            self._count_evicted(slot)
            if slot.layer == layer:  # a page that one of these had in common with it has gone
                needed_bytes = self._cost_bytes(layer, experts)
            if self.resident_bytes + needed_bytes <= self.budget_bytes:
                return True
        return False

    def _count_evicted(self, slot: Slot) -> None:
        self.n_evicted += 1
        counts = self.report.evicted_by_layer
        counts[slot.layer] = counts.get(slot.layer, 0) + 1

    def _victims(self, number: int, is_ahead: bool) -> Iterator[Slot]:
        """Slots that may go, the least recently used first; what was read ahead goes last.

        What this pass needs stays, and what a lane is writing into: the read would land in
        memory that is no longer its own. Whoever reads ahead takes no other's read-ahead.
        """
        ahead = []
        for slot in list(self._slots.values()):
            if slot.needed_in == number and number >= 0:
                continue
            if slot.is_ahead or (slot.is_in_flight() and self._seams.spares_in_flight()):
                ahead.append(slot)
            else:
                yield slot
        if is_ahead:
            return
        for slot in ahead:
            self._lanes.cancel(job for part in slot.jobs.values() for job in part)
            yield slot

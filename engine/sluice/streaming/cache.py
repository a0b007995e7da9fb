"""The expert cache: which experts stay in memory, least recently used out first."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from sluice.seams import Seams
from sluice.streaming.lanes import Job, Lanes
from sluice.streaming.layout import ExpertTensor
from sluice.streaming.reader import Read
from sluice.telemetry.metrics import CacheReport

_FILL_JOBS = 64  # reads on their way at once while the cache is filled

Key = tuple[int, int]
"""Layer and expert."""

PlanJobs = Callable[[int, int, bool], dict[str, list[Job]]]
"""The reads of an expert by part: layer, expert, whether it is read ahead."""


class Entry:
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

    def all_jobs(self) -> list[Job]:
        """Its reads of every part."""
        return [job for part in self.jobs.values() for job in part]

    def is_in_flight(self) -> bool:
        """Whether a lane may still write; forgets jobs that are done without an error."""
        if not self.jobs:
            return False
        has_failed = False
        for jobs in self.jobs.values():
            for job in jobs:
                if not job.is_done:
                    return True
                has_failed = has_failed or job.error is not None
        if not has_failed:
            self.jobs = {}
        return False

    def has_failed(self) -> bool:
        """Whether one of its reads ended in an error."""
        return any(job.error is not None for job in self.all_jobs())


class Requested:
    """What a pass finds of the experts that it needs.

    ``n_hits`` are here or on their way; the ``in_flight`` of them are on their way. ``n_ahead``
    of the hits were read ahead, ``n_ahead_awaited`` of those are not known to be done.
    """

    __slots__ = ("in_flight", "missing", "n_ahead", "n_ahead_awaited", "n_hits")

    def __init__(self) -> None:
        self.missing: list[int] = []
        self.in_flight: list[Entry] = []
        self.n_hits = self.n_ahead = self.n_ahead_awaited = 0


class CacheMemory(Protocol):
    """Where experts stand, and how many fit; see :mod:`slots` and :mod:`pages`."""

    budget_bytes: int

    @property
    def resident_bytes(self) -> int:
        """What is in memory, what is on its way counted."""

    def has_room(self, layer: int, experts: Sequence[int]) -> bool:
        """Whether ``experts``, none of them here, fit beside what is here."""

    def competes(self, layer: int, other: int) -> bool:
        """Whether evicting from ``other`` makes room for ``layer``."""

    def is_over(self, layer: int) -> bool:
        """Whether something that competes with ``layer`` has to go."""

    def keeps_all(self, layer: int) -> bool:
        """Whether the layer's experts, once all are here, stand in order and never leave."""

    def take(self, layer: int, expert: int) -> None:
        """An expert comes into memory."""

    def give_back(
        self, layer: int, expert: int, *, spare_shared: bool = True, forget: bool = True
    ) -> None:
        """An expert leaves memory.

        Both flags are doors for tests: without them the page that a resident neighbour has a
        part of goes, too; or the expert's place is remembered though it may be another's now.
        """

    def set_budget(self, budget_bytes: int) -> bool:
        """Another budget; whether everything has to go for it."""

    def trim(self) -> None:
        """Give back what lies beyond the budget, once nothing is over it."""

    def slice_view(self, tensor: ExpertTensor, expert: int) -> memoryview:
        """The bytes of one resident expert's slice, writable."""

    def slice_reads(
        self, tensor: ExpertTensor, expert: int, source: int, shard: int, alignment: int
    ) -> list[Read]:
        """The reads that bring in a slice of an expert that :meth:`take` was called for."""


class ExpertCache:
    """Experts that take at most :attr:`budget_bytes` of memory together.

    The one exception is a pass that is wider than the budget, where ``--force-cache`` allows
    it: what it needs is kept until the next layer.

    Args:
        memory: where experts stand.
        lanes: reads.
        plan: makes the reads of an expert.
        seams: see :mod:`sluice.seams`.

    :attr:`report` is what the generation that runs now is told of it.
    """

    def __init__(self, memory: CacheMemory, lanes: Lanes, plan: PlanJobs, seams: Seams) -> None:
        self.memory = memory
        self.report = CacheReport(memory.budget_bytes)
        self.n_evicted = 0
        self._lanes = lanes
        self._plan = plan
        self._seams = seams
        self._entries: OrderedDict[Key, Entry] = OrderedDict()  # the least recently used first
        self._n_by_layer: Counter[int] = Counter()

    @property
    def budget_bytes(self) -> int:
        """What it may hold."""
        return self.memory.budget_bytes

    @property
    def resident_bytes(self) -> int:
        """What is in memory, what is on its way counted."""
        return self.memory.resident_bytes

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def request(self, layer: int, experts: Iterable[int], number: int) -> Requested:
        """Pass ``number`` needs ``experts``: those that are here are now the last used."""
        entries, found = self._entries, Requested()
        for expert in experts:
            key = layer, expert
            entry = entries.get(key)
            if entry is None:
                found.missing.append(expert)
                continue
            if entry.jobs:
                if entry.is_in_flight():
                    found.in_flight.append(entry)
                elif entry.has_failed():
                    self.drop(entry)
                    found.missing.append(expert)
                    continue
            entries.move_to_end(key)
            entry.needed_in = number
            found.n_hits += 1
            if entry.is_ahead:
                entry.is_ahead = False
                found.n_ahead += 1
                found.n_ahead_awaited += bool(entry.jobs)
        return found

    def absent(self, layer: int, experts: Iterable[int]) -> list[int]:
        """Those of ``experts`` that are neither here nor on their way."""
        return [expert for expert in experts if (layer, expert) not in self._entries]

    def load(self, layer: int, experts: Iterable[int], number: int) -> list[Entry]:
        """Make room for ``experts`` and begin to read them; pass ``number`` needs them."""
        experts = list(experts)
        self._make_room(layer, experts, number)
        return [self._insert(layer, expert, number) for expert in experts]

    def load_ahead(self, layer: int, expert: int, number: int) -> Entry | None:
        """Begin to read ahead, where that evicts nothing that pass ``number`` needs."""
        if not self._make_room(layer, [expert], number, is_ahead=True):
            return None
        entry = self._insert(layer, expert, -1, is_ahead=True)
        entry.is_ahead = True
        return entry

    def is_whole(self, layer: int, n_expert: int) -> bool:
        """Whether all ``n_expert`` experts of ``layer`` are here, read, and will stay."""
        if self._n_by_layer[layer] < n_expert or not self.memory.keeps_all(layer):
            return False
        entries = [self._entries[layer, expert] for expert in range(n_expert)]
        return not any(e.jobs and (e.is_in_flight() or e.has_failed()) for e in entries)

    def fill(self, n_expert: Mapping[int, int], progress: Callable[[int, int], None]) -> None:
        """Read experts in until there is no room, as many of each layer as go in.

        Args:
            n_expert: of each layer.
            progress: called with how many are here, and how many there are.

        Raises:
            ReadFault: a read failed.
        """
        n = sum(n_expert.values())
        waiting: list[Job] = []
        for expert in range(max(n_expert.values(), default=0)):
            for layer, n_here in n_expert.items():
                if expert >= n_here or (layer, expert) in self._entries:
                    continue
                if not self.memory.has_room(layer, [expert]):
                    continue
                entry = self._insert(layer, expert, -1)
                jobs = entry.all_jobs()
                self._lanes.submit(jobs)
                waiting += jobs
            if len(waiting) >= _FILL_JOBS:
                self._lanes.wait(waiting)
                waiting = []
                progress(len(self), n)
        self._lanes.wait(waiting)
        progress(len(self), n)

    def resize(self, budget_bytes: int) -> None:
        """Another budget from now on; what is too much for it is evicted."""
        self.drain()
        goes = self.memory.set_budget(budget_bytes)
        for entry in list(self._entries.values()):
            if goes or self.memory.is_over(entry.layer):
                self._evict(entry)
        self.memory.trim()

    def drop(self, entry: Entry) -> None:
        """Give its memory back; nothing may be writing into it."""
        # One in flight is never dropped, but in tests: what then remembers it is at fault.
        forget = not entry.is_in_flight() and self._seams.forgets(entry.layer, entry.expert)
        spare = self._seams.spares_shared_page()
        self.memory.give_back(entry.layer, entry.expert, spare_shared=spare, forget=forget)
        if forget:
            del self._entries[entry.key]
            self._n_by_layer[entry.layer] -= 1
        else:
            self._entries.move_to_end(entry.key)  # others go before it is found again

    def drain(self) -> None:
        """Wait for every read on its way, and drop what has failed."""
        for entry in list(self._entries.values()):
            self._lanes.cancel(entry.all_jobs())
            if entry.has_failed():
                self.drop(entry)

    def _insert(self, layer: int, expert: int, number: int, *, is_ahead: bool = False) -> Entry:
        self.memory.take(layer, expert)
        entry = Entry(layer, expert, self._plan(layer, expert, is_ahead))
        entry.needed_in = number
        self._entries[entry.key] = entry
        self._n_by_layer[layer] += 1
        self.report.peak_bytes = max(self.report.peak_bytes, self.resident_bytes)
        return entry

    def _make_room(
        self, layer: int, experts: Sequence[int], number: int, *, is_ahead: bool = False
    ) -> bool:
        """Evict until ``experts`` fit; False where what may go is not enough."""
        for _ in range(len(self._entries)):
            if self.memory.has_room(layer, experts):
                return True
            victims = self._victims(layer, number, len(experts), is_ahead=is_ahead)
            if not victims:
                return False
            for entry in victims:
                if self.memory.has_room(layer, experts):
                    return True
                if entry.jobs and self._seams.spares_in_flight():
                    self._lanes.cancel(entry.all_jobs())
                self._evict(entry)
        return self.memory.has_room(layer, experts)

    def _evict(self, entry: Entry) -> None:
        self.drop(entry)
        self.n_evicted += 1
        counts = self.report.evicted_by_layer
        counts[entry.layer] = counts.get(entry.layer, 0) + 1

    def _victims(self, layer: int, number: int, n: int, *, is_ahead: bool) -> list[Entry]:
        """What goes next for ``layer``: at most ``n``, the least recently used first.

        What this pass needs stays. What was read ahead or is on its way goes last, and not for
        more of it: whoever drops it waits for its reads, or they would land in memory that is no
        longer its own.
        """
        victims: list[Entry] = []
        last_resort: list[Entry] = []
        for entry in self._entries.values():
            if entry.needed_in == number >= 0 or not self.memory.competes(layer, entry.layer):
                continue
            if entry.is_ahead or (entry.is_in_flight() and self._seams.spares_in_flight()):
                last_resort.append(entry)
                continue
            victims.append(entry)
            if len(victims) == n:
                break
        return victims or ([] if is_ahead else last_resort[:n])

"""Cache memory in slots: any expert of a class of layers may stand in any slot of its pool.

A matmul over experts finds expert e at ``data + e * nb[2]``. Pointed at a pool of slots, with
the slots' stride for ``nb[2]`` and the slots' numbers in the place of the routed experts' ids, it
computes the same rows from the same bytes. So a slot that is evicted is read over: no page is
given back and taken again, and the pool may have huge pages, which disks fill twice as fast.

Layers whose slices have the same sizes are a class, with a share of the budget of its own.
"""

from __future__ import annotations

import heapq
import mmap
from collections.abc import Mapping, Sequence, Set

from sluice.config import Config
from sluice.errors import RequestError, SystemFault
from sluice.streaming.arena import Buffer, chunked_reads
from sluice.streaming.layout import ExpertLayout, ExpertTensor
from sluice.streaming.plan import StreamingPlan
from sluice.streaming.reader import Read

_STRIDE_ALIGNMENT = 512

_PAGE_OF_ITS_OWN_BYTES = 256 << 10
"""From this size on a slice's window begins with a page of memory: it is filled a third faster
where somebody copies into it (a virtual machine's host), who copies whole pages then.
"""


def can_hold(layout: ExpertLayout, alignment: int) -> bool:
    """Whether every slice of ``layout`` has the same place in its window.

    A pool has one address for expert 0 of a tensor: slices that begin at other places of an
    aligned window than their neighbours do could not be read in place.
    """
    return all(t.slice_bytes % alignment == 0 for t in layout.by_name.values())


def slot_memory(
    config: Config,
    layout: ExpertLayout,
    plan: StreamingPlan,
    *,
    others: Set[str],
    alignment: int,
    budget_bytes: int,
) -> SlotMemory | None:
    """Slots for ``layout``, or ``None`` where they cannot hold it, or not in this budget.

    Args:
        config: ``cache_memory`` says whether that may be; ``ubatch`` is the widest pass's rows.
        layout, plan: of the model.
        others: weights that cannot be taken from slots (see :class:`Capture`).
        alignment: the reader's.
        budget_bytes: of all pools together.

    Raises:
        RequestError: they cannot, and were asked for.
    """
    if config.cache_memory == "pages":
        return None
    if not can_hold(layout, alignment):
        what = f"slices that are no multiple of {alignment} bytes"
    elif others:
        what = f"another use of {min(others)} than by one matmul with the routed experts' ids"
    else:
        slots = SlotMemory(
            layout, plan, alignment=alignment, ubatch=config.ubatch, budget_bytes=budget_bytes
        )
        if config.force_cache or slots.needed_bytes <= budget_bytes:
            return slots
        what = slots.why_too_small
    if config.cache_memory == "slots":
        raise RequestError(
            f"--cache-memory slots: {config.model} has {what}; use --cache-memory auto or pages"
        )
    return None


class SlotPool:
    """The slots of one class of layers: a buffer a part, of as many slots as there are experts.

    ``n_slots`` of them may be used, from the lowest on. Where that is all of them, every expert
    has a slot of its own, beside its neighbours.
    """

    def __init__(self, layers: Mapping[int, tuple[ExpertTensor, ...]], alignment: int) -> None:
        self.layers = layers
        self.n_slots = 0
        self.n_used = 0
        self.table: dict[int, list[int]] = {}
        """Slot by expert, by layer; -1 where it has none."""
        self.first: dict[int, int] = {}
        """By layer, the slot of expert 0 where every expert has its own."""
        self.n_experts = 0
        for layer, tensors in layers.items():
            self.table[layer] = [-1] * tensors[0].n_expert
            self.first[layer] = self.n_experts
            self.n_experts += tensors[0].n_expert
        first = next(iter(layers.values()))
        self.strides = {t.part: _stride(t.slice_bytes, alignment) for t in first}
        self.slot_bytes = sum(self.strides.values())
        self._buffers: dict[str, Buffer] = {}
        for part, stride in self.strides.items():
            buffer = Buffer(self.n_experts * stride, max(alignment, mmap.PAGESIZE))
            buffer.use_huge_pages()
            self._buffers[part] = buffer
        self._is_used = bytearray(self.n_experts)
        self.touched = bytearray(self.n_experts)
        """By slot, whether its memory is there for sure: evicted from, and not given back."""
        # A heap of every free slot; one that has been taken since may still be in it.
        self._free = list(range(self.n_experts))

    def address(self, tensor: ExpertTensor, slot: int, alignment: int) -> int:
        """Where the slice of ``tensor``'s part in a slot begins."""
        at = slot * self.strides[tensor.part] + tensor.offset % alignment
        return self._buffers[tensor.part].address + at

    def take(self, layer: int, expert: int) -> None:
        """Give an expert a free slot."""
        slot = self.first[layer] + expert
        if self.n_slots < self.n_experts or self._is_used[slot]:
            slot = self._lowest()
        self._is_used[slot] = True
        self.table[layer][expert] = slot
        self.n_used += 1

    def give_back(self, layer: int, expert: int, *, forget: bool = True) -> None:
        """Its slot is free; the bytes stay until it is read over, where that is in the budget."""
        slot = self.table[layer][expert]
        if slot < 0 or not self._is_used[slot]:
            return
        is_over = self.n_used > self.n_slots
        if forget:
            self.table[layer][expert] = -1
        self._is_used[slot] = False
        self.touched[slot] = True
        self.n_used -= 1
        heapq.heappush(self._free, slot)
        if is_over or slot >= self.n_slots:
            self.touched[slot] = False
            for part, stride in self.strides.items():
                self._buffers[part].give_back(slot * stride, (slot + 1) * stride)

    def buffer(self, part: str) -> Buffer:
        """The memory of a part's slots."""
        return self._buffers[part]

    def trim(self) -> None:
        """Move what stands beyond ``n_slots`` below it, and give that memory back."""
        for table in self.table.values():
            for expert, slot in enumerate(table):
                if slot < self.n_slots:
                    continue
                free = self._lowest()
                for part, stride in self.strides.items():
                    view = self._buffers[part].view
                    view[free * stride : (free + 1) * stride] = view[
                        slot * stride : (slot + 1) * stride
                    ]
                self._is_used[slot], self._is_used[free] = False, True
                self.touched[free] = True
                heapq.heappush(self._free, slot)
                table[expert] = free
        for part, stride in self.strides.items():
            buffer = self._buffers[part]
            buffer.give_back(self.n_slots * stride, buffer.size_bytes)
        self.touched[self.n_slots :] = bytes(self.n_experts - self.n_slots)

    def _lowest(self) -> int:
        while True:
            slot = heapq.heappop(self._free)
            if not self._is_used[slot]:
                return slot


class SlotMemory:
    """The memory of an :class:`ExpertCache`, in one pool a class of layers.

    Args:
        layout: what is cached; see :func:`can_hold`.
        plan: of the model; decides what a pool cannot do without.
        alignment: the reader's, at its start.
        ubatch: rows of the widest pass.
        budget_bytes: of all pools together.
    """

    def __init__(
        self,
        layout: ExpertLayout,
        plan: StreamingPlan,
        *,
        alignment: int,
        ubatch: int,
        budget_bytes: int,
    ) -> None:
        classes: dict[tuple[tuple[str, int], ...], dict[int, tuple[ExpertTensor, ...]]] = {}
        for layer, tensors in layout.layers.items():
            key = tuple((t.part, t.slice_bytes) for t in tensors)
            classes.setdefault(key, {})[layer] = tensors
        self._plan = plan
        self._ubatch = ubatch
        self._alignment = alignment
        self.pools = [SlotPool(layers, alignment) for layers in classes.values()]
        self._pool_of = {layer: pool for pool in self.pools for layer in pool.layers}
        # Of each tensor: its layer's slots, its part's memory and stride, where a slice begins,
        # and which slots were used before.
        self._places = {
            t.name: (
                pool.table[layer],
                pool.buffer(t.part),
                pool.strides[t.part],
                t.offset % alignment,
                pool.touched,
            )
            for layer, pool in self._pool_of.items()
            for t in layout.layers[layer]
        }
        self.budget_bytes = budget_bytes
        self.set_budget(budget_bytes)

    @property
    def resident_bytes(self) -> int:
        """Slots in use, those on their way counted."""
        return sum(pool.n_used * pool.slot_bytes for pool in self.pools)

    def has_room(self, layer: int, experts: Sequence[int]) -> bool:
        """Whether ``experts``, none of them here, fit beside what is here."""
        pool = self._pool_of[layer]
        return pool.n_used + len(experts) <= pool.n_slots

    def competes(self, layer: int, other: int) -> bool:
        """Whether evicting from ``other`` makes room for ``layer``."""
        return self._pool_of[layer] is self._pool_of[other]

    def is_over(self, layer: int) -> bool:
        """Whether something that competes with ``layer`` has to go."""
        pool = self._pool_of[layer]
        return pool.n_used > pool.n_slots

    def take(self, layer: int, expert: int) -> None:
        """An expert comes into memory."""
        self._pool_of[layer].take(layer, expert)

    def give_back(
        self, layer: int, expert: int, *, spare_shared: bool = True, forget: bool = True
    ) -> None:
        """See :meth:`CacheMemory.give_back`; slots share nothing, so there is nothing to spare."""
        del spare_shared
        self._pool_of[layer].give_back(layer, expert, forget=forget)

    def set_budget(self, budget_bytes: int) -> bool:
        """Share ``budget_bytes`` among the pools; nothing has to go for that at once.

        Every pool gets what it cannot do without, as far as it goes, and of the rest a share by
        its size.
        """
        self.budget_bytes = budget_bytes
        left = budget_bytes
        for pool in self.pools:
            pool.n_slots = min(self._needed(pool), left // pool.slot_bytes)
            left -= pool.n_slots * pool.slot_bytes
        while True:
            open_ = [p for p in self.pools if p.n_slots < p.n_experts and p.slot_bytes <= left]
            if not open_:
                return False
            whole = sum(p.n_experts * p.slot_bytes for p in open_)
            share = left
            for pool in open_:
                part = share * pool.n_experts * pool.slot_bytes // whole // pool.slot_bytes
                more = min(max(part, 1), pool.n_experts - pool.n_slots, left // pool.slot_bytes)
                pool.n_slots += more
                left -= more * pool.slot_bytes

    @property
    def needed_bytes(self) -> int:
        """What all pools cannot do without: a token's experts, and a pass's of any layer."""
        return sum(self._needed(pool) * pool.slot_bytes for pool in self.pools)

    @property
    def why_too_small(self) -> str:
        """In words, for a budget below :attr:`needed_bytes`."""
        sizes = len(self.pools)
        kinds = "1 size" if sizes == 1 else f"{sizes} sizes"
        return f"experts of {kinds}, whose slots need --cache-mb {-(-self.needed_bytes >> 20)}"

    def check_budget(self, budget_bytes: int) -> None:
        """Refuse what :meth:`set_budget` could not share out.

        Raises:
            RequestError: ``budget_bytes`` is below :attr:`needed_bytes`.
        """
        if budget_bytes < self.needed_bytes:
            raise RequestError(
                f"--cache-mb {budget_bytes >> 20}: the cache has {self.why_too_small} or more;"
                " --force-cache takes less, and a session of --cache-memory pages needs less"
            )

    def trim(self) -> None:
        """Give back what lies beyond the budget, once nothing is over it."""
        for pool in self.pools:
            pool.trim()

    def ids(self, layer: int, routed: Sequence[int]) -> tuple[list[int], int, int]:
        """The slots of the experts ``routed``, counted from the lowest.

        Returns:
            Those, the lowest slot, and how many there are from it to the highest.

        Raises:
            SystemFault: one of the experts has no slot.
        """
        # numpy does so few slower, when its code has left the processor's caches.
        table = self._pool_of[layer].table[layer]
        slots = [table[expert] for expert in routed]
        low = min(slots)
        if low < 0:
            expert = routed[slots.index(low)]
            raise _no_slot(layer, expert)
        return [slot - low for slot in slots], low, max(slots) - low + 1

    def n_slots_max(self, layer: int) -> int:
        """How many slots there may be for ``layer`` and those that compete with it."""
        return self._pool_of[layer].n_experts

    def keeps_all(self, layer: int) -> bool:
        """See :meth:`CacheMemory.keeps_all`."""
        pool = self._pool_of[layer]
        first, n = self.own(layer)
        return pool.n_slots == pool.n_experts and pool.table[layer] == list(range(first, first + n))

    def own(self, layer: int) -> tuple[int, int]:
        """The slot of ``layer``'s expert 0 where all stand in order, and how many there are."""
        pool = self._pool_of[layer]
        return pool.first[layer], len(pool.table[layer])

    def address(self, tensor: ExpertTensor, slot: int) -> int:
        """Where the slice of ``tensor``'s part in a slot begins."""
        return self._pool_of[tensor.layer].address(tensor, slot, self._alignment)

    def stride(self, tensor: ExpertTensor) -> int:
        """Bytes from slot to slot."""
        return self._pool_of[tensor.layer].strides[tensor.part]

    def slice_view(self, tensor: ExpertTensor, expert: int) -> memoryview:
        """The bytes of one resident expert's slice, writable."""
        table, buffer, stride, first, _ = self._places[tensor.name]
        if table[expert] < 0:
            raise _no_slot(tensor.layer, expert)
        at = table[expert] * stride + first
        return buffer.view[at : at + tensor.slice_bytes]

    def slice_reads(
        self, tensor: ExpertTensor, expert: int, source: int, shard: int, alignment: int
    ) -> list[Read]:
        """As :meth:`Arena.slice_reads`, for an expert that has a slot."""
        table, buffer, stride, first, touched = self._places[tensor.name]
        slot = table[expert]
        if slot < 0:
            raise _no_slot(tensor.layer, expert)
        at = slot * stride + first
        offset = tensor.offset + source * tensor.slice_bytes
        return chunked_reads(
            tensor.name,
            buffer,
            at,
            offset,
            tensor.slice_bytes,
            shard,
            alignment,
            is_fresh=not touched[slot],
        )

    def _needed(self, pool: SlotPool) -> int:
        plans = [one for one in self._plan.layers if one.layer in pool.layers]
        used = sum(min(self._plan.n_used, one.n_expert) for one in plans if not one.is_head)
        widest = max(min(self._ubatch * self._plan.n_used, one.n_expert) for one in plans)
        return max(used, widest)


def _stride(slice_bytes: int, alignment: int) -> int:
    """From slot to slot: a slice may begin anywhere in a slot's first ``alignment`` bytes."""
    step = max(alignment, _STRIDE_ALIGNMENT)
    if slice_bytes >= _PAGE_OF_ITS_OWN_BYTES:
        step = max(step, mmap.PAGESIZE)
    return -(-(slice_bytes + alignment) // step) * step


def _no_slot(layer: int, expert: int) -> SystemFault:
    return SystemFault(f"layer {layer}: expert {expert} has no slot in the cache")

"""The places where a test may plant a fault: three small classes, inert in every normal run.

The lanes, the cache, the eval hook and the decode loops call these methods at the points where
engines of this kind have been seen to go wrong. The base classes do nothing but pass values
through; the gates' fault modules override a method or two at a time and show that a gate notices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt


class Nodes:
    """Sees every graph node of every decode; this base class looks at none.

    Addresses are those of :mod:`sluice.llama.tensor`. A node that is wanted is computed by
    itself, and may be read or overwritten before anything uses it.
    """

    def begins(
        self,
        is_head: bool,
        tokens: Sequence[int],
        position: int,
        outputs: str,
        hidden: npt.NDArray[np.float32] | None,
    ) -> None:
        """A decode of ``tokens`` at ``position`` onward is about to start (see ``Batch.fill``)."""

    def wants(self, is_head: bool, address: int) -> bool:
        """Whether :meth:`computed` is to be called for the node."""
        return False

    def computed(self, is_head: bool, address: int) -> None:
        """The node's values are there, and its routed experts where it is the router's."""


class Seams:
    """Pass-through hooks; see the method names for where they sit."""

    is_passive: ClassVar[bool] = False  # replaces methods, and still changes nothing

    def nodes(self) -> Nodes | None:
        """What looks at the graph's nodes, or writes into them; asked for once a session."""
        return None

    def slice_source(self, layer: int, part: str, expert: int, n_expert: int) -> int | None:
        """Which expert's bytes to read in the place of ``expert``; ``None`` reads nothing."""
        return expert

    def slice_read(self, layer: int, part: str, expert: int, data: memoryview) -> None:
        """Called with the slice's own bytes (writable) after they were read."""

    def slice_shard(self, shard: int, n_shards: int) -> int:
        """Which shard a slice of ``shard`` is read from."""
        return shard

    def lane_reads(self, tensor: str, is_ahead: bool) -> None:
        """Called in a lane before it reads."""

    def lane_has_read(self, tensor: str, is_ahead: bool) -> None:
        """Called in a lane when it has read, before anyone is told."""

    def hands_over(self, tensor: str, is_ahead: bool) -> bool:
        """Whether the kernel is given a read that it is to perform; else it counts as done."""
        return True

    def waits(self, layer: int, part: str) -> bool:
        """Whether a part's reads are waited for before the matmul that takes them."""
        return True

    def waits_for_ahead(self, layer: int, expert: int) -> bool:
        """Whether an expert on its way by read-ahead is waited for when it is routed to."""
        return True

    def forgets(self, layer: int, expert: int) -> bool:
        """Whether an expert leaves the cache's table when its memory is given back."""
        return True

    def spares_in_flight(self) -> bool:
        """Whether eviction leaves alone what a lane is writing into."""
        return True

    def spares_shared_page(self) -> bool:
        """Whether eviction keeps a page that a resident neighbour has a part of."""
        return True

    def takes_for_whole(self, layer: int, is_whole: bool) -> bool:
        """Whether a layer computes from here on as if it were resident."""
        return is_whole

    def computes_late(self, layer: int) -> bool:
        """Whether experts that were read late are computed once they are there."""
        return True

    def routing(self, selected: npt.NDArray[np.int32], flat: npt.NDArray[np.int32]) -> Any:
        """Routed experts of one layer, int32[rows, top_k].

        ``flat`` is what a reader that ignores the view's row stride would have gathered, same
        shape. Returns the array that the streamer will use.
        """
        return selected

    def accepted(self, n_accepted: int, n_drafted: int) -> int:
        """How many drafts of a group the loop takes, given how many matched."""
        return n_accepted

    def rolls_back(self, n_rejected: int) -> bool:
        """Whether the target's rejected tail is removed after a verify decode."""
        return True

    def catch_up_rows(self, n_prefix: int, n_batch: int) -> int:
        """How many rows of the verify batch the head catches up on."""
        return n_prefix

    def drops_surplus(self) -> bool:
        """Whether head cells beyond the accepted prefix are dropped after a wide catch-up."""
        return True

    def hidden_row(self, row: int) -> int:
        """Which row of the target's hidden states seeds the next draft."""
        return row

    def logits_row(self, row: int, n_rows: int) -> int:
        """Which row of a verify decode the next token is chosen from."""
        return row


def replaces(seams: Seams, *names: str) -> bool:
    """Whether ``seams`` has a method of ``names`` of its own: who only counts has one, too."""
    return any(getattr(type(seams), name) is not getattr(Seams, name) for name in names)


def acts(seams: Seams, *names: str) -> bool:
    """Whether ``seams`` may change something in a method of ``names``: no shorter way, then."""
    return not seams.is_passive and replaces(seams, *names)


class Drafter:
    """A source of drafts that replaces the head's own, for gates.

    The target verifies whatever comes: a drafter can change how much is accepted, never what
    is generated (up to the numerics of the batch width).
    """

    def draft(self, confirmed: list[int], width: int, n_vocab: int) -> list[int]:
        """At most ``width`` ids that continue ``confirmed`` (prompt and generated ids)."""
        raise NotImplementedError


NO_SEAMS = Seams()

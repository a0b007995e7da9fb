"""The reads of experts' slices, into the memory that they stand in."""

from __future__ import annotations

from typing import Protocol

from sluice.seams import Seams, replaces
from sluice.streaming.lanes import Job
from sluice.streaming.layout import ExpertLayout, ExpertTensor
from sluice.streaming.reader import Read, SliceReader


class Place(Protocol):
    """Where slices stand; see :class:`Arena` and :class:`CacheMemory`."""

    def slice_reads(
        self, tensor: ExpertTensor, expert: int, source: int, shard: int, alignment: int
    ) -> list[Read]:
        """See :meth:`Arena.slice_reads`."""


class SliceJobs:
    """Makes them.

    Args:
        layout: of the model.
        reader: its files.
        place: where the slices go.
        seams: see :mod:`sluice.seams`.
    """

    def __init__(
        self, layout: ExpertLayout, reader: SliceReader, place: Place, seams: Seams
    ) -> None:
        self._layout = layout
        self._reader = reader
        self._place = place
        self._seams = seams
        self._has_seam = replaces(seams, "slice_source", "slice_shard")

    def of_expert(self, layer: int, expert: int, is_ahead: bool) -> dict[str, list[Job]]:
        """An expert's, by part."""
        tensors = self._layout.layers[layer]
        return {tensor.part: self.of_slice(tensor, expert, is_ahead) for tensor in tensors}

    def of_slice(self, tensor: ExpertTensor, expert: int, is_ahead: bool = False) -> list[Job]:
        """One slice's, in chunks."""
        source, shard, alignment = expert, tensor.shard, self._reader.alignment
        if self._has_seam:
            seams = self._seams
            other = seams.slice_source(tensor.layer, tensor.part, expert, tensor.n_expert)
            if other is None:
                return []
            source, shard = other, seams.slice_shard(shard, len(self._reader.paths))
        reads = self._place.slice_reads(tensor, expert, source, shard, alignment)
        return [Job(read, is_ahead=is_ahead) for read in reads]

"""Which drafts a model's kernels tell apart, as gates must know it."""

from __future__ import annotations

import functools
from pathlib import Path

from sluice.decoding.widths import examine, interchangeable, spelled_drafts
from sluice.gguf.shards import read_model

__all__ = ["draft_groups", "spelled_drafts"]


@functools.cache
def draft_groups(path: Path, threads: int) -> tuple[tuple[int, ...], ...]:
    """Drafts 0 (plain) to 8 in groups whose runs have the same bits under default numerics.

    Found by running the kernels of this build on the model's own weights; holds for drafts that
    have their full width.

    Raises:
        SluiceError: the file cannot be read, or the kernels cannot be run by themselves here.
    """
    return interchangeable(examine(read_model(path), flash_attn=True, threads=threads))

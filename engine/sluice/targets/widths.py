"""Which drafts a model's kernels tell apart, as gates must know it."""

from __future__ import annotations

import functools
from pathlib import Path

from sluice.decoding.widths import examine, interchangeable, spelled
from sluice.gguf.header import read_header


@functools.cache
def draft_groups(path: Path, threads: int) -> tuple[tuple[int, ...], ...]:
    """Drafts 0 (plain) to 8 in groups whose runs have the same bits under default numerics.

    Found by running the kernels of this build on the model's own weights; holds for drafts that
    have their full width.

    Raises:
        SluiceError: the file cannot be read, or the kernels cannot be run by themselves here.
    """
    return interchangeable(examine(read_header(path), flash_attn=True, threads=threads))


def spelled_drafts(group: tuple[int, ...]) -> str:
    """A group of drafts in words, plain being draft 0: ``plain = draft 1 to 3, 5``."""
    drafts = tuple(draft for draft in group if draft)
    words = ["plain"] if 0 in group else []
    return " = ".join([*words, *([f"draft {spelled((drafts,))}"] if drafts else [])])

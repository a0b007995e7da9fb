"""Another quantisation of a model, made only of what llama.cpp survives."""

from __future__ import annotations

from pathlib import Path

from sluice.gguf.limits import refuse_what_aborts
from sluice.gguf.shards import read_model
from sluice.llama import quantize as llama


def quantize(master: Path, type_name: str, out: Path, *, threads: int = 1) -> Path:
    """Write ``master`` requantised as ``type_name`` to ``out``, whole or not at all.

    Raises:
        RequestError: an unknown type name.
        ModelError: the master is malformed, or llama.cpp could not do it.
        SystemFault: nothing can be written beside ``out``.
    """
    header = read_model(master)
    refuse_what_aborts(header)
    return llama.quantize(header.path, type_name, out, threads=threads)

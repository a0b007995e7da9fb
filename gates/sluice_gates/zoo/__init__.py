"""The zoo: one tiny model of random weights for each Mixture-of-Experts layout.

Each has four layers, eight experts, top-2, 302 tokens, and four to nine megabytes. They speak
no language; their logits are finite, differ from token to token, and so does their routing.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path

from sluice.errors import RequestError
from sluice.telemetry.files import atomic
from sluice_gates.zoo.row import Row
from sluice_gates.zoo.rows import ROWS, UNSTREAMED
from sluice_gates.zoo.writer import SEED, write_model

__all__ = ["REFUSED", "ZOO", "Row", "zoo_model"]

ZOO: Mapping[str, Row] = {row.name: row for row in ROWS}
"""Every model of the zoo that Sluice streams, by name."""

REFUSED: Mapping[str, Row] = {row.name: row for row in UNSTREAMED}
"""Mixture-of-Experts models that llama.cpp runs and Sluice refuses to stream, by name."""


def zoo_model(name: str, folder: Path) -> Path:
    """The file of ``ZOO[name]`` or ``REFUSED[name]`` in ``folder``: made on the first call, kept.

    Its name carries a checksum of the row, so that a changed row makes another file.

    Raises:
        RequestError: there is no such row.
        SystemFault: the folder cannot be written to.
    """
    row = ZOO.get(name) or REFUSED.get(name)
    if row is None:
        raise RequestError(f"the zoo has no {name}; it has {', '.join(ZOO)}")
    checksum = zlib.crc32(f"{SEED} {row!r}".encode())
    out = folder / f"sluice-zoo-{name}-{checksum:08x}.gguf"
    if not out.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with atomic(out) as part:
            write_model(part, row)
    return out

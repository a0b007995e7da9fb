"""Examine one model on this build."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice.decoding import widths
from sluice.decoding.numerics import obstacle
from sluice.decoding.widths import KernelClasses
from sluice.doctor.build import Build, examine_build
from sluice.doctor.diagnosis import PROFILES, Profile, diagnose
from sluice.doctor.streaming import Streaming, examine_streaming
from sluice.errors import SystemFault
from sluice.gguf.shards import read_model
from sluice.llama import kernels
from sluice.streaming import memory

SCHEMA = "sluice-doctor/1"


@dataclass(frozen=True, slots=True)
class Examination:
    """All of it.

    ``as_is`` are the width classes of the build as ggml runs it, with flash attention;
    ``switched_off`` those with the switchable kernels and flash attention off. ``unknown`` says
    why neither could be found.
    """

    build: Build
    model: str
    architecture: str
    has_head: bool
    threads: int
    as_is: tuple[KernelClasses, ...]
    switched_off: tuple[KernelClasses, ...]
    unknown: str | None
    profiles: tuple[Profile, ...]
    streaming: Streaming

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for ``--json``."""
        plain = dataclasses.asdict(self) | {"streaming": self.streaming.as_dict()}
        return {"schema": SCHEMA} | plain


def examine(path: Path, *, threads: int, ubatch: int) -> Examination:
    """Run the kernels on weights of the model at ``path``, and plan how it would be streamed.

    Args:
        path: a gguf, or any shard of one.
        threads: compute threads, as a run would use.
        ubatch: the width of a pass, likewise.

    Raises:
        ModelError: the file cannot be read.
    """
    header = read_model(path)
    build = examine_build()
    unknown: str | None = None
    as_is: tuple[KernelClasses, ...] = ()
    off: tuple[KernelClasses, ...] = ()
    try:
        as_is = tuple(widths.examine(header, flash_attn=True, threads=threads))
        with kernels.switched_off(kernels.KERNELS):
            off = tuple(widths.examine(header, flash_attn=False, threads=threads))
    except SystemFault as err:
        unknown = str(err)
    profiles = tuple(
        diagnose(
            name,
            obstacle(name) or _unknown(name, unknown),
            as_is if name == "default" else off,
        )
        for name in PROFILES
    )
    return Examination(
        build=build,
        model=path.name,
        architecture=header.architecture,
        has_head=header.n_nextn > 0,
        threads=threads,
        as_is=as_is,
        switched_off=off,
        unknown=unknown,
        profiles=profiles,
        streaming=examine_streaming(
            header, ubatch=ubatch, available_bytes=memory.available_bytes()
        ),
    )


def _unknown(profile: str, why: str | None) -> tuple[str, str] | None:
    if why is None or profile == "default":
        return None
    return why, "run on Linux with the pinned llama-cpp-python"

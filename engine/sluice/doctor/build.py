"""The build of llama.cpp that this process has loaded."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from sluice.llama import kernels, library, opening


@dataclass(frozen=True, slots=True)
class Switch:
    """A group of kernels: whether the build has it, and whether it can be switched off."""

    name: str
    is_present: bool
    is_switchable: bool


@dataclass(frozen=True, slots=True)
class Build:
    """What is known of a build.

    ``slots`` maps each imported function that Sluice redirects to whether its call slot was
    found; ``openmp`` is ``None`` where ggml does not say.
    """

    llama_cpp_python: str
    system_info: str
    platform: str
    has_llamafile: bool
    openmp: bool | None
    switches: tuple[Switch, ...]
    slots: dict[str, bool]


def examine_build() -> Build:
    """Look at the build in this process."""
    library.start()
    info = library.system_info()
    return Build(
        llama_cpp_python=library.version(),
        system_info=info,
        platform=sys.platform,
        has_llamafile=kernels.has_llamafile(),
        openmp=flag(info, "OPENMP"),
        switches=tuple(
            Switch(name, kernels.present(name), kernels.switchable(name))
            for name in kernels.KERNELS
        ),
        slots=kernels.slots_found() | opening.slots_found(),
    )


def flag(system_info: str, name: str) -> bool | None:
    """A feature of ggml's line ``CPU : AVX2 = 1 | …``; a feature that is off is not listed.

    Returns:
        ``None`` where the line lists nothing at all.
    """
    words = system_info.replace("|", " ").replace(":", " ").split()
    pairs = {words[i - 1]: words[i + 1] for i in range(1, len(words) - 1) if words[i] == "="}
    return pairs.get(name, "0") == "1" if pairs else None

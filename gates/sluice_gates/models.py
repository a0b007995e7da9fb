"""The model under test: a file, a label, and what its header says."""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sluice.bundled import BUNDLED, model_path
from sluice.errors import RequestError
from sluice.targets import ModelFacts, model_facts, quantize

MASTER_TYPE = "Q8_0"
DEFAULT_TYPES = ("Q8_0", "Q4_K_M", "MXFP4_MOE")
ALL_TYPES = (*DEFAULT_TYPES, "F16", "BF16", "Q6_K", "IQ4_XS", "Q5_0", "Q4_0")
SMALL_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Model:
    """A model that gates run on.

    ``label`` is the quantisation of the bundled model, or the stem of a file that was named.
    """

    path: Path
    label: str
    is_bundled: bool
    facts: ModelFacts
    master_sha256: str | None = None

    @property
    def name(self) -> str:
        """For messages and goldens; independent of where the file lies."""
        return f"{BUNDLED} {self.label}" if self.is_bundled else self.path.name

    @property
    def quantisation(self) -> str | None:
        """The label of a quantisation of the bundled model."""
        return self.label if self.is_bundled else None

    @property
    def is_small(self) -> bool:
        """Whether runs of it are cheap, and gain nothing by threads."""
        return self.facts.file_bytes < SMALL_BYTES


def labels(named: str, types: str | None) -> list[str]:
    """One label a model that ``--sluice-model`` and ``--sluice-quants`` ask for.

    Raises:
        RequestError: an unknown quantisation, or quantisations of a model that was named.
    """
    if named != BUNDLED:
        if types is not None:
            raise RequestError(
                f"--sluice-quants {types}: {named} is run as it is; drop --sluice-quants, or"
                f" drop --sluice-model to run quantisations of the {BUNDLED} model"
            )
        return [Path(named).stem]
    if types is None:
        return list(DEFAULT_TYPES)
    wanted = list(ALL_TYPES) if types == "all" else list(dict.fromkeys(types.split(",")))
    for name in wanted:
        if name not in ALL_TYPES:
            raise RequestError(
                f"--sluice-quants {types}: no {name!r}; there are {', '.join(ALL_TYPES)}, and all"
            )
    return wanted


@functools.cache
def open_model(named: str, label: str, scratch: Path) -> Model:
    """The model of a label; quantisations of the bundled one are made when first asked for.

    Args:
        named: a path, or ``bundled``.
        label: from :func:`labels`.
        scratch: where files are made if the user's cache cannot be written.

    Raises:
        SluiceError: there is no such file, or it is no model.
    """
    path = model_path(named)
    if named != BUNDLED:
        return Model(path, label, False, model_facts(path))
    master_sha256 = model_facts(path).fingerprint.model_sha256
    if label != MASTER_TYPE:
        path = made_once(path, label, lambda master, out: quantize(master, label, out), scratch)
    return Model(path, label, True, model_facts(path), master_sha256)


def made_once(master: Path, name: str, make: Callable[[Path, Path], Path], scratch: Path) -> Path:
    """A file made from ``master`` and kept; ``make`` must write it whole or not at all.

    Two processes that ask at once both make it, with equal bytes: the later rename wins.
    """
    out = cache_folder(master, scratch) / f"{master.stem}-{name}.gguf"
    if not out.exists():
        make(master, out)
    return out


@functools.cache
def cache_folder(master: Path, scratch: Path) -> Path:
    """The folder for what is made from ``master`` by this build of llama.cpp."""
    print_ = model_facts(master).fingerprint
    # Another build may round a quantisation otherwise; its files must not be taken for ours.
    build = hashlib.sha256(f"{print_.llama_cpp_python}\n{print_.system_info}".encode()).hexdigest()
    sha12 = print_.model_sha256.rpartition(":")[2][:12]
    for root in (user_cache(), scratch):
        folder = root / "sluice" / "models" / sha12 / f"{print_.llama_cpp_python}-{build[:8]}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()  # a read-only cache is no cache
        except OSError:
            continue
        return folder
    return scratch


def user_cache() -> Path:
    """Where this system keeps what can be made again."""
    if os.environ.get("XDG_CACHE_HOME"):
        return Path(os.environ["XDG_CACHE_HOME"])
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32" and os.environ.get("LOCALAPPDATA"):
        return Path(os.environ["LOCALAPPDATA"])
    return Path.home() / ".cache"

"""A model in one file or in shards: which files they are, and their headers as one.

llama.cpp opens shards by the first one's name alone, and asks each for its number. What else
can be wrong with one (another model's, another split's) is held here before it is opened.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sluice.errors import ModelError
from sluice.gguf.header import Header, TensorInfo, read_header

_NAMED = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.DOTALL)
_NAMES_SAID = 4  # of missing shards; the rest is counted


@dataclass(frozen=True, slots=True)
class Split:
    """The names of a model's shards: ``stem-00001-of-0000N.gguf`` and on, in one folder."""

    folder: Path
    stem: str
    count: int

    def path(self, index: int) -> Path:
        """The file of shard ``index``, from 0."""
        return self.folder / f"{self.stem}-{index + 1:05d}-of-{self.count:05d}.gguf"

    @property
    def paths(self) -> tuple[Path, ...]:
        """Every shard's file, in order."""
        return tuple(self.path(i) for i in range(self.count))


def files_by_name(path: Path) -> tuple[Path, ...]:
    """``path`` and the shards that belong to it by their names; nothing is opened."""
    match = _NAMED.fullmatch(path.name)
    if match is None:
        return (path,)
    others = Split(path.parent, match["stem"], int(match["count"])).paths
    return (path, *(other for other in others if other != path and other.exists()))


def read_model(path: Path) -> Header:
    """The header of the model at ``path``: a whole gguf, or any shard of one.

    Raises:
        ModelError: a file cannot be read or is malformed (see :func:`read_header`); a shard is
            missing, or is not of this model; names the file.
    """
    given = read_header(path)
    if given.n_shards == 1:
        return given
    index = _number(given)
    split = _split_of(given, index)
    missing = [name for name in split.paths if not name.is_file()]
    if missing:
        names = ", ".join(p.name for p in missing[:_NAMES_SAID])
        more = f" and {len(missing) - _NAMES_SAID} more" if len(missing) > _NAMES_SAID else ""
        raise ModelError(
            f"{path}: is shard {index + 1} of {split.count}, and {names}{more}"
            f" {'is' if len(missing) == 1 else 'are'} not beside it; get every shard"
        )
    shards = [given if i == index else read_header(p) for i, p in enumerate(split.paths)]
    for i, shard in enumerate(shards):
        _check_member(shard, i, shards[0], split)
    return Header(
        tuple(shard.files[0] for shard in shards),
        shards[0].metadata,
        _merged(shards),
    )


def _number(shard: Header) -> int:
    """A shard's own number, from 0."""
    number = shard.metadata.get("split.no")
    if not isinstance(number, int) or not 0 <= number < shard.n_shards:
        raise ModelError(
            f"{shard.path}: malformed: split.no is {number}, and split.count {shard.n_shards};"
            " get the shard again"
        )
    return number


def _split_of(shard: Header, index: int) -> Split:
    """The names that go with a shard's own number and count; its own must be one of them."""
    path = shard.path
    match = _NAMED.fullmatch(path.name)
    stem = match["stem"] if match else _stem_beside(path, shard.n_shards)
    split = Split(path.parent, stem, shard.n_shards)
    if path.name != split.path(index).name:
        raise ModelError(
            f"{path}: is shard {index + 1} of {split.count} by its own metadata; it must be named"
            f" {split.path(index).name}, with the other shards beside it"
        )
    return split


def _stem_beside(path: Path, count: int) -> str:
    """The stem of the one model of ``count`` shards in the folder; else that of the name."""
    try:
        matches = [_NAMED.fullmatch(name.name) for name in path.parent.iterdir()]
    except OSError:
        matches = []
    stems = {match["stem"] for match in matches if match and int(match["count"]) == count}
    return stems.pop() if len(stems) == 1 else path.name.removesuffix(".gguf")


def _check_member(shard: Header, index: int, first: Header, split: Split) -> None:
    """Refuse a file that has a shard's name and is none of this model's."""
    rows = (
        ("split.count", split.count),
        ("split.no", index),
        ("split.tensors.count", first.metadata.get("split.tensors.count", "all shards' together")),
        # A shard that names no architecture is right: only the first has to.
        ("general.architecture", shard.architecture and (first.architecture or "unsaid")),
    )
    for key, wanted in rows:
        said = shard.metadata.get(key, "")
        if said != wanted:
            raise ModelError(
                f"{shard.path}: is not shard {index + 1} of {split.count} of one model: its {key}"
                f" is {said or 'not there'!s}, must be {wanted}; get every shard of one model"
            )


def _merged(shards: Sequence[Header]) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for i, shard in enumerate(shards):
        for name, info in shard.tensors.items():
            if name in tensors:
                raise ModelError(
                    f"{shard.path}: is not of the model of {shards[0].path.name}: tensor {name} is"
                    f" in {shards[tensors[name].shard].path.name}, too; get the shards of one model"
                )
            tensors[name] = replace(info, shard=i)
    wanted = shards[0].metadata["split.tensors.count"]
    if len(tensors) != wanted:
        raise ModelError(
            f"{shards[0].path}: its {len(shards)} shards have {len(tensors)} tensors, and"
            f" split.tensors.count says {wanted}; one is not of this model: get every shard again"
        )
    return tensors

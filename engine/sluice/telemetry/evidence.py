"""The evidence of a run: everything that must be equal for two runs to be the same run.

Holds no clock and no counter of the machine's: two runs of one configuration on one build
give the same file, byte for byte. The schema is described in docs/evidence.md.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sluice.errors import RequestError
from sluice.telemetry.files import write_whole

__all__ = ["SCHEMA", "Evidence", "Fingerprint", "Group", "Stop", "Top2", "write_whole"]

SCHEMA = "sluice-evidence/1"


@dataclass(frozen=True, slots=True)
class Top2:
    """The two largest logits of a step (float32 values) and their token ids, largest first."""

    ids: tuple[int, int]
    logits: tuple[float, float]

    @property
    def margin(self) -> float:
        """Logit of the first less logit of the second; 0 is a tie."""
        return self.logits[0] - self.logits[1]


@dataclass(frozen=True, slots=True)
class Group:
    """One verify decode: what was drafted, and the leading part of it that was accepted.

    ``step`` is the index into ``ids`` of the first token that the group confirmed.
    ``accepted`` counts what the target agreed with, also where ``-n`` or an end of generation
    cut the emitted tokens short.
    """

    step: int
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What a value belongs to; values of different fingerprints are not comparable.

    ``model_sha256`` is the file's SHA-256; above 64 MiB it is prefixed ``sampled:`` and covers
    the header, the size and 64 evenly spaced blocks. Of a model in shards it is the SHA-256 of
    their digests in order, prefixed where one of theirs is.
    """

    llama_cpp_python: str
    system_info: str
    numerics: str
    model_sha256: str

    @property
    def key(self) -> str:
        """A short name for files: version, numerics and 12 hex digits of the whole."""
        whole = "\n".join(dataclasses.astuple(self))
        digest = hashlib.sha256(whole.encode()).hexdigest()[:12]
        return f"{self.llama_cpp_python}-{self.numerics}-{digest}"


@dataclass(frozen=True, slots=True)
class Stop:
    """Why generation ended.

    ``reason`` is ``n`` (the limit), ``eog`` (an end-of-generation token), or ``unfinished``: it
    did not come to its end. The end-of-generation token is not among ``ids``; its id and the
    hash of the logits row that chose it stand here.
    """

    reason: str
    id: int | None = None
    logits_sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """One run, as it can be compared.

    ``ids``, ``logits_sha256`` and ``top2`` have one entry a generated token: entry i of the
    latter two describes the float32 logits row that token i was chosen from.
    """

    config: dict[str, Any]
    fingerprint: Fingerprint
    prompt_ids: list[int]
    ids: list[int]
    text: str
    text_sha256: str
    logits_sha256: list[str]
    top2: list[Top2]
    groups: list[Group] = field(default_factory=list)
    stop: Stop = field(default_factory=lambda: Stop("n"))

    @property
    def speculated(self) -> bool:
        """Whether ``--mtp`` was asked for; its drafts may all have been empty."""
        return bool(self.config.get("mtp"))

    @property
    def n_drafted(self) -> int:
        """Drafted tokens over all groups."""
        return sum(len(g.drafted) for g in self.groups)

    @property
    def n_accepted(self) -> int:
        """Accepted drafts over all groups."""
        return sum(len(g.accepted) for g in self.groups)

    def to_json(self) -> str:
        """One JSON object, keys in schema order, LF line ends."""
        return json.dumps({"schema": SCHEMA} | dataclasses.asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str = "evidence") -> Evidence:
        """Read what :meth:`to_json` wrote.

        Raises:
            RequestError: not an evidence file, or of another schema version.
        """
        try:
            raw = json.loads(text)
            schema = raw.pop("schema")
        except (ValueError, KeyError, AttributeError, TypeError) as err:
            raise RequestError(
                f"{where}: not an evidence file ({err}); write one with --evidence"
            ) from None
        if schema != SCHEMA:
            raise RequestError(f"{where}: schema {schema}, this Sluice reads {SCHEMA}")
        try:
            return cls(
                **raw
                | {
                    "fingerprint": Fingerprint(**raw["fingerprint"]),
                    "top2": [Top2(tuple(t["ids"]), tuple(t["logits"])) for t in raw["top2"]],
                    "groups": [
                        Group(g["step"], tuple(g["drafted"]), tuple(g["accepted"]))
                        for g in raw["groups"]
                    ],
                    "stop": Stop(**raw["stop"]),
                }
            )
        except (KeyError, TypeError) as err:
            raise RequestError(f"{where}: {SCHEMA} but incomplete ({err})") from None

    def write(self, path: Path) -> None:
        """Write the file whole or not at all."""
        write_whole(path, self.to_json())

    @classmethod
    def read(cls, path: Path) -> Evidence:
        """Read an evidence file; a missing or foreign one is a :class:`RequestError`."""
        try:
            return cls.from_json(path.read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as err:
            raise RequestError(f"{path}: cannot be read as evidence: {err}") from None

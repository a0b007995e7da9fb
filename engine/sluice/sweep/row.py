"""One request of a sweep as one line of ``rows.jsonl``: what was counted and timed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from sluice.errors import RequestError
from sluice.telemetry.evidence import Group

SCHEMA: Final = "sluice-sweep/1"

Outcome = Literal["ok", "failed", "refused"]


class Key(NamedTuple):
    """What makes a request one of a kind in a sweep; ``repeat`` counts from 0.

    ``is_cold`` as in :class:`Row`: of streamed arms, a request is made cold and then warm.
    """

    arm: str
    workload: str
    prompt: str
    repeat: int
    is_cold: bool | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """What all rows of a sweep have in common; rows of two identities are never mixed.

    Args:
        target: ``engine``, ``server`` (a URL that was given) or ``server-cmd`` (started by us).
        model: the fingerprint's ``model_sha256``, or what a server says of its model.
        build: version and system information of llama.cpp, in one string.
        threads: compute threads; 0 where a server does not say.
        machine: processor, cores and memory, in one string.
        settings: further settings that all arms share, by name.
    """

    target: str
    model: str
    build: str
    threads: int = 0
    machine: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """16 hex digits over the whole."""
        text = json.dumps(self.as_dict(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)} | {
            "settings": dict(self.settings)
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], where: str) -> Identity:
        """What :meth:`as_dict` gave.

        Raises:
            RequestError: it is not that.
        """
        return cls(**_checked(cls, raw, where))

    def differences(self, other: Identity) -> list[str]:
        """One entry for everything that is not the same: ``threads: 4 here, 8 there``."""
        mine, theirs = self._flat(), other._flat()
        return [
            f"{name}: {mine.get(name, 'not set')} here, {theirs.get(name, 'not set')} there"
            for name in dict.fromkeys([*mine, *theirs])
            if mine.get(name) != theirs.get(name)
        ]

    def _flat(self) -> dict[str, Any]:
        values = self.as_dict()
        return {**values.pop("settings"), **values}


@dataclass(frozen=True, slots=True)
class Counts:
    """What the verify decodes of one request did; fields mean what they mean in :class:`Row`."""

    n_drafted: int = 0
    n_accepted: int = 0
    n_verify: int = 0
    n_undrafted: int = 0
    offered_at: tuple[int, ...] = ()
    accepted_at: tuple[int, ...] = ()

    @classmethod
    def of(cls, groups: Iterable[Group], n_max: int) -> Counts:
        """Count the groups of an evidence file, of an arm that drafts ``n_max`` tokens at most."""
        offered, accepted = [0] * n_max, [0] * n_max
        n_verify = n_undrafted = 0
        for group in groups:
            n_verify += bool(group.drafted)
            n_undrafted += not group.drafted
            for place in range(len(group.drafted)):
                offered[place] += 1
            for place in range(len(group.accepted)):
                accepted[place] += 1
        return cls(sum(offered), sum(accepted), n_verify, n_undrafted, tuple(offered),
                   tuple(accepted))  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One request. ``None`` stands for what the target does not tell.

    Args:
        identity: key of the :class:`Identity` that the row belongs to.
        workload_key: ``Workload.key``: prompts and sampling that the row was measured with.
        outcome: ``ok``; ``failed``, with the reason in ``error``; or ``refused`` by rule, with
            the rule in ``error``. Where it is not ``ok``, no count or time below is used.
        n_prompt: prompt tokens that were computed, in ``prompt_s``.
        n_decoded: tokens that decodes gave: all but the first, which comes with the prompt; an
            end-of-generation token is one, too.
        n_drafted, n_accepted: drafted tokens, and those of them that were accepted.
        n_verify: decodes that verified at least one drafted token.
        n_undrafted: decodes that verified none; with MTP off, all of them.
        offered_at: for each place in the draft, first place first, how many drafts reached it.
        accepted_at: how many tokens at that place were accepted.
        decode_s: the target's decodes alone; a server does not tell it apart.
        effective_s: decodes, drafting and catch-up together.
        text_sha256: of the text's bytes, where decoding was greedy; else empty.
        read_bytes: read from disk for experts after the prompt.
        stall_s: compute waited for those reads.
        is_cold: whether this was the first request since the model was opened, or (``False``)
            one with the cache as others left it; ``None`` where nothing is streamed.
    """

    identity: str
    arm: str
    workload: str
    workload_key: str
    prompt: str
    repeat: int
    outcome: Outcome = "ok"
    error: str = ""
    n_prompt: int = 0
    prompt_s: float = 0.0
    n_decoded: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    n_verify: int | None = None
    n_undrafted: int | None = None
    offered_at: tuple[int, ...] | None = None
    accepted_at: tuple[int, ...] | None = None
    decode_s: float | None = None
    effective_s: float = 0.0
    text_sha256: str = ""
    read_bytes: int | None = None
    stall_s: float | None = None
    is_cold: bool | None = None
    schema: str = SCHEMA

    @property
    def key(self) -> Key:
        """What the row answers."""
        return Key(self.arm, self.workload, self.prompt, self.repeat, self.is_cold)

    @property
    def ok(self) -> bool:
        """Whether the request was measured."""
        return self.outcome == "ok"

    @property
    def n_steps(self) -> int | None:
        """Decodes of the target after the prompt, drafted or not."""
        if self.n_verify is None or self.n_undrafted is None:
            return None
        return self.n_verify + self.n_undrafted

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON: the schema first."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {"schema": values.pop("schema"), **values}

    def to_line(self) -> str:
        """One line of JSON, with its line end."""
        return json.dumps(self.as_dict()) + "\n"

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], where: str) -> Row:
        """What :meth:`as_dict` gave.

        Raises:
            RequestError: it is not that, or of another schema version; begins with ``where``.
        """
        if raw.get("schema") != SCHEMA:
            raise RequestError(
                f"{where}: schema {raw.get('schema')}, this Sluice reads {SCHEMA}; sweep again"
            )
        row = cls(**_checked(cls, raw, where))
        if row.outcome not in OUTCOMES:
            raise RequestError(f"{where}: outcome {row.outcome!r} is none of {', '.join(OUTCOMES)}")
        if row.ok and (wrong := row._nonsense()):
            raise RequestError(f"{where}: {wrong}; take the line out")
        return row

    def checked(self) -> Row:
        """The row itself, or one that failed with what cannot be true of its counts and times."""
        wrong = self._nonsense() if self.ok else ""
        return dataclasses.replace(self, outcome="failed", error=wrong) if wrong else self

    def _nonsense(self) -> str:
        for name, value in self.as_dict().items():
            for one in value if isinstance(value, tuple) else (value,):
                if isinstance(one, (int, float)) and not 0 <= one < _MOST:  # as NaN is
                    return f"{name} is {str(one)[:30]}: no count and no time"
        if self.n_accepted > self.n_drafted:
            return f"{self.n_accepted} drafts accepted of {self.n_drafted}"
        if self.n_decoded and not self.effective_s:
            return f"{self.n_decoded} tokens decoded in no time"
        offered, accepted = self.offered_at or (), self.accepted_at or ()
        if len(offered) != len(accepted) or any(map(int.__gt__, accepted, offered)):
            return f"by place in the draft {accepted} accepted of {offered}"
        if self.n_verify == 0 and self.n_accepted:
            return f"{self.n_accepted} drafts accepted in no verify step"
        return ""


OUTCOMES: Final = ("ok", "failed", "refused")
_MOST: Final = 1 << 53  # what a float still counts one by one

_KINDS: Final[Mapping[str, tuple[type, ...]]] = {
    "str": (str,), "Outcome": (str,), "int": (int,), "float": (int, float),
    "bool": (bool,), "tuple[int, ...]": (list,), "Mapping[str, str]": (dict,),
    "None": (type(None),),
}  # fmt: skip


def _checked(cls: type, raw: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The arguments of a dataclass out of JSON, each of the kind that the class wants."""
    fields = {f.name: f for f in dataclasses.fields(cls)}
    values = {}
    for name, value in raw.items():
        if name not in fields:
            raise RequestError(
                f"{where}: {name} is no field of it; was it written by a later Sluice?"
            )
        wants = [kind for word in str(fields[name].type).split(" | ") for kind in _KINDS[word]]
        inner = value if isinstance(value, list) else ()
        right = isinstance(value, tuple(wants)) and (bool in wants or not isinstance(value, bool))
        if not right or any(type(one) is not int for one in inner):
            raise RequestError(f"{where}: {name} is {value!r}, not {fields[name].type}")
        try:
            str(value).encode()
        except UnicodeEncodeError:
            raise RequestError(f"{where}: {name} holds half a character (a lone surrogate)"
                               ) from None  # fmt: skip
        values[name] = tuple(value) if isinstance(value, list) else value
    for name, f in fields.items():
        if (name not in values and f.default is dataclasses.MISSING
                and f.default_factory is dataclasses.MISSING):  # fmt: skip
            raise RequestError(f"{where}: {name} is missing; was the line cut or edited?")
    return values

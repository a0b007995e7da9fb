"""The report of a run of the gates: verdicts, tables, exit code, and how all that is written.

The one place of the format: the gates write it, the command reads it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from sluice.errors import GateFailure, SystemFault
from sluice.telemetry.files import write_whole

SCHEMA = "sluice-gates/1"

Word = Literal["PASS", "FAIL", "ERROR", "NOT RECORDED", "NOT APPLICABLE"]

PASS: Final = "PASS"
FAIL: Final = "FAIL"
ERROR: Final = "ERROR"
NOT_RECORDED: Final = "NOT RECORDED"
NOT_APPLICABLE: Final = "NOT APPLICABLE"
ORDER: tuple[Word, ...] = (PASS, FAIL, ERROR, NOT_RECORDED, NOT_APPLICABLE)
"""Every word that a verdict can be, in the order in which they are counted."""

NOTHING_APPLIES = "no gate applies to this model"
"""Said where every verdict is NOT APPLICABLE: nothing was judged, which is no success."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One gate on one model: its level (``ids``, ``text``, ``logits``, …) and what it found.

    ``triage`` is what came of triaging the runs that it failed over. ``verdict`` is a
    :data:`Word`; a report of another version may hold another, and that is a failure.
    """

    gate: str
    model: str
    level: str
    verdict: str
    evidence: str
    kills: tuple[str, ...] = ()
    seconds: float = 0.0
    triage: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        values = asdict(self) | {"kills": list(self.kills)}
        if not self.triage:
            del values["triage"]
        return values

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Verdict:
        """What :meth:`as_dict` gave; ``KeyError`` and the like where it did not."""
        return cls(
            gate=raw["gate"],
            model=raw["model"],
            level=raw["level"],
            verdict=raw["verdict"],
            evidence=raw["evidence"],
            kills=tuple(raw.get("kills", ())),
            seconds=float(raw.get("seconds", 0.0)),
            triage=raw.get("triage", ""),
        )


@dataclass(frozen=True, slots=True)
class Report:
    """Every verdict of a run of the gates, in the order in which they are listed.

    ``exit_code`` is what the run itself came to; ``tables`` the texts that gates want printed
    below the verdicts, each with its title in its first line.
    """

    verdicts: tuple[Verdict, ...]
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    exit_code: int = 0
    tables: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Report:
        """Read what :meth:`write` wrote.

        Raises:
            SystemFault: not such a report, or of another schema version.
        """
        try:
            raw = json.loads(text)
            schema = raw["schema"]
            if schema != SCHEMA:
                raise SystemFault(f"the gates reported in schema {schema}, not {SCHEMA};"
                                  " reinstall sluicegate")  # fmt: skip
            return cls(
                verdicts=tuple(Verdict.from_dict(v) for v in raw["verdicts"]),
                fingerprint=raw.get("fingerprint") or {},
                exit_code=int(raw.get("exit", 0)),
                tables=tuple(str(t) for t in raw.get("tables", ())),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as err:
            raise SystemFault(
                f"the gates left a report that cannot be read ({type(err).__name__}: {err})"
            ) from None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "schema": SCHEMA,
            "fingerprint": dict(self.fingerprint),
            "verdicts": [verdict.as_dict() for verdict in self.verdicts],
            "tables": list(self.tables),
            "exit": self.exit_code,
        }

    def write(self, path: Path) -> None:
        """Write the report as JSON, whole or not at all.

        Raises:
            SystemFault: it cannot be written there.
        """
        write_whole(path, json.dumps(self.as_dict(), indent=1) + "\n")

    def exit_of(self, strict: bool) -> int:
        """The exit code of the command: what the run came to, unless that is 0."""
        return self.exit_code or exit_of(self.verdicts, strict=strict)


def exit_of(verdicts: Sequence[Verdict], *, strict: bool = False) -> int:
    """The exit code that verdicts amount to.

    Returns:
        1 where a gate failed (``strict``: or had no record to judge by) or none applies, 3
        where one could not run, else 0. A verdict of an unknown word is a failure.
    """
    words = {v.verdict for v in verdicts}
    if words & {FAIL} or words - set(ORDER) or (strict and NOT_RECORDED in words):
        return GateFailure.exit_code
    if ERROR in words:
        return SystemFault.exit_code
    return GateFailure.exit_code if nothing_applies(verdicts) else 0


def nothing_applies(verdicts: Iterable[Verdict]) -> bool:
    """Whether there are verdicts and all of them are NOT APPLICABLE."""
    return {v.verdict for v in verdicts} == {NOT_APPLICABLE}


def counted(verdicts: Iterable[Verdict]) -> list[tuple[str, int]]:
    """How many gates came to which verdict; the known words first, in their order."""
    counts = Counter(v.verdict for v in verdicts)
    known: list[str] = [word for word in ORDER if counts[word]]
    return [(word, counts[word]) for word in [*known, *sorted(counts.keys() - set(known))]]

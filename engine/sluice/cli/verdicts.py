"""What a run of the gates reported, and what the command makes of it. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sluice.errors import GateFailure, SystemFault

SCHEMA = "sluice-gates/1"

PASS = "PASS"
FAIL = "FAIL"
NOT_RECORDED = "NOT RECORDED"
NOT_APPLICABLE = "NOT APPLICABLE"
ERROR = "ERROR"
ORDER = (PASS, FAIL, ERROR, NOT_RECORDED, NOT_APPLICABLE)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One gate on one model: its level (``ids``, ``text``, ``logits``, …) and what it found."""

    gate: str
    model: str
    level: str
    verdict: str
    evidence: str
    kills: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """Every verdict of a run of the gates.

    ``exit_code`` is what the plugin itself made of the run; ``tables`` the texts that gates want
    printed below the verdicts; ``raw`` the file as it was read.
    """

    verdicts: tuple[Verdict, ...]
    fingerprint: Mapping[str, Any]
    exit_code: int
    tables: tuple[str, ...]
    raw: str

    @classmethod
    def parse(cls, text: str) -> Report:
        """Read the plugin's report.

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
                verdicts=tuple(
                    Verdict(
                        gate=v["gate"],
                        model=v["model"],
                        level=v["level"],
                        verdict=v["verdict"],
                        evidence=v["evidence"],
                        kills=tuple(v.get("kills", ())),
                        seconds=float(v.get("seconds", 0.0)),
                    )
                    for v in raw["verdicts"]
                ),
                fingerprint=raw.get("fingerprint") or {},
                exit_code=int(raw.get("exit", 0)),
                tables=tuple(str(t) for t in raw.get("tables", ())),
                raw=text,
            )
        except (ValueError, KeyError, TypeError, AttributeError) as err:
            raise SystemFault(
                f"the gates left a report that cannot be read ({type(err).__name__}: {err})"
            ) from None

    def count(self, verdict: str) -> int:
        """How many gates came to ``verdict``."""
        return sum(v.verdict == verdict for v in self.verdicts)

    def exit_of(self, strict: bool) -> int:
        """The exit code of the command.

        Returns:
            What the plugin made of the run, unless that is 0: then 1 where a gate failed
            (``strict``: or had no record to judge by), 3 where one could not run or none was
            applicable, else 0. A verdict of an unknown word is a failure.
        """
        if self.exit_code:
            return self.exit_code
        if any(v.verdict not in ORDER or v.verdict == FAIL for v in self.verdicts):
            return GateFailure.exit_code
        if strict and self.count(NOT_RECORDED):
            return GateFailure.exit_code
        if self.count(ERROR) or self.count(NOT_APPLICABLE) == len(self.verdicts):
            return SystemFault.exit_code
        return 0

    def closing(self, exit_code: int, wall_s: float) -> str:
        """The last line of the command: one word, the counts, and the wall time in seconds."""
        counts = Counter(v.verdict for v in self.verdicts)
        known = [word for word in ORDER if counts[word]]
        listed = ", ".join(
            f"{counts[word]} {word.lower()}"
            for word in [*known, *sorted(counts.keys() - set(known))]
        )
        return f"sluice gate: {self._word(exit_code)} ({listed}; {wall_s:.1f} s)"

    def _word(self, exit_code: int) -> str:
        if exit_code == GateFailure.exit_code:
            return FAIL
        if exit_code:
            return ERROR
        return PASS if self.count(PASS) else NOT_RECORDED

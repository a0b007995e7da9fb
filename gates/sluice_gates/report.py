"""What came of a gate run: verdicts, the table of them, the JSON report."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from sluice.telemetry.evidence import write_whole

SCHEMA = "sluice-gates/1"
PREFIX = "sluice."
"""Of the test properties that carry a verdict from a worker to the controller and to JUnit."""

Word = Literal["PASS", "FAIL", "NOT RECORDED", "NOT APPLICABLE", "ERROR"]
EXIT_OK, EXIT_FAILED, EXIT_CANNOT_OPEN = 0, 1, 3


@dataclass(frozen=True, slots=True)
class Verdict:
    """One gate on one model; ``triage`` is what came of triaging the runs that it failed over."""

    gate: str
    model: str
    level: str
    verdict: Word
    evidence: str
    kills: tuple[str, ...]
    seconds: float
    triage: str = ""

    def properties(self) -> list[tuple[str, str]]:
        """Test properties, plain text each."""
        values = asdict(self) | {
            "kills": " ".join(self.kills),
            "seconds": f"{self.seconds:.3f}",
        }
        if not self.triage:
            del values["triage"]
        return [(PREFIX + name, str(value)) for name, value in values.items()]

    @classmethod
    def from_properties(cls, properties: Mapping[str, Any]) -> Verdict | None:
        """What :meth:`properties` wrote, if it is there."""
        given = {
            name.removeprefix(PREFIX): value
            for name, value in properties.items()
            if name.startswith(PREFIX)
        }
        if "verdict" not in given:
            return None
        return cls(
            gate=given["gate"],
            model=given["model"],
            level=given["level"],
            verdict=given["verdict"],
            evidence=given["evidence"],
            kills=tuple(given["kills"].split()),
            seconds=float(given["seconds"]),
            triage=given.get("triage", ""),
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for the JSON report."""
        values = asdict(self) | {"kills": list(self.kills)}
        if not self.triage:
            del values["triage"]
        return values


@dataclass(slots=True)
class Report:
    """Every verdict of a run, in the order in which gates and models are listed."""

    verdicts: list[Verdict]
    fingerprints: dict[str, dict[str, str]]
    cannot_open: str | None = None

    @property
    def is_failure(self) -> bool:
        """Whether a gate failed, or none had anything to say."""
        words = {v.verdict for v in self.verdicts}
        return bool(words & {"FAIL", "ERROR"}) or words == {"NOT APPLICABLE"}

    def exit_code(self, pytest_exit: int) -> int:
        """0, 1 or 3; what pytest itself says (interrupted, usage) stands where no gate failed."""
        if self.cannot_open is not None:
            return EXIT_CANNOT_OPEN
        return EXIT_FAILED if self.is_failure and pytest_exit == EXIT_OK else pytest_exit

    def as_dict(self, exit_code: int) -> dict[str, Any]:
        """The JSON report."""
        return {
            "schema": SCHEMA,
            "fingerprint": self.fingerprint(),
            "verdicts": [verdict.as_dict() for verdict in self.verdicts],
            "exit": exit_code,
        }

    def fingerprint(self) -> dict[str, Any]:
        """What all runs share, and the hash of each model."""
        shared: dict[str, Any] = {}
        models = {}
        for label, parts in self.fingerprints.items():
            rest = dict(parts)
            models[label] = rest.pop("model_sha256", "")
            shared |= rest
        return shared | {"models": models}

    def write(self, path: Path, exit_code: int) -> None:
        """Write the JSON report, whole or not at all."""
        write_whole(path, json.dumps(self.as_dict(exit_code), indent=1) + "\n")


def table(verdicts: Iterable[Verdict]) -> list[str]:
    """One line a verdict: gate, model, level, verdict, evidence."""
    rows = [("gate", "model", "level", "verdict", "evidence")]
    rows += [(v.gate, v.model, v.level, v.verdict, v.evidence) for v in verdicts]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]])
        for row in rows
    ]


def counts(verdicts: Iterable[Verdict]) -> str:
    """How many gates had which verdict."""
    words = [v.verdict for v in verdicts]
    order = ("PASS", "FAIL", "ERROR", "NOT RECORDED", "NOT APPLICABLE")
    return ", ".join(f"{words.count(word)} {word}" for word in order if word in words)

"""Recorded values: one YAML file a fingerprint, checked by pytest-regressions.

Byte-identity values come from plain runs only. A speculated run is recorded by the place of
its first difference, the two tokens there and the margin: nothing else of it is stable.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from sluice.errors import GateFailure
from sluice.telemetry.evidence import Evidence
from sluice_gates.compare import digest, first_differing, first_step
from sluice_gates.gate import NotRecorded
from sluice_gates.models import DEFAULT_TYPES, Model

SCHEMA = "sluice-golden/1"
SECTIONS = ("golden-plain", "ubatch-1-divergence", "mtp-divergence")
"""The gates whose values a golden holds; a golden with others, or without one, is stale."""

Check = Callable[[dict[str, Any], Path], None]
"""Compares with the file, or writes it: ``data_regression.check`` with ``fullpath``."""


@dataclass(frozen=True, slots=True)
class Goldens:
    """The recorded values of one model.

    Args:
        folder: of the YAML files.
        model: whose values.
        prompts_sha256: of the prompts that the values belong to.
        check: from pytest-regressions; ``None`` compares and cannot record.
        recording: ``--force-regen`` was given.
        shipped: the folder belongs to the installation, so only the bundled model's values do.
        worker: the xdist worker that this is; a worker does not record.
    """

    folder: Path
    model: Model
    prompts_sha256: str
    check: Check | None = None
    recording: bool = False
    shipped: bool = True
    worker: str = ""

    @property
    def path(self) -> Path:
        """The file of this model's fingerprint."""
        return self.folder / f"{self.model.facts.fingerprint.key}.yml"

    @property
    def how_to_record(self) -> str:
        """The command that records this model's values."""
        named = "" if self.model.is_bundled else f" --sluice-model {self.model.path}"
        if self.model.is_bundled and self.model.label not in DEFAULT_TYPES:
            named = f" --sluice-quants {self.model.label}"
        folder = "DIR" if self.shipped and not self.model.is_bundled else str(self.folder)
        return (
            f"pytest --pyargs sluice_gates -p no:xdist{named} --sluice-goldens {folder}"
            " --force-regen"
        )

    def header(self) -> dict[str, Any]:
        """What values belong to."""
        return {
            "schema": SCHEMA,
            "fingerprint": dataclasses.asdict(self.model.facts.fingerprint),
            "model": self.model.name,
            "master_sha256": self.model.master_sha256,
            "prompts_sha256": self.prompts_sha256,
        }

    def compare(self, section: str, observed: dict[str, Any]) -> None:
        """Compare a gate's values with the recorded ones, or record them.

        Raises:
            NotRecorded: there is no golden of this fingerprint.
            GateFailure: a difference, a golden that cannot be trusted, or a recording.
        """
        if self.recording:
            self._record(section, observed)
            return
        if not self.path.exists():
            raise NotRecorded(
                f"no golden {self.path.name} for {self.model.name}; record it with"
                f" {self.how_to_record}"
            )
        golden = load(self.path)
        self._refuse_stale(golden)
        found = first_change(golden["sections"][section], observed)
        if found:
            raise GateFailure(f"{self.path.name}, {section}: {found} (recorded / now)")
        if self.check is not None:
            self._checked(golden | {"sections": golden["sections"] | {section: observed}})

    def _refuse_stale(self, golden: Mapping[str, Any]) -> None:
        sections = golden["sections"]
        for name, value in self.header().items():
            if golden.get(name) != value:
                raise GateFailure(self._stale(f"its {name} is another"))
        for section in SECTIONS:
            if section not in sections:
                raise GateFailure(self._stale(f"it has no {section}"))
        for section in sections:
            if section not in SECTIONS:
                raise GateFailure(self._stale(f"no gate reads its {section}"))

    def _stale(self, why: str) -> str:
        return f"stale golden {self.path.name}: {why}; record it again with {self.how_to_record}"

    def _record(self, section: str, observed: dict[str, Any]) -> None:
        if self.worker:
            raise GateFailure(
                "--force-regen under xdist: workers would write over each other's values;"
                " record with -p no:xdist"
            )
        if self.shipped and not self.model.is_bundled:
            raise GateFailure(
                f"--force-regen: values of {self.model.name} do not belong among the shipped"
                " goldens; give --sluice-goldens DIR"
            )
        if self.check is None:
            raise GateFailure("--force-regen: nothing here can record")
        self.folder.mkdir(parents=True, exist_ok=True)
        old = load(self.path) if self.path.exists() else {"sections": {}}
        # Values of other prompts, or of another model, must not live on under a new header.
        same = all(old.get(name) == value for name, value in self.header().items())
        kept = {n: v for n, v in old["sections"].items() if same and n in SECTIONS}
        self._checked(self.header() | {"sections": kept | {section: observed}})

    def _checked(self, data: dict[str, Any]) -> None:
        assert self.check is not None
        try:
            self.check(data, self.path)
        except AssertionError as err:
            raise GateFailure(f"{self.path.name}: {str(err).splitlines()[0]}") from None
        except pytest.fail.Exception:
            # pytest-regressions fails a test that wrote its file: a recording is never green.
            raise GateFailure(
                f"recorded in {self.path}: read the diff, then run again without --force-regen"
            ) from None


def load(path: Path) -> dict[str, Any]:
    """A golden file.

    Raises:
        GateFailure: it is not one, or its line ends were changed.
    """
    raw = path.read_bytes()
    if b"\r" in raw:
        raise GateFailure(
            f"golden {path.name} has CRLF line ends: a checkout changed it; set"
            " `*.yml text eol=lf` in .gitattributes and check it out again"
        )
    try:
        golden = yaml.safe_load(raw.decode("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError):
        golden = None
    if (
        not isinstance(golden, dict)
        or not isinstance(golden.get("sections"), dict)
        or not isinstance(golden.get("fingerprint"), dict)
    ):
        raise GateFailure(f"{path.name} is no golden: not YAML with fingerprint and sections")
    if golden.get("schema") != SCHEMA:
        raise GateFailure(f"golden {path.name}: schema {golden.get('schema')}, not {SCHEMA}")
    return golden


def first_change(recorded: Any, observed: Any, where: str = "") -> str | None:
    """The first place where two nested values differ, in words."""
    if isinstance(recorded, dict) and isinstance(observed, dict):
        for key in [*recorded, *(k for k in observed if k not in recorded)]:
            place = f"{where}.{key}" if where else str(key)
            if key not in recorded or key not in observed:
                return f"{place} is only {'now' if key not in recorded else 'recorded'}"
            found = first_change(recorded[key], observed[key], place)
            if found:
                return found
        return None
    return None if recorded == observed else f"{where} {recorded} / {observed}"


def plain_values(evidence: Evidence) -> dict[str, Any]:
    """The byte-identity values of a plain run.

    Raises:
        GateFailure: the run speculated.
    """
    _refuse_speculated(evidence)
    return {
        "tokens": len(evidence.ids),
        "characters": len(evidence.text),
        "text_sha256": evidence.text_sha256,
        "logits_sha256": digest([evidence]),
        "stop": evidence.stop.reason,
    }


def plain_divergence(left: Evidence, right: Evidence) -> dict[str, Any]:
    """How two plain runs differ: place, lengths, hashes, and the margin where a token flips.

    Raises:
        GateFailure: a run speculated.
    """
    _refuse_speculated(left)
    _refuse_speculated(right)
    return divergence_place(left, right) | {
        "characters": [len(left.text), len(right.text)],
        "text_sha256": [left.text_sha256, right.text_sha256],
    }


def divergence_place(left: Evidence, right: Evidence) -> dict[str, Any]:
    """Where two runs first differ: step, character, the two tokens, ``left``'s top-2 margin."""
    step = first_step(left, right)
    if step is None:
        return {"diverges": False}
    return {
        "diverges": True,
        "step": step,
        "character": first_differing(left.text, right.text),
        "tokens": [left.ids[step], right.ids[step]],
        "margin": left.top2[step].margin,
    }


def _refuse_speculated(evidence: Evidence) -> None:
    if evidence.speculated:
        raise GateFailure(
            "speculated output never enters a byte-identity golden: a verify batch is other"
            " arithmetic; record its divergence by place, tokens and margin"
        )

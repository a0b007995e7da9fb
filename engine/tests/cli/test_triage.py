from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluice.telemetry.evidence import Evidence, Stop, Top2

from ..triage.findings import ALIKE, FLIP
from .conftest import FINGERPRINT, Ran

Command = Callable[..., Ran]


@dataclasses.dataclass
class Asked:
    """What the triage was called with, and what it says."""

    finding: Any = FLIP
    sides: tuple[Any, ...] = ()
    rest: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __call__(self, *sides: Any, **rest: Any) -> Any:
        self.sides, self.rest = sides, rest
        return self.finding


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    made = Asked()
    module = types.ModuleType("sluice.triage.triage")
    module.triage = made  # type: ignore[attr-defined]
    monkeypatch.setitem(__import__("sys").modules, "sluice.triage.triage", module)
    return made


@pytest.fixture
def evidence(tmp_path: Path) -> Path:
    path = tmp_path / "run.json"
    Evidence(
        config={"model": "m"},
        fingerprint=FINGERPRINT,
        prompt_ids=[4, 5],
        ids=[1],
        text="x",
        text_sha256="00",
        logits_sha256=["00"],
        top2=[Top2((1, 2), (0.5, 0.25))],
        stop=Stop("n"),
    ).write(path)
    return path


def test_two_evidence_files(command: Command, asked: Asked, evidence: Path) -> None:
    ran = command("triage", evidence, evidence)
    assert (ran.code, ran.err) == (1, "")
    assert ran.out.startswith("NEAR_TIE_FLIP: ")
    assert [side.prompt_ids for side in asked.sides] == [[4, 5], [4, 5]]
    assert asked.rest == {
        "localise": True, "attribution": True, "labels": (str(evidence), str(evidence)),
    }  # fmt: skip


def test_identical_runs_exit_with_0(command: Command, asked: Asked, evidence: Path) -> None:
    asked.finding = ALIKE
    assert command("triage", evidence, evidence, "--no-localise", "--no-attribute").code == 0
    assert (asked.rest["localise"], asked.rest["attribution"]) == (False, False)


def test_command_lines(command: Command, asked: Asked, model: Path) -> None:
    line = f"sluice run '{model}' -p 'the prompt' -n 7"
    ran = command("triage", "--a", line, "--b", f"{model} --ubatch 1 -p other")
    assert ran.code == 1
    a, b = asked.sides
    assert (a.prompt, a.config.n, a.config.ubatch) == ("the prompt", 7, 512)
    assert (b.prompt, b.config.ubatch) == ("other", 1)
    assert asked.rest["labels"][0] == line


def test_two_models_get_one_prompt(command: Command, asked: Asked, model: Path) -> None:
    assert command("triage", model, model, "-p", "x").code == 1
    assert [side.prompt for side in asked.sides] == ["x", "x"]


def test_a_command_line_takes_the_prompt_of_the_evidence(
    command: Command, asked: Asked, model: Path, evidence: Path
) -> None:
    assert command("triage", evidence, "--b", str(model)).code == 1
    assert asked.sides[1].prompt == (4, 5)
    assert command("triage", evidence, "--a", str(model)).code == 1
    assert asked.sides[0].prompt == (4, 5)


def test_json_and_page(command: Command, asked: Asked, evidence: Path, tmp_path: Path) -> None:
    ran = command("triage", evidence, evidence, "--json", "--html", tmp_path / "t.html")
    assert json.loads(ran.out)["classification"]["name"] == "NEAR_TIE_FLIP"
    assert (tmp_path / "t.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_refusals(command: Command, asked: Asked, model: Path, evidence: Path) -> None:
    for arguments, words in (
        ((), "one side is missing"),
        ((evidence,), "one side is missing"),
        ((evidence, evidence, "--b", str(model)), "a third side"),
        ((evidence, "none.json"), "none.json: no such file"),
        ((model, model), "no prompt: models and command lines"),
        ((evidence, "--b", f"{model} -n 0"), "-n 0: must be at least 1"),
        ((evidence, "--b", f"{model} --tmep 1"), "--tmep"),
        ((evidence, "--b", f"{model} 'open"), "not a command line"),
        ((evidence, "--b", f"{model} --json"), "--json has no meaning in a triage"),
        ((evidence, evidence, "--html", "no/such.html"), "--html no/such.html: the folder"),
    ):
        ran = command("triage", *arguments)
        assert words in ran.refusal()
        assert ran.code == 2
    assert asked.sides == ()

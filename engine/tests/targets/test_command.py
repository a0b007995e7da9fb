from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sluice
from sluice.cli.options import config_of
from sluice.cli.run import run as run_command
from sluice.config import Config
from sluice.errors import SystemFault
from sluice.targets.command import CommandTarget, Outcome, flags
from sluice.targets.engine import EngineTarget


@pytest.fixture(autouse=True)
def found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command's process finds the package as this one does."""
    monkeypatch.setenv("PYTHONPATH", str(Path(sluice.__file__).parents[1]))


CHANGES: list[dict[str, Any]] = [
    {},
    {"n": 7, "threads": 2, "ctx": 64, "ubatch": 16, "flash_attn": "off"},
    {"temp": 0.5, "top_k": 0, "top_p": 1.0, "seed": 0},
    {"moe_stream": True, "io_threads": 2, "odirect": False, "load_all": True},
    {"moe_stream": True, "poison": True, "mtp": True, "draft": 2, "draft_min": 1},
    {"mtp": True, "mtp_p_min": 0.25, "catch_up": "batch"},
]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_flags_spell_a_configuration_that_the_command_reads_back(changes: dict[str, Any]) -> None:
    config = Config(model="m.gguf", **changes)
    context = run_command.make_context("run", [*flags(config), "-p", "x"])
    values = {k: v for k, v in context.params.items() if k in config.as_dict()}
    values.pop("model")
    assert config_of("m.gguf", values) == config
    if not changes:
        assert flags(config) == ["m.gguf"]


def test_the_command_generates_what_the_engine_does(config: Config, prompt: str) -> None:
    outcome = CommandTarget().run(config, prompt)
    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.stdout == EngineTarget().run(config, prompt).evidence.text + "\n"
    assert "generation: 24 tokens" in outcome.stderr


def test_a_refusal_is_its_exit_code_and_one_line() -> None:
    outcome = CommandTarget().run(Config(model="/none.gguf"), "x")
    assert outcome.exit_code == 2
    assert outcome.stdout == ""
    assert outcome.stderr.startswith("sluice: error: /none.gguf: no such file")
    assert outcome.stderr.count("\n") == 1


def test_a_command_that_does_not_end_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = subprocess.run

    def slow(line: list[str], **rest: Any) -> Any:
        return whole([sys.executable, "-c", "import time; time.sleep(60)"], **rest)

    monkeypatch.setattr(subprocess, "run", slow)
    with pytest.raises(SystemFault, match=r"sluice run: still running after 0\.2 s"):
        CommandTarget(timeout_s=0.2).call("run")


def test_output_that_is_no_text_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = subprocess.run

    def speak(line: list[str], **rest: Any) -> Any:
        code = "import sys; sys.stdout.buffer.write(b'a\\xffb'); sys.exit(5)"
        return whole([sys.executable, "-c", code], **rest)

    monkeypatch.setattr(subprocess, "run", speak)
    assert CommandTarget().call("run") == Outcome(5, "a\\xffb", "")

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.doctor import examination
from sluice.doctor.examination import Examination

from .conftest import Ran

Command = Callable[..., Ran]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, int, int]]:
    from ..doctor.test_words import FOUND

    calls: list[tuple[Path, int, int]] = []

    def examine(path: Path, *, threads: int, ubatch: int) -> Examination:
        calls.append((path, threads, ubatch))
        return FOUND

    monkeypatch.setattr(examination, "examine", examine)
    return calls


def test_text(command: Command, model: Path, asked: list[tuple[Path, int, int]]) -> None:
    ran = command("doctor", model, "-t", 3, "--ubatch", 8)
    assert (ran.code, ran.err) == (0, "")
    assert "profiles:" in ran.out.splitlines()
    assert "streaming, with --moe-stream:" in ran.out.splitlines()
    assert asked == [(model, 3, 8)]


def test_json(command: Command, model: Path, asked: list[tuple[Path, int, int]]) -> None:
    document = json.loads(command("doctor", model, "--json").out)
    assert document["schema"] == "sluice-doctor/1"
    assert document["as_is"][0]["classes"] == [[1], [2, 3]]
    assert document["streaming"]["plan"]["n_used"] == 2
    assert document["streaming"]["plan"]["token_bytes"] == 10 << 20
    assert asked[0][1] >= 1
    assert asked[0][2] == 512


def test_refusals(command: Command, model: Path, tmp_path: Path) -> None:
    ran = command("doctor", tmp_path / "none.gguf")
    assert ran.code == 2
    assert "no such file" in ran.refusal()
    assert "must be at least 0" in command("doctor", model, "-t", -1).refusal()
    ran = command("doctor", model)  # four bytes pass for no model here
    assert ran.code == 3
    assert "cut short" in ran.refusal()

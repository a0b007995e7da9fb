from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ..triage.test_releases import OLD, new
from .conftest import Ran

Command = Callable[..., Ran]
RELEASE = {"schema": "sluice-golden/1"}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def made(name: str, golden: dict[str, Any]) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(yaml.safe_dump(RELEASE | golden), encoding="utf-8")
        return path

    return made


def test_nothing_moved(command: Command, write: Callable[..., Path]) -> None:
    ran = command("compare-goldens", write("a.yml", OLD), write("b.yml", OLD))
    assert (ran.code, ran.out, ran.err) == (0, "1 models: 2 IDENTICAL\n", "")


def test_what_moved_by_class(command: Command, write: Callable[..., Path]) -> None:
    other = new(golden_plain={"logits_sha256": "cd" * 32})
    other["fingerprint"]["llama_cpp_python"] = "2"
    ran = command("compare-goldens", write("a.yml", OLD), write("b.yml", other))
    assert ran.code == 1
    assert ran.out.splitlines() == [
        "llama_cpp_python: 1 / 2",
        "NUMERIC  bundled Q8_0, golden-plain, one: logits_sha256 abababababab / cdcdcdcdcdcd",
        "1 models: 1 NUMERIC, 1 IDENTICAL",
    ]


def test_folders_are_matched_by_model(command: Command, write: Callable[..., Path]) -> None:
    other = copy.deepcopy(OLD) | {"model": "bundled Q4_K_M"}
    for folder in ("one", "two"):
        write(f"{folder}/a.yml", OLD)
    write("two/b.yml", other)
    folder = write("one/b.yml", other).parent
    ran = command("compare-goldens", folder, folder.parent / "two", "--json")
    assert ran.code == 0
    assert len(json.loads(ran.out)["changes"]) == 4


def test_refusals(command: Command, write: Callable[..., Path], tmp_path: Path) -> None:
    golden = write("a.yml", OLD)
    (tmp_path / "no.yml").write_text("schema: other\n", encoding="utf-8")
    (tmp_path / "empty").mkdir()
    for path, words in (
        (tmp_path / "none.yml", "cannot be read as a golden"),
        (tmp_path / "no.yml", "not a golden of schema sluice-golden/1"),
        (tmp_path / "empty", "no golden in this folder"),
    ):
        ran = command("compare-goldens", golden, path)
        assert words in ran.refusal()
        assert ran.code == 2

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.bundled import BUNDLED, model_path
from sluice.config import Config
from sluice.errors import ModelError
from sluice.targets import EngineTarget, quantize
from sluice.telemetry.evidence import Evidence, Fingerprint, Group, Stop, Top2

PROMPT = "def foo(self, a, b):\n    return"
"""Drafts after it are accepted in part, in whole and not at all."""

LONGER = "class Reader:\n    def __init__(self, path, mode):\n        self.path = path\n"
"""The text after it has enough different tokens to tie one."""


@dataclasses.dataclass(frozen=True)
class Lab:
    """The bundled model as Q8_0 and as F32, where no rounding hides a moved bit."""

    q8: Config
    f32: Config
    folder: Path
    prompt: str = PROMPT
    longer: str = LONGER

    def run(self, config: Config, prompt: str | None = None) -> Evidence:
        return EngineTarget().run(config, self.prompt if prompt is None else prompt).evidence


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    try:
        master = model_path(BUNDLED)
    except ModelError as why:
        pytest.skip(str(why))
    folder = tmp_path_factory.mktemp("lab")
    base = Config(model=BUNDLED, n=16, threads=1, ctx=256)
    return Lab(base, base.replace(model=str(quantize(master, "F32", folder / "f32.gguf"))), folder)


@pytest.fixture
def evidence() -> Callable[..., Evidence]:
    """Evidence of a made-up run: token i is ``ids[i]``, its row's hash is made of ``rows[i]``."""

    def make(ids: list[int], rows: list[int] | None = None, **changes: object) -> Evidence:
        import hashlib

        text = "".join(chr(ord("a") + i % 26) for i in ids)
        made = Evidence(
            config={"n": len(ids), "mtp": False, "temp": 0.0, "numerics": "default"},
            fingerprint=Fingerprint("0.0", "none", "default", "00"),
            prompt_ids=[1, 2, 3],
            ids=ids,
            text=text,
            text_sha256=hashlib.sha256(text.encode()).hexdigest(),
            logits_sha256=[hashlib.sha256(bytes([r])).hexdigest() for r in rows or ids],
            top2=[Top2((i, (i + 1) % 26), (2.0, 1.0)) for i in ids],
            stop=Stop("n"),
        )
        return dataclasses.replace(made, **changes)  # type: ignore[arg-type]

    return make


def groups(*triples: tuple[int, tuple[int, ...], int]) -> list[Group]:
    """Groups of (step, drafted, how many were accepted)."""
    return [Group(step, drafted, drafted[:n]) for step, drafted, n in triples]

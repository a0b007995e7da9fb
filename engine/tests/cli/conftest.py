from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sluice
from sluice.cli.main import main
from sluice.config import Config
from sluice.telemetry.evidence import Evidence, Fingerprint, Stop, Top2
from sluice.telemetry.metrics import Metrics

PACKAGES = str(Path(sluice.__file__).parents[1])
FINGERPRINT = Fingerprint("0.0", "none", "default", "00")


@dataclasses.dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    def refusal(self) -> str:
        """The one line of an error, everything else being silent."""
        assert self.out == ""
        assert "Traceback" not in self.err
        (line,) = self.err.splitlines()
        assert line.startswith("sluice: error: ")
        return line.removeprefix("sluice: error: ")


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """The command in this process."""

    def run(*arguments: object) -> Ran:
        capsys.readouterr()
        with pytest.raises(SystemExit) as leaving:
            main([str(a) for a in arguments])
        captured = capsys.readouterr()
        assert isinstance(leaving.value.code, int)
        return Ran(leaving.value.code, captured.out, captured.err)

    return run


@pytest.fixture
def process() -> Callable[..., Ran]:
    """The command in a process of its own."""

    def run(*arguments: object, code: str | None = None, **changes: str) -> Ran:
        run_it = ["-c", code] if code is not None else ["-m", "sluice.cli.main"]
        done = subprocess.run(
            [sys.executable, "-P", *run_it, *[str(a) for a in arguments]],
            capture_output=True,
            encoding="utf-8",
            env=environment(**changes),
            stdin=subprocess.DEVNULL,
            timeout=300,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    return run


def environment(first: str = "", **changes: str) -> dict[str, str]:
    """This environment, with ``first`` and the packages under test on the import path."""
    path = [p for p in (first, PACKAGES, os.environ.get("PYTHONPATH", "")) if p]
    return os.environ | {"PYTHONPATH": os.pathsep.join(path)} | changes


@dataclasses.dataclass(frozen=True)
class Token:
    id: int
    text: str
    step: int


class FakeGeneration:
    def __init__(self, engine: FakeEngine, prompt: str, record: bool) -> None:
        self.tail = ""
        self.metrics = engine.metrics
        self._engine, self._prompt, self._record = engine, prompt, record

    def __iter__(self) -> Iterator[Token]:
        for step, text in enumerate(self._engine.pieces):
            if isinstance(text, BaseException):
                raise text
            self._engine.before_token(step)
            yield Token(step, text, step)

    def evidence(self) -> Evidence:
        assert self._record
        pieces = [str(p) for p in self._engine.pieces]
        return Evidence(
            config=self._engine.config.as_dict(),
            fingerprint=FINGERPRINT,
            prompt_ids=[1],
            ids=list(range(len(pieces))),
            text="".join(pieces),
            text_sha256="00",
            logits_sha256=["00"] * len(pieces),
            top2=[Top2((1, 2), (0.5, 0.25))] * len(pieces),
            stop=Stop("n"),
        )


class FakeEngine:
    """Stands where the session is: says what it is told to, and keeps what it was asked."""

    def __init__(self) -> None:
        self.pieces: list[str | BaseException] = ["Once", " ", "é", "", "\n日本"]
        self.metrics = Metrics(load_s=1.5, n_prompt=4, n_generated=5)
        self.on_open: BaseException | None = None
        self.warning: str | None = None
        self.before_token: Callable[[int], None] = lambda step: None
        self.config = Config(model="unset")
        self.prompt: str | None = None
        self.record: bool | None = None

    def session(self, config: Config, *, progress: Any = None, warn: Any = None) -> FakeEngine:
        self.config = config
        if self.on_open is not None:
            raise self.on_open
        progress("load", 1, 1)
        if self.warning is not None:
            warn(self.warning)
        return self

    def __enter__(self) -> FakeEngine:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def generate(self, prompt: str, *, record: bool = True) -> FakeGeneration:
        self.prompt, self.record = prompt, record
        return FakeGeneration(self, prompt, record)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    fake = FakeEngine()
    module = types.ModuleType("sluice.decoding.session")
    module.Session = fake.session  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sluice.decoding", types.ModuleType("sluice.decoding"))
    monkeypatch.setitem(sys.modules, "sluice.decoding.session", module)
    return fake


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A file that passes for a model as long as nobody opens it."""
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    return file


PLUGIN = """
import pathlib, pytest
from sluice.telemetry.verdicts import Report, Verdict
VERDICTS = []
def pytest_addoption(parser):
    for name in ("model", "quants", "goldens", "evidence-dir", "report"):
        parser.addoption("--sluice-" + name)
    parser.addoption("--sluice-strict", action="store_true")
def pytest_configure(config):
    if (config.getoption("--sluice-goldens") or "").endswith("refused"):
        raise pytest.UsageError("--sluice-goldens refused: not of this model")
def pytest_runtest_logreport(report):
    if report.when == "call":
        VERDICTS.append(Verdict.from_dict(dict(report.user_properties)["verdict"]))
def pytest_sessionfinish(session):
    if hasattr(session.config, "workerinput"):
        return
    asked = {k: v for k, v in vars(session.config.option).items() if k.startswith("sluice_")}
    report = Report(tuple(VERDICTS), asked, tables=("a table\\n  of a gate",))
    report.write(pathlib.Path(asked["sluice_report"]))
"""

GATES = """
import json, os, pytest
@pytest.mark.parametrize("gate", json.loads(%r), ids=lambda g: g["gate"])
def test_gate(gate, record_property):
    if gate["verdict"] == "CRASH":
        os.kill(os.getpid(), 9)
    record_property("verdict", gate)
    assert gate["verdict"] != "FAIL", gate["evidence"]
"""


@pytest.fixture
def gates(tmp_path: Path) -> Callable[..., str]:
    """Makes a package ``sluice_gates`` that comes to the verdicts given; its folder's name."""

    def make(**verdicts: str) -> str:
        package = tmp_path / "gates" / "sluice_gates"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "plugin.py").write_text(PLUGIN, encoding="utf-8")
        rows = [verdict(gate, word) for gate, word in verdicts.items()]
        (package / "test_fake.py").write_text(GATES % json.dumps(rows), encoding="utf-8")
        return str(package.parent)

    return make


def verdict(gate: str, word: str, evidence: str = "seen") -> dict[str, Any]:
    word = word.replace("_", " ")
    return {
        "gate": gate,
        "model": "tiny Q8_0",
        "level": "logits",
        "verdict": word,
        "evidence": evidence,
        "kills": ["stale slice"],
        "seconds": 0.5,
    }

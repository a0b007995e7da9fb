"""The pytest plugin: options, the ``bench`` that a gate gets, and the verdict on each gate."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from sluice.bundled import BUNDLED, goldens_folder
from sluice.errors import GateFailure, ModelError, RequestError, SluiceError
from sluice.targets import Run
from sluice.telemetry.evidence import Evidence
from sluice.telemetry.verdicts import ERROR, FAIL, NOT_APPLICABLE, NOT_RECORDED, PASS, Verdict, Word
from sluice_gates.bench import Bench, Recorder, RunKey
from sluice_gates.collector import CANNOT_OPEN, FINGERPRINT, ORDER, SUMMARY, Collector
from sluice_gates.gate import Gate, NotRecorded, family_rank, gate_of
from sluice_gates.goldens import Check, Goldens
from sluice_gates.models import DEFAULT_TYPES, Model, labels, open_model
from sluice_gates.prompts import PromptSet, prompt_set
from sluice_gates.report import properties_of
from sluice_gates.triaged import triaged

_RUNS = pytest.StashKey[dict[str, dict[RunKey, Run]]]()
_LABELS = pytest.StashKey[list[str]]()
_BENCH = pytest.StashKey[Bench]()


class CannotOpen(Exception):
    """The model under test cannot be opened, so no gate can run."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of the gates."""
    add = parser.getgroup("sluice", "Sluice gates").addoption
    types = ",".join(DEFAULT_TYPES)
    add(
        "--sluice-model",
        default=BUNDLED,
        metavar="GGUF",
        help="Model that the gates run on: a gguf, or the word bundled (default).",
    )
    add(
        "--sluice-quants",
        default=None,
        metavar="TYPES",
        help=f"Quantisations of the bundled model, with commas, or all (default {types}).",
    )
    add("--sluice-strict", action="store_true", help="A gate without a recorded value fails.")
    add(
        "--sluice-goldens",
        default=None,
        metavar="DIR",
        help="Folder of recorded values (default: the ones that ship with Sluice).",
    )
    add(
        "--sluice-evidence-dir",
        default=None,
        metavar="DIR",
        help="Write the evidence of every run of a gate there.",
    )
    add("--sluice-report", default=None, metavar="FILE",
        help="Write the verdicts there as JSON.")  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Collect verdicts in this process, unless it is an xdist worker."""
    config.stash[_RUNS] = {}
    try:
        config.stash[_LABELS] = labels(
            config.getoption("--sluice-model"), config.getoption("--sluice-quants")
        )
    except RequestError as err:
        raise pytest.UsageError(str(err)) from None
    config.addinivalue_line("markers", "xdist_group(name): tests that share a worker")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Collector(config.getoption("--sluice-report")))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test a gate and model; a gate that needs one model only gets the first."""
    gate = gate_of(metafunc.function)
    if gate is None or "bench" not in metafunc.fixturenames:
        return
    wanted = metafunc.config.stash[_LABELS]
    if gate.once:
        wanted = wanted[:1]
    # One worker a model, under --dist loadgroup: runs are shared within a process.
    params = [pytest.param(label, marks=pytest.mark.xdist_group(label)) for label in wanted]
    metafunc.parametrize("bench", params, indirect=True, ids=wanted)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let ``-k`` know a gate by the name that the table gives it, too."""
    made = gate_of(getattr(item, "function", None))
    if made is not None:
        item.extra_keyword_matches.add(made.name)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run gates in the order of their families, after whatever else was collected."""
    found = [(gate_of(getattr(item, "function", None)), item) for item in items]
    items[:] = [item for gate, item in found if gate is None]
    gates = [(gate, item) for gate, item in found if gate is not None]
    items += [item for _, item in sorted(gates, key=lambda pair: family_rank(pair[0]))]


@pytest.fixture
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """The bench of one model, with the runs that this process has made of it so far."""
    config = request.config
    label: str = request.param
    scratch = tmp_path_factory.getbasetemp()
    try:
        model = open_model(config.getoption("--sluice-model"), label, scratch)
    except SluiceError as err:
        raise CannotOpen(str(err)) from None
    prompts = prompt_set(model.quantisation)
    made = Bench(
        model=model,
        prompts=prompts,
        scratch=scratch,
        goldens=_goldens(request, model, prompts),
        runs=config.stash[_RUNS].setdefault(label, {}),
        recorder=_recorder(config.getoption("--sluice-evidence-dir")),
    )
    request.node.stash[_BENCH] = made
    return made


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn the outcome of a gate into a verdict, carried by the test's properties."""
    report = yield
    gate = gate_of(getattr(item, "function", None))
    if gate is None or not (call.when == "call" or (call.when == "setup" and not report.passed)):
        return report
    made = item.stash.get(_BENCH, None)
    verdict, evidence = _judge(report, call, made)
    if verdict == NOT_RECORDED and item.config.getoption("--sluice-strict"):
        verdict, evidence = FAIL, f"{NOT_RECORDED}: {evidence}"
    if verdict in (FAIL, ERROR):
        report.outcome = "failed"  # also what pytest takes for a skip
    label = _label(item)
    triage = ""
    if verdict == FAIL and made is not None and made.parted is not None:
        found = triaged(made.parted, whole=made.model.is_small)
        evidence, triage = f"{evidence}; triage: {found.summary}", found.text
        report.sections.append(("sluice triage", triage))
    if verdict in (FAIL, ERROR) and not _is_defect(call):
        report.longrepr = f"{gate.name} [{label}], {gate.level}: {evidence}"
    properties = properties_of(
        Verdict(gate.name, label, gate.level, verdict, evidence, gate.kills, call.duration, triage)
    )
    properties.append((ORDER, str(item.session.items.index(item))))
    if call.excinfo is not None and call.excinfo.errisinstance((CannotOpen, ModelError)):
        properties.append((CANNOT_OPEN, evidence))
    if made is not None:
        properties.append(
            (FINGERPRINT, json.dumps(dataclasses.asdict(made.model.facts.fingerprint)))
        )
        properties += _printed(gate, label, made)
    item.user_properties.extend(properties)
    report.user_properties.extend(properties)
    return report


def _judge(
    report: pytest.TestReport, call: pytest.CallInfo[None], made: Bench | None
) -> tuple[Word, str]:
    if report.passed:
        return PASS, "; ".join(made.notes) if made is not None else ""
    error = call.excinfo.value if call.excinfo is not None else None
    words = " ".join(str(error).split())
    if report.skipped:
        why = made.unjudged if made is not None else None
        if why is None:
            return ERROR, f"skipped, and not by the gate: {words}"
        word: Word = NOT_RECORDED if isinstance(why, NotRecorded) else NOT_APPLICABLE
        return word, " ".join(str(why).split())
    if isinstance(error, GateFailure):
        return FAIL, words
    if isinstance(error, (SluiceError, CannotOpen)):
        return ERROR, words
    return ERROR, f"{type(error).__name__}: {words}"


def _is_defect(call: pytest.CallInfo[None]) -> bool:
    """Whether it was no error in words, so that the traceback is worth showing."""
    plain = (SluiceError, CannotOpen, pytest.skip.Exception)
    return call.excinfo is not None and not call.excinfo.errisinstance(plain)


def _label(item: pytest.Item) -> str:
    return str(item.callspec.params["bench"]) if hasattr(item, "callspec") else ""


def _printed(gate: Gate, label: str, made: Bench) -> list[tuple[str, str]]:
    """The table that the gate made, if it made one, to be printed at the end of the run."""
    if not made.table:
        return []
    width = max(len(what) for what, _ in made.table)
    rows = [f"{what.ljust(width)}  {found}" for what, found in made.table]
    return [(SUMMARY, "\n".join([f"{gate.name} [{label}]", *rows]))]


def _goldens(request: pytest.FixtureRequest, model: Model, prompts: PromptSet) -> Goldens:
    given = request.config.getoption("--sluice-goldens")
    return Goldens(
        folder=Path(given) if given else goldens_folder(),
        model=model,
        prompts_sha256=prompts.sha256,
        check=_check(request),
        recording=bool(request.config.getoption("force_regen", False)),
        shipped=not given,
        worker=os.environ.get("PYTEST_XDIST_WORKER", ""),
    )


def _check(request: pytest.FixtureRequest) -> Check:
    def check(data: dict[str, Any], path: Path) -> None:
        regression = request.getfixturevalue("data_regression")
        regression.check(data, fullpath=path)

    return check


def _recorder(folder: str | None) -> Recorder | None:
    if folder is None:
        return None
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)

    def record(name: str, evidence: Evidence) -> None:
        path = target / f"{re.sub(r'[^A-Za-z0-9_.=+-]', '_', name)}.json"
        if not path.exists():
            evidence.write(path)

    return record

"""A gate that fails over two runs triages them by itself, and its report carries the result."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable

import pytest

from sluice.errors import SystemFault
from sluice.telemetry.evidence import Evidence
from sluice_gates.triaged import triaged

GATE = """
from sluice_gates.gate import gate

@gate(level="logits", claims="what is not so")
def test_parted(bench):
    prompt = bench.general[0]
    bench.equal(bench.run(prompt, n=24), bench.run(prompt, n=24, ubatch=1), "plain and narrow")
"""


@pytest.mark.xdist_group("triaged")
def test_a_failing_gate_is_triaged(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(test_fake=GATE)
    plugins = [p for name in ("pytest_regressions.plugin", "pytest_datadir.plugin",
                              "sluice_gates.plugin") for p in ("-p", name)]  # fmt: skip
    done = pytester.runpytest_subprocess(
        *plugins, "-p", "no:cacheprovider", "--sluice-quants", "F16", "--junitxml", "junit.xml",
        "--sluice-report", "report.json", "--sluice-goldens", "none",
    )  # fmt: skip
    assert done.ret == 1
    verdict = json.loads((pytester.path / "report.json").read_text())["verdicts"][0]
    assert "plain and narrow: step 0: " in verdict["evidence"]
    assert "; triage: NUMERIC; logits at step 0" in verdict["evidence"]
    assert "turned by ubatch through sgemm" in verdict["evidence"]
    assert verdict["triage"].startswith("NUMERIC: logits moved and no token did")
    done.stdout.fnmatch_lines(["*sluice triage*", "*first node: *"])
    properties = {
        p.attrib["name"]: p.attrib["value"]
        for p in ET.parse(pytester.path / "junit.xml").iter("property")
    }
    assert "first node: " in properties["sluice.triage"]


def test_a_triage_that_cannot_be_done_says_so(
    make_evidence: Callable[..., Evidence], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_sides: object, **_how: object) -> None:
        raise SystemFault("no\nmemory")

    monkeypatch.setattr("sluice.triage.triage.triage", fails)
    found = triaged((make_evidence(), make_evidence()), whole=False)
    assert found.summary == "could not be done: no memory"


def test_evidence_of_no_model_is_compared_as_it_is(
    make_evidence: Callable[..., Evidence],
) -> None:
    found = triaged((make_evidence([5, 6]), make_evidence([5, 7])), whole=True)
    assert "ids at step 1" in found.summary
    assert "cannot be run again" in found.text

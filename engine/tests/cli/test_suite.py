from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cli.suite import Suite
from sluice.errors import RequestError, SystemFault


def after(arguments: list[str], flag: str) -> str:
    return arguments[arguments.index(flag) + 1]


def test_the_least(tmp_path: Path) -> None:
    arguments = Suite(model="bundled").arguments(tmp_path, tmp_path / "sluice_gates")
    assert after(arguments, "--pyargs") == "sluice_gates"
    assert after(arguments, "--sluice-model") == "bundled"
    assert after(arguments, "--sluice-report") == str(tmp_path / "report.json")
    assert not {"-k", "-n", "--sluice-strict", "--sluice-quants", "--junitxml"} & set(arguments)


def test_everything(tmp_path: Path) -> None:
    suite = Suite(
        model="m.gguf",
        quants="Q8_0,Q4_K_M",
        strict=True,
        goldens=tmp_path / "g",
        evidence_dir=tmp_path / "e",
        junit=tmp_path / "j.xml",
        expression="identity and not mtp",
        workers=2,
    )
    arguments = suite.arguments(tmp_path, tmp_path / "sluice_gates")
    assert after(arguments, "--sluice-quants") == "Q8_0,Q4_K_M"
    assert after(arguments, "--sluice-goldens") == str(tmp_path / "g")
    assert after(arguments, "--sluice-evidence-dir") == str(tmp_path / "e")
    assert after(arguments, "--junitxml") == str(tmp_path / "j.xml")
    assert after(arguments, "-k") == "identity and not mtp"
    assert after(arguments, "-n") == "2"
    assert "--sluice-strict" in arguments


@pytest.mark.parametrize(
    ("code", "printed", "error", "says"),
    [
        (5, [], RequestError, "-k nope: selects no gate"),
        (4, ["", "ERROR: --sluice-quants Q0: none"], RequestError, "--sluice-quants Q0: none"),
        (-6, ["gate_a"], SystemFault, "killed by SIGABRT; the last line was: gate_a"),
        (3, ["INTERNALERROR> E  KeyError: 1", "x"], SystemFault, "did not run: KeyError: 1"),
        (1, [], SystemFault, "did not run: nothing was printed"),
    ],
)
def test_runs_that_left_no_report(
    code: int, printed: list[str], error: type[Exception], says: str, tmp_path: Path
) -> None:
    suite = Suite(model="bundled", expression="nope")
    with pytest.raises(error, match=says):
        suite._report(code, tmp_path / "report.json", printed)


REPORTED = (
    '{"schema": "sluice-gates/1", "exit": %d, "verdicts": [{"gate": "g", "model": "m",'
    ' "level": "ids", "verdict": "ERROR", "evidence": ""}]}'
)


def test_a_code_that_the_report_explains(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text(REPORTED % 3)
    assert Suite(model="bundled")._report(3, file, []).exit_code == 3
    assert Suite(model="bundled")._report(1, file, []).exit_code == 3
    with pytest.raises(SystemFault, match=r"broke off \(pytest's code 2"):
        Suite(model="bundled")._report(2, file, ["!!! Interrupted !!!"])
    file.write_text(REPORTED % 0)
    assert Suite(model="bundled")._report(1, file, []).exit_code == 1


def test_no_verdicts_is_no_pass(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text('{"schema": "sluice-gates/1", "verdicts": [], "exit": 0}')
    with pytest.raises(SystemFault, match="no verdict"):
        Suite(model="bundled")._report(0, file, [])

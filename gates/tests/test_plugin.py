"""The plugin in a pytest of its own: options, verdicts, the report, exit codes, xdist."""

from __future__ import annotations

import json
import struct
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from sluice.telemetry.verdicts import Report

PLUGINS = ("xdist", "pytest_datadir.plugin", "pytest_regressions.plugin", "sluice_gates.plugin")

GATES = """
from sluice.errors import GateFailure
from sluice_gates.gate import gate

@gate(level="logits", claims="passes", kills=("slice-raced",))
def test_passes(bench):
    bench.note("one")
    return "two <&>"

@gate(level="ids", claims="fails")
def test_fails(bench):
    raise GateFailure("step 3: token 1 / 2")

@gate(level="drafts", claims="needs a head", needs=("head",))
def test_needy(bench):
    return "was run"

@gate(level="text", claims="is recorded")
def test_recorded(bench):
    bench.goldens.compare("golden-plain", {"one": {"tokens": 3}})
    return "as recorded"

@gate(level="words", claims="is run once", once=True)
def test_once(bench):
    return "once"

@gate(level="words", claims="is defect")
def test_defect(bench):
    return 1 // 0
"""


def tiny_gguf(path: Path) -> Path:
    """A header that names an architecture, and nothing else."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    header = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
    header += text("general.architecture") + struct.pack("<I", 8) + text("llama")
    path.write_bytes(header)
    return path


class Runner:
    """Runs the fake gates in a pytest of their own."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.model = tiny_gguf(pytester.path / "tiny.gguf")
        self.report_file = pytester.path / "report.json"
        self.goldens = pytester.path / "goldens"
        pytester.makepyfile(test_fake=GATES)

    def run(self, *arguments: str, model: str | None = None) -> pytest.RunResult:
        """Run with the report asked for; ``model`` is the tiny file unless given."""
        given = [part for plugin in PLUGINS for part in ("-p", plugin)]
        return self.pytester.runpytest_subprocess(
            *given, "-p", "no:cacheprovider", "--sluice-model", model or str(self.model),
            "--sluice-report", str(self.report_file), "--sluice-goldens", str(self.goldens),
            *arguments,
        )  # fmt: skip

    @property
    def report(self) -> dict[str, Any]:
        """The JSON report."""
        raw: dict[str, Any] = json.loads(self.report_file.read_text())
        return raw

    @property
    def verdicts(self) -> dict[str, str]:
        """Gate to verdict."""
        return {v["gate"]: v["verdict"] for v in self.report["verdicts"]}


@pytest.fixture
def runner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Runner:
    """See :class:`Runner`."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    return Runner(pytester)


EXPECTED = {
    "passes": "PASS",
    "fails": "FAIL",
    "needy": "NOT APPLICABLE",
    "recorded": "NOT RECORDED",
    "once": "PASS",
    "defect": "ERROR",
}


@pytest.mark.parametrize("workers", [(), ("-n", "2", "--dist", "loadgroup"), ("-n", "2")])
def test_verdicts_are_reported(workers: tuple[str, ...], runner: Runner) -> None:
    done = runner.run(*workers)
    assert done.ret == 1
    report = runner.report
    assert (report["schema"], report["exit"]) == ("sluice-gates/1", 1)
    assert runner.verdicts == EXPECTED
    assert list(runner.verdicts) == list(EXPECTED)
    first = report["verdicts"][0]
    assert first["seconds"] >= 0
    del first["seconds"]
    assert first == {
        "gate": "passes", "model": "tiny", "level": "logits", "verdict": "PASS",
        "evidence": "one; two <&>", "kills": ["slice-raced"],
    }  # fmt: skip
    evidence = {v["gate"]: v["evidence"] for v in report["verdicts"]}
    assert evidence["fails"] == "step 3: token 1 / 2"
    assert evidence["needy"] == "tiny.gguf has no MTP head to draft with"
    assert "--force-regen" in evidence["recorded"]
    assert evidence["defect"].startswith("ZeroDivisionError")
    assert list(report["fingerprint"]["models"]) == ["tiny"]
    done.stdout.fnmatch_lines(["*sluice gates*", "gate*model*level*verdict*evidence"])
    done.stdout.fnmatch_lines(["2 PASS, 1 FAIL, 1 ERROR, 1 NOT RECORDED, 1 NOT APPLICABLE"])


def test_a_failure_is_one_line_and_a_defect_a_traceback(runner: Runner) -> None:
    done = runner.run("-k", "fails or defect")
    done.stdout.fnmatch_lines(["fails [[]tiny[]], ids: step 3: token 1 / 2"])
    done.stdout.fnmatch_lines(["E   *ZeroDivisionError*"])
    assert "raise GateFailure" not in done.stdout.str()


def test_strict_makes_not_recorded_a_failure(runner: Runner) -> None:
    assert runner.run("-k", "recorded").ret == 0
    assert runner.verdicts == {"recorded": "NOT RECORDED"}
    assert runner.run("-k", "recorded", "--sluice-strict").ret == 1
    assert runner.verdicts == {"recorded": "FAIL"}
    assert runner.report["verdicts"][0]["evidence"].startswith("NOT RECORDED: no golden")


def test_nothing_applicable_is_a_failure_in_words(runner: Runner) -> None:
    done = runner.run("-k", "needy")
    assert done.ret == 1
    done.stdout.fnmatch_lines(["no gate applies to this model, so nothing is shown: a failure"])


NAMED = """
from sluice_gates.gate import gate

@gate(level="ids", claims="has a name of two words")
def test_two_words(bench):
    return "seen"
"""


def test_a_gate_is_selected_by_the_name_in_the_table(
    pytester: pytest.Pytester, runner: Runner
) -> None:
    pytester.makepyfile(test_fake=NAMED)
    assert runner.run("-k", "two-words").ret == 0
    assert runner.verdicts == {"two-words": "PASS"}


SKIPPING = """
import pytest
from sluice_gates.gate import gate

@gate(level="ids", claims="skips by itself")
def test_inside(bench):
    pytest.skip("NOT APPLICABLE: says who")

@pytest.mark.skip(reason="switched off")
@gate(level="ids", claims="is skipped")
def test_outside(bench):
    return "was run"
"""


def test_a_skip_that_is_not_the_gates_own_is_an_error(
    pytester: pytest.Pytester, runner: Runner
) -> None:
    pytester.makepyfile(test_fake=SKIPPING)
    assert runner.run().ret == 3
    assert runner.verdicts == {"inside": "ERROR", "outside": "ERROR"}
    first, second = (v["evidence"] for v in runner.report["verdicts"])
    assert first == "skipped, and not by the gate: NOT APPLICABLE: says who"
    assert second == "skipped, and not by the gate: switched off"


TABLES = """
from sluice_gates.gate import gate

@gate(level="text", claims="makes a table", kills=("slice-raced",))
def test_first(bench):
    bench.table.extend([("plain vs plain", "identical"), ("longer", "diverges")])
    return "seen"

@gate(level="text", claims="makes one, too")
def test_second(bench):
    bench.table.append(("row", "found"))
"""


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_the_command_reads_what_the_gates_report(
    workers: tuple[str, ...], pytester: pytest.Pytester, runner: Runner
) -> None:
    pytester.makepyfile(test_fake=TABLES)
    assert runner.run(*workers).ret == 0
    read = Report.parse(runner.report_file.read_text())
    assert read.tables == (
        "first [tiny]\nplain vs plain  identical\nlonger          diverges",
        "second [tiny]\nrow  found",
    )
    assert [(v.gate, v.verdict, v.kills) for v in read.verdicts] == [
        ("first", "PASS", ("slice-raced",)), ("second", "PASS", ())
    ]  # fmt: skip
    assert read.as_dict() == runner.report


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "*no such file*"), (b"ZZZZ", "*not a gguf*"), (b"GGUF\x03\0", "*cut short*")],
)
def test_a_model_that_cannot_be_opened_is_exit_code_3(
    content: bytes | None, words: str, workers: tuple[str, ...], runner: Runner
) -> None:
    path = runner.pytester.path / "broken.gguf"
    if content is not None:
        path.write_bytes(content)
    done = runner.run(*workers, model=str(path))
    assert done.ret == 3
    assert set(runner.verdicts.values()) == {"ERROR"}
    assert runner.report["exit"] == 3
    done.stdout.fnmatch_lines([f"ERROR: the model cannot be opened: {words}"])


def test_junit_has_the_evidence(runner: Runner) -> None:
    runner.run("--junitxml", "junit.xml", "-k", "passes")
    tree = ET.parse(runner.pytester.path / "junit.xml")
    found = {p.get("name"): p.get("value") for p in tree.iter("property")}
    assert found["sluice.evidence"] == "one; two <&>"
    assert found["sluice.verdict"] == "PASS"
    assert found["sluice.level"] == "logits"


@pytest.mark.parametrize(
    ("types", "model", "words"),
    [("Q9", "bundled", "*no 'Q9'*"), ("Q8_0", None, "*tiny.gguf is run as it is*")],
)
def test_wrong_quantisations_are_a_usage_error(
    types: str, model: str | None, words: str, runner: Runner
) -> None:
    done = runner.run("--sluice-quants", types, model=model)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines([f"ERROR: --sluice-quants {types}: {words}"])


def test_a_gate_that_needs_one_model_gets_the_first(runner: Runner) -> None:
    done = runner.run("--collect-only", "-q", "--sluice-quants", "F16,Q8_0", model="bundled")
    listed = done.stdout.str()
    assert "test_passes[F16]" in listed
    assert "test_passes[Q8_0]" in listed
    assert "test_once[F16]" in listed
    assert "test_once[Q8_0]" not in listed


def test_values_are_recorded_and_then_compared(runner: Runner) -> None:
    """The other sections are recorded by hand: these gates have one only."""
    done = runner.run("-k", "recorded", "--force-regen")
    assert done.ret == 1
    assert "recorded in" in runner.report["verdicts"][0]["evidence"]
    (golden,) = runner.goldens.iterdir()
    assert b"\r" not in golden.read_bytes()
    text = golden.read_text()
    golden.write_text(f"{text}  mtp-divergence: {{}}\n  ubatch-1-divergence: {{}}\n")
    runner.run("-k", "recorded", "--force-regen")
    assert runner.run("-k", "recorded").ret == 0
    assert runner.verdicts == {"recorded": "PASS"}
    golden.write_text(golden.read_text().replace("tokens: 3", "tokens: 4"))
    assert runner.run("-k", "recorded").ret == 1
    assert "one.tokens 4 / 3" in runner.report["verdicts"][0]["evidence"]


def test_recording_under_xdist_is_refused_in_words(runner: Runner) -> None:
    assert runner.run("-k", "recorded", "--force-regen", "-n", "1").ret == 1
    assert runner.report["verdicts"][0]["evidence"].startswith("--force-regen under xdist")
    assert not runner.goldens.exists()


def test_without_gates_nothing_is_reported(pytester: pytest.Pytester, runner: Runner) -> None:
    pytester.makepyfile(test_fake="def test_plain():\n    assert True\n")
    done = runner.run()
    assert done.ret == 0
    assert not runner.report_file.exists()
    assert "sluice gates" not in done.stdout.str()


@pytest.mark.parametrize("workers", [(), ("-n", "1")])
def test_a_summary_is_printed_at_the_end(
    workers: tuple[str, ...], pytester: pytest.Pytester, runner: Runner
) -> None:
    pytester.makepyfile(
        test_fake="def test_plain(record_property):\n"
        "    record_property('sluice-summary', 'a title\\nrow one\\nrow two')\n"
    )
    runner.run(*workers).stdout.fnmatch_lines(["*= a title =*", "row one", "row two"])


def test_evidence_is_kept_on_request(pytester: pytest.Pytester, runner: Runner) -> None:
    pytester.makepyfile(
        test_fake="from sluice_gates.gate import gate\n"
        "@gate(level='ids', claims='runs')\n"
        "def test_runs(bench):\n"
        "    bench.run(bench.general[0], n=2)\n"
        "    return 'ran'\n"
    )
    done = runner.run(
        "--sluice-evidence-dir", "kept", "--sluice-quants", "Q8_0", model="bundled"
    )  # fmt: skip
    assert done.ret == 0
    (file,) = (pytester.path / "kept").iterdir()
    assert file.name.startswith("Q8_0-")
    assert len(json.loads(file.read_text())["ids"]) == 2

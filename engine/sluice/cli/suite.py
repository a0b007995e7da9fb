"""The gates as a child process: pytest on the installed package ``sluice_gates``.

A child, so that a process that llama.cpp aborts is a verdict and not the end of the command,
and so that no setting of the caller's own pytest reaches the gates.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sluice.errors import RequestError, SystemFault
from sluice.telemetry.verdicts import Report

PACKAGE = "sluice_gates"
PLUGINS = ("xdist", "pytest_datadir.plugin", "pytest_regressions.plugin", f"{PACKAGE}.plugin")
NOTHING_COLLECTED = 5
USAGE_ERROR = 4
_DROPPED = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTEST_CURRENT_TEST")
_GRACE_S = 10.0
_POSIX = os.name == "posix"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """One run of the gates.

    Args:
        model: path of a gguf, or ``bundled``.
        quants: quantisations, comma-separated, or ``all``, or ``None`` for the plugin's own.
        strict: a gate without a record to judge by is a failure.
        goldens: folder of recorded values, or ``None`` for the installed one.
        evidence_dir: folder for an evidence file a run, or ``None``.
        junit: JUnit XML file, or ``None``.
        expression: pytest's ``-k``, or ``None`` for every gate.
        workers: processes that run gates side by side.
    """

    model: str
    quants: str | None = None
    strict: bool = False
    goldens: Path | None = None
    evidence_dir: Path | None = None
    junit: Path | None = None
    expression: str | None = None
    workers: int = 1

    def arguments(self, folder: Path, package: Path) -> list[str]:
        """Arguments of pytest.

        Args:
            folder: holds pytest's empty settings and takes the report.
            package: where the gates are; no conftest.py above it is read.
        """
        out = ["--pyargs", PACKAGE, "-c", str(folder / "pytest.ini"), "--import-mode=importlib"]
        # The names of tests are relative to the root: the same in every run, on every machine.
        out += [f"--rootdir={package.parent}", f"--confcutdir={package}"]
        out += ["-v", "--tb=short", "--no-header", "--color=no", "--disable-warnings"]
        out += ["-p", "no:cacheprovider"]
        for plugin in PLUGINS:
            out += ["-p", plugin]
        out += ["--sluice-model", self.model, "--sluice-report", str(report_file(folder))]
        if self.quants is not None:
            out += ["--sluice-quants", self.quants]
        if self.strict:
            out.append("--sluice-strict")
        if self.goldens is not None:
            out += ["--sluice-goldens", str(self.goldens.absolute())]
        if self.evidence_dir is not None:
            out += ["--sluice-evidence-dir", str(self.evidence_dir.absolute())]
        if self.junit is not None:
            out += ["--junitxml", str(self.junit.absolute()), "-o", "junit_suite_name=sluice"]
        if self.expression is not None:
            out += ["-k", self.expression]
        if self.workers > 1:
            out += ["-n", str(self.workers), "--dist", "loadgroup"]
        return out

    def run(self, line: Callable[[str], None]) -> Report:
        """Run the gates; ``line`` is called with every line that pytest prints.

        Raises:
            RequestError: ``-k`` selects nothing, or the gates refuse an option's value.
            SystemFault: the gates are not installed, or died without a report.
        """
        package = _package()
        with tempfile.TemporaryDirectory(prefix="sluice-gate-") as name:
            folder = Path(name)
            (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
            printed: list[str] = []

            def keep(text: str) -> None:
                printed.append(text)
                line(text)

            code = _run_child(self.arguments(folder, package), keep)
            return self._report(code, report_file(folder), printed)

    def _report(self, code: int, file: Path, printed: list[str]) -> Report:
        if code == NOTHING_COLLECTED and self.expression is not None:
            raise RequestError(f"-k {self.expression}: selects no gate")
        if code == USAGE_ERROR:
            raise RequestError(_reason(printed))
        if code < 0:
            raise SystemFault(f"the gates were killed by {_signal(-code)}; {_last(printed)}")
        if not file.is_file():
            raise SystemFault(f"the gates did not run: {_reason(printed)}")
        report = Report.parse(file.read_text(encoding="utf-8"))
        if not report.verdicts:
            raise SystemFault(f"the gates came to no verdict: {_reason(printed)}")
        if code not in (0, 1, report.exit_code):
            raise SystemFault(f"the gates broke off (pytest's code {code}): {_reason(printed)}")
        if code and not report.exit_code:
            report = dataclasses.replace(report, exit_code=code)
        return report


def report_file(folder: Path) -> Path:
    """Where the plugin is told to write its report."""
    return folder / "report.json"


def _package() -> Path:
    spec = importlib.util.find_spec(PACKAGE)  # finds, does not import
    if spec is None or not spec.submodule_search_locations:
        raise SystemFault(f"the package {PACKAGE} is not installed; reinstall sluicegate")
    return Path(spec.submodule_search_locations[0])


def _run_child(arguments: list[str], line: Callable[[str], None]) -> int:
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in _DROPPED and not name.startswith("PYTEST_XDIST")
    }
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "pytest", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        encoding="utf-8",
        errors="replace",
        process_group=0 if _POSIX else None,  # a terminal's Ctrl-C reaches it once, from here
    ) as child:
        try:
            assert child.stdout is not None
            for text in child.stdout:
                line(text.rstrip())
            return child.wait()
        except BaseException:
            _end(child)
            raise


def _end(child: subprocess.Popen[str]) -> None:
    """End the gates with their workers: in order if that takes no longer than the grace."""
    if _POSIX:
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            child.send_signal(signal.SIGINT)
            child.wait(_GRACE_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    else:
        child.kill()


def _reason(printed: list[str]) -> str:
    """The line of pytest's output that says why: its first error, else its last line."""
    for text in printed:
        for mark in ("ERROR: ", "E   ", "INTERNALERROR> E"):
            if text.startswith(mark) and text[len(mark) :].strip():
                return text[len(mark) :].strip()
    return _last(printed)


def _last(printed: list[str]) -> str:
    said = [text for text in printed if text.strip()]
    return f"the last line was: {said[-1].strip()}" if said else "nothing was printed"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Ran, environment

Command = Callable[..., Ran]
Gates = Callable[..., str]


def test_all_pass(process: Command, gates: Gates, model: Path, tmp_path: Path) -> None:
    files = tmp_path / "verdicts.json", tmp_path / "junit.xml"
    ran = process(
        *("gate", model, "--json", files[0], "--junit", files[1]),
        *("--evidence-dir", tmp_path / "made" / "here", "--goldens", tmp_path),
        first=gates(one="PASS", two="PASS", three="NOT_APPLICABLE"),
    )
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert "a table\n  of a gate\n" in ran.out
    assert any("one" in x and "tiny Q8_0" in x and "PASS" in x and "seen" in x for x in lines)
    assert lines[-1].startswith("sluice gate: PASS (2 pass, 1 not applicable; ")
    report = json.loads(files[0].read_text())
    assert [v["gate"] for v in report["verdicts"]] == ["one", "two", "three"]
    asked = report["fingerprint"]
    assert asked["sluice_model"] == str(model)
    assert asked["sluice_goldens"] == str(tmp_path)
    assert asked["sluice_strict"] is False
    assert (tmp_path / "made" / "here").is_dir()
    cases = ET.parse(files[1]).getroot().iter("testcase")
    assert [case.get("classname") for case in cases] == ["sluice_gates.test_fake"] * 3


def test_a_failure(process: Command, gates: Gates, model: Path) -> None:
    ran = process("gate", model, first=gates(one="PASS", two="FAIL"))
    assert ran.code == 1
    assert ran.out.splitlines()[-1].startswith("sluice gate: FAIL (1 pass, 1 fail; ")


def test_strict(process: Command, gates: Gates, model: Path) -> None:
    folder = gates(one="PASS", two="NOT_RECORDED")
    assert process("gate", model, first=folder).code == 0
    assert process("gate", model, "--strict", first=folder).code == 1


def test_no_gate_applies(process: Command, gates: Gates, model: Path) -> None:
    ran = process("gate", model, first=gates(one="NOT_APPLICABLE"))
    assert ran.code == 1
    assert ran.out.splitlines()[-1].startswith(
        "sluice gate: FAIL: no gate applies to this model (1 not applicable; "
    )


def test_a_choice_of_gates(process: Command, gates: Gates, model: Path) -> None:
    folder = gates(one="PASS", two="FAIL")
    assert process("gate", model, "-k", "one", first=folder).code == 0
    ran = process("gate", model, "-k", "three", first=folder)
    assert (ran.code, ran.refusal()) == (2, "-k three: selects no gate")


def test_side_by_side(process: Command, gates: Gates, model: Path) -> None:
    ran = process("gate", model, "--workers", 2, first=gates(one="PASS", two="PASS"))
    assert ran.code == 0
    assert "2 pass" in ran.out.splitlines()[-1]


def test_the_callers_own_pytest_settings_do_not_reach_the_gates(
    process: Command, gates: Gates, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    (tmp_path / "conftest.py").write_text("raise SystemExit('a conftest of the caller')\n")
    folder = gates(one="PASS")
    ran = process("gate", model, first=folder, PYTEST_ADDOPTS="--nope", PYTEST_PLUGINS="nope")
    assert (ran.code, ran.err) == (0, "")


def test_pytests_own_output_on_demand(process: Command, gates: Gates, model: Path) -> None:
    ran = process("gate", model, "--verbose", first=gates(one="PASS"))
    assert ran.code == 0
    assert "test_gate[one] PASSED" in ran.err


def test_a_crash_is_a_fault_in_one_line(process: Command, gates: Gates, model: Path) -> None:
    ran = process("gate", model, first=gates(one="PASS", two="CRASH"))
    assert ran.code == 3
    assert ran.refusal().startswith("the gates were killed by SIGKILL; the last line was: ")


def test_gates_that_cannot_be_imported(
    process: Command, gates: Gates, model: Path, tmp_path: Path
) -> None:
    folder = gates(one="PASS")
    (tmp_path / "gates" / "sluice_gates" / "plugin.py").write_text("import no_such_module\n")
    ran = process("gate", model, first=folder)
    assert ran.code == 3
    assert "no_such_module" in ran.refusal()


def test_what_the_plugin_refuses(
    process: Command, gates: Gates, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "refused").mkdir()
    ran = process("gate", model, "--goldens", tmp_path / "refused", first=gates(one="PASS"))
    assert (ran.code, ran.refusal()) == (2, "--sluice-goldens refused: not of this model")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--quants", "Q8_0"], "--quants Q8_0: only the bundled model"),
        (["--workers", "0"], "--workers 0: must be at least 1"),
        (["--workers", "two"], "'two' is not a valid integer"),
        (["--json", "no/such.json"], "--json no/such.json: the folder no does not exist"),
        (["--junit", "no/such.xml"], "--junit no/such.xml: the folder no does not exist"),
        (["--goldens", "no/such"], "--goldens no/such: no such folder"),
        (["--evidence-dir", "/dev/null/x"], "--evidence-dir /dev/null/x: cannot be made"),
        (["--nope"], "try `sluice gate --help`"),
    ],
)
def test_refusals(arguments: list[str], says: str, command: Command, model: Path) -> None:
    ran = command("gate", model, *arguments)
    assert says in ran.refusal()
    assert ran.code == 2


def test_a_model_that_is_not_there(command: Command) -> None:
    ran = command("gate", "no such.gguf")
    assert (ran.code, ran.refusal()[:25]) == (2, "no such.gguf: no such fil")


def test_an_interrupt_ends_the_gates_too(gates: Gates, model: Path, tmp_path: Path) -> None:
    folder = gates(one="PASS")
    started, ended = tmp_path / "started", tmp_path / "ended"
    (tmp_path / "gates" / "sluice_gates" / "test_fake.py").write_text(
        "import pathlib, time\n"
        "def test_long():\n"
        "    try:\n"
        f"        pathlib.Path({str(started)!r}).touch()\n"
        "        time.sleep(50)\n"
        "    finally:\n"
        f"        pathlib.Path({str(ended)!r}).touch()\n"
    )
    code = "import signal; signal.signal(2, signal.default_int_handler)\n"
    code += "import sys; from sluice.cli.main import main; main(sys.argv[1:])"
    with subprocess.Popen(
        [sys.executable, "-P", "-c", code, "gate", str(model)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(folder),
    ) as child:
        until_s = time.monotonic() + 60
        while not started.exists() and time.monotonic() < until_s:
            time.sleep(0.05)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
    assert (child.returncode, out, err) == (130, b"", b"sluice: interrupted\n")
    assert ended.exists()

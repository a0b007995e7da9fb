from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

import sluice

from .conftest import Ran, environment

Command = Callable[..., Ran]

LISTS_MODULES = (
    "import sys, atexit\n"
    "atexit.register(lambda: sys.stderr.write('|'.join(m.split('.')[0] for m in sys.modules)))\n"
    "from sluice.cli.main import main\n"
    "main(sys.argv[1:])\n"
)


def test_version(command: Command) -> None:
    assert command("--version") == Ran(0, f"sluice {sluice.__version__}\n", "")


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["run", "--help"], ["gate", "--help"]])
def test_help(arguments: list[str], command: Command) -> None:
    ran = command(*arguments)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("Usage: sluice ")


@pytest.mark.parametrize(
    ("arguments", "says"), [([], "Missing command"), (["rnu"], "rnu"), (["--nope"], "--nope")]
)
def test_no_such_command(arguments: list[str], says: str, command: Command) -> None:
    ran = command(*arguments)
    assert ran.code == 2
    assert says in ran.refusal()
    assert ran.refusal().endswith("; try `sluice --help`")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["run", "--help"],
        ["gate", "--help"],
        ["run", "bundled", "-p", "x", "--mtp", "--temp", "1"],
        ["run", "no such.gguf", "-p", "x"],
        ["gate", "no such.gguf"],
    ],
    ids=" ".join,
)
def test_neither_help_nor_a_refusal_loads_llama_cpp(arguments: list[str], process: Command) -> None:
    ran = process(*arguments, code=LISTS_MODULES)
    assert ran.code in (0, 2)
    loaded = set(ran.err.splitlines()[-1].split("|"))
    assert "sluice" in loaded
    assert not loaded & {"llama_cpp", "rich", "pytest", "sluice_gates"}


def test_help_into_a_closed_pipe_is_quiet() -> None:
    with subprocess.Popen(
        [sys.executable, "-P", "-c", "from sluice.cli.main import main; input(); main(['--help'])"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        child.stdin.write(b"\n")
        child.stdin.close()
        assert child.stderr.read() == b""
        assert child.wait(60) == 141

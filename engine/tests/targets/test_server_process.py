from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import sluice
from sluice.errors import RequestError, SystemFault
from sluice.targets.server_process import ServerProcess, free_port, split_command

# Says its own process and that of a child, both deaf to SIGTERM, and stays.
DEAF = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(os.getpid(), child.pid, flush=True)
time.sleep(600)
"""
# Starts DEAF as a server, hands its processes on, and waits to be killed.
PARENT = """
import sys, time
from sluice.targets.server_process import ServerProcess
server = ServerProcess([sys.executable, "-c", sys.argv[1]], grace_s=0.2)
while not server.log.mark:
    time.sleep(0.01)
print(server.log.since()[0], flush=True)
time.sleep(600 if sys.argv[2] == "wait" else 0)
"""


def is_there(pid: int) -> bool:
    """Whether a process runs; one that ended and was not waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def eventually(holds: Callable[[], bool]) -> bool:
    until = time.monotonic() + 20
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def started(code: str, *, grace_s: float = 0.2) -> ServerProcess:
    return ServerProcess([sys.executable, "-c", code], grace_s=grace_s)


def processes_of(server: ServerProcess) -> list[int]:
    assert eventually(lambda: bool(server.log.mark))
    return [int(pid) for pid in server.log.since()[0].split()]


def test_close_ends_the_server_and_what_it_started_also_when_deaf() -> None:
    with started(DEAF) as server:
        pids = processes_of(server)
        assert [is_there(pid) for pid in pids] == [True, True]
        assert server.exit_code is None
    assert [is_there(pid) for pid in pids] == [False, False]
    server.close()


def test_sigterm_comes_first() -> None:
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('bye', flush=True), sys.exit(0)))\n"
        "print('up', flush=True)\n"
        "time.sleep(600)\n"
    )
    with started(code, grace_s=30) as server:
        assert eventually(lambda: server.log.since() == ["up"])
    assert server.log.since() == ["up", "bye"]


@pytest.mark.parametrize("how", ["wait", "leave"])
def test_no_server_outlives_the_process_that_started_it(how: str) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(sluice.__file__).parents[1])}
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, DEAF, how], stdout=subprocess.PIPE, env=environment
    ) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        if how == "wait":
            assert all(is_there(pid) for pid in pids)
            parent.kill()
        parent.wait(20)
    assert eventually(lambda: not any(is_there(pid) for pid in pids))


def test_what_a_server_that_ended_left_running_goes_too() -> None:
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\n"
    )
    with started(code) as server:
        (pid,) = processes_of(server)
        assert server.wait(20) == 0
    assert not is_there(pid)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (
            "import sys; sys.exit('error: no model')",
            "not up: ended with exit code 1; its last words: error: no model",
        ),
        (
            "import os; print('up', flush=True); os.kill(os.getpid(), 11)",
            "not up: was killed by SIGSEGV; its last words: up",
        ),
        (
            "pass",
            "not up: ended with exit code 0; it said nothing: run its command by itself to see why",
        ),
    ],
)
def test_a_fault_says_how_the_server_ended_and_its_last_words(code: str, expected: str) -> None:
    with started(code) as server:
        assert server.wait(20) is not None
        assert (
            str(server.fault("not up", "no connection"))
            == f"{Path(sys.executable).name}: {expected}"
        )


def test_a_program_that_cannot_start_is_a_fault(tmp_path: Path) -> None:
    with ServerProcess([str(tmp_path / "none")], grace_s=0.2) as server:
        server.wait(20)
        fault = server.fault("not up")
    assert str(fault) == (
        f"none: not up: did not start; its last words: {tmp_path}/none: No such file or directory"
    )
    with pytest.raises(SystemFault, match="cannot be started: Argument list too long"):
        ServerProcess(["x", "y" * (1 << 20)])


def test_the_environment_adds_nothing_to_an_arm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_SPEC_DRAFT_N_MAX", "9")
    monkeypatch.setenv("LLAMA_ARG_THREADS", "1")
    code = "import os; print(sorted(k for k in os.environ if k.startswith('LLAMA_ARG')))"
    with started(code) as server:
        server.wait(20)
        server.log.join(10)
        assert server.log.since() == ["['LLAMA_ARG_THREADS']"]


def test_a_terminal_s_signal_reaches_us_alone() -> None:
    with started("import os, time; print(os.getsid(0), flush=True); time.sleep(600)") as server:
        assert processes_of(server) != [os.getsid(0)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("sh 'x", "No closing quotation"),
        ("/none/llama-server -m x", "/none/llama-server: no such program; give its path, or build"),
        ("sh --spec-type draft-mtp", "leave --spec-type out: every arm sets its own"),
        ("sh --spec-draft-n-max=3", "leave --spec-draft-n-max=3 out"),
    ],
)
def test_a_command_that_cannot_be_an_arm_is_refused(text: str, words: str) -> None:
    with pytest.raises(RequestError) as refused:
        split_command(text)
    assert words in str(refused.value)


def test_a_command_is_split_as_a_shell_would() -> None:
    assert split_command("sh -m 'a model.gguf' -t 1") == ("sh", "-m", "a model.gguf", "-t", "1")


def test_free_ports_can_be_bound() -> None:
    assert 1024 <= free_port() < 65536


def test_an_interrupt_of_a_close_is_no_way_to_leave_a_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = started(DEAF)
    pids = processes_of(server)
    monkeypatch.setattr(time, "sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        server.close()
    monkeypatch.undo()
    assert eventually(lambda: not any(is_there(pid) for pid in pids))
    server.close()
    assert server.exit_code == -signal.SIGKILL


def interrupted(_: float) -> None:
    raise KeyboardInterrupt

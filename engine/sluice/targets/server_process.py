"""A llama-server of ours: started for one arm, and gone when we are."""

from __future__ import annotations

import atexit
import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from sluice.errors import RequestError, SystemFault
from sluice.targets.guard import NOT_STARTED
from sluice.targets.server_log import ServerLog

_GUARD = Path(__file__).with_name("guard.py")
# An arm is what its flags say, and nothing that the environment adds.
_FOREIGN = ("LLAMA_ARG_SPEC", "LLAMA_ARG_DRAFT")
_LOOK_S = 0.02
_running: set[ServerProcess] = set()


_OLD_DRAFT_FLAGS = frozenset(
    {"--draft", "--draft-n", "--draft-max", "--draft-n-min", "--draft-min", "--draft-p-min"}
)
"""How older releases spell what every arm sets."""


def split_command(text: str) -> tuple[str, ...]:
    """``--server-cmd`` as arguments.

    Raises:
        RequestError: it is empty, a quote is open, there is no such program, or it sets what
            every arm sets.
    """
    try:
        command = tuple(shlex.split(text))
    except ValueError as err:
        raise RequestError(f"--server-cmd: {err}: {text!r}") from None
    if not command:
        raise RequestError('--server-cmd: is empty; give it as in "llama-server -m MODEL"')
    if shutil.which(command[0]) is None:
        raise RequestError(
            f"--server-cmd: {command[0]}: no such program; give its path, or build one with"
            " make llama-server"
        )
    for argument in command:
        is_new = argument.startswith(("--spec-type", "--spec-draft-n-", "--spec-draft-p-min"))
        if is_new or argument.partition("=")[0] in _OLD_DRAFT_FLAGS:
            raise RequestError(f"--server-cmd: leave {argument} out: every arm sets its own")
    return command


def free_port() -> int:
    """A port of 127.0.0.1 that nothing listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class ServerProcess:
    """Runs a command in a process group of its own, its output in ``log``.

    It ends with ``close``, with this object's context, with this interpreter, and when this
    process is killed: a guard process holds the other end of a pipe of ours. SIGTERM first,
    SIGKILL ``grace_s`` later.
    """

    def __init__(self, command: Sequence[str], *, grace_s: float = 5.0) -> None:
        """Start ``command``.

        Raises:
            SystemFault: no process can be started.
        """
        self.name = Path(command[0]).name
        self._grace_s = grace_s
        self._lock = threading.Lock()
        guard = [sys.executable, "-I", "-S", str(_GUARD), str(grace_s)]
        try:
            self._guard = subprocess.Popen(
                [*guard, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=_environment(),
                start_new_session=True,  # the terminal's Ctrl-C is ours alone
            )
        except OSError as err:
            raise SystemFault(f"{self.name}: cannot be started: {err.strerror or err}") from None
        assert self._guard.stdout is not None
        self.log = ServerLog(self._guard.stdout)
        _running.add(self)
        atexit.register(self.close)

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def exit_code(self) -> int | None:
        """How it ended by itself, negative is the signal that killed it; None while it runs."""
        if self._guard.returncode is None:
            # Not reaped before close: until then its process group cannot become another's.
            look = os.WEXITED | os.WNOHANG | os.WNOWAIT
            done = os.waitid(os.P_PID, self._guard.pid, look)
            if done is None:
                return None
            code = done.si_status if done.si_code == os.CLD_EXITED else -done.si_status
        else:
            code = self._guard.returncode
        return 128 - code if code > 128 else code

    def wait(self, timeout_s: float) -> int | None:
        """The exit code, or None if it still runs after ``timeout_s``."""
        until = time.monotonic() + timeout_s
        while (code := self.exit_code) is None and time.monotonic() < until:
            time.sleep(_LOOK_S)
        return code

    def fault(self, what: str, why: str = "") -> SystemFault:
        """The fault ``what``, with the process's last words.

        How it ended is the reason if it did, else ``why``.
        """
        code = self.wait(0.5)  # a connection breaks a moment before its process has ended
        if code is not None:
            self.log.join(1.0)
            why = _ending(code)
        words = self.log.last_words()
        end = (
            f"its last words: {words}"
            if words
            else "it said nothing: run its command by itself to see why"
        )
        return SystemFault(f"{self.name}: {what}{f': {why}' if why else ''}; {end}")

    def close(self) -> None:
        """End it, with all that it started; returns when it is gone. May be called again."""
        with self._lock:
            atexit.unregister(self.close)
            guard = self._guard
            if guard.returncode is not None:
                return
            assert guard.stdin is not None
            with contextlib.suppress(OSError):
                guard.stdin.close()
            self.wait(self._grace_s + 1.0)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(guard.pid, signal.SIGKILL)
            guard.wait()
            _running.discard(self)
            self.log.join(1.0)


def end_all() -> None:
    """End every process of ours that runs, also one that is only starting; from any thread."""
    for process in tuple(_running):
        process.close()


def _environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_FOREIGN)}
    # A debugger at an abort takes its time, and the last words.
    return kept | {"GGML_NO_BACKTRACE": "1"}


def _ending(code: int) -> str:
    if code == NOT_STARTED:
        return "did not start"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"

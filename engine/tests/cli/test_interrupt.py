from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sluice.cli.interrupt import Interrupt

from .conftest import environment

# A test run may have been started with SIGINT ignored; a shell that starts the command has not.
LISTENING = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"


def interrupted(code: str, *arguments: str) -> tuple[int, str, str, float]:
    """Start ``code``, send SIGINT once it has printed a line; code, out, err, seconds since."""
    with subprocess.Popen(
        [sys.executable, "-P", "-c", LISTENING + code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env=environment(),
    ) as child:
        assert child.stdout is not None
        first = child.stdout.readline()
        sent_s = time.monotonic()
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
        return child.returncode, first + out, err, time.monotonic() - sent_s


def test_a_call_that_never_returns_to_python_is_ended() -> None:
    code, out, err, seconds = interrupted(
        "import time\n"
        "from sluice.cli.interrupt import Interrupt\n"
        "with Interrupt(before=lambda: print('before', flush=True), line='gone'):\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(50)  # resumed after a signal whose handler does not raise\n"
    )
    assert (code, out, err) == (130, "ready\nbefore\n", "sluice: gone\n")
    assert seconds < 10


def test_what_is_held_back_is_finished_first(tmp_path: Path) -> None:
    code, _, err, _ = interrupted(
        "import sys, time\n"
        "from pathlib import Path\n"
        "from sluice.cli.interrupt import Interrupt\n"
        "with Interrupt(before=lambda: 1/0) as interrupt, interrupt.held_back():\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(0.5)\n"
        "    Path(sys.argv[1]).write_text('whole')\n",
        str(tmp_path / "file"),
    )
    assert (code, err) == (130, "sluice: interrupted\n")
    assert (tmp_path / "file").read_text() == "whole"


def test_everything_is_put_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    left: list[int] = []
    with Interrupt(before=lambda: None, leave=left.append):
        pass
    assert signal.getsignal(signal.SIGINT) == before
    assert signal.set_wakeup_fd(-1) == -1
    assert left == []


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupt(before=lambda: None):
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("evidence", [True, False])
def test_the_command(evidence: bool, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    code, out, err, _ = interrupted(
        "import sys, time, types\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from engine_tests_cli import FakeEngine\n"
        "engine = FakeEngine()\n"
        "engine.pieces = ['one\\n'] + ['two'] * 9\n"
        "engine.before_token = lambda step: time.sleep(50 * step)\n"
        "for name in ('sluice.decoding', 'sluice.decoding.session'):\n"
        "    sys.modules[name] = types.ModuleType(name)\n"
        "sys.modules['sluice.decoding.session'].Session = engine.session\n"
        "from sluice.cli.main import main\n"
        "main(sys.argv[2:])\n",
        str(stand_in(tmp_path)),
        *("run", str(tmp_path / "m.gguf"), "-p", "x"),
        *(("--evidence", str(tmp_path / "ev.json")) if evidence else ()),
    )
    said = "sluice: interrupted; no evidence written\n" if evidence else "sluice: interrupted\n"
    assert (code, out, err) == (130, "one\n", said)
    assert not list(tmp_path.glob("*ev.json*"))


def stand_in(folder: Path) -> Path:
    """A folder from which another process can import this folder's conftest."""
    source = Path(__file__).with_name("conftest.py").read_text(encoding="utf-8")
    (folder / "engine_tests_cli.py").write_text(source, encoding="utf-8")
    return folder

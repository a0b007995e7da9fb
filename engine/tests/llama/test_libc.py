from __future__ import annotations

import mmap
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.llama.libc import direct_alignment, run_promptly


def test_what_the_file_system_says_is_what_it_takes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(3 << 20))
    said = direct_alignment(path)
    if said is None:
        pytest.skip("this system does not say")
    if said == 0:
        with pytest.raises(OSError, match="Invalid argument"):
            os.open(path, os.O_RDONLY | os.O_DIRECT)
        return
    assert said & (said - 1) == 0
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        window = memoryview(mmap.mmap(-1, 1 << 21))[said : 2 * said]
        assert os.preadv(fd, [window], said) == said
    finally:
        os.close(fd)


@pytest.mark.parametrize("path", ["/proc/version", "/nonexistent/m.gguf"])
def test_where_nothing_is_said_nothing_is_made_up(path: str) -> None:
    assert not direct_alignment(Path(path))


def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    plain, path = tmp_path / "plain.gguf", tmp_path / os.fsdecode(b"caf\xe9.gguf")
    for one in (plain, path):
        one.write_bytes(bytes(100))
    assert direct_alignment(path) == direct_alignment(plain)


def in_a_thread(function: Callable[[], object]) -> object:
    """What it returns there: a scheduling policy is a thread's own, and this thread keeps its."""
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


linux_only = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="threads have policies"
)


@linux_only
@pytest.mark.parametrize("nice", [0, 3])
def test_a_prompt_thread_is_as_nice_as_before(nice: int) -> None:
    def run() -> tuple[object, int, int, int]:
        before = os.getpriority(os.PRIO_PROCESS, 0) + nice
        os.setpriority(os.PRIO_PROCESS, 0, before)
        took = run_promptly()
        after = os.getpriority(os.PRIO_PROCESS, 0)
        return took, before, after, os.sched_getscheduler(0)

    mine = os.getpriority(os.PRIO_PROCESS, 0)
    took, before, after, policy = in_a_thread(run)  # type: ignore[misc]
    assert isinstance(took, bool)
    assert after == before
    assert policy == os.SCHED_OTHER
    assert os.getpriority(os.PRIO_PROCESS, 0) == mine


@linux_only
def test_another_policy_is_left_alone() -> None:
    def run() -> tuple[bool, int]:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        return run_promptly(), os.sched_getscheduler(0)

    assert in_a_thread(run) == (False, os.SCHED_BATCH)


@pytest.mark.parametrize(("name", "value"), [("machine", "z80"), ("platform", "plan9")])
def test_another_system_is_not_asked(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "machine":
        monkeypatch.setattr("platform.machine", lambda: value)
    else:
        monkeypatch.setattr(sys, "platform", value)
    assert in_a_thread(run_promptly) is False

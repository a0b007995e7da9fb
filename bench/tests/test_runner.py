from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import pytest

from peer import PeerRun
from runner import PeerRunner, Runner, in_turns
from sluice.errors import SystemFault
from worker import Measured, Spec


class Logged:
    """Turns of one token each, and who had them."""

    def __init__(self, name: str, log: list[str], fails_at: int = -1) -> None:
        self.name = name
        self.log = log
        self.left = fails_at

    def begin(self) -> Measured:
        self.log.append(f"{self.name} begins")
        return Measured(load_s=1.0)

    def turn(self) -> Measured:
        self.log.append(self.name)
        self.left -= 1
        return Measured(error="broken") if self.left == -1 else Measured(n_tokens=1, wall_s=2.0)


def test_everybody_has_turns_one_after_the_other() -> None:
    log: list[str] = []
    own, beside = in_turns(Logged("a", log), {"b": Logged("b", log), "c": Logged("c", log)}, 2)
    assert log == ["a begins", "b begins", "c begins", "b", "c", "a", "b", "c", "a"]
    whole = Measured(n_tokens=2, wall_s=4.0, load_s=1.0)
    assert own == whole
    assert beside == {"b": whole, "c": whole}


def test_an_arm_that_fails_ends_the_turns() -> None:
    log: list[str] = []
    own, _ = in_turns(Logged("a", log, fails_at=1), {"b": Logged("b", log)}, 9)
    assert own.error == "broken"
    assert log.count("a") == log.count("b") == 2


@pytest.fixture
def spec(routed_model: Path) -> Spec:
    return Spec(model=str(routed_model), config={"ctx": 256, "threads": 1}, prompt=[5, 6, 7],
                warm=4, turns=3, n=8, twice=False, budget_s=60.0, io_threads=2,
                raw_bytes=1 << 20)  # fmt: skip


def test_a_worker_takes_turns_and_begins_again(spec: Spec) -> None:
    with closing(Runner(spec, 60.0)) as runner:
        for _ in range(2):
            assert runner.begin().load_s > 0
            turns = [runner.turn() for _ in range(spec.turns)]
            assert [turn.n_tokens for turn in turns] == [8] * 3
            assert all(turn.wall_s > 0 and not turn.error for turn in turns)
        assert "too early" in runner.turn().error, "more turns than it was told of"
        assert "too early" in runner.begin().error, "an error stays"


@pytest.mark.parametrize(
    ("code", "timeout_s", "words"),
    [
        ("sys.stderr.write('first\\nlast\\n'); sys.exit(7)", 60.0, "ended with 7: last"),
        ("time.sleep(600)", 0.2, "still running after 0.2 s"),
        ("os.write(1, b'{'); time.sleep(600)", 0.2, "still running after 0.2 s"),
        ("os.close(1); time.sleep(600)", 0.2, "still running after 0.2 s"),
        ("os.write(1, b'{'); os._exit(3)", 60.0, "ended with 3"),
        ("print('hello')", 60.0, "said something else than what it measured: 'hello'"),
        ("print(3)", 60.0, "said something else than what it measured: '3'"),
        ("os.write(1, bytes([255, 10]))", 60.0, "said something else than what it measured"),
    ],
)
def test_what_goes_wrong_with_a_process_is_the_error_from_then_on(
    spec: Spec, code: str, timeout_s: float, words: str
) -> None:
    line = [sys.executable, "-c", f"import os, sys, time; {code}"]
    with closing(Runner(spec, timeout_s, lambda _line: line)) as runner:
        assert not runner.has_failed
        assert runner.begin().error.startswith(words)
        assert runner.turn().error.startswith(words)
        assert runner.has_failed


def test_a_peer_runs_once_in_the_middle_of_the_turns() -> None:
    log: list[str] = []

    def run(n: int) -> PeerRun:
        log.append(str(n))
        return PeerRun(1.0 + n / 100, 5 << 20)

    peer = PeerRunner(run, warm=16, n=64, turns=4)
    own, beside = in_turns(peer, {"b": Logged("b", log)}, 4)
    assert log == ["b begins", "b", "b", "b", "16", "80", "b"]
    assert own.n_tokens == 64
    assert own.wall_s == pytest.approx(0.64)
    assert beside["b"].n_tokens == 4


def test_a_peer_that_fails_or_makes_no_sense_has_an_error() -> None:
    def fails(_n: int) -> PeerRun:
        raise SystemFault("BENCH_PEER: peer ended with 1")

    assert PeerRunner(fails, warm=1, n=2, turns=1).turn().error == "BENCH_PEER: peer ended with 1"
    same = PeerRunner(lambda _n: PeerRun(1.0, 1), warm=1, n=2, turns=1)
    assert same.turn().error == "its longer run was not the slower one"

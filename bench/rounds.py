"""Runs every arm once a round, in turns with what it is compared to.

A virtual machine is faster in one minute than in the next. So a ratio is not
between two runs that follow each other: the arm, resident llama.cpp and the disk alone are three
processes that take turns of a few tokens, a fraction of a second each, and what slows one of
them slows all.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from arms import MIB, Arm, Budgets
from peer import PeerRun, peer_command, run_peer
from qwen35b import NAME, prompt_ids
from report import Round, Taken
from runner import PeerRunner, Runner, in_turns
from sluice.gguf.header import Header
from sluice.streaming.memory import available_bytes
from sluice.streaming.plan import StreamingPlan
from sluice.targets.cgroup import MemoryCgroup
from worker import Spec

BESIDE = ("raw", "resident")
"""Arms that every other one is measured in turns with."""

N_PROMPT = 32
PROMPT_CHARACTERS = 400
"""No more tokens than that, whatever the vocabulary."""
UBATCH = 64
TURN = 16
"""Tokens of a turn, at most. In shorter ones what the others left in the processor's caches counts:
of 8, a third cached with read-ahead is 2% further behind resident than of 48.
"""
BUDGET_S = 90.0
TIMEOUT_S = 4 * BUDGET_S
RAW_BYTES = 2 << 30
LIMIT_SHARE = 3
"""The memory limit is the file's size by this."""
SPARE_BYTES = 1 << 30

TEXT = (__doc__ or "")[:PROMPT_CHARACTERS]
"""A prompt for models that know a language."""


@dataclass(frozen=True, slots=True)
class How:
    """How arms are run: turns and their tokens, tokens decoded before, threads, lanes."""

    turns: int
    turn_tokens: int
    warm: int
    rounds: int
    threads: int
    io_threads: int
    peer: str

    @property
    def n(self) -> int:
        """Tokens timed of an arm."""
        return self.turns * self.turn_tokens


def turns_of(n: int) -> tuple[int, int]:
    """How many turns ``n`` tokens or a few more are timed in, and the tokens of each."""
    turns = -(-n // TURN)
    return turns, -(-n // turns)


@dataclass(frozen=True, slots=True)
class Subject:
    """The model that is run: its header, and what streaming it needs without and with the head."""

    header: Header
    plan: StreamingPlan
    plan_head: StreamingPlan

    @property
    def path(self) -> Path:
        """Its file, or its first shard."""
        return self.header.path

    @property
    def file_bytes(self) -> int:
        """Bytes of all its files."""
        return self.header.file_bytes

    @property
    def limit_bytes(self) -> int:
        """Memory of the limited arms."""
        return self.file_bytes // LIMIT_SHARE

    @property
    def budgets(self) -> Budgets:
        """The cache sizes of the arms."""
        plain, head = self.plan.total_page_bytes, self.plan_head.total_page_bytes
        return Budgets(plain // 3 // MIB, -(-plain // MIB), head // 3 // MIB, -(-head // MIB))


def why_not_in_turns(subject: Subject) -> str:
    """Why there is no memory for the resident model beside an arm; empty where there is."""
    available, needed = available_bytes(), 2 * subject.file_bytes + SPARE_BYTES
    if available is None or available >= needed:
        return ""
    return (f"{available / MIB:.0f} MiB of memory are available, and {needed / MIB:.0f} would hold"
            " the model twice: arms follow each other, and ratios are within a round")  # fmt: skip


def measure(
    subject: Subject, arms: Sequence[Arm], how: How, *, takes_turns: bool
) -> Iterator[Round]:
    """The rounds, each with every arm in a random order, those of a memory limit last."""
    order = random.Random(0)
    for number in range(1, how.rounds + 1):
        here: dict[str, Taken] = {}
        for arm, taken in _round(subject, arms, how, order, takes_turns=takes_turns):
            here[arm.name] = taken
            where = f"round {number} of {how.rounds}, {len(here)} of {len(arms)}"
            print(f"{where}: {arm.label}: {_words(arm, taken)}", file=sys.stderr)
        yield here


def _round(
    subject: Subject, arms: Sequence[Arm], how: How, order: random.Random, *, takes_turns: bool
) -> Iterator[tuple[Arm, Taken]]:
    free = [arm for arm in arms if not arm.limited]
    limited = [arm for arm in arms if arm.limited]
    others = [arm for arm in free if takes_turns and arm.name in BESIDE]
    with contextlib.ExitStack() as stack:
        beside: dict[str, Runner] = {}
        for arm in order.sample(free, len(free)):
            for other in others:
                if other.name not in beside or beside[other.name].has_failed:
                    runner = Runner(_spec(subject, other, how), TIMEOUT_S)
                    stack.callback(runner.close)
                    beside[other.name] = runner
            yield arm, _taken(subject, arm, how, beside)
    # Nobody else may keep the file's pages in memory now.
    for arm in order.sample(limited, len(limited)):
        yield arm, _limited(subject, arm, how)


def _taken(subject: Subject, arm: Arm, how: How, beside: Mapping[str, Runner]) -> Taken:
    if arm.kind == "peer":
        run = partial(_run_peer, subject.path, arm, how)
        peer = PeerRunner(run, warm=how.warm, n=how.n, turns=how.turns)
        return Taken(*in_turns(peer, beside, how.turns))
    with contextlib.closing(Runner(_spec(subject, arm, how), TIMEOUT_S)) as runner:
        return Taken(*in_turns(runner, beside, how.turns))


def _limited(subject: Subject, arm: Arm, how: How) -> Taken:
    # Pages that another process brought into the page cache would be free of charge.
    for path in subject.header.paths:
        _forget(path)
    with (
        MemoryCgroup(subject.limit_bytes) as group,
        contextlib.closing(Runner(_spec(subject, arm, how), TIMEOUT_S, group.command)) as runner,
    ):
        own, _ = in_turns(runner, {}, how.turns)
    own.group_peak_bytes = group.peak_bytes
    if own.error and group.killed:
        own.error = f"killed: {subject.limit_bytes / MIB:.0f} MiB of memory were not enough"
    return Taken(own)


def _run_peer(model: Path, arm: Arm, how: How, n: int) -> PeerRun:
    return run_peer(peer_command(how.peer, model=model, n=n, cache_mb=arm.cache_mb), TIMEOUT_S)


def _spec(subject: Subject, arm: Arm, how: How) -> Spec:
    config: dict[str, Any] | None = None
    if arm.kind == "engine":
        common = {"ctx": 512 + how.warm + 3 * how.n, "ubatch": UBATCH, "threads": how.threads,
                  "io_threads": how.io_threads}  # fmt: skip
        config = {**common, **arm.changes}
    prompt: list[int] | str = TEXT
    if subject.path.name.startswith(NAME):
        prompt = prompt_ids(N_PROMPT)
    return Spec(
        model=str(subject.path), config=config, prompt=prompt, warm=how.warm, turns=how.turns,
        n=how.turn_tokens, twice=arm.is_cached, budget_s=BUDGET_S / how.turns,
        io_threads=how.io_threads, raw_bytes=RAW_BYTES // how.turns,
    )  # fmt: skip


def _words(arm: Arm, taken: Taken) -> str:
    own = taken.own
    if own.error:
        words = own.error
    elif arm.kind == "raw":
        words = f"{own.raw_bytes / own.wall_s / MIB:.0f} MiB/s"
    else:
        words = f"{own.n_tokens / own.wall_s:.2f} tok/s"
    lost = [f"{name} beside it: {m.error}" for name, m in taken.beside.items() if m.error]
    return "; ".join([words, *lost])


def _forget(path: Path) -> None:
    """Take the file out of the page cache."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)  # what was not written yet would stay
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)

"""How fast experts stream, and how far that is from what the disk and the processor give.

Every round runs every arm once, in a random order and in a process of its own, and ratios are
between measurements of the same round. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arms import MIB, Arm, Budgets, all_arms, chosen
from cache import cache_folder
from machine import QUIET, machine
from peer import check_template, peer_command, run_peer
from plot import draw
from qwen35b import NAME, prompt_ids, qwen35b_model
from report import bars, summary, table
from sluice.bundled import model_path
from sluice.config import Config
from sluice.doctor.build import examine_build
from sluice.errors import RequestError, SluiceError, SystemFault
from sluice.gguf.header import Header
from sluice.gguf.shards import read_model
from sluice.streaming.layout import expert_layout
from sluice.streaming.plan import StreamingPlan, streaming_plan
from sluice.targets.cgroup import MemoryCgroup, why_no_cgroup
from sluice.telemetry.files import write_whole
from worker import Measured, Spec

SCHEMA = "sluice-bench/2"
ROUNDS = 3
N = 64
WARM = 16
N_PROMPT = 32
UBATCH = 64
BUDGET_S = 90.0
RAW_BYTES = 2 << 30
LIMIT_SHARE = 3
"""The memory limit is the file's size by this."""

WORKER = Path(__file__).with_name("worker.py")
TEXT = (__doc__ or "") * 2
"""A prompt for models that know a language."""


@dataclass(frozen=True, slots=True)
class How:
    """How arms are run: tokens timed and decoded before, rounds, compute threads, lanes."""

    n: int
    warm: int
    rounds: int
    threads: int
    io_threads: int
    peer: str


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


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table and the bars, write JSON and the plot."""
    asked = _arguments(argv)
    try:
        return _bench(asked)
    except SluiceError as err:
        print(f"bench: error: {err}", file=sys.stderr)
        return err.exit_code
    except KeyboardInterrupt:
        return 130


def _bench(asked: argparse.Namespace) -> int:
    template = os.environ.get("BENCH_PEER", "")
    threads = asked.threads or len(os.sched_getaffinity(0))
    how = How(asked.n, WARM, asked.rounds, threads, asked.io_threads,
              check_template(template) if template else "")  # fmt: skip
    path = qwen35b_model(cache_folder()) if asked.model is None else model_path(str(asked.model))
    subject = _subject(path)
    arms = _arms(subject, how, asked.only)
    why_no_limit = ""
    if any(arm.limited for arm in arms):
        why_no_limit = why_no_cgroup() or ""
        if why_no_limit:
            arms = [arm for arm in arms if not arm.limited]
            print(f"skipped under a memory limit: {why_no_limit}", file=sys.stderr)
    about = machine(threads)
    if about["load"] > QUIET:
        print(f"the machine is not quiet (load {about['load']:.1f}): these figures are worth"
              " little", file=sys.stderr)  # fmt: skip
    rounds = _measure(subject, arms, how)
    lines = _head_lines(subject, how)
    print("\n".join(["", *lines, "", *table(arms, rounds), ""]))
    found = bars(rounds, why_no_limit)
    print("\n".join(bar.line for bar in found))
    document = {
        "schema": SCHEMA,
        "machine": about,
        "build": dataclasses.asdict(examine_build()),
        "how": dataclasses.asdict(how),
        "model": {
            "file": path.name, "file_bytes": subject.file_bytes,
            "expert_bytes": subject.plan.total_bytes, "token_bytes": subject.plan.token_bytes,
            "limit_bytes": subject.limit_bytes,
        },
        "skipped": why_no_limit,
        "arms": [
            dataclasses.asdict(arm)
            | {"rounds": [dataclasses.asdict(r[arm.name]) for r in rounds if arm.name in r],
               "summary": summary(arm, rounds).as_dict()}
            for arm in arms
        ],
        "bars": [dataclasses.asdict(bar) | {"holds": bar.holds} for bar in found],
    }  # fmt: skip
    asked.json.parent.mkdir(parents=True, exist_ok=True)
    write_whole(asked.json, json.dumps(document, indent=1) + "\n")
    print(f"\nwritten to {asked.json}")
    asked.plot.parent.mkdir(parents=True, exist_ok=True)
    try:
        draw(asked.plot, lines[0], arms, rounds)
        print(f"drawn in {asked.plot}")
    except SystemFault as err:
        print(err)
    return 0


def _subject(path: Path) -> Subject:
    header = read_model(path)
    plans = [
        streaming_plan(header, expert_layout(header, with_head=with_head))
        for with_head in (False, header.n_nextn > 0)
    ]
    return Subject(header, *plans)


def _arms(subject: Subject, how: How, only: Sequence[str]) -> list[Arm]:
    arms = all_arms(subject.budgets, how.peer)
    if not subject.header.n_nextn:
        arms = [arm for arm in arms if not arm.changes.get("mtp")]
    try:
        return chosen(arms, only)
    except KeyError as err:
        names = ", ".join(arm.name for arm in arms)
        raise RequestError(f"--only {err.args[0]}: no such arm; there are {names}") from None


def _head_lines(subject: Subject, how: How) -> list[str]:
    threads = f"{how.threads} {'thread' if how.threads == 1 else 'threads'}"
    return [
        f"{subject.path.name}: {threads}, {how.io_threads} lanes, {how.n} tokens timed after"
        f" {how.warm}, {how.rounds} {'round' if how.rounds == 1 else 'rounds'}",
        f"{subject.file_bytes / MIB:.0f} MiB, {subject.plan.total_bytes / MIB:.0f} of them experts,"
        f" {subject.plan.token_bytes / MIB:.1f} routed to by a token; a third cached is"
        f" {subject.budgets.third} MiB, the memory limit {subject.limit_bytes / MIB:.0f} MiB",
    ]


def _measure(subject: Subject, arms: Sequence[Arm], how: How) -> list[dict[str, Measured]]:
    rounds: list[dict[str, Measured]] = []
    order = random.Random(0)
    for number in range(1, how.rounds + 1):
        waiting = list(arms)
        order.shuffle(waiting)
        rounds.append({})
        for done, arm in enumerate(waiting, 1):
            measured = _run(subject, arm, how)
            rounds[-1][arm.name] = measured
            print(f"round {number} of {how.rounds}, {done} of {len(waiting)}: {arm.label}:"
                  f" {_words(arm, measured)}", file=sys.stderr)  # fmt: skip
    return rounds


def _words(arm: Arm, measured: Measured) -> str:
    if measured.error:
        return measured.error
    if arm.kind == "raw":
        return f"{measured.raw_mib_s:.0f} MiB/s"
    return f"{measured.n_tokens / measured.wall_s:.2f} tok/s"


def _run(subject: Subject, arm: Arm, how: How) -> Measured:
    if arm.kind == "peer":
        return _run_peer(subject.path, arm, how)
    if not arm.limited:
        return _run_worker(subject, arm, how, None)
    # Pages that another process brought into the page cache would be free of charge.
    for path in subject.header.paths:
        _forget(path)
    with MemoryCgroup(subject.limit_bytes) as group:
        measured = _run_worker(subject, arm, how, group)
    measured.group_peak_bytes = group.peak_bytes
    if measured.error and group.killed:
        measured.error = f"killed: {subject.limit_bytes / MIB:.0f} MiB of memory were not enough"
    return measured


def _run_worker(subject: Subject, arm: Arm, how: How, group: MemoryCgroup | None) -> Measured:
    config: dict[str, Any] | None = None
    if arm.kind == "engine":
        common = {"ctx": 512 + how.warm + how.n, "ubatch": UBATCH, "threads": how.threads,
                  "io_threads": how.io_threads}  # fmt: skip
        config = {**common, **arm.changes}
    prompt: list[int] | str = TEXT
    if subject.path.name.startswith(NAME):
        prompt = prompt_ids(N_PROMPT)
    spec = Spec(
        model=str(subject.path), config=config, prompt=prompt, warm=how.warm, n=how.n,
        twice=arm.is_cached, budget_s=BUDGET_S, io_threads=how.io_threads, raw_bytes=RAW_BYTES,
    )  # fmt: skip
    line = [sys.executable, str(WORKER), json.dumps(dataclasses.asdict(spec))]
    if group is not None:
        line = group.command(line)
    timeout_s = 4 * BUDGET_S
    try:
        done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return Measured(error=f"still running after {timeout_s:.0f} s")
    if done.returncode:
        said = done.stderr.strip().splitlines()
        return Measured(error=f"ended with {done.returncode}{': ' + said[-1] if said else ''}")
    return Measured(**json.loads(done.stdout))


def _run_peer(model: Path, arm: Arm, how: How) -> Measured:
    runs = []
    try:
        for n in (how.warm, how.warm + how.n):
            command = peer_command(how.peer, model=model, n=n, cache_mb=arm.cache_mb)
            runs.append(run_peer(command, 4 * BUDGET_S))
    except SystemFault as err:
        return Measured(error=str(err))
    wall_s = runs[1].wall_s - runs[0].wall_s
    peak = max(run.peak_rss_bytes for run in runs)
    if wall_s <= 0:
        return Measured(error="its longer run was not the slower one", peak_rss_bytes=peak)
    return Measured(n_tokens=how.n, wall_s=wall_s, peak_rss_bytes=peak, maxrss_bytes=peak)


def _forget(path: Path) -> None:
    """Take the file out of the page cache."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)  # what was not written yet would stay
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of every arm (%(default)s)")
    parser.add_argument("--n", type=int, default=N, help="tokens timed (%(default)s)")
    parser.add_argument("-t", "--threads", type=int, default=0, help="0 takes every core")
    parser.add_argument("--io-threads", type=int, default=Config(model="-").io_threads,
                        help="lanes (%(default)s)")  # fmt: skip
    parser.add_argument("--only", nargs="+", default=[], metavar="ARM", help="these arms")
    parser.add_argument("--model", type=Path, help="a gguf in the place of the synthetic one")
    parser.add_argument("--json", type=Path, default=Path("reports/bench.json"), help="%(default)s")
    parser.add_argument("--plot", type=Path, default=Path("reports/bench.png"), help="%(default)s")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())

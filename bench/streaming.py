"""How fast experts stream, and how far that is from what the disk and the processor give.

Every round runs every arm once, in a random order, in a process of its own, and in turns with what
it is compared to (see :mod:`rounds`). Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from arms import MIB, Arm, all_arms, chosen
from cache import cache_folder
from machine import QUIET, machine
from peer import check_template
from plot import draw
from qwen35b import qwen35b_model
from report import bars, summary, table
from rounds import How, Subject, measure, turns_of, why_not_in_turns
from sluice.bundled import model_path
from sluice.config import Config
from sluice.doctor.build import examine_build
from sluice.errors import RequestError, SluiceError, SystemFault
from sluice.gguf.shards import read_model
from sluice.streaming.layout import expert_layout
from sluice.streaming.plan import streaming_plan
from sluice.targets.cgroup import why_no_cgroup
from sluice.telemetry.files import write_whole

SCHEMA = "sluice-bench/3"
ROUNDS = 3
N = 64
WARM = 16


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
    for flag, given in (("--rounds", asked.rounds), ("--n", asked.n)):
        if given < 1:
            raise RequestError(f"{flag} {given}: must be 1 or more")
    template = os.environ.get("BENCH_PEER", "")
    threads = asked.threads or len(os.sched_getaffinity(0))
    how = How(*turns_of(asked.n), WARM, asked.rounds, threads, asked.io_threads,
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
    why_alone = why_not_in_turns(subject)
    if why_alone:
        print(why_alone, file=sys.stderr)
    rounds = list(measure(subject, arms, how, takes_turns=not why_alone))
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
        "not_in_turns": why_alone,
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

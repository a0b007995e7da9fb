"""What the numerics profiles cost: prefill and decode, plain and with MTP. `make bench-numerics`.

Every round runs every arm once, in a random order, and a profile's rate is divided by the rate
of `default` in the same round: a machine that is slow for a while is slow for all. Medians,
with the smallest and the largest. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from cache import cache_folder
from machine import machine
from sluice.bundled import BUNDLED, model_path
from sluice.config import Config, Numerics
from sluice.decoding.session import Session
from sluice.doctor.build import examine_build
from sluice.telemetry.files import write_whole
from synthetic import synthetic_model

SCHEMA = "sluice-bench/1"
PROFILES: tuple[Numerics, ...] = get_args(Numerics)
DRAFT = 3
ROUNDS = 9
PREFILL = 512
AT_LEAST_S = 1.0
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
TEXT = Path(__file__).read_text(encoding="utf-8")
"""The bundled model was trained on Python source: it gets some."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One thing that is timed."""

    numerics: Numerics
    mtp: bool

    @property
    def label(self) -> str:
        """For tables."""
        return f"--mtp --draft {DRAFT}" if self.mtp else "plain"


@dataclass(slots=True)
class Timed:
    """Rates of an arm, tokens a second, one entry a round; ``ratios`` are to default's."""

    prefill: list[float] = field(default_factory=list)
    decode: list[float] = field(default_factory=list)
    prefill_ratios: list[float] = field(default_factory=list)
    decode_ratios: list[float] = field(default_factory=list)
    n_drafted: int = 0
    n_accepted: int = 0


@dataclass(frozen=True, slots=True)
class How:
    """How arms are timed: compute threads, rounds, tokens generated, and by which clock."""

    threads: int
    rounds: int
    n: int
    clock: str


def main(argv: Sequence[str] | None = None) -> int:
    """Time, print a table, write JSON."""
    asked = _arguments(argv)
    models = {BUNDLED: model_path(BUNDLED)}
    if not asked.bundled_only:
        models["synthetic, 0.6 GB"] = synthetic_model(cache_folder())
    threads = asked.threads or len(os.sched_getaffinity(0))
    if asked.clock == "cpu" and threads > 1:
        print("--clock cpu: counts one thread's time only; add -t 1", file=sys.stderr)
        return 2
    how = How(threads, asked.rounds, asked.n, asked.clock)
    timed = {name: bench(path, how) for name, path in models.items()}
    for name, arms in timed.items():
        counted = f"{threads} {'thread' if threads == 1 else 'threads'}, {asked.clock} time"
        print(f"\n{name}: {PREFILL} prompt tokens, {asked.n} generated, {counted},"
              f" {asked.rounds} rounds")  # fmt: skip
        print("\n".join(table(arms)))
    document = {
        "schema": SCHEMA,
        "machine": machine(threads),
        "build": dataclasses.asdict(examine_build()),
        "how": dataclasses.asdict(how),
        "n_prompt": PREFILL,
        "draft": DRAFT,
        "models": {
            name: [{"numerics": a.numerics, "mtp": a.mtp} | dataclasses.asdict(t)
                   for a, t in arms.items()]
            for name, arms in timed.items()
        },
    }  # fmt: skip
    asked.json.parent.mkdir(parents=True, exist_ok=True)
    write_whole(asked.json, json.dumps(document, indent=1) + "\n")
    print(f"\nwritten to {asked.json}")
    return 0


def bench(path: Path, how: How) -> dict[Arm, Timed]:
    """Time every arm, round by round."""
    arms = {Arm(profile, mtp): Timed() for mtp in (False, True) for profile in PROFILES}
    order = random.Random(0)
    for number in range(how.rounds + 1):
        waiting = list(arms)
        order.shuffle(waiting)
        rates = {arm: _run(path, arm, arms[arm], how) for arm in waiting}
        if number == 0:
            for arm in arms:  # the first round warms the page cache up
                arms[arm] = Timed()
            continue
        for arm, (prefill, decode) in rates.items():
            base = rates[Arm("default", arm.mtp)]
            arms[arm].prefill.append(prefill)
            arms[arm].decode.append(decode)
            arms[arm].prefill_ratios.append(prefill / base[0])
            arms[arm].decode_ratios.append(decode / base[1])
        print(f"{path.name}: round {number} of {how.rounds}", file=sys.stderr)
    return arms


def table(arms: dict[Arm, Timed]) -> Iterator[str]:
    """Rows of Markdown."""
    heads = ["", "numerics", "prefill tok/s", "to default", "decode tok/s", "to default",
             "to plain", "accepted"]  # fmt: skip
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    for arm, timed in arms.items():
        plain = arms[Arm(arm.numerics, False)]
        to_plain = [mine / its for mine, its in zip(timed.decode, plain.decode, strict=True)]
        accepted = f"{timed.n_accepted / timed.n_drafted:.0%}" if timed.n_drafted else ""
        cells = [
            arm.label,
            arm.numerics,
            _spread(timed.prefill, 0),
            _spread(timed.prefill_ratios),
            _spread(timed.decode, 0 if min(timed.decode) > 200 else 1),
            _spread(timed.decode_ratios),
            _spread(to_plain) if arm.mtp else "",
            accepted,
        ]
        yield f"| {' | '.join(cells)} |"


def _run(path: Path, arm: Arm, timed: Timed, how: How) -> tuple[float, float]:
    """Tokens a second of the prompt and of decoding, over generations of a second or more."""
    config = Config(
        model=str(path), n=how.n, ctx=PREFILL + how.n + 64, threads=how.threads,
        mtp=arm.mtp, draft=DRAFT, numerics=arm.numerics,
    )  # fmt: skip
    clock = CLOCKS[how.clock]
    prefill_s = decode_s = 0.0
    n_prompt = n_decoded = 0
    with Session(config) as session:
        ids = _prompt(session, path)
        session.generate(ids[:32], n=8, record=False).run()
        while prefill_s + decode_s < AT_LEAST_S:
            generation = session.generate(ids, record=False)
            began = clock()
            next(generation, None)  # the first token is the prompt's
            first = clock()
            generation.run()
            prefill_s += first - began
            decode_s += clock() - first
            metrics = generation.metrics
            n_prompt += metrics.n_prompt
            n_decoded += metrics.n_generated - 1
            timed.n_drafted += metrics.n_drafted
            timed.n_accepted += metrics.n_accepted
    return n_prompt / prefill_s, n_decoded / decode_s


def _prompt(session: Session, path: Path) -> list[int]:
    if path.name.startswith("sluice-synthetic"):
        return [1 + i * 7919 % 8191 for i in range(PREFILL)]
    ids = session.tokenize(TEXT)
    return (ids * -(-PREFILL // len(ids)))[:PREFILL]


def _spread(values: list[float], digits: int = 2) -> str:
    low, middle, high = min(values), statistics.median(values), max(values)
    if low == high:
        return f"{middle:.{digits}f}"
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make bench-numerics", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of every arm (%(default)s)")
    parser.add_argument("--n", type=int, default=192, help="tokens generated (%(default)s)")
    parser.add_argument("-t", "--threads", type=int, default=0, help="0 takes every core")
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall",
                        help="cpu, with -t 1, where others work, too (%(default)s)")  # fmt: skip
    parser.add_argument("--bundled-only", action="store_true", help="without the synthetic model")
    parser.add_argument(
        "--json", type=Path, default=Path("reports/bench-numerics.json"), help="%(default)s"
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())

"""One measurement in a process of its own, so that the peak of its memory is its own.

``worker.py SPEC`` takes a :class:`Spec` as JSON and prints a :class:`Measured` as one line of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import resource
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rawdisk import raw_rate
from sluice.config import Config
from sluice.decoding.session import Session
from sluice.errors import SluiceError, SystemFault
from sluice.telemetry.metrics import Metrics

TOKENS_MIN = 8
"""Fewer than this are no measurement, however slow they are."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What to measure.

    Args:
        model: the gguf.
        config: settings of the run; ``None`` measures the disk alone.
        prompt: token ids, or text.
        warm: tokens decoded before the clock starts.
        n: tokens timed.
        twice: run the same generation once before, so that a cache holds what it will need.
        io_threads: lanes of the disk alone, ``raw_bytes`` what they read.
        budget_s: time after which a slow run may end with fewer tokens.
    """

    model: str
    config: dict[str, Any] | None
    prompt: list[int] | str
    warm: int
    n: int
    twice: bool
    budget_s: float
    io_threads: int
    raw_bytes: int


@dataclass(slots=True)
class Measured:
    """One run of one arm; ``error`` says why there is nothing else.

    ``reads`` holds the differences of every :class:`~sluice.telemetry.metrics.ReadCounter`
    field over the timed tokens, the target's decodes and the head's together. ``raw_mib_s`` is
    of the disk alone. ``peak_rss_bytes`` is the process's own (VmHWM), pages of mapped files
    included; ``group_peak_bytes`` its control group's.
    """

    error: str = ""
    n_tokens: int = 0
    wall_s: float = 0.0
    load_s: float = 0.0
    n_drafted: int = 0
    n_accepted: int = 0
    reads: dict[str, float] = field(default_factory=dict)
    raw_mib_s: float = 0.0
    peak_rss_bytes: int = 0
    maxrss_bytes: int = 0
    group_peak_bytes: int = 0
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Mark:
    """The counters after a decode."""

    at_s: float
    n_tokens: int
    n_drafted: int
    n_accepted: int
    reads: Counter[str]


def main(line: str) -> int:
    """Measure as ``line`` says, print the result."""
    spec = Spec(**json.loads(line))
    measured = Measured()
    try:
        if spec.config is None:
            measured.raw_mib_s = raw_rate(Path(spec.model), spec.io_threads, spec.raw_bytes)
        else:
            _measure(spec, measured)
    except SluiceError as err:
        measured.error = str(err)
    measured.maxrss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    measured.peak_rss_bytes = _peak_rss() or measured.maxrss_bytes
    print(json.dumps(dataclasses.asdict(measured)))
    return 0


def _measure(spec: Spec, measured: Measured) -> None:
    config = Config(model=spec.model).replace(**spec.config or {})
    with Session(config, warn=measured.warnings.append) as session:
        measured.load_s = session.load_s
        if spec.twice:
            _timed(session, spec)
        begin, end = _timed(session, spec)
    measured.n_tokens = end.n_tokens - begin.n_tokens
    measured.wall_s = end.at_s - begin.at_s
    measured.n_drafted = end.n_drafted - begin.n_drafted
    measured.n_accepted = end.n_accepted - begin.n_accepted
    measured.reads = {name: end.reads[name] - begin.reads[name] for name in end.reads}


def _timed(session: Session, spec: Spec) -> tuple[_Mark, _Mark]:
    """The counters before and after the timed tokens, each at the end of a decode.

    A verify decode gives several tokens at once: what counts is what decodes gave, and not
    where the generation stands within a group.
    """
    began = time.perf_counter()
    group = session.config.rollback_width + 1
    generation = session.generate(spec.prompt, n=spec.warm + spec.n + 2 * group, record=False)
    begin: _Mark | None = None
    n_decodes = 0
    with contextlib.closing(generation):
        for _ in generation:
            if generation.metrics.n_decodes == n_decodes:
                continue
            n_decodes = generation.metrics.n_decodes
            mark = _mark(generation.metrics)
            elapsed_s = mark.at_s - began
            if begin is None:
                if mark.n_tokens >= spec.warm or elapsed_s > spec.budget_s / 3:
                    begin = mark
                continue
            done = mark.n_tokens - begin.n_tokens
            if done >= spec.n or (elapsed_s > spec.budget_s and done >= TOKENS_MIN):
                return begin, mark
    raise SystemFault(f"the generation ended after {len(generation.ids)} tokens, too early")


def _mark(metrics: Metrics) -> _Mark:
    reads: Counter[str] = Counter()
    for counter in (metrics.decode, metrics.head):
        reads.update(dataclasses.asdict(counter))
    return _Mark(
        time.perf_counter(),
        metrics.n_decodes + metrics.n_accepted,
        metrics.n_drafted,
        metrics.n_accepted,
        reads,
    )


def _peak_rss() -> int:
    # ru_maxrss starts from what the parent had when it made this process; this one does not.
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

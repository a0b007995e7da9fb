"""Measures one arm in a process of its own, so that the peak of its memory is its own.

``worker.py SPEC`` takes a :class:`Spec` as JSON. Then, for every line of its input, it prints a
:class:`Measured` as one line: after ``begin`` it stands where the clock may start, after ``turn``
it has measured a turn. Between its turns it sleeps, so that others can have theirs.
"""

from __future__ import annotations

import dataclasses
import json
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rawdisk import RawDisk
from sluice.config import Config
from sluice.decoding.generation import Generation
from sluice.decoding.session import Session
from sluice.errors import SluiceError, SystemFault
from sluice.telemetry.metrics import Metrics

BEGIN, TURN = "begin", "turn"

TOKENS_MIN = 2
"""Fewer than this are no turn, however slow they are."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What to measure.

    Args:
        model: the gguf.
        config: settings of the run; ``None`` measures the disk alone.
        prompt: token ids, or text.
        warm: tokens decoded before the first turn.
        turns: at most, after a ``begin``.
        n: tokens timed in a turn.
        twice: run the same generation once before, so that a cache holds what it will need.
        io_threads: lanes of the disk alone, ``raw_bytes`` what they read in a turn.
        budget_s: time after which a slow turn may end with fewer tokens.
    """

    model: str
    config: dict[str, Any] | None
    prompt: list[int] | str
    warm: int
    turns: int
    n: int
    twice: bool
    budget_s: float
    io_threads: int
    raw_bytes: int


@dataclass(slots=True)
class Measured:
    """Some turns of one arm; ``error`` says why there is nothing else.

    ``reads`` holds the differences of every :class:`~sluice.telemetry.metrics.ReadCounter`
    field over the timed tokens, the target's decodes and the head's together. ``raw_bytes`` are
    of the disk alone. ``peak_rss_bytes`` is the process's own (VmHWM), pages of mapped files
    included; ``maxrss_bytes`` is what ``getrusage`` says of it, ``group_peak_bytes`` its control
    group's.
    """

    error: str = ""
    n_tokens: int = 0
    wall_s: float = 0.0
    load_s: float = 0.0
    n_drafted: int = 0
    n_accepted: int = 0
    reads: dict[str, float] = field(default_factory=dict)
    raw_bytes: int = 0
    peak_rss_bytes: int = 0
    maxrss_bytes: int = 0
    group_peak_bytes: int = 0
    warnings: list[str] = field(default_factory=list)

    def add(self, more: Measured) -> None:
        """Count another turn in."""
        self.error = self.error or more.error
        for name in ("n_tokens", "wall_s", "load_s", "n_drafted", "n_accepted", "raw_bytes"):
            setattr(self, name, getattr(self, name) + getattr(more, name))
        for name in ("peak_rss_bytes", "maxrss_bytes", "group_peak_bytes"):
            setattr(self, name, max(getattr(self, name), getattr(more, name)))
        for name, value in more.reads.items():
            self.reads[name] = self.reads.get(name, 0) + value
        self.warnings = more.warnings or self.warnings


class Turns(Protocol):
    """What an arm does in its turns."""

    def begin(self) -> Measured:
        """Go where the clock may start; :attr:`Measured.load_s` of what was loaded for it."""

    def turn(self) -> Measured:
        """Measure a turn."""


@dataclass(frozen=True, slots=True)
class _Mark:
    """The counters after a decode."""

    at_s: float
    n_tokens: int
    n_drafted: int
    n_accepted: int
    reads: Counter[str]


def main(line: str) -> int:
    """Measure as ``line`` says, as often as the input says."""
    spec = Spec(**json.loads(line))
    try:
        if spec.config is None:
            _serve(_Disk(spec))
        else:
            warnings: list[str] = []
            config = Config(model=spec.model).replace(**spec.config)
            with Session(config, warn=warnings.append) as session:
                _serve(_Tokens(session, spec), warnings)
    except SluiceError as err:
        _say(Measured(error=str(err)))
    return 0


def _serve(turns: Turns, warnings: list[str] | None = None) -> None:
    for line in sys.stdin:
        measured = {BEGIN: turns.begin, TURN: turns.turn}[line.strip()]()
        measured.warnings = list(warnings or ())
        _say(measured)


def _say(measured: Measured) -> None:
    measured.maxrss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    measured.peak_rss_bytes = _peak_rss() or measured.maxrss_bytes
    print(json.dumps(dataclasses.asdict(measured)), flush=True)


class _Disk:
    """Reads with nothing computed between them."""

    def __init__(self, spec: Spec) -> None:
        self._disk = RawDisk(Path(spec.model), spec.io_threads)
        self._turn_bytes = spec.raw_bytes

    def begin(self) -> Measured:
        return Measured()

    def turn(self) -> Measured:
        read = self._disk.read(self._turn_bytes)
        return Measured(raw_bytes=read.read_bytes, wall_s=read.wall_s)


class _Tokens:
    """Decodes."""

    def __init__(self, session: Session, spec: Spec) -> None:
        self._session = session
        self._spec = spec
        self._generation: Generation | None = None
        self._decodes: Iterator[_Mark] = iter(())

    def begin(self) -> Measured:
        if self._spec.twice and self._generation is None:
            self._warm_up()
            for _ in range(self._spec.turns):
                self.turn()
        self._warm_up()
        return Measured(load_s=self._session.load_s)

    def turn(self) -> Measured:
        began = time.perf_counter()
        # Not timed: somebody else's turn has left nothing of this in the processor's caches.
        begin = end = next(self._decodes)
        while (done := end.n_tokens - begin.n_tokens) < self._spec.n:
            is_late = time.perf_counter() - began > self._spec.budget_s
            if is_late and done >= TOKENS_MIN:
                break
            end = next(self._decodes)
        return Measured(
            n_tokens=done,
            wall_s=end.at_s - begin.at_s,
            n_drafted=end.n_drafted - begin.n_drafted,
            n_accepted=end.n_accepted - begin.n_accepted,
            reads={name: end.reads[name] - begin.reads[name] for name in end.reads},
        )

    def _warm_up(self) -> None:
        if self._generation is not None:
            self._generation.close()
        spec, group = self._spec, self._session.config.rollback_width + 1
        n = spec.warm + spec.turns * (spec.n + 2 * group) + group
        self._generation = self._session.generate(spec.prompt, n=n, record=False)
        self._decodes = _decodes(self._generation)
        until = time.perf_counter() + spec.budget_s * spec.turns / 3
        while next(self._decodes).n_tokens < spec.warm and time.perf_counter() < until:
            pass


def _decodes(generation: Generation) -> Iterator[_Mark]:
    """The counters after each decode.

    A verify decode gives several tokens at once: what counts is what decodes gave, and not
    where the generation stands within a group.
    """
    n_decodes = 0
    for _ in generation:
        if generation.metrics.n_decodes > n_decodes:
            n_decodes = generation.metrics.n_decodes
            yield _mark(generation.metrics)
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

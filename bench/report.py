"""What the measurements come to: the table and the bars. Pure.

Every figure is one of a round, and every ratio is to what was measured in turns with it, or else
in the same round; shown is the median over the rounds, with the smallest and the largest.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from arms import MIB, Arm
from worker import Measured


@dataclass(frozen=True, slots=True)
class Taken:
    """An arm's measurement, and those of what took turns with it, by their arms' names."""

    own: Measured
    beside: Mapping[str, Measured] = field(default_factory=dict)


Round = Mapping[str, Taken]
"""By an arm's name."""

Figure = Callable[[Round, str], float | None]
"""Of one arm in one round; ``None`` where it has no meaning or was not measured."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, smallest and largest over the rounds."""

    median: float
    low: float
    high: float

    def text(self, digits: int = 2, *, percent: bool = False) -> str:
        """For tables: ``10.2 (9.8 to 10.5)``; one round has no range."""
        middle, low, high = (
            f"{value:.0%}" if percent else f"{value:.{digits}f}"
            for value in (self.median, self.low, self.high)
        )
        return middle if low == high else f"{middle} ({low} to {high})"


@dataclass(frozen=True, slots=True)
class Summary:
    """One row of the table; ``None`` where a figure has no meaning or was not measured.

    ``of_raw`` is the bandwidth while compute waits, of a serial arm, as a share of the disk's
    alone; ``disk_use`` is the share of all the time that the disk alone would take for the
    bytes read.
    """

    tok_s: Spread | None = None
    to_resident: Spread | None = None
    mib_token: Spread | None = None
    hit_rate: Spread | None = None
    stall: Spread | None = None
    of_raw: Spread | None = None
    disk_use: Spread | None = None
    ahead_used: Spread | None = None
    accepted: Spread | None = None
    peak_bytes: int = 0
    error: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of the benchmark: a ratio and the least that is wanted of it."""

    name: str
    wanted: float
    got: Spread | None
    why_not: str

    @property
    def holds(self) -> bool | None:
        """Whether the median reaches it; ``None`` where it was not measured."""
        return None if self.got is None else self.got.median >= self.wanted

    @property
    def line(self) -> str:
        """For the terminal."""
        if self.got is None:
            return f"{self.name}: wanted {self.wanted:.2f}, not measured: {self.why_not}"
        verdict = "holds" if self.holds else "does not hold"
        return f"{self.name}: wanted {self.wanted:.2f}, got {self.got.text()}, {verdict}"


def spread(rounds: Sequence[Round], name: str, figure: Figure) -> Spread | None:
    """``figure`` of the arm ``name`` over the rounds that have it."""
    values = [value for here in rounds if (value := figure(here, name)) is not None]
    return Spread(statistics.median(values), min(values), max(values)) if values else None


def summary(arm: Arm, rounds: Sequence[Round]) -> Summary:
    """The row of one arm."""
    mine = [here[arm.name].own for here in rounds if arm.name in here]

    def of(figure: Figure, has_meaning: bool) -> Spread | None:
        return spread(rounds, arm.name, figure) if has_meaning else None

    return Summary(
        tok_s=of(tok_s, True),
        to_resident=of(rate_to("resident"), True),
        mib_token=of(_mib_token, arm.is_streamed),
        hit_rate=of(_hit_rate, arm.is_cached),
        stall=of(_stall, arm.is_streamed),
        of_raw=of(_of_raw, arm.is_serial),
        disk_use=of(_disk_use, arm.is_streamed),
        ahead_used=of(_ahead_used, arm.is_streamed),
        accepted=of(_accepted, True),
        peak_bytes=max((m.peak_rss_bytes for m in mine), default=0),
        error=next((m.error for m in mine if m.error), ""),
    )


def table(arms: Sequence[Arm], rounds: Sequence[Round]) -> Iterator[str]:
    """Rows of Markdown, and below them a line for each arm that could not run."""
    heads = ["", "tok/s", "to resident", "MiB/token", "hit rate", "stalled", "reads to raw",
             "disk use", "ahead used", "accepted", "peak RSS MiB"]  # fmt: skip
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    failed = []
    for arm in arms:
        row = summary(arm, rounds)
        failed += [f"{arm.label}: {row.error}"] if row.error else []
        failed += [f"{arm.label}: {words}" for words in _failed_beside(arm.name, rounds)]
        if arm.kind == "raw" or not any(arm.name in here for here in rounds):
            continue
        shares = (row.hit_rate, row.stall, row.of_raw, row.disk_use, row.ahead_used, row.accepted)
        cells = [
            arm.label,
            row.tok_s.text(1) if row.tok_s else "failed",
            row.to_resident.text() if row.to_resident else "",
            f"{row.mib_token.median:.1f}" if row.mib_token else "",
            *(f"{share.median:.0%}" if share else "" for share in shares),
            f"{row.peak_bytes / MIB:.0f}" if row.peak_bytes else "",
        ]
        yield f"| {' | '.join(cells)} |"
    raw = spread(rounds, "raw", _raw_mib_s)
    if raw is not None:
        yield ""
        yield f"the disk alone, same blocks and lanes: {raw.text(0)} MiB/s"
    yield from failed


def bars(rounds: Sequence[Round], why_no_limit: str = "") -> list[Bar]:
    """The bars; ``why_no_limit`` says why nothing was run under a memory limit."""
    ahead = {name: spread(rounds, name, of_ideal) for name in ("third+predict", "third+prefetch")}
    best, of_best = max(ahead.items(), key=lambda item: item[1].median if item[1] else 0.0)
    not_measured = "its arms were not all measured"
    return [
        Bar("everything cached, to resident", 0.95,
            spread(rounds, "all", rate_to("resident")), not_measured),
        Bar("cache off, serial: reads to the raw bandwidth", 0.85,
            spread(rounds, "off", _of_raw), not_measured),
        Bar(f"overlap and read-ahead ({best}), to the ideal time", 0.80, of_best, not_measured),
        Bar("in memory of a third of the file, to plain mmap", 3.0,
            spread(rounds, "limit-auto", rate_to("limit-mmap")), why_no_limit or not_measured),
    ]  # fmt: skip


def tok_s(here: Round, name: str) -> float | None:
    """Tokens a second."""
    return _tok_s(_run(here, name))


def rate_to(base: str) -> Figure:
    """The rate as a ratio to that of the arm ``base``."""
    return lambda here, name: _over(tok_s(here, name), _tok_s(_beside(here, name, base)))


def ideal_tok_s(here: Round, name: str) -> float | None:
    """Tokens a second if compute alone and the reads that are needed ran side by side.

    The reads that are needed are those of the serial arm of the same cache: what is read ahead
    for nothing does not count.
    """
    serial = _run(here, name.partition("+")[0])
    compute_s = _over(1.0, _tok_s(_beside(here, name, "resident")))
    token_bytes = _over(_reads(serial, "read_bytes"), serial.n_tokens)
    reads_s = _over(token_bytes, _raw_bytes_s(here, name))
    if compute_s is None or reads_s is None:
        return None
    return 1 / max(compute_s, reads_s)


def of_ideal(here: Round, name: str) -> float | None:
    """The rate as a share of :func:`ideal_tok_s`."""
    return _over(tok_s(here, name), ideal_tok_s(here, name))


def _run(here: Round, name: str) -> Measured:
    return _whole(here[name].own) if name in here else Measured()


def _beside(here: Round, name: str, base: str) -> Measured:
    """What the arm ``base`` did in turns with ``name``; else what it did in the same round."""
    taken = here.get(name)
    if taken is not None and base in taken.beside:
        return _whole(taken.beside[base])
    return _run(here, base)


def _whole(m: Measured) -> Measured:
    return Measured() if m.error else m


def _tok_s(m: Measured) -> float | None:
    return _over(m.n_tokens, m.wall_s)


def _reads(m: Measured, name: str) -> float:
    return m.reads.get(name, 0.0)


def _over(value: float | None, by: float | None) -> float | None:
    return value / by if value is not None and by else None


def _failed_beside(name: str, rounds: Sequence[Round]) -> list[str]:
    besides = (here[name].beside for here in rounds if name in here)
    return [f"{base} beside it: {m.error}" for one in besides for base, m in one.items() if m.error]


def _raw_mib_s(here: Round, name: str) -> float | None:
    raw = _run(here, name)
    return _over(raw.raw_bytes / MIB, raw.wall_s)


def _raw_bytes_s(here: Round, name: str) -> float | None:
    raw = _beside(here, name, "raw")
    return _over(raw.raw_bytes, raw.wall_s)


def _mib_token(here: Round, name: str) -> float | None:
    m = _run(here, name)
    return _over(_reads(m, "read_bytes") / MIB, m.n_tokens)


def _hit_rate(here: Round, name: str) -> float | None:
    m = _run(here, name)
    return _over(_reads(m, "n_hits"), _reads(m, "n_hits") + _reads(m, "n_misses"))


def _stall(here: Round, name: str) -> float | None:
    m = _run(here, name)
    return _over(_reads(m, "stall_s"), m.wall_s)


def _of_raw(here: Round, name: str) -> float | None:
    m = _run(here, name)
    return _over(_over(_reads(m, "read_bytes"), _reads(m, "stall_s")), _raw_bytes_s(here, name))


def _disk_use(here: Round, name: str) -> float | None:
    m = _run(here, name)
    return _over(_over(_reads(m, "read_bytes"), m.wall_s), _raw_bytes_s(here, name))


def _ahead_used(here: Round, name: str) -> float | None:
    m = _run(here, name)
    return _over(_reads(m, "n_ahead_used"), _reads(m, "n_ahead"))


def _accepted(here: Round, name: str) -> float | None:
    m = _run(here, name)
    return _over(m.n_accepted, m.n_drafted)

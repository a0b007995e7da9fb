"""Figures as words: one way to write each kind of number, everywhere in a sweep. Pure."""

from __future__ import annotations

from collections.abc import Sequence

NONE = "–"


def number(value: float | None, digits: int = 2) -> str:
    """With ``digits`` decimals; a dash for what is not known."""
    return NONE if value is None else f"{value:.{digits}f}"


def rate(value: float | None) -> str:
    """Tokens a second, to three figures or one decimal."""
    return NONE if value is None else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def milliseconds(seconds: float | None) -> str:
    """Seconds as milliseconds, to two figures at least."""
    if seconds is None:
        return NONE
    ms = seconds * 1e3
    return f"{ms:.1f}" if abs(ms) >= 1 else f"{ms:.3f}"


def percent(share: float | None, digits: int = 0) -> str:
    """A share of one as percent."""
    return NONE if share is None else f"{share * 100:.{digits}f}%"


def listed(names: Sequence[str], last: str = "and") -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return f" {last} ".join(filter(None, (", ".join(names[:-1]), names[-1]))) if names else ""


def counted(n: int, noun: str) -> str:
    """``1 request``, ``2 requests``."""
    return f"{n} {noun}{'' if n == 1 else 's'}"

"""Means with what they are means of, and how far repeats of one thing lie apart. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
         2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086)  # fmt: skip
"""Student's t at 97.5 percent, for 1 to 20 degrees of freedom."""
T_LIMIT = 1.96


@dataclass(frozen=True, slots=True)
class Spread:
    """A mean, the least and the greatest of the ``n`` values behind it."""

    mean: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """Over the values that are there; ``None`` without any."""
        known = [value for value in values if value is not None]
        if not known:
            return None
        return cls(statistics.fmean(known), min(known), max(known), len(known))


@dataclass(frozen=True, slots=True)
class Noise:
    """How far requests that were the same lie apart.

    ``relative_sd`` is the standard deviation of their tok/s over the mean, pooled over every
    prompt and arm that was repeated; ``freedom`` the degrees of freedom behind it, the repeats
    less the means taken. The standard deviation and not the half-range: a half-range grows with
    the number of repeats and rests on two of them, and only deviations can be pooled.
    """

    relative_sd: float
    freedom: int

    @classmethod
    def of(cls, groups: Iterable[Sequence[float]]) -> Noise | None:
        """Pool groups of repeats; those of a single value say nothing. ``None`` if all do so."""
        squares, freedom = 0.0, 0
        for values in groups:
            mean = statistics.fmean(values) if values else 0.0
            if len(values) < 2 or mean <= 0:
                continue
            squares += sum((value / mean - 1) ** 2 for value in values)
            freedom += len(values) - 1
        return cls(math.sqrt(squares / freedom), freedom) if freedom else None

    @property
    def t(self) -> float:
        """Student's t at 97.5 percent: few repeats know their own deviation badly."""
        return T_975[self.freedom - 1] if self.freedom <= len(T_975) else T_LIMIT

    def floor(self, n_a: float, n_b: float) -> float:
        """The relative difference that means of ``n_a`` and ``n_b`` requests may show by chance.

        ``t × sd × sqrt(1 / n_a + 1 / n_b)``: 95 in 100 differences between equal arms are
        smaller.
        """
        return self.t * self.relative_sd * math.sqrt(1 / n_a + 1 / n_b)

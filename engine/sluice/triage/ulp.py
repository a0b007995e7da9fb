"""Distances between floating point values, counted in representable values between them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_BITS: dict[str, tuple[str, int]] = {"f4": ("<i4", 31), "f2": ("<i2", 15), "f8": ("<i8", 63)}


def between(a: float, b: float) -> int:
    """How many float32 steps lead from ``a`` to ``b``; 0 for equal values, -0 and 0 included."""
    pair = _ordered(np.array([a, b], np.float32))
    return abs(int(pair[0]) - int(pair[1]))


def largest(a: Array, b: Array) -> int | None:
    """The largest distance of two elements at the same place; ``None`` for other than floats.

    A NaN on one side only, or on both with other bits, counts by its bits.
    """
    if a.dtype != b.dtype or a.shape != b.shape or a.dtype.str[1:] not in _BITS:
        return None
    if not a.size:
        return 0
    left, right = _ordered(a).astype(object), _ordered(b).astype(object)
    differing = a.view(_BITS[a.dtype.str[1:]][0]) != b.view(_BITS[b.dtype.str[1:]][0])
    if not differing.any():
        return 0
    return int(np.max(np.abs(left[differing] - right[differing])))


def largest_absolute(a: Array, b: Array) -> float:
    """The largest absolute difference; infinite where one of two is not a number."""
    if not a.size:
        return 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(a.astype(np.float64) - b.astype(np.float64))
    apart[(a == b)] = 0.0
    return float(np.max(np.where(np.isnan(apart), np.inf, apart)))


def _ordered(values: Array) -> Array:
    """Integers in the order of the values; neighbours differ by one."""
    kind, sign_bit = _BITS[values.dtype.str[1:]]
    bits = np.ascontiguousarray(values).view(kind).astype(np.int64)
    lowest = np.int64(-(1 << sign_bit)) if sign_bit < 63 else np.int64(np.iinfo(np.int64).min)
    return np.where(bits < 0, lowest - bits, bits)

from __future__ import annotations

import numpy as np
import pytest

from sluice.triage import ulp


@pytest.mark.parametrize(
    ("a", "b", "apart"),
    [
        (1.0, 1.0, 0),
        (1.0, float(np.nextafter(np.float32(1), np.float32(2))), 1),
        (0.0, -0.0, 0),
        (-1e-45, 1e-45, 2),  # the smallest values on both sides of zero
        (1.0, 2.0, 1 << 23),
        (-1.0, -2.0, 1 << 23),
    ],
)
def test_between(a: float, b: float, apart: int) -> None:
    assert ulp.between(a, b) == ulp.between(b, a) == apart


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_largest(kind: type) -> None:
    a = np.array([1, -3, 100], kind)
    b = a.copy()
    b[1] = np.nextafter(b[1], kind(0))
    assert ulp.largest(a, b) == 1
    assert ulp.largest(a, a) == 0


def test_what_is_not_a_number() -> None:
    a, b = np.array([1, np.nan], np.float32), np.array([1, 2], np.float32)
    assert ulp.largest_absolute(a, b) == np.inf
    assert ulp.largest_absolute(b, b) == 0
    inf = np.array([np.inf], np.float32)
    assert ulp.largest_absolute(inf, inf) == 0
    assert ulp.largest(a, b) > 0


def test_integers_have_no_distance() -> None:
    assert ulp.largest(np.array([1]), np.array([2])) is None

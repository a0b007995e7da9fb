from __future__ import annotations

import random
import statistics

import pytest

from sluice.sweep.spread import Noise, Spread


def test_a_spread_leaves_out_what_is_not_known() -> None:
    assert Spread.of([2.0, None, 4.0]) == Spread(3.0, 2.0, 4.0, 2)
    assert Spread.of([None]) is None


def test_noise_is_the_relative_deviation_of_repeats() -> None:
    noise = Noise.of([[9.0, 10.0, 11.0]])
    assert noise is not None
    assert noise.relative_sd == pytest.approx(statistics.stdev([9, 10, 11]) / 10)
    assert noise.freedom == 2


def test_noise_is_pooled_over_groups_of_any_speed() -> None:
    slow, fast = [9.0, 11.0], [90.0, 110.0]
    pooled = Noise.of([slow, fast])
    assert pooled is not None
    assert (pooled.relative_sd, pooled.freedom) == pytest.approx((0.02**0.5, 2))
    assert Noise.of([slow, fast, [50.0], []]) == Noise.of([slow, fast])


def test_without_repeats_there_is_no_noise() -> None:
    assert Noise.of([[5.0], [6.0]]) is None


def test_a_floor_falls_with_requests_and_with_freedom() -> None:
    assert Noise(0.01, 1).floor(1, 1) == pytest.approx(12.706 * 0.01 * 2**0.5)
    assert Noise(0.01, 20).floor(2, 2) == pytest.approx(2.086 * 0.01)
    assert Noise(0.01, 21).floor(2, 2) == pytest.approx(0.0196)


def test_equal_arms_are_rarely_further_apart_than_the_floor() -> None:
    chosen = random.Random(1)
    beyond = 0
    for _ in range(2000):
        a, b = ([chosen.gauss(100, 3) for _ in range(3)] for _ in range(2))
        noise = Noise.of([a, b])
        assert noise is not None
        apart = abs(statistics.fmean(a) - statistics.fmean(b)) / 100
        beyond += apart > noise.floor(3, 3)
    assert 50 <= beyond <= 150  # 5 in 100

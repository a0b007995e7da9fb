from __future__ import annotations

import hashlib
import struct

import numpy as np
import pytest

from sluice.decoding.step import F32, TOP_OF_HEAD, greedy, row_sha256, top2, top_probability
from sluice.errors import SystemFault


def row(*values: float) -> F32:
    return np.array(values, np.float32)


def test_greedy_takes_the_largest() -> None:
    assert greedy(row(1, 5, -3, 4.999)) == 1
    assert greedy(row(-np.inf, -2)) == 1
    assert greedy(row(0, np.inf)) == 1


def test_of_equal_logits_the_lowest_id_is_taken() -> None:
    assert greedy(row(0, 3, 3, 3)) == 1
    assert greedy(row(-0.0, 0.0)) == 0
    assert top2(row(0, 3, 3, 3)).ids == (1, 2)
    assert top2(row(7, 7)).ids == (0, 1)


@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_row_that_holds_a_nan_is_a_fault(place: int) -> None:
    logits = row(np.inf, 2, 3, 4)
    logits[place] = np.nan
    with pytest.raises(SystemFault, match=f"NaN at id {place}"):
        greedy(logits)


def test_the_top_two_and_their_margin() -> None:
    found = top2(row(1, 5.5, -3, 5.25))
    assert found.ids == (1, 3)
    assert found.logits == (5.5, 5.25)
    assert found.margin == 0.25
    assert top2(row(2, 2)).margin == 0


def test_the_top_two_leave_the_row_as_it_was() -> None:
    logits = row(1, 2, 3)
    top2(logits)
    assert logits.tolist() == [1, 2, 3]


def test_the_hash_is_of_the_rows_little_endian_bytes() -> None:
    expected = hashlib.sha256(struct.pack("<3f", 1.5, -0.0, 3e-40)).hexdigest()
    assert row_sha256(row(1.5, -0.0, 3e-40)) == expected
    assert row_sha256(row(1.5, 0.0, 3e-40)) != expected
    assert row_sha256(np.array([1.5, -0.0, 3e-40], ">f4")) == expected


@pytest.mark.parametrize("n", [1, 2, TOP_OF_HEAD - 1, TOP_OF_HEAD, TOP_OF_HEAD + 1, 1000])
def test_the_heads_probability_is_a_softmax_over_its_top_ten(n: int) -> None:
    logits = (4 * np.random.default_rng(n).standard_normal(n)).astype(np.float32)
    best = np.sort(logits.astype(np.float64))[::-1][:10]
    shares = np.exp(best) / np.exp(best).sum()
    assert top_probability(logits) == pytest.approx(shares[0], rel=1e-12)


def test_the_heads_probability_does_not_overflow() -> None:
    assert top_probability(row(1e30, -1e30, 0)) == 1.0
    assert top_probability(row(*[1e30] * 20)) == pytest.approx(0.1)

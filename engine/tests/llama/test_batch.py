from __future__ import annotations

import numpy as np
import pytest

from sluice.llama.batch import Batch


@pytest.mark.parametrize(
    ("outputs", "flags"), [("all", [1, 1, 1]), ("last", [0, 0, 1]), ("none", [0, 0, 0])]
)
def test_the_struct_says_what_was_asked(outputs: str, flags: list[int]) -> None:
    raw = Batch(8).fill([7, 8, 9], 100, outputs=outputs)
    assert raw.n_tokens == 3
    assert raw.token[:3] == [7, 8, 9]
    assert raw.pos[:3] == [100, 101, 102]
    assert raw.logits[:3] == flags
    assert [raw.n_seq_id[i] for i in range(3)] == [1, 1, 1]
    assert [raw.seq_id[i][0] for i in range(3)] == [0, 0, 0]
    assert not raw.embd


def test_a_narrower_fill_keeps_nothing_of_a_wider_one() -> None:
    batch = Batch(4)
    batch.fill([1, 2, 3, 4], 0, outputs="all")
    raw = batch.fill([5, 6], 4, outputs="last")
    assert raw.n_tokens == 2
    assert raw.token[:2] == [5, 6]
    assert raw.logits[:2] == [0, 1]


def test_hidden_states_travel_with_their_tokens() -> None:
    batch = Batch(4, 3)
    hidden = np.arange(6, dtype=np.float32).reshape(2, 3)
    raw = batch.fill([1, 2], 0, outputs="none", hidden=hidden)
    assert raw.embd[:6] == [0, 1, 2, 3, 4, 5]
    assert raw.token[:2] == [1, 2]


def test_hidden_states_of_another_count_are_an_error() -> None:
    with pytest.raises(ValueError, match="broadcast"):
        Batch(4, 3).fill([1, 2], 0, outputs="none", hidden=np.zeros((3, 3), np.float32))

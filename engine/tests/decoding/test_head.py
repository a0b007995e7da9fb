"""The head by itself, on hidden states of the real target."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from sluice.decoding.head import F32, Head
from sluice.errors import SystemFault
from sluice.llama.context import Context, ContextShape
from sluice.llama.model import Model

WIDTH = 8


@pytest.fixture
def head(loaded: Model) -> Iterator[Head]:
    shape = ContextShape(n_ctx=256, rows_max=WIDTH, outputs_max=1, is_head=True)
    context = Context(loaded, shape)
    yield Head(context)
    context.close()


@pytest.fixture(scope="module")
def followed(loaded: Model, prompt: str) -> tuple[list[int], F32]:
    """A prompt longer than two of the head's passes, and the target's state at each token."""
    ids = loaded.tokenize(prompt)
    assert len(ids) > 2 * WIDTH
    shape = ContextShape(n_ctx=256, rows_max=64, outputs_max=1, hidden_states=True)
    context = Context(loaded, shape)
    context.decode(ids, 0, outputs="last")
    hidden = np.stack([context.hidden(row) for row in range(len(ids))])
    context.close()
    return ids, hidden


def drafted(head: Head, followed: tuple[list[int], F32], pieces: list[int]) -> list[list[int]]:
    """Drafts after each token that could be confirmed next, the head fed in ``pieces``."""
    ids, hidden = followed
    head.reset()
    start = 0
    for size in pieces:
        head.follow(ids[start : start + size], start, hidden[start : start + size])
        start += size
    assert start == len(ids)
    return [head.draft(token, len(ids), width=3, p_min=0.0) for token in range(40, 60)]


def test_a_sequence_may_be_followed_in_any_pieces(
    head: Head, followed: tuple[list[int], F32]
) -> None:
    n = len(followed[0])
    one_by_one = drafted(head, followed, [1] * n)
    assert all(len(d) == 3 for d in one_by_one)
    assert len({tuple(d) for d in one_by_one}) > 5
    for pieces in ([n], [5, n - 5], [WIDTH, 2, n - WIDTH - 2]):
        assert drafted(head, followed, pieces) == one_by_one


def test_the_state_of_the_token_before_is_what_counts(
    head: Head, followed: tuple[list[int], F32]
) -> None:
    ids, hidden = followed
    n = len(ids)
    sound = drafted(head, followed, [n])
    assert (head.hidden == hidden[-1]).all()
    assert drafted(head, (ids, np.roll(hidden, 1, axis=0)), [n]) != sound
    head.hidden = hidden[-2]
    assert [head.draft(t, n, width=3, p_min=0.0) for t in range(40, 60)] != sound


def test_a_draft_leaves_the_head_as_it_was(head: Head, followed: tuple[list[int], F32]) -> None:
    ids, hidden = followed
    head.follow(ids, 0, hidden)
    before = head.hidden.copy()
    for width in (1, 3, 8):
        first = head.draft(50, len(ids), width=width, p_min=0.0)
        assert head.draft(50, len(ids), width=width, p_min=0.0) == first
        assert len(first) == width
        assert (head.hidden == before).all()
    # A cell that was left over would be in the way: a position may be filled once.
    head.follow([50], len(ids), hidden[-1:])
    with pytest.raises(SystemFault, match="returned -1"):
        head.follow([50], len(ids), hidden[-1:])


def test_a_longer_draft_begins_as_a_shorter_one(
    head: Head, followed: tuple[list[int], F32]
) -> None:
    ids, hidden = followed
    head.follow(ids, 0, hidden)
    long = head.draft(50, len(ids), width=8, p_min=0.0)
    for width in range(1, 8):
        assert head.draft(50, len(ids), width=width, p_min=0.0) == long[:width]


def test_a_floor_stops_a_draft_where_it_first_falls_below(
    head: Head, followed: tuple[list[int], F32]
) -> None:
    ids, hidden = followed
    head.follow(ids, 0, hidden)
    whole = head.draft(50, len(ids), width=8, p_min=0.0)
    lengths = []
    for p_min in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        draft = head.draft(50, len(ids), width=8, p_min=p_min)
        assert draft == whole[: len(draft)]
        lengths.append(len(draft))
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] == 8
    assert lengths[-1] == 0


def test_a_reset_forgets_the_sequence(head: Head, followed: tuple[list[int], F32]) -> None:
    first = drafted(head, followed, [len(followed[0])])
    head.reset()
    assert not head.hidden.any()
    assert drafted(head, followed, [len(followed[0])]) == first

"""The first node whose bytes differ between two observed runs.

Runs that ask llama.cpp for the same decodes are held against each other decode by decode: all
rows, the head's too. Runs of other shapes (one row against many) are held against each other
position by position: the rows of the target context whose whole prefix of tokens is the same.
Either way everything before the first difference agrees, so its inputs do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sluice.triage import ulp
from sluice.triage.finding import NodeDifference
from sluice.triage.observe import LOGITS, Array, Decode, Key, Look


@dataclass(frozen=True, slots=True)
class Pair:
    """A row of each side that hold the same token after the same tokens.

    ``a`` and ``b`` are indices of decodes; a row is ``None`` where whole decodes are paired.
    """

    a: int
    b: int
    row_a: int | None
    row_b: int | None
    position: int


@dataclass(frozen=True, slots=True)
class Parting:
    """Where two runs ask for different decodes though every value before was the same.

    ``what`` is ``tokens`` (other tokens, another place, another number of rows) or ``hidden``
    (the head starts from another hidden state); ``index`` the decode.
    """

    what: str
    index: int
    is_head: bool
    words: str


@dataclass(frozen=True, slots=True)
class Located:
    """What holding two observed runs against each other gave.

    ``keys`` are all differing nodes of the pair, in graph order; ``routing`` a sentence on the
    first layer that routed to other experts.
    """

    pair: Pair | None
    keys: tuple[Key, ...]
    last_agreed: str | None
    n_compared: int
    n_unmatched: int
    parting: Parting | None = None
    routing: str | None = None


def locate(a: Sequence[Decode], b: Sequence[Decode], *, same_loop: bool) -> Located:
    """The first difference in order of computation.

    Args:
        a, b: the decodes of both sides, in order.
        same_loop: whether both sides were asked for the same decode loop (drafts, passes), so
            that other decodes are a difference by themselves.
    """
    counts = [0, 0]
    for index, (mine, other) in enumerate(zip(a, b, strict=False)):
        if mine.asked != other.asked or mine.hidden != other.hidden:
            parting = _parting(index, mine, other)
            if same_loop:
                return Located(None, (), None, counts[0], counts[1], parting)
            return _by_position(a, b, counts)
        pair = Pair(index, index, None, None, mine.position)
        found = _compare(mine, other, pair, counts)
        if found is not None:
            return found
    if len(a) == len(b) or not same_loop:
        return Located(None, (), None, counts[0], counts[1])
    longer = (a if len(a) > len(b) else b)[min(len(a), len(b))]
    parting = Parting("tokens", min(len(a), len(b)), longer.is_head,
                      f"{len(a)} / {len(b)} decodes, equal up to there")  # fmt: skip
    return Located(None, (), None, counts[0], counts[1], parting)


def measured(
    located: Located, a: Sequence[Decode], b: Sequence[Decode], n_prompt: int
) -> tuple[NodeDifference, ...]:
    """Every differing node of the pair, with its distances where values were captured."""
    if located.pair is None:
        return ()
    mine, other = a[located.pair.a], b[located.pair.b]
    return tuple(_node(located.pair, key, mine, other, n_prompt) for key in located.keys)


def paired_rows(a: Sequence[Decode], b: Sequence[Decode]) -> Iterator[Pair]:
    """Rows of both sides' target contexts with the same tokens up to there, by position."""
    left, right = rows_by_position(a), rows_by_position(b)
    for position in sorted(left):
        if position not in right:
            return
        (i, row_i), (j, row_j) = left[position], right[position]
        if a[i].tokens[row_i] != b[j].tokens[row_j]:
            return
        yield Pair(i, j, row_i, row_j, position)


def rows_by_position(decodes: Sequence[Decode]) -> dict[int, tuple[int, int]]:
    """Position to the last decode of the target that computed it, and the row in it."""
    found = {}
    for index, decode in enumerate(decodes):
        if not decode.is_head:
            for row in range(len(decode.tokens)):
                found[decode.position + row] = (index, row)
    return found


def logits_rows(decodes: Sequence[Decode], n_prompt: int, ids: Sequence[int]) -> dict[int, Array]:
    """Step to the row of logits at the position that the step's token follows."""
    found = {}
    for position, (index, row) in rows_by_position(decodes).items():
        step, decode = position - n_prompt + 1, decodes[index]
        if step < 0 or decode.logits is None:
            continue
        if step > 0 and (step > len(ids) or decode.tokens[row] != ids[step - 1]):
            continue  # a rejected draft that nothing was computed over again
        at = row - (len(decode.tokens) - len(decode.logits))
        if 0 <= at < len(decode.logits):
            found[step] = decode.logits[at]
    return found


def _by_position(a: Sequence[Decode], b: Sequence[Decode], counts: list[int]) -> Located:
    for pair in paired_rows(a, b):
        found = _compare(a[pair.a], b[pair.b], pair, counts)
        if found is not None:
            return found
    return Located(None, (), None, counts[0], counts[1])


def _compare(mine: Decode, other: Decode, pair: Pair, counts: list[int]) -> Located | None:
    """The pair's differing nodes, or ``None``; adds to what was compared and unmatched."""
    last_agreed: str | None = None
    differing: list[Key] = []
    row: int | None = None
    before: str | None = None
    for key, look in mine.looks.items():
        their = other.looks.get(key)
        found = None if their is None else _first_row(look, their, pair)
        if found is None:
            counts[1] += 1
            continue
        counts[0] += 1
        if found[0]:
            before = look.where
        elif not differing:
            last_agreed, row = before, found[1]
            differing.append(key)
        elif not _agrees_at(look, other.looks[key], pair, row):
            differing.append(key)
    counts[1] += len(other.looks.keys() - mine.looks.keys())
    if not differing:
        return None
    if pair.row_a is None:
        pair = Pair(pair.a, pair.b, row, row, mine.position + (row or 0))
    routed = _routing(mine, other, pair)
    return Located(pair, tuple(differing), last_agreed, counts[0], counts[1], None, routed)


def _first_row(mine: Look, other: Look, pair: Pair) -> tuple[bool, int | None] | None:
    """Whether two looks agree, and else the first row that does not; ``None``: no match."""
    if mine.sizes != other.sizes or mine.type_name != other.type_name:
        return None
    if pair.row_a is None:
        if mine.shape != other.shape:
            return None
        for row, (x, y) in enumerate(zip(mine.digests, other.digests, strict=True)):
            if x != y:
                return False, row + mine.first_row if mine.axis is not None else None
        return True, None
    x_, y_ = _digest(mine, pair.row_a), _digest(other, pair.row_b)
    if x_ is None or y_ is None:
        return None
    return x_ == y_, pair.row_a


def _agrees_at(mine: Look, other: Look, pair: Pair, row: int | None) -> bool:
    if pair.row_a is not None:
        return _digest(mine, pair.row_a) == _digest(other, pair.row_b)
    if row is None or mine.axis is None or not 0 <= row - mine.first_row < len(mine.digests):
        return mine.digests == other.digests
    return mine.digests[row - mine.first_row] == other.digests[row - mine.first_row]


def _digest(look: Look, row: int | None) -> bytes | None:
    if look.axis is None or row is None:
        return None
    at = row - look.first_row
    return look.digests[at] if 0 <= at < len(look.digests) else None


def _routing(mine: Decode, other: Decode, pair: Pair) -> str | None:
    for layer, experts in mine.routed.items():
        theirs = other.routed.get(layer)
        if theirs is None or pair.row_a is None or pair.row_b is None:
            continue
        if pair.row_a >= len(experts) or pair.row_b >= len(theirs):
            continue
        left, right = experts[pair.row_a], theirs[pair.row_b]
        if not np.array_equal(left, right):
            return f"layer {layer} routed to experts {left.tolist()} / {right.tolist()}"
    return None


def _parting(index: int, mine: Decode, other: Decode) -> Parting:
    where = "head" if mine.is_head else "target"
    if mine.asked == other.asked:
        return Parting("hidden", index, mine.is_head,
                       f"decode {index}: the {where} starts from another hidden state for the"
                       f" same token at position {mine.position}")  # fmt: skip
    is_head = mine.is_head and other.is_head
    return Parting("tokens", index, is_head,
                   f"decode {index}: {_spelled(mine)} / {_spelled(other)}")  # fmt: skip


def _spelled(decode: Decode) -> str:
    where = "head" if decode.is_head else "target"
    return f"{where} {list(decode.tokens)} at position {decode.position}"


def _node(pair: Pair, key: Key, mine: Decode, other: Decode, n_prompt: int) -> NodeDifference:
    left, right = mine.looks[key], other.looks[key]
    x, y = mine.values.get(key), other.values.get(key)
    comparable = x is not None and y is not None and x.size == y.size
    step = pair.position - n_prompt + 1
    has_rows = left.axis is not None
    node = NodeDifference(
        context="head" if mine.is_head else "target",
        layer=left.layer,
        name=left.name,
        op=left.op,
        type_name=left.type_name,
        weight=left.weight,
        weight_type=left.weight_type,
        shape_a=left.shape,
        shape_b=right.shape,
        rows_a=_width(mine, key),
        rows_b=_width(other, key),
        row_a=pair.row_a if has_rows else None,
        row_b=pair.row_b if has_rows else None,
        position=pair.position,
        step=step if step >= 0 else None,
    )
    if not comparable or x is None or y is None:
        return node
    x, y = x.reshape(-1), y.reshape(-1)
    return _with_distances(node, x, y)


def _with_distances(node: NodeDifference, x: Array, y: Array) -> NodeDifference:
    return replace(
        node,
        max_ulp=ulp.largest(x, y),
        max_abs=ulp.largest_absolute(x, y),
        n_differing=int(np.count_nonzero(x.view(np.uint8).reshape(len(x), -1)
                                         != y.view(np.uint8).reshape(len(y), -1), axis=1)
                        .astype(bool).sum()) if x.dtype == y.dtype else None,
        n_values=int(x.size),
    )  # fmt: skip


def _width(decode: Decode, key: Key) -> int:
    """Rows that the node was computed with: the batch's, or the outputs' for the logits."""
    look = decode.looks[key]
    if key[0].startswith((LOGITS, "result_norm")):
        return len(look.digests)
    return len(decode.tokens)

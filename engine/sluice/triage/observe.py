"""Look at every node of a run: a digest of each row, the routed experts, the streamed slices."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sluice.llama import tensor
from sluice.seams import Nodes
from sluice.streaming.layout import ExpertTensor
from sluice.streaming.streamer import Streamer

Array = npt.NDArray[Any]
Key = tuple[str, str, int]
"""A node within a decode: its name (with the layer), its operation, and which of that name."""

LOGITS = "result_output"
ROUTING = "ffn_moe_topk"
_LAYER = re.compile(r"-(\d+)(?= |$|\))")
_CACHE_LAYER = re.compile(r"cache_\w+_l(\d+)\b")
_UNNAMED = re.compile(r"(node_\d+|leaf_\d+)?( .*)?")
# Whole caches, and operations that only move or rename what another node has computed.
_SKIPPED = ("cache_", "rs_s_copy")
_MOVED = frozenset({"VIEW", "PERMUTE", "TRANSPOSE", "CPY", "SET_ROWS", "NONE"})
# Heads come before rows in these, and state has no rows: a count that fits would be chance.
_ROWLESS = ("kq-", "kq_soft", "kqv-", "state_", "new_state")
_DIGEST_BYTES = 16  # of a SHA-256
_LOGITS_ROOM_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class Digests(Sequence[bytes]):
    """Digests one after the other: a long prompt has millions, and an object each is too much."""

    joined: bytes

    def __getitem__(self, index: Any) -> Any:
        """One digest; ``index`` is not negative."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.joined[_DIGEST_BYTES * index : _DIGEST_BYTES * (index + 1)]

    def __len__(self) -> int:
        return len(self.joined) // _DIGEST_BYTES


@dataclass(frozen=True, slots=True)
class Look:
    """A node in one decode.

    ``axis`` is the dimension (numpy's order) of the rows, ``None`` where it has none; then
    ``digests`` has one entry for the whole. ``first_row`` is the batch row of the first digest.
    """

    layer: int | None
    name: str
    op: str
    type_name: str
    weight: str | None
    weight_type: str | None
    shape: tuple[int, ...]
    axis: int | None
    first_row: int
    digests: Sequence[bytes]
    sizes: int

    @property
    def where(self) -> str:
        """``layer 3 ffn_norm``."""
        return self.name if self.layer is None else f"layer {self.layer} {self.name}"


@dataclass(slots=True)
class Decode:
    """One decode: what was asked, and what every node held, in graph order."""

    is_head: bool
    tokens: tuple[int, ...]
    position: int
    outputs: str
    hidden: str | None
    looks: dict[Key, Look] = field(default_factory=dict)
    logits: Array | None = None
    routed: dict[int, Array] = field(default_factory=dict)
    values: dict[Key, Array] = field(default_factory=dict)

    @property
    def asked(self) -> tuple[Any, ...]:
        """What has to be equal for two decodes to be the same question."""
        return self.is_head, self.tokens, self.position, self.outputs


@dataclass(frozen=True, slots=True)
class BadSlice:
    """A slice that is not what the file holds, when it was first used like that."""

    file: str
    tensor: ExpertTensor
    expert: int
    decode: int
    position: int
    first_byte: int
    n_bytes: int
    holds: str | None


class Observer(Nodes):
    """Keeps one :class:`Decode` a decode of the run that it is given to.

    Args:
        capture: a decode's index, and a batch row of it: no other decode's nodes are looked at,
            and this one's values are kept.
    """

    def __init__(self, *, capture: tuple[int, int | None] | None = None) -> None:
        self.decodes: list[Decode] = []
        self.bad_slices: list[BadSlice] = []
        self.n_slices_checked = 0
        self._capture = capture
        self._streamer: Streamer | None = None
        self._known: dict[tuple[str, int], bytes] = {}
        self._seen_bad: set[tuple[str, int]] = set()
        self._count: dict[tuple[str, str], int] = {}
        self._room = _LOGITS_ROOM_BYTES

    def opened(self, streamer: Streamer | None) -> None:
        """What streams the experts of the session that is observed, if anything does."""
        self._streamer = streamer

    def begins(
        self,
        is_head: bool,
        tokens: Sequence[int],
        position: int,
        outputs: str,
        hidden: npt.NDArray[np.float32] | None,
    ) -> None:
        """Open a :class:`Decode`."""
        digest = None if hidden is None else hashlib.sha256(hidden.tobytes()).hexdigest()
        self.decodes.append(Decode(is_head, tuple(tokens), position, outputs, digest))
        self._count.clear()

    def wants(self, is_head: bool, address: int) -> bool:
        """Every node that computes something."""
        name = tensor.name(address)
        if name.startswith(_SKIPPED) or not all(tensor.shape(address)):
            return False
        if name.startswith((LOGITS, ROUTING)):
            return True
        if not self._captures():
            return False
        # A view has a name of its own only where it stands for what a node has computed.
        return tensor.op(address) not in _MOVED or not _is_derived(name)

    def computed(self, is_head: bool, address: int) -> None:
        """Digest the node; at a router, check the slices that were put in place."""
        decode = self.decodes[-1]
        name = tensor.name(address)
        if name.startswith(ROUTING):
            self._routed(decode, int(name.rpartition("-")[2]), address)
        values = tensor.values(address)
        if values is None:
            return
        key, look = self._look(decode, address, values)
        decode.looks[key] = look
        if name == LOGITS and not is_head:
            self._keep_logits(decode, values)
        if self._capture is not None and self._captures():
            decode.values[key] = _row(values, look, self._capture[1])

    def _captures(self) -> bool:
        return self._capture is None or self._capture[0] == len(self.decodes) - 1

    def _look(self, decode: Decode, address: int, values: Array) -> tuple[Key, Look]:
        op = tensor.op(address)
        full = described(address)
        occurrence = self._count.get((full, op), 0)
        self._count[full, op] = occurrence + 1
        sources = [(tensor.name(s), s) for s in tensor.sources(address)]
        weight = next(((n, s) for n, s in sources if n.endswith(".weight")), None)
        layer = layer_of(full, [n for n, _ in sources])
        n_rows = len(decode.tokens)
        axis, first = (
            (None, 0)
            if n_rows > 1 and full.startswith(_ROWLESS)
            else _rows_axis(values.shape, n_rows, decode.outputs, layer)
        )
        digests, sizes = _digests(values, axis)
        look = Look(
            layer=layer,
            name=_LAYER.sub("", full, count=1),
            op=op,
            type_name=tensor.type_name(address),
            weight=weight[0] if weight else None,
            weight_type=tensor.type_name(weight[1]) if weight else None,
            shape=tuple(int(n) for n in values.shape[::-1]),
            axis=axis,
            first_row=first,
            digests=digests,
            sizes=sizes,
        )
        return (full, op, occurrence), look

    def _keep_logits(self, decode: Decode, values: Array) -> None:
        rows = values.reshape(-1, values.shape[-1])
        if rows.nbytes <= self._room:
            self._room -= rows.nbytes
            decode.logits = rows.astype(np.float32, copy=True)

    def _routed(self, decode: Decode, layer: int, address: int) -> None:
        view, _flat = tensor.routing(address)
        decode.routed[layer] = np.sort(view.copy(), axis=1)
        if self._streamer is None or layer not in self._streamer.layout.layers:
            return
        self._streamer.await_reads()
        for part in self._streamer.layout.layers[layer]:
            for expert in np.unique(view):
                self._check(part, int(expert), decode)

    def _check(self, part: ExpertTensor, expert: int, decode: Decode) -> None:
        assert self._streamer is not None
        held = bytes(self._streamer.place.slice_view(part, expert))
        self.n_slices_checked += 1
        wanted = self._file_digest(part, expert)
        if hashlib.sha256(held).digest() == wanted or (part.name, expert) in self._seen_bad:
            return
        self._seen_bad.add((part.name, expert))
        right = np.frombuffer(self._file_slice(part, expert), np.uint8)
        where = np.flatnonzero(np.frombuffer(held, np.uint8) != right)
        self.bad_slices.append(
            BadSlice(
                str(self._path(part)), part, expert, len(self.decodes) - 1,
                decode.position, int(where[0]), len(where), self._whose(held, part, expert),
            )
        )  # fmt: skip

    def _whose(self, held: bytes, part: ExpertTensor, wanted: int) -> str | None:
        """Which slice of the file ``held`` is, of those of the same part and size.

        Judged by the middle half: a read of other alignment brings strange bytes at the ends.
        """
        assert self._streamer is not None
        start, size = part.slice_bytes // 4, part.slice_bytes // 2
        middle = held[start : start + size]
        if not any(middle):
            return "nothing but zeros"
        for other in self._streamer.layout.by_name.values():
            if (other.part, other.slice_bytes) != (part.part, part.slice_bytes):
                continue
            for expert in range(other.n_expert):
                at = other.offset + expert * other.slice_bytes + start
                if (other.name, expert) == (part.name, wanted):
                    continue
                if read_at(self._path(other), at, size) == middle:
                    return f"the bytes of expert {expert} of {other.name}"
        return None

    def _file_digest(self, part: ExpertTensor, expert: int) -> bytes:
        key = (part.name, expert)
        if key not in self._known:
            self._known[key] = hashlib.sha256(self._file_slice(part, expert)).digest()
        return self._known[key]

    def _file_slice(self, part: ExpertTensor, expert: int) -> bytes:
        at = part.offset + expert * part.slice_bytes
        return read_at(self._path(part), at, part.slice_bytes)

    def _path(self, part: ExpertTensor) -> Path:
        assert self._streamer is not None
        return self._streamer.layout.paths[part.shard]


def described(address: int, depth: int = 3) -> str:
    """The node's name; one that llama.cpp left unnamed is called after what it computes."""
    name = tensor.name(address)
    match = _UNNAMED.fullmatch(name)
    if match is None or depth == 0:
        return name
    sources = tensor.sources(address)
    if not sources:
        return name
    names = [tensor.name(s) for s in sources]
    weight = next((n for n in names if n.startswith("blk.")), None)
    inner = (
        f"{weight.split('.', 2)[2].removesuffix('.weight')}-{weight.split('.')[1]}"
        if weight is not None
        else described(sources[0], depth - 1)
    )
    return f"{tensor.op(address).lower()}({inner})"


def layer_of(name: str, sources: Sequence[str] = ()) -> int | None:
    """The layer that a node's name, or that of what it computes with, belongs to."""
    for text in (name, *sources):
        found = _LAYER.search(text) or _CACHE_LAYER.search(text)
        if found:
            return int(found[1])
        if text.startswith("blk."):
            return int(text.split(".")[1])
    return None


def read_at(path: Path, offset: int, size: int) -> bytes:
    """``size`` bytes of a file."""
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(size)


def _is_derived(name: str) -> bool:
    return not name or name.endswith(")") or name.startswith("node_")


def _rows_axis(
    shape: tuple[int, ...], n_rows: int, outputs: str, layer: int | None
) -> tuple[int | None, int]:
    """The axis that runs over the batch's rows, and the batch row that it begins with.

    It is the outermost one that is not 1 and has as many entries as the batch; beyond the
    layers there may be rows for the outputs only. The innermost axis never is.
    """
    outer = next((i for i, n in enumerate(shape[:-1]) if n != 1), None)
    if n_rows == 1:
        return 0, 0
    if outer is not None and shape[outer] == n_rows:
        return outer, 0
    if layer is None and outer is None and outputs == "last":
        return 0, n_rows - 1
    return None, 0


def _digests(values: Array, axis: int | None) -> tuple[Digests, int]:
    """A digest a row, or one of the whole; and the bytes that each is of."""
    rows = values[None] if axis is None else np.moveaxis(values, axis, 0)
    digests = [
        hashlib.sha256(np.ascontiguousarray(row).data).digest()[:_DIGEST_BYTES] for row in rows
    ]
    return Digests(b"".join(digests)), int(values.size * values.itemsize // len(digests))


def _row(values: Array, look: Look, row: int | None) -> Array:
    if look.axis is None or row is None or row < look.first_row:
        return np.array(values)
    at = row - look.first_row
    rows = np.moveaxis(values, look.axis, 0)
    return np.array(rows[at] if at < len(rows) else values)

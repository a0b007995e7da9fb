"""Where the experts of a model lie in its file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sluice.errors import ModelError, RequestError
from sluice.gguf.header import Header
from sluice.streaming.architectures import ARCHITECTURES, Architecture

PARTS = ("gate", "up", "down", "gate_up")
_WEIGHT = re.compile(rf"blk\.(\d+)\.ffn_({'|'.join(PARTS)})_exps\.weight")
_ANY_EXPERTS = re.compile(r"blk\.\d+\.(\w*exps\.weight)")


@dataclass(frozen=True, slots=True)
class ExpertTensor:
    """The weights of one part (gate, up, down or gate_up) of every expert of one layer.

    Expert e's slice is the ``slice_bytes`` bytes at ``offset + e * slice_bytes`` of the file
    ``shard`` of :attr:`ExpertLayout.paths`.
    """

    name: str
    layer: int
    part: str
    offset: int
    slice_bytes: int
    n_expert: int
    shard: int = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of all slices together."""
        return self.slice_bytes * self.n_expert


@dataclass(frozen=True, slots=True)
class ExpertLayout:
    """Every streamed tensor of a model, by layer; the MTP block is layer ``n_trunk``.

    ``paths`` are the model's files, in the order of its shards.
    """

    layers: Mapping[int, tuple[ExpertTensor, ...]]
    n_trunk: int
    paths: tuple[Path, ...] = ()

    @property
    def by_name(self) -> dict[str, ExpertTensor]:
        """Tensor name to tensor."""
        return {t.name: t for layer in self.layers.values() for t in layer}


def expert_of(name: str) -> tuple[int, str] | None:
    """Layer and part of an expert weight's tensor name; ``None`` for any other tensor."""
    match = _WEIGHT.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


def expert_layout(header: Header, *, with_head: bool) -> ExpertLayout:
    """The streamed tensors of ``header``'s model.

    Args:
        header: of a whole model, be it in shards.
        with_head: whether the MTP block's experts are wanted, too.

    Raises:
        RequestError: the model has no experts, or some that are not known to be streamable.
        ModelError: a layer whose parts do not fit together.
    """
    row = _row_of(header)
    n_trunk = header.number("block_count") - header.n_nextn
    layers: dict[int, list[ExpertTensor]] = {}
    for info in header.tensors.values():
        found = expert_of(info.name)
        if found is None or (found[0] >= n_trunk and not with_head):
            continue
        layer, part = found
        if len(info.shape) != 3 or info.size_bytes % info.shape[2]:
            raise ModelError(
                f"{header.path_of(info)}: {info.name} of shape {list(info.shape)} has no slices"
                " of experts; convert the model again"
            )
        n_expert = info.shape[2]
        layers.setdefault(layer, []).append(
            ExpertTensor(
                name=info.name,
                layer=layer,
                part=part,
                offset=info.offset,
                slice_bytes=info.size_bytes // n_expert,
                n_expert=n_expert,
                shard=info.shard,
            )
        )
    if not layers:
        raise RequestError(
            f"--moe-stream: {header.path} ({header.architecture or 'no architecture'}) has no"
            " experts to stream; drop --moe-stream"
        )
    for layer, tensors in layers.items():
        parts = {t.part for t in tensors}
        if row is None or parts not in row.stored:
            raise ModelError(
                f"{header.path}: layer {layer} has experts' {sorted(parts)} only; convert the model"
                " again"
            )
        if len({t.n_expert for t in tensors}) != 1:
            raise ModelError(
                f"{header.path}: layer {layer}'s parts differ in their expert count; convert the"
                " model again"
            )
    return ExpertLayout({n: tuple(layers[n]) for n in sorted(layers)}, n_trunk, header.paths)


def _row_of(header: Header) -> Architecture | None:
    """The architecture's row, or ``None`` for a model without experts.

    Raises:
        RequestError: the model has experts that would stay resident without a word.
    """
    kinds = {
        match[1]: expert_of(info.name) is not None
        for info in header.tensors.values()
        if (match := _ANY_EXPERTS.fullmatch(info.name)) and len(info.shape) > 1
    }
    row = ARCHITECTURES.get(header.architecture)
    if kinds and (row is None or not all(kinds.values())):
        raise RequestError(
            f"--moe-stream: {header.path}: the experts of {header.architecture or 'this model'}"
            f" are {', '.join(f'blk.*.{kind}' for kind in sorted(kinds))}, which Sluice does not"
            " know how to stream; drop --moe-stream"
        )
    return row

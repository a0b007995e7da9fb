"""Where the experts of a model lie in its file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from sluice.errors import ModelError, RequestError
from sluice.gguf.header import Header

PARTS = ("gate", "up", "down", "gate_up")
_WEIGHT = re.compile(rf"blk\.(\d+)\.ffn_({'|'.join(PARTS)})_exps\.weight")


@dataclass(frozen=True, slots=True)
class ExpertTensor:
    """The weights of one part (gate, up, down or gate_up) of every expert of one layer.

    Expert e's slice is the ``slice_bytes`` bytes at ``offset + e * slice_bytes`` of the file.
    """

    name: str
    layer: int
    part: str
    offset: int
    slice_bytes: int
    n_expert: int

    @property
    def size_bytes(self) -> int:
        """Bytes of all slices together."""
        return self.slice_bytes * self.n_expert


@dataclass(frozen=True, slots=True)
class ExpertLayout:
    """Every streamed tensor of a model, by layer; the MTP block is layer ``n_trunk``."""

    layers: Mapping[int, tuple[ExpertTensor, ...]]
    n_trunk: int

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
        header: of a whole (not split) model.
        with_head: whether the MTP block's experts are wanted, too.

    Raises:
        RequestError: the model has no experts, or is split over several files.
        ModelError: a layer whose parts do not fit together.
    """
    if header.n_shards > 1:
        raise RequestError(
            f"--moe-stream: {header.path} is one of {header.n_shards} shards; merge them into one"
            " gguf (llama-gguf-split --merge), or drop --moe-stream"
        )
    n_trunk = header.number("block_count") - header.n_nextn
    layers: dict[int, list[ExpertTensor]] = {}
    for info in header.tensors.values():
        found = expert_of(info.name)
        if found is None or (found[0] >= n_trunk and not with_head):
            continue
        layer, part = found
        if len(info.shape) != 3 or info.size_bytes % info.shape[2]:
            raise ModelError(
                f"{header.path}: {info.name} of shape {list(info.shape)} has no slices"
            )
        n_expert = info.shape[2]
        layers.setdefault(layer, []).append(
            ExpertTensor(info.name, layer, part, info.offset, info.size_bytes // n_expert, n_expert)
        )
    if not layers:
        raise RequestError(
            f"--moe-stream: {header.path} ({header.architecture or 'no architecture'}) has no"
            " experts to stream; drop --moe-stream"
        )
    for layer, tensors in layers.items():
        parts = {t.part for t in tensors}
        if parts not in ({"gate", "up", "down"}, {"gate_up", "down"}, {"up", "down"}):
            raise ModelError(f"{header.path}: layer {layer} has experts' {sorted(parts)} only")
        if len({t.n_expert for t in tensors}) != 1:
            raise ModelError(f"{header.path}: layer {layer}'s parts differ in their expert count")
    return ExpertLayout({n: tuple(layers[n]) for n in sorted(layers)}, n_trunk)

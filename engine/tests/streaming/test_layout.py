from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.errors import ModelError, RequestError
from sluice.gguf.header import Header, read_header
from sluice.gguf.shards import read_model
from sluice.streaming.layout import ExpertLayout, ExpertTensor, expert_layout, expert_of

Tiny = Callable[..., Path]
ARCH = {"qwen35moe__block_count": 3, "qwen35moe__nextn_predict_layers": 1}


def parts(layer: int, *names: str, experts: int = 4) -> dict[str, tuple[int, ...]]:
    return {f"blk.{layer}.ffn_{n}_exps.weight": (experts, 8, 16) for n in names}


SPLIT = ("gate", "up", "down")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("blk.0.ffn_gate_exps.weight", (0, "gate")),
        ("blk.12.ffn_up_exps.weight", (12, "up")),
        ("blk.3.ffn_down_exps.weight", (3, "down")),
        ("blk.3.ffn_gate_up_exps.weight", (3, "gate_up")),
        ("blk.3.ffn_gate_shexp.weight", None),
        ("blk.3.ffn_gate_inp.weight", None),
        ("blk.3.ffn_gate_exps.bias", None),
        ("blk.3.ffn_gate_exps.weight.0", None),
        ("xblk.3.ffn_gate_exps.weight", None),
        ("blk.x.ffn_gate_exps.weight", None),
        ("mtp.blk.0.ffn_gate_exps.weight", None),
    ],
)
def test_an_experts_name_says_layer_and_part(name: str, expected: object) -> None:
    assert expert_of(name) == expected


@pytest.mark.parametrize("with_head", [False, True])
def test_the_heads_experts_are_there_when_asked_for(header: Header, with_head: bool) -> None:
    layout = expert_layout(header, with_head=with_head)
    assert layout.n_trunk == 4
    assert list(layout.layers) == list(range(4 + with_head))
    for layer, tensors in layout.layers.items():
        assert {t.part for t in tensors} == set(SPLIT)
        for t in tensors:
            assert t.layer == layer
            info = header.tensors[t.name]
            assert (t.offset, t.size_bytes) == (info.offset, info.size_bytes)
            assert t.n_expert == 8
    assert len(layout.by_name) == 3 * (4 + with_head)


def test_slices_are_consecutive_and_as_long_as_their_rows(tiny_gguf: Tiny, tmp_path: Path) -> None:
    header = read_header(tiny_gguf(tmp_path / "m.gguf", parts(0, *SPLIT), **ARCH))
    for tensor in expert_layout(header, with_head=False).layers[0]:
        assert tensor.slice_bytes == 8 * 16 * 4
        assert tensor.size_bytes == 4 * tensor.slice_bytes


@pytest.mark.parametrize("names", [SPLIT, ("gate_up", "down")])
def test_the_ways_in_which_experts_are_stored(
    tiny_gguf: Tiny, tmp_path: Path, names: tuple[str, ...]
) -> None:
    header = read_header(tiny_gguf(tmp_path / "m.gguf", parts(0, *names), **ARCH))
    assert {t.part for t in expert_layout(header, with_head=False).layers[0]} == set(names)


def test_experts_without_a_gate_where_the_architecture_has_them_so(
    tiny_gguf: Tiny, tmp_path: Path
) -> None:
    header = read_header(tiny_gguf(tmp_path / "m.gguf", parts(0, "up", "down"), **ARCH))
    with pytest.raises(ModelError, match=r"layer 0 has experts' \['down', 'up'\] only"):
        expert_layout(header, with_head=False)
    renamed = {"general.architecture": "nemotron_h_moe", "nemotron_h_moe.block_count": 1}
    header = dataclasses.replace(header, metadata=renamed)
    assert {t.part for t in expert_layout(header, with_head=False).layers[0]} == {"up", "down"}


def test_a_dense_layer_between_is_no_matter(tiny_gguf: Tiny, tmp_path: Path) -> None:
    shapes = parts(1, *SPLIT) | {"blk.0.ffn_up.weight": (8, 16)}
    header = read_header(tiny_gguf(tmp_path / "m.gguf", shapes, **ARCH))
    assert list(expert_layout(header, with_head=True).layers) == [1]


@pytest.mark.parametrize("names", [("gate", "up"), ("down",), ("gate_up",), ("gate_up", "up")])
def test_a_missing_part_is_refused(tiny_gguf: Tiny, tmp_path: Path, names: tuple[str, ...]) -> None:
    shapes = parts(0, *SPLIT) | parts(1, *names)
    header = read_header(tiny_gguf(tmp_path / "m.gguf", shapes, **ARCH))
    with pytest.raises(ModelError, match=r"m\.gguf: layer 1 has experts' .* only"):
        expert_layout(header, with_head=False)


def test_parts_of_different_counts_are_refused(tiny_gguf: Tiny, tmp_path: Path) -> None:
    shapes = parts(0, "gate", "up") | parts(0, "down", experts=5)
    header = read_header(tiny_gguf(tmp_path / "m.gguf", shapes, **ARCH))
    with pytest.raises(ModelError, match="layer 0's parts differ in their expert count"):
        expert_layout(header, with_head=False)


def test_experts_without_slices_are_refused(tiny_gguf: Tiny, tmp_path: Path) -> None:
    shapes = parts(0, "gate", "up") | {"blk.0.ffn_down_exps.weight": (8, 16)}
    header = read_header(tiny_gguf(tmp_path / "m.gguf", shapes, **ARCH))
    with pytest.raises(ModelError, match=r"blk\.0\.ffn_down_exps\.weight of shape .* no slices"):
        expert_layout(header, with_head=False)


def test_a_model_without_experts_is_refused(tiny_gguf: Tiny, tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", {"blk.0.ffn_up.weight": (8, 16)}, **ARCH)
    with pytest.raises(RequestError, match=r"^--moe-stream: .* has no experts .*; drop --moe-str"):
        expert_layout(read_header(path), with_head=True)


def test_a_layer_may_be_spread_over_shards(shards: tuple[Path, ...], header: Header) -> None:
    layout, whole = (expert_layout(h, with_head=True) for h in (read_model(shards[1]), header))
    assert layout.paths == shards
    assert whole.paths == (header.path,)
    assert {t.shard for t in layout.layers[3]} == {1, 2}
    for name, tensor in layout.by_name.items():
        twin = whole.by_name[name]
        assert (tensor.slice_bytes, tensor.n_expert) == (twin.slice_bytes, twin.n_expert)
        for expert in (0, 7):
            assert _slice(layout, tensor, expert) == _slice(whole, twin, expert)


def _slice(layout: ExpertLayout, tensor: ExpertTensor, expert: int) -> bytes:
    at = tensor.offset + expert * tensor.slice_bytes
    return layout.paths[tensor.shard].read_bytes()[at : at + tensor.slice_bytes]

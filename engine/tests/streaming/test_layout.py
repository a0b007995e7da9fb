from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.errors import ModelError, RequestError
from sluice.gguf.header import Header, read_header
from sluice.streaming.layout import expert_layout, expert_of

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


@pytest.mark.parametrize("names", [SPLIT, ("gate_up", "down"), ("up", "down")])
def test_the_ways_in_which_experts_are_stored(
    tiny_gguf: Tiny, tmp_path: Path, names: tuple[str, ...]
) -> None:
    header = read_header(tiny_gguf(tmp_path / "m.gguf", parts(0, *names), **ARCH))
    assert {t.part for t in expert_layout(header, with_head=False).layers[0]} == set(names)


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


def test_shards_are_refused_with_the_remedy(tiny_gguf: Tiny, tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", parts(0, *SPLIT), **ARCH, split__count=3)
    with pytest.raises(RequestError, match=r"is one of 3 shards; merge them .*--merge"):
        expert_layout(read_header(path), with_head=False)


def test_one_shard_is_a_whole_model(tiny_gguf: Tiny, tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", parts(0, *SPLIT), **ARCH, split__count=1)
    assert expert_layout(read_header(path), with_head=False).layers

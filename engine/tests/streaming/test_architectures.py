from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.errors import RequestError
from sluice.gguf.header import Header, TensorInfo, read_header
from sluice.streaming.architectures import ARCHITECTURES, ROWS, Architecture, router_layer
from sluice.streaming.layout import PARTS, expert_layout

Tiny = Callable[..., Path]


@pytest.mark.parametrize("row", ARCHITECTURES.values(), ids=lambda row: row.name)
def test_a_row_is_sane(row: Architecture) -> None:
    assert ARCHITECTURES[row.name] is row
    assert row.stored
    for parts in row.stored:
        assert parts <= set(PARTS)
        assert "down" in parts
        assert not {"gate", "gate_up"} <= parts
    assert len(set(row.resident)) == len(row.resident)
    assert all(name.startswith("ffn_moe_") for name in row.activations)


def test_rows_are_sorted_and_none_hides_another() -> None:
    names = [row.name for row in ROWS]
    assert names == sorted(set(names))
    assert list(ARCHITECTURES) == names


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("ffn_moe_topk-0", 0),
        ("ffn_moe_topk-47", 47),
        ("ffn_moe_topk-0 (copy)", None),
        ("ffn_moe_topk-0 (view)", None),
        ("ffn_moe_topk", None),
        ("ffn_moe_group_topk-0", None),
        ("ffn_moe_argsort-0", None),
    ],
)
def test_a_routers_node_is_known_by_its_whole_name(name: str, layer: int | None) -> None:
    assert router_layer(name) == layer


def renamed(header: Header, architecture: str) -> Header:
    keys = {"general.architecture": architecture, f"{architecture}.block_count": 4}
    return dataclasses.replace(header, metadata=keys)


def test_an_unknown_architecture_is_refused_with_what_it_has(header: Header) -> None:
    with pytest.raises(RequestError) as refused:
        expert_layout(renamed(header, "mixeur9"), with_head=False)
    assert str(refused.value) == (
        f"--moe-stream: {header.path}: the experts of mixeur9 are blk.*.ffn_down_exps.weight,"
        " blk.*.ffn_gate_exps.weight, blk.*.ffn_up_exps.weight, which Sluice does not know how to"
        " stream; drop --moe-stream"
    )


def test_experts_of_another_kind_beside_known_ones_are_refused(header: Header) -> None:
    twin = header.tensors["blk.0.ffn_up_exps.weight"]
    extra = dataclasses.replace(twin, name="blk.0.ffn_up_chexps.weight")
    odd = dataclasses.replace(header, tensors=dict(header.tensors) | {extra.name: extra})
    with pytest.raises(RequestError, match=r"qwen35moe are .*blk\.\*\.ffn_up_chexps\.weight"):
        expert_layout(odd, with_head=False)


def test_a_norm_before_the_experts_is_none_of_them(header: Header) -> None:
    norm = TensorInfo("blk.0.ffn_norm_exps.weight", "F32", (256,), 0, 1024)
    normed = dataclasses.replace(header, tensors=dict(header.tensors) | {norm.name: norm})
    assert expert_layout(renamed(normed, "arctic"), with_head=False).layers


def test_an_unknown_architecture_without_experts_hears_that_it_has_none(
    tiny_gguf: Tiny, tmp_path: Path
) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", {"blk.0.ffn_up.weight": (8, 16)})
    with pytest.raises(RequestError, match=r"\(mixeur9\) has no experts to stream"):
        expert_layout(renamed(read_header(path), "mixeur9"), with_head=False)

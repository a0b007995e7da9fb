from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from qwen35b import RoutedWeights
from sluice.config import Config
from sluice.decoding.session import Session
from sluice.gguf.header import read_header
from synthetic import Shape, Tensor, Weights, made_once, tensors, write_model


def test_the_file_holds_the_listed_tensors_and_no_byte_more(
    routed_model: Path, tiny: Shape
) -> None:
    header = read_header(routed_model)
    listed = {t.name: t for t in tensors(tiny)}
    assert set(header.tensors) == set(listed)
    for name, info in header.tensors.items():
        tensor = listed[name]
        assert tuple(reversed(info.shape)) == tensor.shape
        assert info.type_name.upper() == tensor.kind.name
        assert info.size_bytes == tensor.size_bytes
    end = max(info.offset + info.size_bytes for info in header.tensors.values())
    assert routed_model.stat().st_size == -(-end // 32) * 32


def test_values_stand_where_the_header_says(routed_model: Path, tiny: Shape) -> None:
    by_name = {t.name: t for t in gguf.GGUFReader(routed_model).tensors}
    assert np.all(by_name["blk.4.nextn.enorm.weight"].data == 1)
    embedded, output = (
        gguf.quants.dequantize(by_name[f"{name}.weight"].data, gguf.GGMLQuantizationType.Q8_0)
        for name in ("token_embd", "output")
    )
    assert not output[0].any()
    assert np.argmax(output @ embedded[7]) == 8
    experts = gguf.quants.dequantize(
        by_name["blk.1.ffn_up_exps.weight"].data, gguf.GGMLQuantizationType.Q4_K
    )
    assert experts.shape == (tiny.n_expert, tiny.n_ff, tiny.n_embd)
    size = RoutedWeights(tiny.n_embd).size(
        Tensor("blk.1.ffn_up_exps.weight", experts.shape, gguf.GGMLQuantizationType.Q4_K)
    )
    assert abs(experts.mean()) < 0.01 * size
    assert 0.8 * size < experts.std() < 1.3 * size


def test_the_model_counts_resident_and_streamed_and_never_ends(
    routed_model: Path, tiny: Shape
) -> None:
    config = Config(model=str(routed_model), n=40, ctx=128, threads=1)
    for changes in ({}, {"moe_stream": True}, {"mtp": True, "draft": 2}):
        with Session(config.replace(**changes)) as session:
            generation = session.generate([tiny.n_vocab - 6, tiny.n_vocab - 5], record=False).run()
        expected = [(tiny.n_vocab - 4 + i) % tiny.n_vocab for i in range(40)]
        # The last token of the vocabulary has no successor: from there on anything may come.
        assert generation.ids[:4] == expected[:4]
        assert len(generation.ids) == 40
        assert 0 not in generation.ids


def test_a_model_is_made_once(tmp_path: Path, tiny: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(tiny, n_layer=1, n_vocab=256)
    out = made_once(tmp_path / "deep" / "m.gguf", small, Weights())
    first = out.read_bytes()
    monkeypatch.setattr("synthetic.write_model", None)
    assert made_once(out, small, Weights()) == out
    monkeypatch.undo()
    write_model(tmp_path / "again.gguf", small, Weights())
    assert (tmp_path / "again.gguf").read_bytes() == first
    assert sorted(path.name for path in out.parent.iterdir()) == ["m.gguf"]

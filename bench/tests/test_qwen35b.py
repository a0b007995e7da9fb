from __future__ import annotations

import pytest

from qwen35b import WHOLE, asked_gb, shape_of
from sluice.errors import RequestError
from synthetic import tensors


def test_as_many_layers_as_fit_and_no_more() -> None:
    assert shape_of(4.0).n_layer == 8
    assert shape_of(1000.0) == WHOLE
    shape = shape_of(6.0)
    names = tuple(f"blk.{n}." for n in range(shape.n_layer))
    taken = sum(t.size_bytes for t in tensors(shape) if t.name.startswith(names))
    assert 5.5e9 < taken <= 6e9


def test_a_token_routes_to_what_the_real_model_does_in_a_layer() -> None:
    experts = [t for t in tensors(WHOLE) if t.name.startswith("blk.0.") and "_exps" in t.name]
    assert sum(t.size_bytes for t in experts) // WHOLE.n_expert * WHOLE.n_used == 13.5 * 2**20


def test_too_little_room_is_refused_with_what_is_needed() -> None:
    with pytest.raises(RequestError, match=r"BENCH_GB 0\.5: 4 layers take (1|2)\.\d GB"):
        shape_of(0.5)


@pytest.mark.parametrize("text", ["four", "-1", "0", "nan", "inf"])
def test_a_size_that_is_no_size_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("BENCH_GB", text)
    with pytest.raises(RequestError, match=f"BENCH_GB {text}: must be a number of GB"):
        asked_gb()


def test_the_size_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BENCH_GB", raising=False)
    assert asked_gb() == 4
    monkeypatch.setenv("BENCH_GB", "7.5")
    assert asked_gb() == 7.5

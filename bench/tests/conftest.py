"""The benchmarks are scripts beside each other, and import one another as such."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from qwen35b import NAME, RoutedWeights
from sluice.bundled import model_path
from synthetic import Shape, write_model

TINY = Shape(n_vocab=512, n_embd=256, n_layer=4, n_expert=16, n_used=2, n_ff=256,
             n_head=2, n_head_kv=1, head_dim=128, groups=2, rank=4)  # fmt: skip


@pytest.fixture(scope="session")
def tiny() -> Shape:
    return TINY


@pytest.fixture(scope="session")
def routed_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few MB, made as the benchmark's model is."""
    out = tmp_path_factory.mktemp("bench") / f"{NAME}-tiny.gguf"
    write_model(out, TINY, RoutedWeights(TINY.n_embd))
    return out


@pytest.fixture(scope="session")
def bundled() -> Path:
    return model_path("bundled")

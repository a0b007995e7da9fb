"""A model of random weights of Qwen3.6-35B-A3B's shape, with as many of its layers as are wanted.

It behaves as a trained model does where that decides how fast it streams:

- Token t's embedding is a part that all tokens share, a part that changes slowly from token to
  token, and a part of its own; the output rows make t + 1 follow t. So the routers prefer some
  experts, and adjacent tokens share some: ``bench/routing.py`` measures how much.
- A layer adds little to what it is given, so the next layer's router, asked one layer early,
  names most of the right experts.
- The head's projection carries noise beside the embedding, so that some of its drafts are wrong.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from sluice.errors import RequestError
from synthetic import F32, SEED, Shape, Tensor, Weights, made_once, tensors

WHOLE = Shape(n_vocab=32_768, n_embd=2048, n_layer=40, n_expert=256, n_used=8, n_ff=512,
              n_head=16, n_head_kv=2, head_dim=256, groups=16, rank=32)  # fmt: skip
"""Qwen3.6-35B-A3B, but for its vocabulary, which would dominate a file of few layers."""

GB = 4.0
LAYERS_MIN = 4
"""One period of linear and full attention."""

SHARED, SLOW = 0.2, 0.6
"""Shares of an embedding's variance: of what all tokens have, and of what changes slowly."""

HALF_LIFE = 4
"""Tokens after which half of the slow part is another."""

NAME = "sluice-qwen35b"

_GAINS: Mapping[str, float] = {
    # What a part adds to its layer's input, which has size 1: about 0.15 each. The factors undo
    # what activations, gates and averages over experts and positions take away.
    "attn_output.weight": 0.5,
    "ssm_out.weight": 0.3,
    "ffn_down_exps.weight": 0.5,
    "ffn_down_shexp.weight": 0.3,
    "ssm_conv1d.weight": 1.0,
    "ffn_gate_inp.weight": 1.0,
}


class RoutedWeights(Weights):
    """The weights; see the module."""

    noise = 3.9
    offset = 7.5 / 250  # exactly: a mean would grow from layer to layer

    def __init__(self, n_embd: int) -> None:
        super().__init__()
        self._embedded = np.random.default_rng([SEED, 1])
        self._repeated = np.random.default_rng([SEED, 1])  # the same values again, for the output
        self._slow_random = np.random.default_rng([SEED, 2])
        self._shared = self._slow_random.standard_normal(n_embd, dtype=np.float32)
        self._slow = self._slow_random.standard_normal(n_embd, dtype=np.float32)
        self._last: F32 = np.zeros((1, n_embd), np.float32)

    def size(self, tensor: Tensor) -> float:
        """Such that a matrix product's values have size 1, but for the parts with a gain."""
        return _GAINS.get(tensor.part, 1.0) / math.sqrt(tensor.shape[-1])

    def rows(self, tensor: Tensor, begin: int, end: int) -> F32:
        """See :meth:`Weights.rows`."""
        if tensor.name == "token_embd.weight":
            return self._embeddings(end - begin, tensor.shape[-1])
        if tensor.name == "output.weight":
            return self._successors(begin, end, tensor.shape[-1])
        values = super().rows(tensor, begin, end)
        if tensor.part == "nextn.eh_proj.weight":
            values /= math.sqrt(1 + self.noise**2)
        return values

    def _embeddings(self, n: int, width: int) -> F32:
        own = self._embedded.standard_normal((n, width), dtype=np.float32)
        steps = self._slow_random.standard_normal((n, width), dtype=np.float32)
        keep = 0.5 ** (1 / HALF_LIFE)
        new = math.sqrt(1 - keep**2)
        for row in steps:
            self._slow = keep * self._slow + new * row
            row[:] = self._slow
        values: F32 = math.sqrt(SHARED) * self._shared + math.sqrt(SLOW) * steps
        values += math.sqrt(1 - SHARED - SLOW) * own
        return values

    def _successors(self, begin: int, end: int, width: int) -> F32:
        """Row t + 1 is token t's own part; row 0, the end of generation, is never the largest."""
        own = self._repeated.standard_normal((end - begin, width), dtype=np.float32)
        values = np.concatenate([self._last, own[:-1]])
        self._last = own[-1:]
        return values


def qwen35b_model(folder: Path, gb: float | None = None) -> Path:
    """The model's file in ``folder``, made on the first call.

    Args:
        folder: made where it is not there.
        gb: 10^9 bytes that the layers of the trunk take; embeddings and head come on top.
            ``None`` takes BENCH_GB of the environment, else 4.

    Raises:
        RequestError: BENCH_GB is no number, or too small.
        SystemFault: the file cannot be written.
    """
    shape = shape_of(asked_gb() if gb is None else gb)
    out = folder / f"{NAME}-{shape.n_layer}of{WHOLE.n_layer}-seed{SEED}-v2.gguf"
    if not out.exists():
        print(f"making {out} ...", file=sys.stderr)
    return made_once(out, shape, RoutedWeights(shape.n_embd))


def asked_gb() -> float:
    """BENCH_GB of the environment, in 10^9 bytes.

    Raises:
        RequestError: it is no number above 0.
    """
    text = os.environ.get("BENCH_GB") or str(GB)
    try:
        asked = float(text)
    except ValueError:
        asked = 0.0
    if not 0 < asked < float("inf"):
        raise RequestError(f"BENCH_GB {text}: must be a number of GB above 0, such as {GB:g}")
    return asked


def shape_of(gb: float) -> Shape:
    """The shape whose trunk layers fit in ``gb`` times 10^9 bytes, all 40 at most.

    Raises:
        RequestError: not even four layers fit.
    """
    layers = [0] * WHOLE.n_layer
    for tensor in tensors(WHOLE):
        if tensor.name.startswith("blk."):
            layer = int(tensor.name.split(".")[1])
            if layer < WHOLE.n_layer:
                layers[layer] += tensor.size_bytes
    fitting = [n for n in range(1, WHOLE.n_layer + 1) if sum(layers[:n]) <= gb * 1e9]
    if len(fitting) < LAYERS_MIN:
        needed = sum(layers[:LAYERS_MIN]) / 1e9
        raise RequestError(
            f"BENCH_GB {gb:g}: {LAYERS_MIN} layers take {needed:.1f} GB; set it to that or more"
        )
    return replace(WHOLE, n_layer=len(fitting))


def prompt_ids(n: int) -> list[int]:
    """A prompt of ``n`` tokens that the model could have written itself."""
    return list(range(2000, 2000 + n))

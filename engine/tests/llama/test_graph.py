from __future__ import annotations

import numpy as np

from sluice.llama.attention import flash_attention
from sluice.llama.matmul import product

RANDOM = np.random.default_rng(3)
F32, F16 = 0, 1


def test_a_product_is_the_product() -> None:
    weights = RANDOM.standard_normal((5, 64)).astype(np.float32)
    rows = RANDOM.standard_normal((3, 64)).astype(np.float32)
    for routed in (False, True):
        out = product(weights.tobytes(), F32, (64, 5), rows, routed=routed, threads=2)
        np.testing.assert_allclose(out, rows @ weights.T, rtol=1e-5, atol=1e-5)


def test_flash_attention_is_attention() -> None:
    keys, values = (RANDOM.standard_normal((256, 64)).astype(np.float16) for _ in range(2))
    queries = RANDOM.standard_normal((2, 64)).astype(np.float32)
    scores = queries @ keys.astype(np.float32).T / 8
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    expected = shares / shares.sum(axis=1, keepdims=True) @ values.astype(np.float32)
    np.testing.assert_allclose(flash_attention(queries, keys, values), expected, atol=5e-3)

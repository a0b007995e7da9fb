"""llama.cpp's own sampler chain: top-k, then top-p, then temperature, then a seeded draw."""

from __future__ import annotations

from llama_cpp import llama_cpp as api

from sluice.llama.context import Context


class Sampler:
    """Draws tokens; the same seed over the same logits draws the same tokens."""

    def __init__(self, *, top_k: int, top_p: float, temp: float, seed: int) -> None:
        self._chain = api.llama_sampler_chain_init(api.llama_sampler_chain_default_params())
        for stage in (
            api.llama_sampler_init_top_k(top_k),
            api.llama_sampler_init_top_p(top_p, 1),
            api.llama_sampler_init_temp(temp),
            api.llama_sampler_init_dist(seed),
        ):
            api.llama_sampler_chain_add(self._chain, stage)

    def choose(self, context: Context, row: int) -> int:
        """Draw from the logits of batch row ``row`` of the last decode."""
        return int(api.llama_sampler_sample(self._chain, context.handle, row))

    def close(self) -> None:
        """Free the chain and its stages."""
        if self._chain:
            api.llama_sampler_free(self._chain)
            self._chain = None

"""What tests of contexts and of their node filters share."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from llama_cpp import llama_cpp as api

from sluice.llama import machine_code
from sluice.llama import tensor as node
from sluice.llama.context import Context
from sluice.llama.node_filter import NodeFilter

MOE = b"ffn_moe_"
IDS = [5, 6, 7, 8, 9, 10]
Make = Callable[..., Context]
runs_only = pytest.mark.skipif(not machine_code.runs_here(), reason="no machine code here")


def closed() -> NodeFilter:
    nodes = NodeFilter(MOE)
    nodes.is_open = False
    return nodes


def row(context: Context, ids: list[int] = IDS, position: int = 0) -> bytes:
    context.decode(ids, position, outputs="last")
    return context.logits(len(ids) - 1).tobytes()


class Log:
    """A hook that stops at the routers, and keeps what it was shown."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, bool]] = []

    def hook(self, address: int, ask: bool) -> bool:
        name = node.name(address)
        self.shown.append((name, ask))
        return name.startswith("ffn_moe_topk-")

    def of_experts(self) -> list[tuple[str, bool]]:
        return [one for one in self.shown if one[0].startswith(MOE.decode())]


class Boom(Exception):
    pass


def computed_nodes(context: Context, after: Callable[[], object]) -> tuple[int, list[object]]:
    """How many nodes of a decode are computed, and what ``after`` each says; it raises Boom."""
    said: list[object] = []
    seen = api.ggml_abort_callback(lambda _data: bool(said.append(after())))
    api.llama_set_abort_callback(context.handle, seen, None)
    try:
        with pytest.raises(Boom):
            row(context)
    finally:
        api.llama_set_abort_callback(context.handle, api.ggml_abort_callback(0), None)
    return len(said), said

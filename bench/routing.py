"""How a model routes: the hit rate of an LRU cache, and how well a layer's experts are foreseen.

``python bench/routing.py [MODEL]`` decodes once per question and prints: the hit rate of a cache
of a third of the expert bytes, the share of experts that the next layer's router already names
on this layer's input, the share that the token before used, and how many of the head's drafts
are accepted at drafts 1 to 3.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cache import cache_folder
from qwen35b import prompt_ids, qwen35b_model
from sluice.config import Config
from sluice.decoding.session import Session
from sluice.gguf.shards import read_model
from sluice.llama import tensor as node
from sluice.seams import Nodes
from sluice.streaming.capture import ROUTER, ROUTING

F32 = npt.NDArray[np.float32]
Routed = list[dict[int, list[int]]]
"""One entry a token: layer to the experts that it routed to."""

N_PROMPT = 32


class Watcher(Nodes):
    """Keeps the routing of every one-row decode of the target, and each router's input."""

    def __init__(self) -> None:
        self.routed: Routed = []
        self.inputs: list[dict[int, F32]] = []
        self._keeps = False

    def begins(
        self, is_head: bool, tokens: Sequence[int], position: int, outputs: str, hidden: F32 | None
    ) -> None:
        """See :class:`Nodes`."""
        self._keeps = len(tokens) == 1 and not is_head
        if self._keeps:
            self.routed.append({})
            self.inputs.append({})

    def wants(self, is_head: bool, address: int) -> bool:
        """See :class:`Nodes`."""
        return self._keeps and (
            node.name_starts_with(address, ROUTING) or node.name_starts_with(address, ROUTER)
        )

    def computed(self, is_head: bool, address: int) -> None:
        """See :class:`Nodes`."""
        layer = node.name(address).rpartition("-")[2]
        if node.name_starts_with(address, ROUTING):
            self.routed[-1][int(layer)] = node.routed(address)[0]
            return
        for source in node.sources(address):
            values = node.values(source)
            if values is not None and not node.name(source).endswith(".weight"):
                self.inputs[-1][int(layer)] = np.array(values[0, 0, 0], np.float32)


def hit_rate(routed: Routed, capacity: int) -> float:
    """Hits among all accesses of an LRU cache of ``capacity`` experts, empty at the start."""
    kept: OrderedDict[tuple[int, int], None] = OrderedDict()
    hits = accesses = 0
    for layers in routed:
        for layer, experts in layers.items():
            for expert in experts:
                accesses += 1
                if (layer, expert) in kept:
                    hits += 1
                    kept.move_to_end((layer, expert))
                    continue
                kept[layer, expert] = None
                if len(kept) > capacity:
                    kept.popitem(last=False)
    return hits / accesses if accesses else 0.0


def agreement(routed: Routed) -> float:
    """Share of a token's experts that the token before used in the same layer."""
    return _share((before[n], here[n]) for before, here in itertools.pairwise(routed)
                  for n in here if n in before)  # fmt: skip


def foreseen(routed: Routed, inputs: list[dict[int, F32]], routers: dict[int, F32]) -> float:
    """Share of a layer's experts that its router names on the input of the layer before."""
    pairs = []
    for layers, given in zip(routed, inputs, strict=True):
        for layer, experts in layers.items():
            if layer - 1 in given:
                logits = routers[layer] @ given[layer - 1]
                pairs.append((np.argsort(-logits)[: len(experts)].tolist(), experts))
    return _share(pairs)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", type=Path, help="the benchmark's, made if it is not")
    parser.add_argument("--n", type=int, default=256, help="tokens decoded (%(default)s)")
    parser.add_argument("-t", "--threads", type=int, default=0, help="0 takes every core")
    asked = parser.parse_args(argv)
    path = asked.model or qwen35b_model(cache_folder())
    config = Config(model=str(path), n=asked.n + 1, ctx=asked.n + 128, threads=asked.threads)
    watcher = Watcher()
    with Session(config, nodes=watcher) as session:
        generation = session.generate(prompt_ids(N_PROMPT), record=False).run()
    routed = watcher.routed
    n_expert = read_model(path).number("expert_count")
    capacity = len(routed[0]) * n_expert // 3
    routers = {n: router_of(path, n) for n in routed[0]}
    reason = generation.stop.reason if generation.stop else ""
    print(f"{path.name}: {len(generation.ids)} tokens, {len(set(generation.ids))} of them"
          f" different, stopped by {reason}")  # fmt: skip
    used = {(n, e) for layers in routed for n, experts in layers.items() for e in experts}
    print(f"experts used: {len(used)} of {len(routed[0]) * n_expert}")
    print(f"hit rate at a third of the experts: {hit_rate(routed, capacity):.1%}")
    print(f"shared with the token before: {agreement(routed):.1%}")
    print(f"named by the router one layer early: {foreseen(routed, watcher.inputs, routers):.1%}")
    for draft in (1, 2, 3):
        with Session(config.replace(mtp=True, draft=draft)) as session:
            metrics = session.generate(prompt_ids(N_PROMPT), record=False).run().metrics
        print(f"draft {draft}: {metrics.n_accepted} of {metrics.n_drafted} accepted"
              f" ({metrics.n_accepted / metrics.n_drafted:.1%})")  # fmt: skip
    return 0


def router_of(path: Path, layer: int) -> F32:
    """The router of one layer, float32[n_expert, n_embd]."""
    header = read_model(path)
    info = header.tensors[f"blk.{layer}.ffn_gate_inp.weight"]
    file = header.path_of(info)
    values = np.fromfile(file, np.float32, info.shape[0] * info.shape[1], offset=info.offset)
    return values.reshape(info.shape[1], info.shape[0])


def _share(pairs: Iterable[tuple[list[int], list[int]]]) -> float:
    """Share of the second lists' experts that are in the first."""
    found = wanted = 0
    for guessed, right in pairs:
        found += len(set(guessed) & set(right))
        wanted += len(right)
    return found / wanted if wanted else 0.0


if __name__ == "__main__":
    sys.exit(main())

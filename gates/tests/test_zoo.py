"""Every model of the zoo is written, opened and streamed for real; a few tokens each."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluice.config import Config
from sluice.decoding.session import Session
from sluice.errors import RequestError
from sluice.gguf.header import read_header
from sluice.gguf.limits import refuse_what_aborts
from sluice.llama import tensor as node
from sluice.seams import NO_SEAMS, Nodes, Seams
from sluice.streaming.architectures import ARCHITECTURES, router_layer
from sluice.streaming.layout import expert_layout
from sluice.targets.engine import EngineTarget, Run
from sluice_gates.zoo import REFUSED, ZOO, zoo_model

PROMPT = "Wherever it reads, it reads the experts of this token."  # two passes of UBATCH
UBATCH = 32
N_TOKENS = 12

WANTED = (
    "qwen2moe qwen3moe qwen35moe qwen3next gemma4 gpt-oss glm4moe deepseek2 lfm2moe bailingmoe"
    " bailingmoe2 bailingmoe3"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("zoo")
    yield made
    shutil.rmtree(made)  # pytest would keep some hundred megabytes of each of the last runs


def config(path: Path, **changes: Any) -> Config:
    return Config(model=str(path), n=N_TOKENS, ctx=256, threads=1, ubatch=UBATCH).replace(**changes)


def run(path: Path, seams: Seams = NO_SEAMS, **changes: Any) -> Run:
    return EngineTarget(seams=seams).run(config(path, **changes), PROMPT)


class ReadSlices(Seams):
    def __init__(self) -> None:
        self.seen: Counter[tuple[int, str]] = Counter()
        self.experts: dict[int, set[int]] = {}

    def slice_read(self, layer: int, part: str, expert: int, data: memoryview) -> None:
        self.seen[layer, part] += 1
        self.experts.setdefault(layer, set()).add(expert)


class Graph(Nodes):
    """Names of what routes, and of what the down-projections take, by layer."""

    def __init__(self) -> None:
        self.routers: list[int] = []
        self.activations: dict[int, set[str]] = {}

    def begins(self, *_of_the_decode: Any) -> None:
        self.routers.clear()

    def wants(self, is_head: bool, address: int) -> bool:
        layer = router_layer(node.name(address))
        if layer is not None:
            self.routers.append(layer)
        sources = [node.name(source) for source in node.sources(address)]
        for source in sources:
            if match := re.fullmatch(r"blk\.(\d+)\.ffn_down_exps\.weight", source):
                name = sources[1].removesuffix(f"-{match[1]}")
                self.activations.setdefault(int(match[1]), set()).add(name)
        return False


@pytest.mark.parametrize("name", ZOO)
def test_a_model_streams_to_the_logits_that_it_has_resident(name: str, folder: Path) -> None:
    path = zoo_model(name, folder)
    layout = expert_layout(read_header(path), with_head=False)
    seams = ReadSlices()
    resident, streamed = run(path), run(path, seams, moe_stream=True)
    evidence = resident.evidence
    # The last layer of a pass without logits has no rows in most architectures, and no routing.
    assert len(evidence.prompt_ids) > UBATCH
    assert evidence.stop.reason == "n"
    assert len(evidence.ids) == N_TOKENS
    assert len(set(evidence.logits_sha256)) == N_TOKENS
    assert len(set(evidence.ids)) > 2
    assert all(np.isfinite(top.logits).all() and top.margin > 0 for top in evidence.top2)
    assert streamed.evidence.ids == evidence.ids
    assert streamed.evidence.logits_sha256 == evidence.logits_sha256
    slots = {"cache_mb": 1, "force_cache": True, "cache_memory": "slots"}
    cached = run(path, moe_stream=True, **slots)
    assert cached.metrics.generated.n_evicted > 0
    assert cached.evidence.logits_sha256 == evidence.logits_sha256
    assert set(seams.seen) == {(t.layer, t.part) for t in layout.by_name.values()}
    for layer, tensors in layout.layers.items():
        assert len(seams.experts[layer]) > tensors[0].n_expert // 2


@pytest.mark.parametrize("name", [*ZOO, *REFUSED])
def test_a_sound_model_passes_the_limits(name: str, folder: Path) -> None:
    refuse_what_aborts(read_header(zoo_model(name, folder)))


@pytest.mark.parametrize("name", ZOO)
def test_no_expert_is_outside_the_layout(name: str, folder: Path) -> None:
    header = read_header(zoo_model(name, folder))
    layout = expert_layout(header, with_head=False)
    experts = header.number("expert_count")
    wide = {i.name for i in header.tensors.values() if len(i.shape) == 3 and i.shape[2] == experts}
    assert wide == set(layout.by_name)
    row = ARCHITECTURES[header.architecture]
    for tensors in layout.layers.values():
        assert {t.part for t in tensors} in row.stored


@pytest.mark.parametrize("name", ZOO)
def test_the_graph_has_the_nodes_that_the_registry_names(name: str, folder: Path) -> None:
    path = zoo_model(name, folder)
    header = read_header(path)
    layers = set(expert_layout(header, with_head=False).layers)
    graph = Graph()
    with Session(config(path), nodes=graph) as session:
        session.generate([5, 6, 7], n=2).run()
    assert sorted(graph.routers) == sorted(layers)
    assert set(graph.activations) == layers
    assert set.union(*graph.activations.values()) <= set(
        ARCHITECTURES[header.architecture].activations
    )


@pytest.mark.parametrize("name", [*ZOO, *REFUSED])
def test_a_model_is_the_same_bytes_each_time(name: str, folder: Path, tmp_path: Path) -> None:
    path = zoo_model(name, folder)
    made_ns = path.stat().st_mtime_ns
    again = zoo_model(name, tmp_path / "new")
    assert again.name == path.name
    assert again.read_bytes() == path.read_bytes()
    assert zoo_model(name, folder) == path
    assert path.stat().st_mtime_ns == made_ns
    assert path.stat().st_size < 10e6
    assert list(again.parent.iterdir()) == [again]
    again.unlink()


def test_the_zoo_has_every_architecture_of_the_registry_and_each_way_to_store() -> None:
    stored = {
        name: {
            frozenset(t.name.split("_exps")[0].removeprefix("ffn_") for t in layer
                      if t.name.endswith("_exps.weight") and len(t.shape) == 3)
            for layer in row.layers
        } - {frozenset()}
        for name, row in ZOO.items()
    }  # fmt: skip
    for architecture in ARCHITECTURES.values():
        ways = [stored[n] for n, row in ZOO.items() if row.architecture == architecture.name]
        assert set().union(*ways) == set(architecture.stored), architecture.name
    assert set(WANTED.split()) <= set(ZOO)


def test_all_ascii_is_tokenised(folder: Path) -> None:
    text = bytes(range(1, 127)).decode()
    with Session(config(zoo_model("qwen3moe", folder))) as session:
        ids = session.tokenize(text)
        assert session.detokenize(ids) == text.encode()
        assert len(session.tokenize("none")) == 2


def test_a_token_of_the_end_never_wins(folder: Path) -> None:
    evidence = run(zoo_model("qwen3moe", folder), n=150).evidence
    assert 0 not in evidence.ids
    assert min(top.logits[0] for top in evidence.top2) > 0


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_streamed_runs_resident_and_is_refused_by_name(name: str, folder: Path) -> None:
    path = zoo_model(name, folder)
    assert len(run(path).evidence.ids) == N_TOKENS
    with pytest.raises(RequestError, match=rf"experts of {name} are .*ffn_up_chexps\.weight, "):
        run(path, moe_stream=True)


def test_a_model_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"the zoo has no dodo; it has .*qwen3moe, "):
        zoo_model("dodo", tmp_path)


@pytest.mark.parametrize("ubatch", [3, 512])
@pytest.mark.parametrize("name", list(ZOO))
def test_every_router_can_be_run_early(name: str, ubatch: int, folder: Path) -> None:
    """Narrow passes too: most of them ask for no output, so a last layer has no rows."""
    made = config(zoo_model(name, folder), moe_stream=True, cache_mb=16, force_cache=True, n=3)
    made = made.replace(ubatch=ubatch, predict_prefetch=True, predict_log=True)
    metrics = EngineTarget().run(made, "hello world").metrics
    control = metrics.predictions["control"]
    assert control.n_named
    assert control.n_right == control.n_named

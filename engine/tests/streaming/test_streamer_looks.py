"""What is done beside the matmuls of a pass: a layer is looked at twice before it routes."""

from __future__ import annotations

import gc
import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFValueType

from sluice.config import Config
from sluice.decoding.generation import Generation
from sluice.decoding.session import Session
from sluice.errors import ReadFault
from sluice.llama import aside as aside_module
from sluice.llama import machine_code
from sluice.llama import tensor as node
from sluice.llama.aside import Aside, aside
from sluice.seams import Nodes
from sluice.streaming import readahead
from sluice.streaming.ahead import Predictor, Routed
from sluice.streaming.cache import Entry, ExpertCache
from sluice.streaming.readahead import ReadAhead

N, TOP_K, LAYERS = 24, 2, (0, 1, 2, 3)
TWICE = LAYERS[1:]
LOOKS = {"moe_stream": True, "cache_mb": 2, "predict_prefetch": True, "threads": 2}
Open = Callable[..., Session]
Method = Callable[..., Any]

pytestmark = pytest.mark.skipif(
    not machine_code.runs_here() or aside() is None, reason="nothing is done beside a matmul here"
)


def ahead_of(session: Session) -> ReadAhead:
    assert session.streamer is not None
    assert session.streamer._ahead is not None
    return session.streamer._ahead


def wrap(
    monkeypatch: pytest.MonkeyPatch, kind: type, name: str, around: Callable[..., Any]
) -> None:
    """``around(real, self, *arguments)`` is called in the place of a method."""
    real: Method = getattr(kind, name)
    monkeypatch.setattr(kind, name, lambda self, *rest, **named: around(real, self, *rest, **named))


def run(session: Session, prompt: str) -> tuple[list[int], list[str]]:
    evidence = session.generate(prompt).run().evidence()
    return evidence.ids, evidence.logits_sha256


class Looks:
    """By layer, what the first and the second look named, and how much of it was right."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.n_again: Counter[int] = Counter()
        self.n_right = [0, 0]
        self._named: dict[int, list[list[int]]] = {}
        wrap(monkeypatch, ReadAhead, "_look_again", self._look_again)
        wrap(monkeypatch, Predictor, "saw", self._saw)

    def _look_again(self, real: Method, ahead: ReadAhead, layer: int, *rest: Any) -> None:
        self.n_again[layer] += 1
        named = ahead._predictor.by_early_router
        first = named(layer)
        real(ahead, layer, *rest)
        self._named[layer] = [first, named(layer)]

    def _saw(
        self, real: Method, predictor: Predictor, layer: int, selected: Routed, inputs: object
    ) -> None:
        for i, named in enumerate(self._named.pop(layer, [])):
            self.n_right[i] += len(set(selected[0]) & set(named))
        real(predictor, layer, selected, inputs)


@pytest.mark.parametrize("changes", [{}, {"overlap": True}, {"io_threads": 1}], ids=str)
def test_every_layer_but_the_first_is_looked_at_again_in_a_pass_of_one_row(
    opened: Open, prompt: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = run(opened(), prompt)
    looks = Looks(monkeypatch)
    assert run(opened(**LOOKS | changes), prompt) == right
    assert looks.n_again == dict.fromkeys(TWICE, N - 1)


def test_the_second_look_names_more_of_what_is_routed_to(
    opened: Open, prompt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Looks(monkeypatch)
    opened(**LOOKS, n=64).generate(prompt).run()
    first, second = looks.n_right
    assert first < second <= 63 * len(TWICE) * TOP_K


def test_what_is_looked_at_again_is_what_the_layer_before_gave(
    opened: Open, prompt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Given(Nodes):
        def __init__(self) -> None:
            self.rows: dict[int, bytes] = {}

        def wants(self, is_head: bool, address: int) -> bool:
            return node.name(address).startswith("l_out-")

        def computed(self, is_head: bool, address: int) -> None:
            found = node.rows(address, most=1)
            if found is not None:
                self.rows[int(node.name(address).rpartition("-")[2])] = found.copy().tobytes()

    given, taken = Given(), list[bool]()

    def look_again(real: Method, ahead: ReadAhead, layer: int, *rest: Any) -> None:
        found = node.rows(ahead._residuals[layer], most=1)
        assert found is not None
        taken.append(found.copy().tobytes() == given.rows[layer - 1])
        real(ahead, layer, *rest)

    wrap(monkeypatch, ReadAhead, "_look_again", look_again)
    opened(**LOOKS, n=8, session={"nodes": given}).generate(prompt).run()
    assert taken == [True] * (7 * len(TWICE))


@pytest.mark.parametrize(
    "changes", [{}, {"threads": 1}, {"predict_log": True}, {"prefetch_sync": True}], ids=str
)
def test_where_nothing_is_done_beside_a_matmul_there_is_one_look(
    opened: Open, prompt: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = run(opened(), prompt)
    if not changes:
        monkeypatch.setattr(readahead, "aside", lambda: None)
    looks = Looks(monkeypatch)
    session = opened(**LOOKS | changes)
    assert run(session, prompt) == right
    assert looks.n_again == {}
    assert session.generate(prompt).run().metrics.generated.n_ahead > 0


@pytest.mark.parametrize(
    "changes",
    [{"predict_prefetch": False, "prefetch": 2}, {"cache_memory": "pages"}, {"mtp": True}],
    ids=str,
)
def test_what_is_done_beside_a_matmul_changes_no_bit(
    opened: Open, prompt: str, changes: dict[str, Any]
) -> None:
    right = run(opened(mtp=changes.get("mtp", False)), prompt)
    session = opened(**LOOKS | {"cache_mb": 4} | changes)
    assert [run(session, prompt) for _ in range(3)] == [right] * 3


@pytest.mark.parametrize("spec_max", [1, 2, 3])
def test_both_looks_together_read_ahead_no_more_than_may_be(
    opened: Open, prompt: str, spec_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: Counter[int] = Counter()
    most: Counter[int] = Counter()

    def load_ahead(real: Method, cache: ExpertCache, layer: int, *rest: Any) -> Entry | None:
        entry: Entry | None = real(cache, layer, *rest)
        begun[layer] += entry is not None
        return entry

    def saw(real: Method, predictor: Predictor, layer: int, *rest: Any) -> None:
        most[layer] = max(most[layer], begun.pop(layer, 0))
        real(predictor, layer, *rest)

    wrap(monkeypatch, ExpertCache, "load_ahead", load_ahead)
    wrap(monkeypatch, Predictor, "saw", saw)
    opened(**LOOKS, predict_spec_max=spec_max, n=64).generate(prompt).run()
    assert set(most) == set(LAYERS)
    assert most[0] == min(spec_max, TOP_K), "which is looked at once"
    assert {most[layer] for layer in TWICE} == {spec_max}


def test_the_first_look_leaves_a_quarter_to_the_second(
    opened: Open,
    prompt: str,
    rewrite: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = {"qwen35moe.expert_used_count": (4, GGUFValueType.UINT32)}
    path = rewrite(tmp_path / "four.gguf", keys=keys)
    n_named: dict[int, list[int]] = {}

    def read(real: Method, ahead: ReadAhead, layer: int, named: Sequence[int], *rest: Any) -> None:
        if named:  # nothing is in a wide pass
            n_named.setdefault(layer, []).append(len(named))
        real(ahead, layer, named, *rest)

    wrap(monkeypatch, ReadAhead, "_read", read)
    opened(model=str(path), **LOOKS | {"cache_mb": 4}, n=3).generate(prompt).run()
    assert n_named == {0: [4, 4]} | {layer: [3, 4, 3, 4] for layer in TWICE}
    n_named.clear()
    opened(model=str(path), **LOOKS | {"cache_mb": 4, "threads": 1}, n=3).generate(prompt).run()
    assert n_named == {0: [4, 4]} | {layer: [4, 4] for layer in TWICE}


def where(err: BaseException) -> set[str]:
    """The functions that it came through."""
    return {frame.name for frame in traceback.extract_tb(err.__traceback__)}


@pytest.mark.parametrize("at", [1, 7])
@pytest.mark.parametrize("look", ["_start", "_look", "_look_again"])
def test_an_error_beside_a_matmul_is_the_generations(
    opened: Open, prompt: str, look: str, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, left = run(opened(), prompt), [at]

    def fail(real: Method, ahead: ReadAhead, *rest: Any) -> None:
        is_beside = Aside.begin.__name__ in {frame.name for frame in traceback.extract_stack()}
        left[0] -= is_beside
        if is_beside and left[0] == 0:
            raise ReadFault("planted")
        real(ahead, *rest)

    wrap(monkeypatch, ReadAhead, look, fail)
    session = opened(**LOOKS)
    running = session.generate(prompt)
    with pytest.raises(ReadFault, match=r"^planted$") as fault:
        running.run()
    assert Aside.begin.__name__ in where(fault.value)
    assert list(running) == []
    for _ in range(2):
        assert run(session, prompt) == right


def test_an_error_after_the_last_stop_is_the_generations_too(
    opened: Open, prompt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(real: Method, ahead: ReadAhead, layer: int, *rest: Any) -> None:
        if layer == LAYERS[-1] and "begin" in {f.name for f in traceback.extract_stack()}:
            raise ReadFault("planted")
        real(ahead, layer, *rest)

    wrap(monkeypatch, ReadAhead, "_look", fail)
    with pytest.raises(ReadFault, match=r"^planted$"):
        opened(**LOOKS, n=2).generate(prompt).run()


def test_a_file_that_changed_is_not_read_ahead_from_beside_a_matmul(
    changed_midway: Callable[..., tuple[Session, Generation]], prompt: str
) -> None:
    """The first read of a token is that of the embeddings' router."""
    session, generation = changed_midway(**LOOKS)
    n_ahead = generation.metrics.generated.n_ahead
    with pytest.raises(ReadFault, match="changed since it was opened") as fault:
        generation.run()
    assert where(fault.value) >= {"begin", "_start", "check_unchanged"}
    assert generation.metrics.generated.n_ahead <= n_ahead + TOP_K
    with pytest.raises(ReadFault, match="changed since it was opened"):
        session.generate(prompt).run()


class BreaksOff(Nodes):
    """Once, before the first matmul of the experts of a layer in a pass of one row."""

    def __init__(self, layer: int) -> None:
        self._name, self.is_done, self._n_rows = f"ffn_moe_weights-{layer}", False, 0

    def begins(self, is_head: bool, tokens: Sequence[int], *_rest: Any) -> None:
        self._n_rows = len(tokens)

    def wants(self, is_head: bool, address: int) -> bool:
        if self._n_rows == 1 and not self.is_done and node.name(address) == self._name:
            self.is_done = True
            raise RuntimeError("broken off")
        return False


@pytest.mark.parametrize("layer", LAYERS)
def test_what_a_generation_left_undone_is_not_done_in_the_next(
    opened: Open, prompt: str, layer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = run(opened(), prompt)
    begun: list[tuple[str, object]] = []
    for name in ("_start", "_look", "_look_again"):

        def note(real: Method, ahead: ReadAhead, *rest: Any, name: str = name) -> None:
            begun.append((name, rest[-1]))
            real(ahead, *rest)

        wrap(monkeypatch, ReadAhead, name, note)
    session = opened(**LOOKS, session={"nodes": BreaksOff(layer)})
    broken = session.generate(prompt)
    with pytest.raises(RuntimeError, match="broken off"):
        broken.run()
    assert any(counter is broken.metrics.decode for _, counter in begun)
    begun.clear()
    fresh = session.generate(prompt).run()
    made = fresh.metrics
    counters = [made.prefill, made.decode]
    strangers = [name for name, counter in begun if not any(counter is one for one in counters)]
    assert strangers == []
    assert (fresh.evidence().ids, fresh.evidence().logits_sha256) == right


@pytest.mark.parametrize("n_steps", [1, 3, N])
def test_a_closed_session_is_let_go_of(config: Config, prompt: str, n_steps: int) -> None:
    gc.collect()
    session = Session(config.replace(**LOOKS))
    generation = session.generate(prompt)
    for _ in range(n_steps):
        next(generation)
    seen = [weakref.ref(one) for one in (session, ahead_of(session), session.streamer)]
    session.close()
    del session, generation
    gc.collect()
    assert [one() for one in seen] == [None] * len(seen)
    assert not given()


def test_a_session_that_is_closed_amid_a_pass_is_let_go_of(config: Config, prompt: str) -> None:
    session = Session(config.replace(**LOOKS), nodes=BreaksOff(1))
    with pytest.raises(RuntimeError, match="broken off"):
        session.generate(prompt).run()
    assert given(), "else there would be nothing to let go of"
    seen = weakref.ref(ahead_of(session))
    session.close()
    assert not given()
    del session
    gc.collect()
    assert seen() is None


def given() -> dict[int, Aside]:
    barrier = aside_module._barrier()
    assert barrier is not None
    return barrier.given

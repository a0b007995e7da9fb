from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGUFReader

from sluice.config import Config
from sluice.decoding.session import Session
from sluice.errors import SystemFault
from sluice.gguf.header import Header
from sluice.llama.context import Context, ContextShape
from sluice.llama.model import Model
from sluice.seams import NO_SEAMS, Seams
from sluice.streaming.arena import POISON
from sluice.streaming.layout import ExpertLayout, ExpertTensor, expert_layout
from sluice.streaming.reader import SliceReader
from sluice.streaming.streamer import Streamer
from sluice.telemetry.metrics import ReadCounter

from .parts import PAGE

TOP_K, N_EXPERT, N_TRUNK, N_PARTS = 2, 8, 4, 3
Open = Callable[..., Session]


@pytest.fixture(scope="module")
def loaded(model: Path) -> Iterator[Model]:
    one = Model(model, load_mtp=True, by_header=True)
    yield one
    one.close()


@pytest.fixture
def capture(
    loaded: Model, header: Header, config: Config
) -> Iterator[Callable[[ExpertLayout, list[int]], Streamer]]:
    """Captures ``layers`` of a layout in a context of its own."""
    closing: list[Any] = []

    def capture_(layout: ExpertLayout, layers: list[int]) -> Streamer:
        reader = SliceReader(header.paths, direct=False, warn=lambda _text: None)
        streamer = Streamer(
            config.replace(moe_stream=True, io_threads=1), header, layout, reader=reader,
            seams=NO_SEAMS, progress=lambda *_step: None,
        )  # fmt: skip
        context = Context(
            loaded,
            ContextShape(n_ctx=256, rows_max=8, outputs_max=1),
            hook=streamer.hook(is_head=False),
        )
        closing.extend((streamer, context))
        streamer.capture(lambda: context.build_only(0), layers)
        return streamer

    yield capture_
    for one in reversed(closing):
        one.close()


def plus(layout: ExpertLayout, *more: ExpertTensor) -> ExpertLayout:
    layers = dict(layout.layers)
    for tensor in more:
        layers[tensor.layer] = (*layers.get(tensor.layer, ()), tensor)
    return dataclasses.replace(layout, layers=layers)


def test_a_tensor_that_the_graph_does_not_use_is_named(
    capture: Callable[..., Streamer], header: Header
) -> None:
    extra = ExpertTensor("blk.2.ffn_gate_up_exps.weight", 2, "gate_up", 4096, 64, N_EXPERT)
    layout = plus(expert_layout(header, with_head=False), extra)
    with pytest.raises(SystemFault) as fault:
        capture(layout, [0, 1, 2, 3])
    assert "blk.2.ffn_gate_up_exps.weight is not used by the graph" in str(fault.value)
    assert "(1 of 13 expert tensors missed); it would stay resident" in str(fault.value)


def test_the_heads_experts_are_not_in_the_trunks_graph(
    capture: Callable[..., Streamer], header: Header
) -> None:
    layout = expert_layout(header, with_head=True)
    with pytest.raises(SystemFault, match=r"blk\.4\.ffn_down_exps\.weight is not used .*3 of 15"):
        capture(layout, [0, 1, 2, 3, 4])


@pytest.mark.parametrize("field", ["n_expert", "slice_bytes"])
def test_a_tensor_of_another_size_in_memory_is_named(
    capture: Callable[..., Streamer], header: Header, field: str
) -> None:
    layout = expert_layout(header, with_head=False)
    wrong = dataclasses.replace(layout.layers[1][0], **{field: 4})
    layers = dict(layout.layers) | {1: (wrong, *layout.layers[1][1:])}
    streamer = capture(dataclasses.replace(layout, layers=layers), [0, 1, 2, 3])
    with pytest.raises(SystemFault, match=rf"{wrong.name} is .* in memory, .* in the file"):
        streamer.settle()


def slice_bytes(session: Session) -> int:
    """Of one expert, all parts, one layer."""
    assert session._streamer is not None
    sizes = {sum(t.slice_bytes for t in ts) for ts in session._streamer.layout.layers.values()}
    assert len(sizes) == 1
    return sizes.pop()


@pytest.mark.parametrize("odirect", [True, False])
def test_counters_count_what_was_read(opened: Open, odirect: bool) -> None:
    session = opened(moe_stream=True, odirect=odirect, n=7)
    metrics = session.generate([5, 6, 7, 8]).run().metrics
    # Six decodes of one row each: the first token comes from the prompt's pass.
    assert metrics.n_decodes == 6
    assert metrics.decode.n_slices == 6 * N_TRUNK * N_PARTS * TOP_K
    assert metrics.decode.slice_bytes == 6 * N_TRUNK * TOP_K * slice_bytes(session)
    assert N_TRUNK * N_PARTS * TOP_K <= metrics.prefill.n_slices <= N_TRUNK * N_PARTS * N_EXPERT
    assert metrics.prefill.n_slices * slice_bytes(session) == N_PARTS * metrics.prefill.slice_bytes
    assert metrics.head == ReadCounter()
    assert metrics.decode.stall_s > 0
    for counter in (metrics.prefill, metrics.decode):
        surplus = counter.read_bytes - counter.slice_bytes
        assert session._streamer is not None
        if session._streamer.reader.is_direct:
            assert 0 <= surplus <= counter.n_slices * 2 * PAGE
        else:
            assert surplus == 0


def test_load_all_reads_every_expert_of_every_layer(opened: Open) -> None:
    session = opened(moe_stream=True, odirect=False, load_all=True, n=4)
    metrics = session.generate([5, 6]).run().metrics
    assert metrics.decode.n_slices == 3 * N_TRUNK * N_PARTS * N_EXPERT
    assert metrics.decode.read_bytes == 3 * N_TRUNK * N_EXPERT * slice_bytes(session)
    assert metrics.prefill.n_slices == N_TRUNK * N_PARTS * N_EXPERT


def test_the_head_is_charged_apart(opened: Open) -> None:
    session = opened(moe_stream=True, odirect=False, mtp=True, draft=2, n=6)
    metrics = session.generate([5, 6]).run().metrics
    assert metrics.head.n_slices >= N_PARTS * TOP_K * metrics.n_drafted
    assert metrics.decode.n_slices >= metrics.n_decodes * N_TRUNK * N_PARTS * TOP_K
    total = metrics.prefill.read_bytes + metrics.decode.read_bytes + metrics.head.read_bytes
    assert metrics.read_bytes == total


def test_a_second_generation_has_counters_of_its_own(opened: Open) -> None:
    session = opened(moe_stream=True, odirect=False, n=4)
    first = session.generate([5, 6]).run().metrics
    kept = dataclasses.asdict(first)
    second = session.generate([5, 6]).run().metrics
    assert second.decode.n_slices == first.decode.n_slices
    assert dataclasses.asdict(first) == kept


class Watch(Seams):
    """Keeps what was routed, and what the buffers held, after the last layer of a decode."""

    def __init__(self) -> None:
        self.routed: set[int] = set()
        self.seen: list[tuple[int, str, int]] = []

    def routing(self, selected: npt.NDArray[np.int32], flat: npt.NDArray[np.int32]) -> Any:
        self.routed = {int(e) for e in selected.ravel()}
        return selected

    def slice_read(self, layer: int, part: str, expert: int, data: memoryview) -> None:
        self.seen.append((layer, part, expert))


@pytest.mark.parametrize("odirect", [True, False])
@pytest.mark.parametrize("poison", [True, False])
def test_what_was_not_routed_is_poisoned(
    opened: Open, model: Path, odirect: bool, poison: bool
) -> None:
    watch = Watch()
    session = opened(moe_stream=True, odirect=odirect, poison=poison, n=3, session={"seams": watch})
    session.generate([5, 6, 7, 8, 9]).run()
    streamer = session._streamer
    assert streamer is not None
    raw = model.read_bytes()
    assert len(watch.routed) == TOP_K
    clean = 0
    inner = slice(PAGE, -PAGE) if streamer.reader.is_direct else slice(None)
    for tensor in streamer.layout.layers[N_TRUNK - 1]:
        for expert in range(N_EXPERT):
            got = bytes(streamer.place.slice_view(tensor, expert))
            start = tensor.offset + expert * tensor.slice_bytes
            expected = raw[start : start + tensor.slice_bytes]
            if expert in watch.routed:
                assert got == expected
            elif set(got[inner]) == {POISON}:
                clean += 1
    assert clean == ((N_EXPERT - TOP_K) * N_PARTS if poison else 0)


def test_the_watcher_sees_every_slice_that_was_read(opened: Open) -> None:
    watch = Watch()
    session = opened(moe_stream=True, n=3, session={"seams": watch})
    metrics = session.generate([5, 6]).run().metrics
    assert len(watch.seen) == metrics.prefill.n_slices + metrics.decode.n_slices
    assert {layer for layer, _, _ in watch.seen} == set(range(N_TRUNK))


class Routes(Seams):
    def __init__(self, expert: int) -> None:
        self.expert = expert

    def routing(self, selected: npt.NDArray[np.int32], flat: npt.NDArray[np.int32]) -> Any:
        return np.array([[self.expert, 1]], np.int32)


@pytest.mark.parametrize("expert", [-1, N_EXPERT, 2**31 - 1])
def test_an_expert_that_is_none_is_a_fault(opened: Open, expert: int) -> None:
    session = opened(moe_stream=True, session={"seams": Routes(expert)})
    with pytest.raises(SystemFault, match=rf"layer 0 routed to expert .*{abs(expert)}"):
        session.generate([5, 6]).run()


def test_the_flat_reading_of_a_strided_view_is_another_one(opened: Open) -> None:
    """Why the view is gathered row by row: a batch's rows are not next to one another."""
    differs = []

    class Both(Seams):
        def routing(self, selected: npt.NDArray[np.int32], flat: npt.NDArray[np.int32]) -> Any:
            assert selected.shape == flat.shape == (5, TOP_K)
            assert ((selected >= 0) & (selected < N_EXPERT)).all()
            assert all(len(set(row)) == TOP_K for row in selected.tolist())
            differs.append(not np.array_equal(selected, flat))
            return selected

    session = opened(moe_stream=True, session={"seams": Both()})
    next(session.generate([5, 6, 7, 8, 9]))
    assert any(differs)


@pytest.fixture
def fused(model: Path, rewrite: Callable[..., Path], tmp_path: Path) -> Path:
    """The model with its gate and up projections in one tensor a layer."""
    found = {t.name: t for t in GGUFReader(model).tensors}
    tensors: dict[str, Any] = {}
    for layer in range(N_TRUNK + 1):
        gate, up = (found[f"blk.{layer}.ffn_{p}_exps.weight"] for p in ("gate", "up"))
        both = np.concatenate([gate.data, up.data], axis=1)
        tensors[f"blk.{layer}.ffn_gate_up_exps.weight"] = both, gate.tensor_type
    return rewrite(tmp_path / "fused.gguf", tensors=tensors, drop=r"ffn_(gate|up)_exps\.")


@pytest.mark.parametrize("mtp", [False, True])
def test_fused_experts_are_streamed(opened: Open, fused: Path, prompt: str, mtp: bool) -> None:
    streamed = opened(model=str(fused), moe_stream=True, poison=True, mtp=mtp)
    assert streamed.streamer is not None
    parts = {t.part for t in streamed.streamer.layout.by_name.values()}
    assert parts == {"gate_up", "down"}
    resident = opened(model=str(fused), mtp=mtp).generate(prompt).run().evidence()
    evidence = streamed.generate(prompt).run().evidence()
    assert evidence.logits_sha256 == resident.logits_sha256
    assert evidence.groups == resident.groups
    assert resident.ids == opened(mtp=mtp).generate(prompt).run().ids

"""Models streamed through slots: the same logits, however many slots and whoever stands where."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize

from sluice.decoding.session import Session
from sluice.errors import RequestError, SluiceError
from sluice.gguf.header import read_header
from sluice.seams import Seams
from sluice.streaming.layout import expert_layout
from sluice.streaming.pages import PagedMemory
from sluice.streaming.plan import streaming_plan
from sluice.streaming.slots import SlotMemory
from sluice.targets.quantisation import quantize

from ..sparse_model import Shape, write_sparse
from .parts import PAGE, can_see_pages, present
from .rig import buffers

Open = Callable[..., Session]
N_EXPERT, N_LAYERS, MIB, HUGE = 8, 5, 1 << 20, 2 << 20
SLOTS = {"moe_stream": True, "cache_memory": "slots", "io_threads": 2}


def logits(session: Session, prompt: str, **overrides: Any) -> list[str]:
    return session.generate(prompt, **overrides).run().evidence().logits_sha256


def memory_of(session: Session) -> SlotMemory:
    assert session.streamer is not None
    assert isinstance(session.streamer.place, SlotMemory)
    return session.streamer.place


def slots_of(session: Session) -> list[int]:
    return [int(n) for p in memory_of(session).pools for t in p.table.values() for n in t if n >= 0]


def held_bytes(session: Session) -> int:
    """What the system says is in memory of the pools' buffers."""
    return PAGE * sum(sum(present(b.address, b.size_bytes)) for b in buffers(memory_of(session)))


# As the bundled model is.


@pytest.mark.parametrize(
    "changes",
    [
        {"ubatch": 1, "cache_mb": 2},
        {"ubatch": 512, "cache_mb": 2},
        {"threads": 2, "cache_mb": 2},
        {"flash_attn": "off", "cache_mb": 3},
        {"odirect": False, "cache_mb": 3, "overlap": True},
        {"numerics": "invariant", "cache_mb": 3, "mtp": True, "draft": 3},
        {"mtp": True, "draft": 1, "cache_mb": 2, "prefetch": 1},
        {"mtp": True, "draft": 8, "cache_mb": 7, "overlap": True, "predict_prefetch": True},
        {"dense_weights": "mmap", "cache_mb": 2},
    ],
    ids=str,
)
def test_slots_change_no_bit(opened: Open, prompt: str, changes: dict[str, Any]) -> None:
    kept = ("ubatch", "threads", "flash_attn", "numerics", "mtp", "draft")
    right = logits(opened(**{k: v for k, v in changes.items() if k in kept}), prompt)
    session = opened(**SLOTS | changes)
    assert logits(session, prompt) == right
    assert memory_of(session).pools[0].n_slots < N_LAYERS * N_EXPERT
    assert logits(session, prompt) == right


def test_speculation_is_plain_decoding_in_the_invariant_numerics(opened: Open, prompt: str) -> None:
    changes = SLOTS | {"numerics": "invariant", "cache_mb": 3}
    plain = opened(**changes).generate(prompt).run().evidence()
    drafted = opened(**changes, mtp=True, draft=3).generate(prompt).run().evidence()
    assert drafted.ids == plain.ids
    assert drafted.logits_sha256 == plain.logits_sha256


def test_the_head_shares_the_trunks_slots(opened: Open, prompt: str) -> None:
    session = opened(**SLOTS, cache_mb=64, mtp=True)
    session.generate(prompt).run()
    (pool,) = memory_of(session).pools
    assert set(pool.layers) == set(range(N_LAYERS))
    assert all(max(table) >= 0 for table in pool.table.values())
    # All fit: everyone stands beside his neighbours.
    for layer, table in pool.table.items():
        for expert, slot in enumerate(table):
            assert slot in (-1, layer * N_EXPERT + expert)


def test_a_cache_of_another_size_goes_on_with_what_it_has(opened: Open, prompt: str) -> None:
    right = logits(opened(), prompt)
    session = opened(**SLOTS, cache_mb=64)
    assert logits(session, prompt) == right
    pool = memory_of(session).pools[0]
    for cache_mb in (5, 3, 2, 6, 64, 2, 64, 4):
        n_before = len(slots_of(session))
        began = session.generate(prompt, cache_mb=cache_mb)
        slots = slots_of(session)
        assert all(slot < pool.n_slots for slot in slots)
        assert len(set(slots)) == len(slots) == min(n_before, pool.n_slots)
        done = began.run()
        assert done.evidence().logits_sha256 == right
        assert done.metrics.prefill.n_hits > 0, "what was moved is still there"
        assert 0 < done.metrics.cache.peak_bytes <= cache_mb * MIB  # type: ignore[union-attr]


@pytest.mark.skipif(not can_see_pages(), reason="this system does not tell of its pages")
def test_a_smaller_cache_gives_memory_back(opened: Open, prompt: str) -> None:
    session = opened(**SLOTS, cache_mb=64)
    session.generate(prompt).run()
    slot_bytes = memory_of(session).pools[0].slot_bytes
    assert held_bytes(session) >= len(slots_of(session)) * slot_bytes > 5 * MIB
    for cache_mb in (4, 2):
        running = session.generate(prompt, cache_mb=cache_mb)
        most = cache_mb * MIB + PAGE * len(buffers(memory_of(session)))
        assert held_bytes(session) <= most
        running.run()
        # A huge page that is touched is there as a whole.
        assert held_bytes(session) <= most + len(buffers(memory_of(session))) * HUGE


def test_a_pass_wider_than_the_cache_goes_over_it_and_back(opened: Open, prompt: str) -> None:
    right = logits(opened(), prompt)
    session = opened(**SLOTS, cache_mb=1, force_cache=True, overlap=True)
    done = session.generate(prompt).run()
    assert done.evidence().logits_sha256 == right
    cache = done.metrics.cache
    assert cache is not None
    assert cache.peak_bytes > MIB >= memory_of(session).resident_bytes
    assert logits(session, prompt, cache_mb=64) == right
    assert logits(session, prompt, cache_mb=1) == right


def test_two_sessions_have_slots_of_their_own(opened: Open, prompt: str) -> None:
    right = logits(opened(n=8), prompt)
    one, two = (opened(**SLOTS, cache_mb=mb, n=8) for mb in (2, 4))
    first, second = one.generate(prompt), two.generate(prompt)
    for _ in range(8):
        next(first)
        next(second)
    assert first.run().evidence().logits_sha256 == right
    assert second.run().evidence().logits_sha256 == right


# Layers that differ in their types.


@pytest.fixture(scope="module")
def mixed(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Q4_K_M: some layers' down projections are Q6_K, the others' are Q4_K."""
    return quantize(model, "Q4_K_M", tmp_path_factory.mktemp("mixed") / "m.gguf")


@pytest.mark.parametrize("ubatch", [2, 64])
@pytest.mark.parametrize("mtp", [False, True])
def test_classes_of_layers_share_every_budget(
    opened: Open, mixed: Path, prompt: str, ubatch: int, mtp: bool
) -> None:
    same = {"model": str(mixed), "ubatch": ubatch if not mtp else max(ubatch, 3), "mtp": mtp}
    if mtp:
        same["draft"] = 1
    right = logits(opened(**same), prompt)
    session = opened(**SLOTS | same, cache_mb=32)
    pools = memory_of(session).pools
    assert len(pools) == 2
    layers = sorted(layer for pool in pools for layer in pool.layers)
    assert layers == list(range(N_LAYERS if mtp else N_LAYERS - 1))
    needed_mb = -(-memory_of(session).needed_bytes // MIB)
    for cache_mb in (needed_mb, needed_mb + 1, 32, needed_mb):
        done = session.generate(prompt, cache_mb=cache_mb).run()
        assert done.evidence().logits_sha256 == right
        assert done.metrics.cache is not None
        assert done.metrics.cache.peak_bytes <= cache_mb * MIB
        used = sum(pool.n_slots * pool.slot_bytes for pool in pools)
        assert used <= cache_mb * MIB


@pytest.fixture(scope="module")
def lumpy(
    model: Path, rewrite: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """One layer's experts are four times as large as the others'."""
    large = {
        tensor.name: (dequantize(tensor.data, tensor.tensor_type), GGMLQuantizationType.F32)
        for tensor in GGUFReader(model).tensors
        if tensor.name.startswith("blk.2.ffn") and "_exps." in tensor.name
    }
    return rewrite(tmp_path_factory.mktemp("lumpy") / "m.gguf", tensors=large)


def test_what_classes_cannot_share_is_left_to_pages_or_refused(
    opened: Open, lumpy: Path, prompt: str
) -> None:
    header = read_header(lumpy)
    plan = streaming_plan(header, expert_layout(header, with_head=False))
    cache_mb = -(-plan.smallest_cache_bytes(64) // MIB)
    same = {"model": str(lumpy), "moe_stream": True, "ubatch": 64}
    with pytest.raises(RequestError, match=r"--cache-memory slots: .*2 sizes, whose slots need"):
        opened(**same, cache_mb=cache_mb, cache_memory="slots")
    session = opened(**same, cache_mb=cache_mb)
    assert session.streamer is not None
    assert isinstance(session.streamer.place, PagedMemory)
    right = logits(opened(model=str(lumpy), ubatch=64), prompt)
    assert logits(session, prompt) == right
    roomy = opened(**same, cache_mb=32)
    assert len(memory_of(roomy).pools) == 2
    assert logits(roomy, prompt) == right
    with pytest.raises(RequestError, match=rf"--cache-mb {cache_mb}: .*2 sizes"):
        roomy.generate(prompt, cache_mb=cache_mb)
    assert logits(roomy, prompt) == right
    forced = opened(**same, cache_mb=cache_mb, cache_memory="slots", force_cache=True)
    assert logits(forced, prompt) == right


def test_a_class_that_has_room_gives_none_to_another(
    opened: Open, lumpy: Path, prompt: str
) -> None:
    session = opened(**SLOTS, model=str(lumpy), cache_mb=32)
    needed_mb = -(-memory_of(session).needed_bytes // MIB)
    done = session.generate(prompt, cache_mb=needed_mb).run()
    large = next(pool for pool in memory_of(session).pools if 2 in pool.layers)
    assert large.n_slots == large.n_experts == N_EXPERT
    assert done.metrics.cache is not None
    assert set(done.metrics.cache.evicted_by_layer) == {0, 1, 3}


# Slices that begin at other places of a sector than their neighbours.


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("odd") / "m.gguf"
    shape = Shape(
        n_vocab=512, n_embd=256, n_layer=4, n_expert=32, n_ff=32, n_head=4, head_dim=64, groups=4,
        rank=4,
    )  # fmt: skip
    write_sparse(path, shape, with_head=False, fills_dense=True)
    with path.open("r+b") as file:  # the experts, too: any bits, but of small scales
        noise = np.random.default_rng(11)
        for tensor in expert_layout(read_header(path), with_head=False).by_name.values():
            block = 210 if tensor.part != "down" else 34
            raw = noise.integers(0, 256, (tensor.size_bytes // block, block), np.uint8)
            at = 208 if block == 210 else 0
            raw[:, at : at + 2] = np.array([0.001], np.float16).view(np.uint8)
            file.seek(tensor.offset)
            file.write(raw.tobytes())
    return path


@pytest.fixture
def odd_opened(opened: Open, odd: Path) -> Open:
    return lambda **changes: opened(model=str(odd), n=8, ubatch=8, **changes)


def test_odd_slices_are_left_to_pages(odd_opened: Open) -> None:
    ids = list(range(20))
    right = odd_opened().generate(ids).run().evidence()
    assert len(set(right.logits_sha256)) == 8
    session = odd_opened(moe_stream=True, cache_mb=2)
    assert session.streamer is not None
    if not session.streamer.reader.is_direct:
        pytest.skip("this file system reads without alignment")
    assert isinstance(session.streamer.place, PagedMemory)
    assert session.generate(ids).run().evidence().logits_sha256 == right.logits_sha256
    with pytest.raises(RequestError) as refused:
        odd_opened(**SLOTS, cache_mb=2)
    said = str(refused.value)
    assert said.startswith("--cache-memory slots: ")
    assert "has slices that are no multiple of" in said
    assert said.endswith("use --cache-memory auto or pages")


def test_odd_slices_stand_in_slots_where_nothing_is_aligned(odd_opened: Open) -> None:
    ids = list(range(20))
    right = odd_opened().generate(ids).run().evidence()
    session = odd_opened(**SLOTS, cache_mb=2, odirect=False)
    done = session.generate(ids).run()
    assert done.evidence().logits_sha256 == right.logits_sha256
    assert done.metrics.prefill.n_evicted > 0


# Faults.


class Remembers(Seams):
    """Eviction leaves an expert in the cache's table."""

    def forgets(self, layer: int, expert: int) -> bool:
        return False


class EvictsInFlight(Seams):
    def spares_in_flight(self) -> bool:
        return False


class Unread(Seams):
    """Read-ahead is used before it is there."""

    def waits_for_ahead(self, layer: int, expert: int) -> bool:
        return False


def test_an_expert_that_is_gone_and_remembered_is_read_from_its_old_slot(
    opened: Open, prompt: str
) -> None:
    """What another expert has been read over gives other logits: the fault is one of bytes."""
    right = opened().generate(prompt).run().evidence()
    session = opened(**SLOTS, cache_mb=2, session={"seams": Remembers()})
    generation = session.generate(prompt)
    with contextlib.suppress(SluiceError):  # the logits may be no numbers
        generation.run()
    wrong = generation.evidence(unfinished=True)
    assert wrong.logits_sha256 != right.logits_sha256


@pytest.mark.parametrize("seams", [EvictsInFlight(), Unread()], ids=lambda one: type(one).__name__)
def test_a_planted_fault_ends_in_a_line_or_in_an_end(
    opened: Open, prompt: str, seams: Seams
) -> None:
    """Wrong bytes are what it plants; a crash is not."""
    session = opened(
        **SLOTS, cache_mb=2, prefetch=2, overlap=True, mtp=True, session={"seams": seams}
    )
    said = []
    for _ in range(3):
        try:
            session.generate(prompt).run()
        except SluiceError as err:
            said.append(str(err))
    assert not any("\n" in text for text in said)

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluice.decoding.session import Session
from sluice.errors import ReadFault, SystemFault
from sluice.gguf.header import Header, TensorInfo
from sluice.llama import tensor as node
from sluice.seams import Seams
from sluice.streaming.dense import DenseWeights, extents
from sluice.streaming.streamer import Streamer

from .parts import mapped_rss

Open = Callable[..., Session]
MODES = ("mmap", "warm", "anon")
linux = pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="reads /proc")


def info(name: str, offset: int, size: int, shard: int = 0) -> TensorInfo:
    return TensorInfo(name, "f32", (size // 4,), offset, size, shard)


def test_neighbours_are_read_in_one_piece() -> None:
    a, b = info("a", 1000, 400), info("b", 1408, 800)
    far, other = info("far", 1 << 20, 40), info("other", 2208, 40, shard=1)
    found = extents([other, b, far, a])
    assert [(e.shard, e.begin, e.end) for e in found] == [
        (0, 1000, 2208), (0, 1 << 20, (1 << 20) + 40), (1, 2208, 2248),
    ]  # fmt: skip
    assert found[0].tensors == (a, b)
    assert found[0].size_bytes == 1208
    assert extents([]) == []


def test_a_gap_as_large_as_an_expert_tensor_is_not_read(header: Header) -> None:
    dense = [t for t in header.tensors.values() if "_exps" not in t.name]
    experts = [t for t in header.tensors.values() if "_exps" in t.name]
    for extent in extents(dense):
        assert not [t for t in experts if extent.begin <= t.offset < extent.end]
    together = sum(e.size_bytes for e in extents(dense))
    exact = sum(t.size_bytes for t in dense)
    assert exact <= together < exact * 1.1


@pytest.fixture
def runs(opened: Open, prompt: str) -> Callable[..., tuple[Session, list[str]]]:
    def run(**changes: Any) -> tuple[Session, list[str]]:
        session = opened(moe_stream=True, n=12, **changes)
        return session, session.generate(prompt).run().evidence().logits_sha256

    return run


@pytest.mark.parametrize("changes", [{}, {"mtp": True}, {"odirect": False}], ids=str)
def test_every_mode_gives_the_resident_logits(
    opened: Open, runs: Callable[..., Any], prompt: str, changes: dict[str, Any]
) -> None:
    plain = {k: v for k, v in changes.items() if k != "odirect"}
    resident = opened(n=12, **plain).generate(prompt).run().evidence().logits_sha256
    for mode in MODES:
        assert runs(dense_weights=mode, **changes)[1] == resident


@pytest.fixture
def tied(rewrite: Callable[..., Path], tmp_path: Path) -> Path:
    """The model with no output matrix of its own: the embedding is read a second time."""
    return rewrite(tmp_path / "tied.gguf", drop=r"^output\.weight$")


@linux
@pytest.mark.parametrize("odirect", [True, False])
def test_tied_weights_are_bound_wherever_they_are_used(
    opened: Open, runs: Callable[..., Any], prompt: str, tied: Path, odirect: bool
) -> None:
    resident = opened(model=str(tied), n=12).generate(prompt).run().evidence().logits_sha256
    assert len(set(resident)) > 1
    for mode in MODES:
        session, logits = runs(model=str(tied), dense_weights=mode, odirect=odirect)
        assert logits == resident
        if mode == "anon":
            found = session.streamer._capture.found["token_embd.weight"]
            assert found
            assert {_is_ours(session.streamer, address) for address in found} == {True}


def _is_ours(streamer: Streamer, address: int) -> bool:
    begin = node.data(address)
    return any(b.address <= begin < b.address + b.size_bytes for b in streamer.dense._buffers)


@linux
@pytest.mark.parametrize("changes", [{}, {"mtp": True}, {"odirect": False}], ids=str)
def test_our_own_copy_is_the_only_one(
    runs: Callable[..., Any], model: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    """Nothing of the mapped file is touched but what llama.cpp reads when it opens it."""
    path = tmp_path / "m.gguf"  # mapped by nobody else
    shutil.copyfile(model, path)
    session, _ = runs(model=str(path), dense_weights="anon", **changes)
    dense = session.streamer.dense
    assert dense.resident_bytes >= 0.9 * session.streamer.plan.trunk_dense_bytes > 1 << 20
    assert mapped_rss(path) < 400 << 10
    assert dense.mapped_bytes(session.streamer._capture.found) <= 0
    session.close()
    # The other modes show that this looks at the right thing.
    session, _ = runs(model=str(path), dense_weights="warm", **changes)
    assert mapped_rss(path) > session.streamer.plan.trunk_dense_bytes // 2


@pytest.mark.parametrize("mode", ["anon", "warm"])
def test_progress_is_told_to_the_end(opened: Open, mode: str) -> None:
    told: list[tuple[str, int, int]] = []
    session = {"progress": lambda *step: told.append(step)}
    opened(moe_stream=True, dense_weights=mode, session=session)
    dense = [(done, total) for stage, done, total in told if stage == "dense"]
    assert dense == sorted(dense)
    assert dense[-1][0] == dense[-1][1] > 0


class NoDense(Seams):
    def lane_reads(self, tensor: str, is_ahead: bool) -> None:
        if "_exps" not in tensor:
            raise ReadFault(f"planted at {tensor}")


def test_a_read_that_fails_at_load_is_a_fault_and_leaves_nothing(opened: Open) -> None:
    with pytest.raises(ReadFault, match="planted at "):
        opened(moe_stream=True, session={"seams": NoDense()})
    assert opened(moe_stream=True, dense_weights="warm", session={"seams": NoDense()})


def test_warming_a_file_that_has_gone_is_a_fault(header: Header, tmp_path: Path) -> None:
    (file,) = header.files
    file = dataclasses.replace(file, path=tmp_path / "gone.gguf")
    gone = dataclasses.replace(header, files=(file,))
    dense = DenseWeights(gone, ())
    with pytest.raises(SystemFault, match=r"gone\.gguf: reading the dense weights stopped: No suc"):
        dense.warm(header.tensors, lambda *_step: None)

"""Files that end, change or lack something; and what is left behind."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFValueType

from sluice.config import Config
from sluice.decoding.session import Session
from sluice.errors import ModelError, ReadFault, RequestError, SystemFault
from sluice.seams import Seams
from sluice.streaming.arena import Arena, Buffer
from sluice.streaming.cache import CacheMemory
from sluice.streaming.pages import PagedMemory
from sluice.streaming.slots import SlotMemory

from .comparing import same

Open = Callable[..., Session]
Rewrite = Callable[..., Path]
STREAMED = {"moe_stream": True}
MTP = {"mtp": True, "draft": 3}
CACHED = {"cache_mb": 4, "overlap": True, "prefetch": 1}


# The experts are moved to the end of the file: what is mapped is read through memory, and
# cutting that away would be a signal, not an error.
@pytest.fixture
def experts_last(rewrite: Rewrite, tmp_path: Path) -> Path:
    return rewrite(tmp_path / "last.gguf", last="_exps.")


def touch(path: Path) -> None:
    now = path.stat()
    os.utime(path, ns=(now.st_atime_ns, now.st_mtime_ns + 1))


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 3_000_000)


@pytest.mark.parametrize("changes", [{}, MTP, {"cache_mb": 2}, {"overlap": True}], ids=str)
@pytest.mark.parametrize(
    ("change", "what"), [(cut, "size "), (touch, "time of change "), (Path.unlink, "cannot be fo")]
)
def test_a_file_that_changes_after_the_load_is_read_no_more(
    opened: Open,
    experts_last: Path,
    prompt: str,
    changes: dict[str, Any],
    change: Callable[[Path], None],
    what: str,
) -> None:
    session = opened(model=str(experts_last), moe_stream=True, **changes)
    sound = session.generate(prompt).run().evidence()
    running = session.generate(prompt)
    if not changes:
        next(running)
    raw = experts_last.read_bytes()
    change(experts_last)
    with pytest.raises(ReadFault) as fault:
        running.run()
    said = str(fault.value)
    assert said.startswith(f"{experts_last}: ")
    assert what in said
    assert "nothing more is read from it" in said
    assert list(running) == []
    with pytest.raises(RequestError, match="has not ended"):
        running.evidence()
    with pytest.raises(ReadFault):  # and again, and nothing worse
        session.generate(prompt).run()
    session.close()
    experts_last.write_bytes(raw)
    again = opened(model=str(experts_last), moe_stream=True, **changes)
    same(again.generate(prompt).run().evidence(), sound)


class Once(Seams):
    """The ``at``-th read of an expert fails."""

    def __init__(self, at: int) -> None:
        self.left = at

    def lane_reads(self, tensor: str, is_ahead: bool) -> None:
        if "_exps" in tensor:
            self.left -= 1
            if self.left == 0:
                raise ReadFault(f"planted in {tensor}")


@pytest.mark.parametrize("at", [1, 40, 150])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        MTP,
        {"overlap": True},
        {"cache_mb": 2},
        {"cache_mb": 4, "overlap": True, **MTP},
        {"cache_mb": 1, "force_cache": True, "overlap": True},
    ],
    ids=str,
)
def test_a_session_is_none_the_worse_for_a_read_that_failed_once(
    opened: Open, prompt: str, changes: dict[str, Any], at: int
) -> None:
    sound = opened(mtp=changes.get("mtp", False)).generate(prompt).run().evidence()
    session = opened(moe_stream=True, **changes, session={"seams": Once(at)})
    running = session.generate(prompt)
    with pytest.raises(ReadFault, match="planted in blk"):
        running.run()
    assert list(running) == []
    for _ in range(2):
        same(session.generate(prompt).run().evidence(), sound)


class OnceAhead(Seams):
    def __init__(self) -> None:
        self.left = 3

    def lane_reads(self, tensor: str, is_ahead: bool) -> None:
        if is_ahead:
            self.left -= 1
            if self.left == 0:
                raise ReadFault(f"planted in {tensor}")


@pytest.mark.parametrize("changes", [{"prefetch": 2}, {"predict_prefetch": True}], ids=str)
def test_a_read_ahead_that_failed_harms_no_one(
    opened: Open, prompt: str, changes: dict[str, Any]
) -> None:
    """It comes out where the expert is waited for, or is read again, or is never needed."""
    sound = opened().generate(prompt).run().evidence()
    seams = OnceAhead()
    session = opened(moe_stream=True, cache_mb=2, **changes, session={"seams": seams})
    with contextlib.suppress(ReadFault):
        same(session.generate(prompt).run().evidence(), sound)
    assert seams.left <= 0
    same(session.generate(prompt).run().evidence(), sound)


@pytest.mark.parametrize("mtp", [False, True])
@pytest.mark.parametrize("at", [0, 1, 4, 7])
def test_an_end_of_generation_ends_the_run(
    opened: Open, rewrite: Rewrite, tmp_path: Path, prompt: str, mtp: bool, at: int
) -> None:
    whole = opened(mtp=mtp, draft=3).generate(prompt).run().evidence()
    end = whole.ids[at]
    first = whole.ids.index(end)
    key = {"tokenizer.ggml.eos_token_id": (end, GGUFValueType.UINT32)}
    path = rewrite(tmp_path / "m.gguf", keys=key)
    evidence = opened(model=str(path), mtp=mtp, draft=3).generate(prompt).run().evidence()
    assert evidence.ids == whole.ids[:first]
    assert evidence.logits_sha256 == whole.logits_sha256[:first]
    assert (evidence.stop.reason, evidence.stop.id) == ("eog", end)
    assert evidence.stop.logits_sha256 == whole.logits_sha256[first]


def test_a_head_that_lost_its_tensors_is_refused_in_llama_cpps_words(
    config: Config, rewrite: Rewrite, tmp_path: Path
) -> None:
    path = rewrite(tmp_path / "m.gguf", drop=r"\.nextn\.")
    with pytest.raises(ModelError, match=r"tensor 'blk\.4\.nextn\.eh_proj\.weight' not found"):
        Session(config.replace(model=str(path), mtp=True))


def test_a_model_without_a_head_is_refused_and_runs_without(
    opened: Open, rewrite: Rewrite, tmp_path: Path, prompt: str
) -> None:
    arch = "qwen35moe"
    keys = {
        f"{arch}.nextn_predict_layers": None,
        f"{arch}.block_count": (4, GGUFValueType.UINT32),
    }
    path = rewrite(tmp_path / "m.gguf", keys=keys, drop=r"^blk\.4\.")
    with pytest.raises(RequestError, match=r"^--mtp: .* has no MTP head .*; drop --mtp, or"):
        opened(model=str(path), mtp=True)
    bare = opened(model=str(path), moe_stream=True).generate(prompt).run().evidence()
    same(bare, opened().generate(prompt).run().evidence())


def test_what_stopped_an_opening_leaves_nothing_open(
    config: Config, rewrite: Rewrite, tmp_path: Path
) -> None:
    path = rewrite(tmp_path / "m.gguf", drop=r"\.nextn\.")
    before = descriptors()
    for _ in range(10):
        with pytest.raises(ModelError):
            Session(config.replace(model=str(path), moe_stream=True))
    assert descriptors() == before


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def memory_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no RssAnon")


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts what is open in /proc")
@pytest.mark.parametrize("changes", [MTP, STREAMED | MTP, STREAMED | CACHED], ids=str)
def test_opening_and_closing_leaks_nothing(config: Config, changes: dict[str, Any]) -> None:
    def cycle(times: int) -> tuple[int, int, int]:
        for _ in range(times):
            with Session(config.replace(**changes)) as session:
                session.generate([5, 6, 7], n=2).run()
        maps = len(Path("/proc/self/maps").read_text().splitlines())
        return descriptors(), memory_bytes(), maps

    cycle(5)
    open_files, held, maps = cycle(1)
    after = cycle(30)
    assert after[0] == open_files
    assert after[1] - held < 8 << 20
    assert after[2] - maps < 20
    assert not [t for t in threading.enumerate() if t.name.startswith("lane")]


def buffers(place: Arena | CacheMemory) -> list[Buffer]:
    """What the experts' bytes lie in, of whichever kind."""
    if isinstance(place, SlotMemory):
        return [buffer for pool in place.pools for buffer in pool._buffers.values()]
    arena = place._arena if isinstance(place, PagedMemory) else place
    assert isinstance(arena, Arena)
    return list(arena._buffers.values())


@pytest.mark.parametrize("changes", [{}, CACHED, CACHED | {"cache_memory": "pages"}], ids=str)
def test_a_closed_session_lets_go_of_the_buffers(config: Config, changes: dict[str, Any]) -> None:
    gc.collect()
    gc.disable()
    try:
        session = Session(config.replace(**STREAMED, **MTP, **changes))
        session.generate([5, 6], n=3).run()
        assert session.streamer is not None
        dense = session.streamer.dense
        seen = [weakref.ref(b) for b in (*buffers(session.streamer.place), *dense._buffers)]
        assert len(seen) > 3
        del dense
        session.close()
        assert [buffer() for buffer in seen] == [None] * len(seen)
    finally:
        gc.enable()


class Unread(Seams):
    """A fault of the reader: nothing of a layer is read."""

    def slice_source(self, layer: int, part: str, expert: int, n_expert: int) -> int | None:
        return None if layer == 2 else expert


@pytest.mark.parametrize("changes", [{}, {"temp": 0.8}, {"temp": 0.8, "top_k": 0}, MTP], ids=str)
def test_weights_that_were_never_read_are_a_fault(
    opened: Open, prompt: str, changes: dict[str, Any]
) -> None:
    session = opened(moe_stream=True, poison=True, **changes, session={"seams": Unread()})
    with pytest.raises(SystemFault, match=r"not numbers .* weights that were never read"):
        session.generate(prompt).run()

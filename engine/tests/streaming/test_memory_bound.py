"""The bound on memory, on a model several times as large: budget + dense weights + 200 MB."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluice.config import Config
from sluice.gguf.header import read_header
from sluice.streaming.layout import expert_layout
from sluice.streaming.plan import StreamingPlan, streaming_plan
from sluice.targets.cgroup import MemoryCgroup, why_no_cgroup

from ..sparse_model import Shape, write_sparse

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="streaming needs Linux"
)
MIB = 1 << 20
ROOM_BYTES = 200_000_000
"""The interpreter, its libraries and llama.cpp's buffers. The context of these runs is in it."""

WIDE = Shape(
    n_vocab=512, n_embd=1024, n_layer=8, n_expert=64, n_head=8, head_dim=128, groups=8, rank=8
)
BUDGET_MB = 112
CACHED = {"cache_mb": BUDGET_MB}

CODE = """
import json, sys
from sluice.config import Config
from sluice.decoding.session import Session

def peak():
    # Not ru_maxrss: a process begins with what the one that started it had.
    lines = open("/proc/self/status").read().splitlines()
    return next(int(l.split()[1]) << 10 for l in lines if l.startswith("VmHWM:"))

config = Config(**json.loads(sys.argv[1]))
with Session(config) as session:
    metrics = session.generate(list(range(1, 9))).run().metrics
    cache = metrics.cache
    print(json.dumps({
        "peak_bytes": peak(),
        "read_bytes": metrics.read_bytes,
        "n_evicted": metrics.generated.n_evicted,
        "n_ahead": metrics.generated.n_ahead,
        "memory": type(session.streamer.place).__name__,
        "cache_peak_bytes": cache.peak_bytes if cache else 0,
    }))
"""

SHRINKS = """
import json, sys
from sluice.config import Config
from sluice.decoding.session import Session

def rss():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(l.split()[1]) << 10 for l in lines if l.startswith("RssAnon:"))

config = Config(**json.loads(sys.argv[1]))
with Session(config) as session:
    for start in range(1, 300, 16):
        session.generate(list(range(start, start + 8))).run()
    before = rss()
    running = session.generate(list(range(1, 9)), cache_mb=int(sys.argv[2]))
    after = rss()
    metrics = running.run().metrics
    print(json.dumps({
        "before": before, "after": after, "later": rss(), "n_hits": metrics.generated.n_hits,
    }))
"""


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("wide") / "m.gguf"
    try:
        size = write_sparse(path, WIDE, with_head=False, fills_dense=True)
    except OSError as err:
        pytest.skip(f"this file system takes no sparse file: {err}")
    if path.stat().st_blocks * 512 > size // 2:
        pytest.skip("this file system writes holes out")
    return path


@pytest.fixture(scope="module")
def plan(wide: Path) -> StreamingPlan:
    header = read_header(wide)
    return streaming_plan(header, expert_layout(header, with_head=False))


def settings(path: Path, **changes: Any) -> str:
    config = Config(model=str(path), n=6, ctx=64, ubatch=8, threads=1, moe_stream=True)
    return json.dumps(config.replace(**changes).as_dict())


def bound(plan: StreamingPlan, budget_bytes: int) -> int:
    limit = budget_bytes + plan.dense_bytes + ROOM_BYTES
    assert limit < plan.total_bytes * 2 / 3, "a run that holds every expert would pass, too"
    return limit


@pytest.mark.parametrize(
    "changes",
    [
        CACHED | {"overlap": True, "prefetch": 2, "io_threads": 8},
        CACHED | {"overlap": True, "prefetch": 2, "io_threads": 8, "cache_memory": "pages"},
        CACHED | {"odirect": False},
        CACHED | {"odirect": False, "cache_memory": "pages"},
        {},
    ],
    ids=str,
)
def test_a_process_takes_no_more_than_it_was_given(
    wide: Path, plan: StreamingPlan, child: Callable[..., Any], changes: dict[str, Any]
) -> None:
    """With no cache, one layer's experts take the place of the budget."""
    ended = child(CODE, settings(wide, **changes))
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    budget = changes.get("cache_mb", 0) * MIB or plan.layer_bytes_max
    assert found["peak_bytes"] <= bound(plan, budget), found
    assert found["read_bytes"] > budget
    if "cache_mb" in changes:
        kind = "PagedMemory" if changes.get("cache_memory") == "pages" else "SlotMemory"
        assert found["memory"] == kind
        assert found["n_evicted"] > 0
        assert 0.9 * budget < found["cache_peak_bytes"] <= budget
    if "prefetch" in changes:
        assert found["n_ahead"] > 0


def test_a_cache_that_shrinks_takes_no_more_than_it_has_left(
    wide: Path, plan: StreamingPlan, child: Callable[..., Any]
) -> None:
    """Slots are moved together, and what lies beyond them is given back."""
    ended = child(SHRINKS, settings(wide, cache_mb=4096, cache_memory="slots"), BUDGET_MB)
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    assert found["before"] > bound(plan, BUDGET_MB * MIB)
    assert found["after"] <= found["later"] <= bound(plan, BUDGET_MB * MIB), found
    assert found["n_hits"] > 0


def test_a_cache_that_may_hold_all_shows_that_the_peak_is_measured(
    wide: Path, plan: StreamingPlan, child: Callable[..., Any]
) -> None:
    ended = child(CODE, settings(wide, cache_mb=4096))
    assert json.loads(ended.out)["peak_bytes"] > bound(plan, BUDGET_MB * MIB)


WHY = why_no_cgroup()


@pytest.mark.skipif(WHY is not None, reason=WHY or "")
@pytest.mark.parametrize(
    "changes",
    [CACHED | {"odirect": False}, CACHED | {"odirect": False, "cache_memory": "pages"}, {}],
    ids=str,
)
def test_a_process_lives_within_a_limit_of_that_size(
    wide: Path, plan: StreamingPlan, changes: dict[str, Any]
) -> None:
    limit = bound(plan, changes.get("cache_mb", 0) * MIB or plan.layer_bytes_max)
    with MemoryCgroup(limit) as group:
        process = group.start(
            [sys.executable, "-c", CODE, settings(wide, **changes)], stdout=subprocess.PIPE
        )
        out, _ = process.communicate(timeout=120)
    assert process.returncode == 0, f"killed: {group.killed}"
    assert json.loads(out)["read_bytes"] > 0
    assert not group.killed
    assert group.peak_bytes <= limit


@pytest.mark.skipif(WHY is not None, reason=WHY or "")
def test_a_cache_that_sizes_itself_minds_the_limit(wide: Path, plan: StreamingPlan) -> None:
    limit = 512 * MIB
    code = CODE.replace("session.generate", "print(session.config.cache_mb) or session.generate")
    with MemoryCgroup(limit) as group:
        process = group.start(
            [sys.executable, "-c", code, settings(wide, cache_mb="auto", cache_floor_mb=100)],
            stdout=subprocess.PIPE,
        )
        out, _ = process.communicate(timeout=120)
    assert process.returncode == 0, f"killed: {group.killed}"
    chosen_mb = int(out.split()[0])
    assert 100 <= chosen_mb < limit // MIB - plan.dense_bytes // MIB
    assert chosen_mb * MIB < plan.total_page_bytes

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import worker
from runner import Runner
from sluice.gguf.header import read_header
from worker import Measured, Spec


def measure(path: Path, config: dict[str, Any] | None, **changes: Any) -> Measured:
    """One turn."""
    given = {"prompt": [5, 6, 7], "warm": 4, "turns": 1, "n": 12, "twice": False,
             "budget_s": 60.0, "io_threads": 2, "raw_bytes": 16 << 20, **changes}  # fmt: skip
    with closing(Runner(Spec(model=str(path), config=config, **given), 60.0)) as runner:
        measured = runner.begin()
        measured.add(runner.turn())
    return measured


def streamed(**more: Any) -> dict[str, Any]:
    return {"ctx": 128, "threads": 1, "ubatch": 16, "moe_stream": True, **more}


def test_a_streamed_run_reads_what_its_timed_tokens_route_to(routed_model: Path) -> None:
    measured = measure(routed_model, streamed())
    assert not measured.error
    assert measured.n_tokens == 12
    header = read_header(routed_model)
    token_bytes = sum(
        t.size_bytes // 16 * 2
        for name, t in header.tensors.items()
        if "_exps" in name and not name.startswith("blk.4.")
    )
    assert measured.reads["slice_bytes"] == 12 * token_bytes
    assert measured.reads["stall_s"] > 0
    assert measured.wall_s > measured.reads["stall_s"]
    assert measured.load_s > 0
    assert measured.peak_rss_bytes > 1 << 20


def test_a_warm_cache_of_everything_reads_nothing(routed_model: Path) -> None:
    measured = measure(routed_model, streamed(cache_mb=64), twice=True)
    assert measured.reads["n_hits"] == 12 * 4 * 2
    assert measured.reads["n_misses"] == measured.reads["read_bytes"] == 0


def test_drafts_count_by_decodes_and_not_by_where_a_group_was_cut(routed_model: Path) -> None:
    measured = measure(routed_model, {"ctx": 128, "threads": 1, "mtp": True, "draft": 3})
    assert 12 <= measured.n_tokens <= 15
    n_decodes = measured.n_tokens - measured.n_accepted
    assert measured.n_drafted == 3 * n_decodes


def test_what_the_engine_refuses_is_the_error(routed_model: Path, tmp_path: Path) -> None:
    assert "none.gguf: no such file" in measure(tmp_path / "none.gguf", streamed()).error
    wrong = measure(routed_model, streamed(cache_megabytes=3))
    assert wrong.error.startswith("cache_megabytes: no such setting")


def test_a_slow_turn_ends_early_with_fewer_tokens(routed_model: Path) -> None:
    measured = measure(routed_model, {"ctx": 1024, "threads": 1}, budget_s=0.0, n=500)
    assert measured.n_tokens == worker.TOKENS_MIN


def test_the_disk_alone_computes_nothing(bundled: Path) -> None:
    measured = measure(bundled, None)
    assert measured.raw_bytes >= 16 << 20 or "O_DIRECT" in measured.error
    assert measured.n_tokens == 0


def test_turns_add_up() -> None:
    whole = Measured(load_s=1.0)
    whole.add(Measured(n_tokens=8, wall_s=2.0, reads={"read_bytes": 5}, peak_rss_bytes=7))
    whole.add(Measured(n_tokens=9, wall_s=1.0, reads={"read_bytes": 6}, peak_rss_bytes=6))
    assert whole == Measured(
        n_tokens=17, wall_s=3.0, load_s=1.0, reads={"read_bytes": 11}, peak_rss_bytes=7
    )
    for _ in range(2):
        whole.add(Measured(n_drafted=3, n_accepted=2, raw_bytes=5, maxrss_bytes=4,
                           group_peak_bytes=6, warnings=["late"]))  # fmt: skip
    assert (whole.n_drafted, whole.n_accepted, whole.raw_bytes) == (6, 4, 10)
    assert (whole.maxrss_bytes, whole.group_peak_bytes, whole.warnings) == (4, 6, ["late"])
    whole.add(Measured(error="ended with -9"))
    whole.add(Measured(error="later"))
    assert whole.error == "ended with -9"

from __future__ import annotations

import dataclasses
import json

from sluice.telemetry.metrics import CacheReport, Metrics, Predictions, ReadCounter


def test_rates_are_of_decoding_alone_and_with_drafting_counted() -> None:
    metrics = Metrics(n_generated=31, decode_s=2.0, draft_s=0.5, catch_up_s=0.5, prefill_s=9.0)
    assert metrics.tok_s == 15.0
    assert metrics.effective_tok_s == 10.0


def test_a_run_that_took_no_time_has_no_rate() -> None:
    metrics = Metrics(n_generated=30)
    assert metrics.tok_s == metrics.effective_tok_s == 0.0
    assert Metrics(n_generated=5, draft_s=2.0).effective_tok_s == 2.0


def test_bytes_are_summed_over_who_routed_them() -> None:
    metrics = Metrics(
        prefill=ReadCounter(read_bytes=1, slice_bytes=100),
        decode=ReadCounter(read_bytes=20),
        head=ReadCounter(read_bytes=300),
    )
    assert metrics.read_bytes == 321


def test_counters_are_not_shared() -> None:
    one, other = Metrics(), Metrics()
    one.decode.read_bytes += 5
    one.head.n_slices += 5
    assert other == Metrics()
    assert one.prefill == ReadCounter()


def test_plain_values_survive_json() -> None:
    metrics = Metrics(load_s=0.25, n_prompt=3, head=ReadCounter(1, 2, 3, 0.5))
    raw = json.loads(json.dumps(metrics.as_dict()))
    assert raw["head"] == dataclasses.asdict(ReadCounter(1, 2, 3, 0.5))
    assert (raw["head"]["read_bytes"], raw["head"]["stall_s"]) == (1, 0.5)
    assert (raw["load_s"], raw["n_prompt"]) == (0.25, 3)
    raw["head"] = ReadCounter(**raw["head"])
    for part in ("prefill", "decode"):
        raw[part] = ReadCounter(**raw[part])
    assert Metrics(**raw) == metrics


def test_what_came_after_the_prompt_is_the_targets_and_the_heads() -> None:
    metrics = Metrics(
        prefill=ReadCounter(n_hits=100),
        decode=ReadCounter(*range(1, 13)),
        head=ReadCounter(*range(100, 1300, 100)),
    )
    assert metrics.generated == ReadCounter(*(101 * n for n in range(1, 13)))


def test_a_hit_rate_is_of_what_was_routed_to() -> None:
    assert ReadCounter(n_hits=3, n_misses=1).hit_rate == 0.75
    assert ReadCounter().hit_rate == 0.0
    assert ReadCounter(n_misses=4).hit_rate == 0.0


def test_the_caches_report_survives_json() -> None:
    metrics = Metrics(cache=CacheReport(5, 4, {2: 3}), predictions={"control": Predictions(2, 2)})
    raw = json.loads(json.dumps(metrics.as_dict()))
    assert raw["cache"] == {"budget_bytes": 5, "peak_bytes": 4, "evicted_by_layer": {"2": 3}}
    assert raw["predictions"] == {"control": {"n_named": 2, "n_right": 2}}
    assert json.loads(json.dumps(Metrics().as_dict()))["cache"] is None

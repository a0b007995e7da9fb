from __future__ import annotations

import dataclasses
import json

from sluice.telemetry.metrics import Metrics, ReadCounter


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

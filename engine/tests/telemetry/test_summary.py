from __future__ import annotations

from sluice.config import Config
from sluice.telemetry.metrics import CacheReport, Metrics, Predictions, ReadCounter
from sluice.telemetry.summary import MIB, lines, warnings

PLAIN = Config(model="m", n=129)
MTP = Config(model="m", n=133, mtp=True)

SPECULATED = Metrics(
    load_s=0.5,
    prefill_s=0.1,
    decode_s=10.0,
    draft_s=2.5,
    catch_up_s=0.8,
    n_prompt=20,
    n_generated=133,
    n_decodes=57,
    n_drafted=63,
    n_accepted=41,
    prefill=ReadCounter(read_bytes=100 * MIB),
    decode=ReadCounter(read_bytes=300 * MIB, stall_s=1.0),
    head=ReadCounter(read_bytes=99 * MIB, stall_s=0.25),
)


def test_plain() -> None:
    metrics = Metrics(
        load_s=1.234, prefill_s=0.5, decode_s=4.0, n_prompt=50, n_generated=129, n_decodes=128
    )
    assert lines(metrics, PLAIN) == [
        "generation: 129 tokens, 32.00 tok/s, 128 decodes",
        "prefill: 50 tokens, 100.00 tok/s",
        "load: 1.23 s",
    ]


def test_the_line_of_the_specification() -> None:
    # The first of the 133 tokens came with the prompt; 57 decodes gave the other 132.
    assert lines(SPECULATED, MTP)[3] == (
        "mtp: 41/63 drafts accepted (65.1%), 2.31 tokens per verify decode"
        " (57 decodes for 132 tokens)"
    )


def test_the_effective_rate_counts_drafting_and_catch_up() -> None:
    assert lines(SPECULATED, MTP)[0] == "generation: 133 tokens, 13.20 tok/s, 57 decodes"
    assert lines(SPECULATED, MTP)[4] == (
        "mtp: 9.92 tok/s effective, with drafting (2.50 s) and catch-up (0.80 s) counted"
    )


def test_streamed() -> None:
    streamed = MTP.replace(moe_stream=True)
    assert lines(SPECULATED, streamed)[3] == (
        "streamed: 3.02 MiB per token (399.0 MiB, waited 1.25 s for it),"
        " and 100.0 MiB in the prefill"
    )
    assert lines(SPECULATED, streamed)[-1] == (
        "mtp: 399.0 MiB streamed: 99.0 MiB (24.8%) by the head,"
        " 300.0 MiB (75.2%) by the verify batch"
    )
    assert len(lines(SPECULATED, streamed)) == 7
    assert len(lines(SPECULATED, MTP)) == 5
    assert len(lines(SPECULATED, PLAIN.replace(moe_stream=True))) == 4


CACHED = PLAIN.replace(moe_stream=True, cache_mb=64)


def test_the_cache_overlap_and_read_ahead_have_a_line_each() -> None:
    metrics = Metrics(
        n_generated=129,
        decode=ReadCounter(
            read_bytes=90 * MIB, n_hits=30, n_misses=10, n_evicted=7, n_ahead=8, n_ahead_used=6,
            n_ahead_awaited=2, ahead_bytes=40 * MIB, overlapped_bytes=5 * MIB, n_late=3,
        ),
        head=ReadCounter(read_bytes=10 * MIB, n_hits=0, n_misses=10, n_evicted=3),
        cache=CacheReport(64 * MIB, 63 * MIB),
        predictions={"early router": Predictions(40, 31), "control": Predictions(0, 0)},
    )  # fmt: skip
    said = lines(metrics, CACHED.replace(overlap=True, prefetch=1))
    assert said[4:] == [
        "cache: 30/50 experts hit (60.0%), 10 evicted; 63.0 of 64.0 MiB at the most",
        "overlap: 5.0 of 60.0 MiB were not waited for before compute went on;"
        " 3 experts computed after the others",
        "read ahead: 6/8 experts used (75.0%), 2 of them still on their way; 40.0 MiB",
        "predicted by early router: 31/40 experts right (77.5%)",
        "predicted by control: 0/0 experts right (nothing named)",
    ]
    # Only what the run was asked for is spoken of.
    assert lines(metrics, CACHED)[4:] == [said[4], *said[7:]]
    assert lines(metrics, PLAIN) == said[:3]


def test_a_cache_that_was_not_asked_for_anything() -> None:
    metrics = Metrics(cache=CacheReport(MIB), n_generated=1)
    said = lines(metrics, CACHED.replace(predict_prefetch=True))
    assert said[4:] == [
        "cache: 0/0 experts hit (nothing routed), 0 evicted; 0.0 of 1.0 MiB at the most",
        "read ahead: 0/0 experts used (nothing read ahead), 0 of them still on their way; 0.0 MiB",
    ]


def test_tokens_per_decode_never_reads_as_one_more_than_the_draft() -> None:
    metrics = Metrics(n_generated=3996, n_decodes=999, n_drafted=2997, n_accepted=2996)
    assert "3.99 tokens per verify decode" in lines(metrics, MTP)[3]


def test_nothing_generated_nothing_drafted() -> None:
    assert lines(Metrics(n_prompt=1, n_generated=1, n_decodes=1), MTP)[:2] == [
        "generation: 1 token, 1 decode, to the end of generation",
        "prefill: 1 token",
    ]
    assert lines(Metrics(n_generated=1), MTP)[3] == (
        "mtp: 0/0 drafts accepted (nothing drafted), no verify decode"
    )
    assert lines(Metrics(), MTP.replace(moe_stream=True))[-1].startswith("mtp: 0.0 MiB streamed")


def test_warnings() -> None:
    idle = Metrics(n_drafted=63, n_generated=64, n_decodes=63)
    (warning,) = warnings(idle, MTP)
    assert warning.startswith("0 of 63 drafts accepted (0%)")
    assert "badly quantised head" in warning
    assert warnings(SPECULATED, MTP) == []
    assert warnings(Metrics(), MTP) == []
    assert warnings(idle, PLAIN) == []

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from sluice.errors import SystemFault
from sluice.targets.server_reply import (
    Counters,
    Reply,
    parse_counters,
    parse_error,
    parse_reply,
)

TIMINGS: dict[str, Any] = {
    "cache_n": 0,
    "prompt_n": 14,
    "prompt_ms": 12.5,
    "prompt_per_token_ms": 0.89,
    "prompt_per_second": 1120.0,
    "predicted_n": 5,
    "predicted_ms": 20.25,
    "predicted_per_token_ms": 4.05,
    "predicted_per_second": 246.9,
    "draft_n": 6,
    "draft_n_accepted": 2,
}
ANSWER: dict[str, Any] = {
    "index": 0,
    "content": "argv):\n",
    "tokens": [5, 6, 7, 8, 9],
    "stop": True,
    "stop_type": "limit",
    "timings": TIMINGS,
}

METRICS = b"""\
# HELP llamacpp:tokens_predicted_total Number of generation tokens processed
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total 96
llamacpp:prompt_tokens_seconds nan
llamacpp:spec_decode_num_draft_tokens_total 141
llamacpp:spec_decode_num_accepted_tokens_total 48
llamacpp:spec_decode_num_drafts_total 47
# TYPE llamacpp:spec_decode_num_accepted_tokens_per_pos_total counter
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 30
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 12
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="2"} 6
"""


def body(timings: dict[str, Any] | None = None, **changes: Any) -> bytes:
    """ANSWER with changes; a value of None leaves its key out."""
    inner = {k: v for k, v in (TIMINGS | (timings or {})).items() if v is not None}
    answer = ANSWER | {"timings": inner} | changes
    return json.dumps({k: v for k, v in answer.items() if v is not None}).encode()


def test_an_answer_is_its_text_tokens_and_timings() -> None:
    assert parse_reply(body()) == Reply(
        text="argv):\n",
        tokens=(5, 6, 7, 8, 9),
        prompt_n=14,
        cached_n=0,
        prompt_ms=12.5,
        predicted_n=5,
        predicted_ms=20.25,
        drafted=6,
        accepted=2,
        stop="limit",
    )


def test_an_answer_of_a_server_that_drafted_nothing_names_no_drafts() -> None:
    reply = parse_reply(body({"draft_n": None, "draft_n_accepted": None, "cache_n": None}))
    assert (reply.drafted, reply.accepted, reply.cached_n) == (0, 0, 0)


def test_steps_that_verified_nothing_are_what_is_left() -> None:
    reply = parse_reply(body())
    assert (reply.decoded_n, reply.undrafted_steps) == (4, None)
    # One verify step gave 1 + 2 tokens, and one plain step the fourth.
    assert dataclasses.replace(reply, verify_steps=1).undrafted_steps == 1
    assert dataclasses.replace(reply, verify_steps=2).undrafted_steps == 0
    assert dataclasses.replace(reply, verify_steps=3).undrafted_steps == 0
    nothing = dataclasses.replace(reply, predicted_n=0, accepted=0, verify_steps=0)
    assert (nothing.decoded_n, nothing.undrafted_steps) == (0, 0)


def test_an_older_server_answers_without_tokens() -> None:
    assert parse_reply(body(tokens=None, stop_type=None)).tokens == ()


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "its answer is no JSON: ''"),
        (b"<html>\n<title>502</title>", "its answer is no JSON: '<html> <title>502</title>'"),
        (b"\xff\xfe", "its answer is no JSON: "),
        (b"[" * 100_000, "its answer is no JSON: '[[["),
        (b"[1]", "its answer is no JSON object: '[1]'"),
        (body()[:-10], "its answer is no JSON: "),
        (json.dumps({"content": "x"}).encode(), "has no timings: "),
        (json.dumps({"content": "x", "timings": 3}).encode(), "has no timings: "),
        (body(content=None), "its answer has no content"),
        (body(tokens="abc"), "its answer's tokens are no token ids: abc"),
        (body(tokens=[1, -2]), "its answer's tokens are no token ids: [1, -2]"),
        (body({"predicted_n": None}), "predicted_n is None, not a number of tokens"),
        (body({"predicted_n": -1}), "predicted_n is -1, not a number of tokens"),
        (body({"predicted_n": 2.5}), "predicted_n is 2.5, not a number of tokens"),
        (body({"predicted_n": True}), "predicted_n is True, not a number of tokens"),
        (body({"predicted_n": 1 << 60}), "predicted_n is 1152921504606846976, not a number of"),
        (body({"predicted_ms": 10**400}), "predicted_ms is 1000"),
        (body(content="\ud800"), "its answer's content is no Unicode text"),
        (body({"predicted_n": 4}), "predicted_n is 4, with 5 tokens answered"),
        (body({"predicted_ms": None}), "predicted_ms is None, not a time"),
        (body({"predicted_ms": "20"}), "predicted_ms is 20, not a time"),
        (body({"predicted_ms": float("nan")}), "predicted_ms is nan, not a time"),
        (body({"predicted_ms": float("inf")}), "predicted_ms is inf, not a time"),
        (body({"predicted_ms": 0}), "predicted_ms is 0.0, for 5 tokens"),
        (body({"prompt_ms": -0.5}), "prompt_ms is -0.5, not a time"),
        (body({"draft_n": "6"}), "draft_n is 6, not a number of tokens"),
        (body({"draft_n_accepted": 7}), "draft_n_accepted is 7, of 6 drafted"),
        (body({"draft_n": None}), "draft_n_accepted is 2, of 0 drafted"),
    ],
)
def test_an_answer_that_cannot_be_is_a_fault_of_one_line(raw: bytes, words: str) -> None:
    with pytest.raises(SystemFault) as fault:
        parse_reply(raw)
    assert words in str(fault.value)
    assert "\n" not in str(fault.value)
    assert len(str(fault.value)) < 300


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b'{"error":{"code":400,"message":"too\\nlong","type":"x"}}', "too long"),
        (b'{"error":"none"}', '\'{"error":"none"}\''),
        (b"Bad Gateway", "'Bad Gateway'"),
        (b"x" * 1000, f"'{'x' * 120}…'"),
    ],
)
def test_an_error_is_its_message_or_its_first_words(raw: bytes, message: str) -> None:
    assert parse_error(raw) == message


def test_counters_are_read_and_subtracted() -> None:
    after = parse_counters(METRICS)
    assert after == Counters(drafted=141, accepted=48, verify_steps=47, by_position=(30, 12, 6))
    before = Counters(drafted=100, accepted=40, verify_steps=40, by_position=(28, 12))
    assert after.since(before) == Counters(41, 8, 7, (2, 0, 6))
    assert after.since(Counters(0, 0, 0)) == after


@pytest.mark.parametrize(
    "raw",
    [b"", b"\xff", METRICS.replace(b"drafts_total 47", b"drafts_total nan"), METRICS[:100]],
    ids=["empty", "binary", "nan", "older server"],
)
def test_a_server_that_keeps_no_such_counters_has_none(raw: bytes) -> None:
    assert parse_counters(raw) is None

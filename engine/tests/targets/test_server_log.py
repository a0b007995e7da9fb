from __future__ import annotations

import io
import os

import pytest

from sluice.targets.server_log import ServerLog, draft_line

NOW = (
    "0.06.896.015 I slot print_timing: id  1 | task 0 | "
    "draft acceptance = 0.64479 (  167 accepted /   259 generated), mean len =  2.92"
)
# The same figures, as llama.cpp printed them for some days in June 2026.
IN_FULL = (
    "0.06.896.015 I slot print_timing: id  1 | task 0 | "
    "draft acceptance = 0.64479 (  167 accepted /   259 generated), "
    "mean acceptance length =  2.92, acceptance rate per position = (0.805, 0.632, 0.483)"
)
OLDER = "draft acceptance rate = 0.57576 (   19 accepted /    33 generated)"


@pytest.mark.parametrize(
    ("line", "accepted", "drafted", "mean_len", "verify_steps"),
    [
        (NOW, 167, 259, 2.92, 87),  # 1 + 167 / 87 = 2.9195, and no other number rounds to it
        (IN_FULL, 167, 259, 2.92, 87),
        (OLDER, 19, 33, None, None),
        (NOW.replace("  167 acc", "    0 acc").replace("2.92", "1.00"), 0, 259, 1.0, None),
        (NOW.replace("  167 acc", "   10 acc").replace("2.92", "1.05"), 10, 259, 1.05, None),
    ],
    ids=["now", "in full", "older", "none accepted", "many numbers of steps"],
)
def test_the_draft_line_in_every_spelling(
    line: str, accepted: int, drafted: int, mean_len: float | None, verify_steps: int | None
) -> None:
    found = draft_line(line)
    assert found is not None
    assert (found.accepted, found.drafted, found.mean_len) == (accepted, drafted, mean_len)
    assert found.verify_steps == verify_steps
    assert found.text == line


@pytest.mark.parametrize(
    "line",
    [
        "",
        "slot print_timing: id  0 | task 0 |    graphs reused =         85",
        "statistics        draft-mtp: #calls(b,g,a) =    1     87     87, #gen drafts =     87",
        "draft acceptance rate = nan (    0 accepted /     0 generated)",
        "slot update_slots: id  0 | task 3 | accepted  2/ 3 draft tokens",
    ],
)
def test_other_lines_are_no_draft_lines(line: str) -> None:
    assert draft_line(line) is None


def test_only_the_end_of_a_long_log_is_kept_and_a_mark_divides_it() -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb", buffering=0) as out:
        log = ServerLog(os.fdopen(reading, "rb"))
        out.write(b"".join(b"%d\n" % n for n in range(7000)))
        out.write(b"x" * 10000 + b"\n")
    log.join(10)
    assert log.mark == 7000 + 3  # a line without end is taken in pieces
    kept = log.since()
    assert len(kept) == 5000
    assert kept[:1] + kept[-4:-3] == ["2003", "6999"]
    assert log.since(7000) == ["x" * 4096, "x" * 4096, "x" * 1808]
    assert log.since(7003) == []


def test_the_draft_line_of_a_request_is_the_one_with_its_figures() -> None:
    log = ServerLog(io.BytesIO(f"{OLDER}\nhello\n{NOW}\n".encode()))
    log.join(10)
    found = log.draft_line(1, drafted=259, accepted=167, timeout_s=0)
    assert found is not None
    assert found.text == NOW
    assert log.draft_line(1, drafted=33, accepted=19, timeout_s=0) is None
    assert log.draft_line(0, drafted=33, accepted=19, timeout_s=0) is not None


def test_last_words_prefer_a_cause_to_what_follows_from_it() -> None:
    said = b"loading\n0.00.045.100 E error: no such model\n0.00.046.000 I cleaning up\n\n"
    log = ServerLog(io.BytesIO(said))
    log.join(10)
    assert log.last_words() == "error: no such model"
    log = ServerLog(io.BytesIO(b"one\n\xff two\n"))
    log.join(10)
    assert log.last_words() == "\ufffd two"
    log = ServerLog(io.BytesIO(b""))
    log.join(10)
    assert log.last_words() == ""

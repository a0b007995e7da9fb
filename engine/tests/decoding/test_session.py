from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import pytest

from sluice.config import Config
from sluice.decoding.session import Session
from sluice.errors import RequestError
from sluice.telemetry.evidence import Evidence

from .comparing import same

Open = Callable[..., Session]
STREAMED = {"moe_stream": True}
MTP = {"mtp": True, "draft": 3}


@pytest.mark.parametrize("changes", [{}, STREAMED, MTP, STREAMED | MTP], ids=str)
def test_the_evidence_of_a_run_is_the_same_file_twice(
    config: Config, prompt: str, changes: dict[str, Any]
) -> None:
    files = []
    for _ in range(2):
        with Session(config.replace(**changes)) as session:
            files.append(session.generate(prompt).run().evidence().to_json())
    assert files[0] == files[1]
    assert Evidence.from_json(files[0]).ids


@pytest.mark.parametrize("changes", [{}, MTP], ids=str)
@pytest.mark.parametrize(
    "streaming",
    [{}, {"load_all": True}, {"poison": True}, {"odirect": False}, {"io_threads": 1},
     {"io_threads": 8, "poison": True}],
    ids=str,
)  # fmt: skip
def test_a_streamed_run_is_the_resident_one_to_the_logits(
    opened: Open, prompt: str, changes: dict[str, Any], streaming: dict[str, Any]
) -> None:
    resident = opened(**changes).generate(prompt).run().evidence()
    streamed = opened(moe_stream=True, **streaming, **changes).generate(prompt).run().evidence()
    same(resident, streamed)


def test_compute_threads_move_no_bit(opened: Open, prompt: str) -> None:
    runs = [opened(threads=t, n=4).generate(prompt).run().evidence() for t in (1, 2)]
    same(*runs)


@pytest.mark.parametrize("changes", [{}, STREAMED, MTP, STREAMED | MTP], ids=str)
def test_a_session_forgets_what_it_generated_before(
    opened: Open, prompt: str, changes: dict[str, Any]
) -> None:
    fresh = opened(**changes).generate(prompt).run().evidence()
    used = opened(**changes)
    used.generate("class A:\n    x = 1\n").run()
    same(used.generate(prompt).run().evidence(), fresh)
    same(used.generate(prompt).run().evidence(), fresh)


@pytest.mark.parametrize("changes", [{}, STREAMED, MTP, STREAMED | MTP], ids=str)
@pytest.mark.parametrize("taken", [0, 1, 2, 3, 6])
def test_an_abandoned_generation_leaves_no_trace(
    opened: Open, prompt: str, changes: dict[str, Any], taken: int
) -> None:
    session = opened(**changes)
    fresh = session.generate(prompt).run().evidence()
    abandoned = session.generate("import sys\n")
    for _ in range(taken):
        next(abandoned)
    again = session.generate(prompt).run().evidence()
    same(again, fresh)
    with pytest.raises(RequestError, match="ended by a later generate"):
        next(abandoned)
    with pytest.raises(RequestError, match="has not ended"):
        abandoned.evidence()


def test_a_refused_request_leaves_the_running_generation_alone(opened: Open, prompt: str) -> None:
    session = opened()
    whole = session.generate(prompt).run().evidence()
    running = session.generate(prompt)
    next(running)
    for wrong in ({"prompt": ""}, {"prompt": prompt, "n": 0}, {"prompt": [-1]}):
        with pytest.raises(RequestError):
            session.generate(**wrong)
    same(running.run().evidence(), whole)


@pytest.mark.parametrize("changes", [{}, MTP, MTP | {"draft": 8}], ids=str)
@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_n_is_exact(opened: Open, prompt: str, changes: dict[str, Any], n: int) -> None:
    session = opened(**changes)
    longer = session.generate(prompt, n=12).run().evidence()
    shorter = session.generate(prompt, n=n).run()
    assert shorter.ids == longer.ids[:n]
    assert shorter.evidence().logits_sha256 == longer.logits_sha256[:n]
    assert shorter.evidence().stop.reason == "n"
    assert shorter.metrics.n_generated == n


def test_settings_of_one_call_end_with_it(opened: Open, prompt: str) -> None:
    session = opened(n=4)
    assert len(session.generate(prompt, n=7).run().ids) == 7
    assert len(session.generate(prompt).run().ids) == 4
    seven = session.generate(prompt, n=7).run().evidence()
    assert seven.config["n"] == 7
    assert session.config.n == 4


def test_draws_are_those_of_the_seed(opened: Open, prompt: str) -> None:
    session = opened(temp=1.5, top_k=0, top_p=1.0)
    first = session.generate(prompt, seed=1).run().evidence()
    same(session.generate(prompt, seed=1).run().evidence(), first)
    assert session.generate(prompt, seed=2).run().ids != first.ids
    greedy = session.generate(prompt, temp=0.0).run().evidence()
    assert greedy.ids != first.ids
    assert [t.ids[0] for t in greedy.top2] == greedy.ids
    same(session.generate(prompt, top_k=1).run().evidence(), greedy)


def test_any_bytes_that_are_drawn_join_to_the_whole_text(opened: Open) -> None:
    session = opened(temp=100.0, top_k=0, top_p=1.0, n=200)
    for seed in range(3):
        generation = session.generate("é", seed=seed)
        joined = "".join(token.text for token in generation) + generation.tail
        raw = session.detokenize(generation.ids)
        assert joined == generation.text == raw.decode("utf-8", "replace")
        assert "\ufffd" in joined


def test_two_sessions_do_not_disturb_each_other(opened: Open, prompt: str) -> None:
    plain, speculated = opened(moe_stream=True), opened(mtp=True, moe_stream=True)
    alone = [s.generate(prompt).run().evidence() for s in (plain, speculated)]
    a, b = plain.generate(prompt), speculated.generate(prompt)
    for one, other in zip(a, b, strict=True):
        assert one.step == other.step
    same(a.evidence(), alone[0])
    same(b.evidence(), alone[1])


def test_two_sessions_run_in_two_threads(config: Config, prompt: str) -> None:
    wanted = [config.replace(moe_stream=True, mtp=True), config.replace(moe_stream=True)]
    alone: list[Evidence] = []
    for one in wanted:
        with Session(one) as session:
            alone.append(session.generate(prompt).run().evidence())
    got: dict[int, list[Evidence]] = {0: [], 1: []}

    def run(index: int) -> None:
        for _ in range(3):
            with Session(wanted[index]) as session:
                got[index].append(session.generate(prompt).run().evidence())

    threads = [threading.Thread(target=run, args=(i,)) for i in got]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, runs in got.items():
        assert len(runs) == 3
        for evidence in runs:
            same(evidence, alone[index])


@pytest.mark.parametrize(
    ("prompt_", "words"),
    [
        ("", "the prompt is empty: give at least one token"),
        ([], "the prompt is empty"),
        ("x " * 5000, "set -c to"),
        ([1] * 489, "-c 512: a prompt of 489 + -n 24 need 513; set -c to 513 or more"),
        ([1, -1], "token id -1 at position 1: the vocabulary has ids 0 to"),
        ([10**9], "token id 1000000000 at position 0"),
        ([2**70], "token id 1180591620717411303424 at position 0"),
        ([1.5], "neither text nor a sequence of token ids"),
        (["a"], "neither text nor a sequence of token ids"),
        (None, "neither text nor a sequence of token ids"),
        (7, "neither text nor a sequence of token ids"),
        ("a\udcff", "the prompt is not text"),
    ],
    ids=range(12),
)
def test_a_prompt_that_cannot_be_run_is_refused(opened: Open, prompt_: Any, words: str) -> None:
    with pytest.raises(RequestError) as refused:
        opened().generate(prompt_)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_longest_prompt_that_fits_runs_to_its_end(opened: Open) -> None:
    assert len(opened(ctx=64, n=4).generate([5] * 60).run().ids) == 4
    session = opened(ctx=64, n=4, **MTP)
    assert len(session.generate([5] * 57).run().ids) == 4
    with pytest.raises(RequestError, match=r"a prompt of 58 \+ -n 4 \+ 3 drafted need 65"):
        session.generate([5] * 58)


def test_a_prompt_longer_than_a_pass_is_computed_in_pieces(opened: Open) -> None:
    ids = [5 + i % 50 for i in range(100)]
    seen: list[tuple[str, int, int]] = []
    session = opened(ubatch=32, **STREAMED, session={"progress": lambda *a: seen.append(a)})
    session.generate(ids, n=2).run()
    assert [s for s in seen if s[0] == "prefill"] == [
        ("prefill", done, 100) for done in (32, 64, 96, 100)
    ]
    loading = [s for s in seen if s[0] == "load"]
    assert loading[-1] == ("load", 100, 100)


def test_ids_may_come_in_any_whole_numbers(opened: Open) -> None:
    np = pytest.importorskip("numpy")
    session = opened()
    expected = session.generate([5, 6, 7]).run().evidence()
    same(session.generate(np.array([5, 6, 7])).run().evidence(), expected)
    same(session.generate((5, 6, 7)).run().evidence(), expected)


@pytest.mark.parametrize("use", ["generate", "generate ids", "tokenize", "detokenize"])
def test_a_closed_session_is_refused(opened: Open, use: str) -> None:
    session = opened(moe_stream=True)
    session.close()
    session.close()
    calls: dict[str, Callable[[], Any]] = {
        "generate": lambda: session.generate("x"),
        "generate ids": lambda: session.generate([1]),
        "tokenize": lambda: session.tokenize("x"),
        "detokenize": lambda: session.detokenize([1]),
    }
    with pytest.raises(RequestError, match="the session is closed"):
        calls[use]()


def test_closing_ends_a_running_generation(opened: Open, prompt: str) -> None:
    session = opened(moe_stream=True, **MTP)
    generation = session.generate(prompt)
    next(generation)
    session.close()
    with pytest.raises(RequestError, match="ended by the close of its session"):
        next(generation)


def test_a_generation_that_was_never_begun_ends_with_its_session(opened: Open) -> None:
    session = opened()
    generation = session.generate("x")
    session.close()
    with pytest.raises(RequestError, match="ended by the close of its session"):
        next(generation)


def test_an_exception_in_the_loop_closes_the_session(config: Config, prompt: str) -> None:
    left: list[Session] = []

    def stumble() -> None:
        with Session(config) as session:
            left.append(session)
            for token in session.generate(prompt):
                raise KeyError(token.id)

    with pytest.raises(KeyError):
        stumble()
    with pytest.raises(RequestError, match="closed"):
        left[0].tokenize("x")


def test_ids_that_are_none_have_no_text(opened: Open) -> None:
    with pytest.raises(RequestError, match="token id 1000000 at position 1"):
        opened().detokenize([1, 10**6])


def test_metrics_say_what_a_run_cost(opened: Open, prompt: str) -> None:
    session = opened(n=6)
    generation = session.generate(prompt).run()
    metrics = generation.metrics
    assert metrics.n_prompt == len(generation.prompt_ids) == len(session.tokenize(prompt))
    assert (metrics.n_generated, metrics.n_decodes) == (6, 5)
    assert metrics.load_s == session.load_s > 0
    assert metrics.prefill_s > 0
    assert metrics.decode_s > 0
    assert metrics.read_bytes == metrics.n_drafted == 0
    assert dataclasses.asdict(metrics)["draft_s"] == 0


@pytest.mark.parametrize("use", ["next", "generate", "close", "end"])
def test_a_generation_is_left_alone_from_within_it(opened: Open, prompt: str, use: str) -> None:
    inside = False

    def progress(stage: str, _done: int, _total: int) -> None:
        if stage != "prefill" or not inside:
            return
        with pytest.raises(RequestError, match=r"from within it .* wait for the token"):
            {
                "next": lambda: next(generation),
                "generate": lambda: session.generate(prompt),
                "close": session.close,
                "end": generation.close,
            }[use]()
        seen.append(use)

    seen: list[str] = []
    session = opened(session={"progress": progress})
    expected = session.generate(prompt, n=4).run().ids
    inside = True
    generation = session.generate(prompt, n=4)
    assert generation.run().ids == expected
    assert seen

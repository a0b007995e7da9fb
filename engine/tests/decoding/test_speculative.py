from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sluice.decoding.session import HEAD_ROWS, Session
from sluice.errors import RequestError, SluiceError
from sluice.seams import Drafter, Seams
from sluice.telemetry.evidence import Evidence

Open = Callable[..., Session]
N = 40


class Oracle(Drafter):
    """Knows the sequence; ``shift`` of 1 makes it wrong at every place."""

    def __init__(self, sequence: list[int], shift: int = 0) -> None:
        self.sequence = sequence
        self.shift = shift
        self.asked: list[int] = []

    def draft(self, confirmed: list[int], width: int, n_vocab: int) -> list[int]:
        self.asked.append(len(confirmed))
        ahead = self.sequence[len(confirmed) : len(confirmed) + width]
        return [(token + self.shift) % n_vocab for token in ahead]


def rebuilt(evidence: Evidence) -> list[int]:
    """The ids that the groups spell: each confirms its accepted drafts and one more."""
    ids = evidence.ids[:1]
    for group in evidence.groups:
        assert group.step == len(ids)
        assert group.drafted[: len(group.accepted)] == group.accepted
        ids += [*group.accepted, *evidence.ids[len(ids) + len(group.accepted) :][:1]]
    return ids[: len(evidence.ids)]


@pytest.fixture
def run(opened: Open, prompt: str) -> Callable[..., Evidence]:
    def run_(*, session: dict[str, Any] | None = None, **changes: Any) -> Evidence:
        wanted = {"mtp": True, "n": N} | changes
        return opened(session=session, **wanted).generate(prompt).run().evidence()

    return run_


def test_drafts_of_one_and_three_give_one_sequence(run: Callable[..., Evidence]) -> None:
    one, three = run(draft=1), run(draft=3)
    assert one.ids == three.ids
    assert one.logits_sha256 == three.logits_sha256
    assert 0 < three.n_accepted < three.n_drafted
    assert {len(g.drafted) for g in three.groups} == {3}
    assert len(three.groups) < len(one.groups)


def test_what_is_drafted_first_does_not_depend_on_the_width(run: Callable[..., Evidence]) -> None:
    """The head's state is that of the confirmed sequence, whatever was rejected on the way."""
    first = [{g.step: g.drafted[0] for g in run(draft=d).groups} for d in (1, 2, 3)]
    for other in first[1:]:
        shared = first[0].keys() & other.keys()
        assert len(shared) > 8
        assert {s: first[0][s] for s in shared} == {s: other[s] for s in shared}


@pytest.mark.parametrize("changes", [{"draft": 2}, {"draft": 3, "mtp_p_min": 0.6}], ids=str)
def test_groups_spell_the_ids(run: Callable[..., Evidence], changes: dict[str, Any]) -> None:
    evidence = run(**changes)
    assert rebuilt(evidence) == evidence.ids
    assert evidence.speculated


def test_catching_up_on_the_whole_batch_is_the_same_run(run: Callable[..., Evidence]) -> None:
    prefix, batch = run(), run(catch_up="batch")
    assert prefix.groups == batch.groups
    assert prefix.logits_sha256 == batch.logits_sha256


def test_nothing_drafted_is_the_plain_run(run: Callable[..., Evidence]) -> None:
    plain, silent = run(mtp=False), run(mtp_p_min=1.0)
    assert silent.n_drafted == 0
    assert plain.logits_sha256 == silent.logits_sha256
    assert len(silent.groups) == N - 1
    assert plain.groups == []


def test_a_short_draft_is_thrown_away_whole(run: Callable[..., Evidence]) -> None:
    some = run(draft=3, mtp_p_min=0.4)
    assert {1, 2} <= {len(g.drafted) for g in some.groups}
    kept = run(draft=3, mtp_p_min=0.4, draft_min=2)
    lengths = {len(g.drafted) for g in kept.groups}
    assert {0, 2} <= lengths <= {0, 2, 3}
    assert kept.ids == some.ids


def test_a_higher_floor_drafts_less(run: Callable[..., Evidence]) -> None:
    drafted = [run(draft=3, mtp_p_min=p).n_drafted for p in (0.0, 0.5, 0.9, 1.0)]
    assert drafted == sorted(drafted, reverse=True)
    assert len(set(drafted)) > 2


def test_a_draft_is_narrowed_per_call(opened: Open, prompt: str) -> None:
    session = opened(mtp=True, draft=3, n=N)
    three = session.generate(prompt).run().evidence()
    one = session.generate(prompt, draft=1).run().evidence()
    assert {len(g.drafted) for g in one.groups} == {1}
    assert one.logits_sha256 == three.logits_sha256
    with pytest.raises(RequestError, match="opened for drafts of 3"):
        session.generate(prompt, draft=4)


def test_the_widest_draft_runs_in_the_narrowest_pass(run: Callable[..., Evidence]) -> None:
    wide = run(draft=8, ubatch=10, n=20)
    assert {len(g.drafted) for g in wide.groups} == {8}
    assert len(wide.ids) == 20


def test_a_prompt_wider_than_the_heads_passes_is_followed_whole(opened: Open) -> None:
    ids = [5 + i % 90 for i in range(2 * HEAD_ROWS + 3)]
    wide = opened(mtp=True, ubatch=128).generate(ids).run().evidence()
    narrow = opened(mtp=True, ubatch=HEAD_ROWS).generate(ids).run().evidence()
    assert [g.drafted for g in wide.groups][:1] == [g.drafted for g in narrow.groups][:1]
    assert wide.n_drafted > 0


@pytest.mark.parametrize("streamed", [False, True])
def test_an_oracle_is_always_right(run: Callable[..., Evidence], streamed: bool) -> None:
    known = run(draft=3)
    oracle = Oracle(known.prompt_ids + known.ids)
    evidence = run(draft=3, moe_stream=streamed, session={"drafter": oracle})
    assert evidence.ids == known.ids
    assert evidence.logits_sha256 == known.logits_sha256
    full = [g for g in evidence.groups if len(g.drafted) == 3]
    assert len(full) >= N // 4 - 1
    assert all(g.accepted == g.drafted for g in full)
    # The drafter sees the confirmed sequence, prompt included, as it grows by four.
    start = len(known.prompt_ids) + 1
    assert oracle.asked[:3] == [start, start + 4, start + 8]


def test_a_drafter_that_is_always_wrong_changes_nothing(run: Callable[..., Evidence]) -> None:
    known = run(draft=3)
    wrong = Oracle(known.prompt_ids + known.ids, shift=1)
    evidence = run(draft=3, session={"drafter": wrong})
    assert evidence.n_drafted > 0
    assert evidence.n_accepted == 0
    assert evidence.ids == known.ids
    # The last groups are narrower: the sequence that is known ends there.
    assert evidence.logits_sha256[: N - 4] == known.logits_sha256[: N - 4]


class Says(Drafter):
    def __init__(self, draft: list[int]) -> None:
        self.says = draft

    def draft(self, confirmed: list[int], width: int, n_vocab: int) -> list[int]:
        return self.says


def test_a_drafter_may_say_nothing_or_too_much(run: Callable[..., Evidence]) -> None:
    plain = run(mtp=False)
    assert run(session={"drafter": Says([])}).ids == plain.ids
    evidence = run(draft=2, session={"drafter": Says([1] * 50)})
    assert {len(g.drafted) for g in evidence.groups} == {2}
    assert len(evidence.ids) == N


@pytest.mark.parametrize("token", [-1, 10**6])
def test_a_drafter_that_speaks_nonsense_is_a_fault(
    run: Callable[..., Evidence], token: int
) -> None:
    with pytest.raises(SluiceError, match="llama_decode returned -1"):
        run(session={"drafter": Says([token])})


def test_metrics_count_groups_and_drafts(opened: Open, prompt: str) -> None:
    generation = opened(mtp=True, draft=3, n=N).generate(prompt).run()
    evidence, metrics = generation.evidence(), generation.metrics
    assert metrics.n_decodes == len(evidence.groups)
    assert (metrics.n_drafted, metrics.n_accepted) == (evidence.n_drafted, evidence.n_accepted)
    assert metrics.draft_s > 0
    assert metrics.catch_up_s > 0
    assert metrics.effective_tok_s < metrics.tok_s


class Misplaced(Seams):
    """A fault of the loop: the last row in the place of the first unverified one."""

    def logits_row(self, row: int, n_rows: int) -> int:
        return n_rows - 1


class TooFew(Seams):
    def accepted(self, n_accepted: int, n_drafted: int) -> int:
        return n_accepted - 1


def test_the_seams_are_where_they_are_said_to_be(run: Callable[..., Evidence]) -> None:
    sound = run(draft=3)
    assert run(draft=3, session={"seams": Misplaced()}).ids != sound.ids
    fewer = run(draft=3, session={"seams": TooFew()})
    assert fewer.n_accepted < sound.n_accepted

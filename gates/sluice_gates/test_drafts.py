"""Drafts: what the head is told and what it makes of it. Output alone never shows that."""

from __future__ import annotations

from sluice.errors import GateFailure
from sluice.targets import Run
from sluice_gates.bench import Bench, accepted_and_rejected
from sluice_gates.gate import NotApplicable, gate
from sluice_gates.prompts import Prompt

WIDTH = 3
GROUPS = 12
"""Groups of a run, spread evenly over it, whose drafts are made again by a fresh session."""


@gate(
    level="drafts",
    claims="after a group the head drafts as if it had read the whole text afresh",
    kills=(
        "accept-one-less",
        "rollback-skipped",
        "logits-stale-row",
        "catch-up-tail-kept",
        "catch-up-short",
        "hidden-shifted",
        "hidden-of-tail",
    ),
    needs=("head",),
)
def test_drafts_of_fresh_session(bench: Bench) -> str:
    """Drafts in the middle of a run equal the first drafts of a session given the same tokens.

    Neither a rejected tail nor a skipped row may linger in the head. Exact, because a row has
    the same bits in any batch under --numerics invariant.

    Kills accept-one-less, rollback-skipped, logits-stale-row, catch-up-tail-kept, catch-up-short,
    hidden-shifted and hidden-of-tail.
    """
    settings = bench.invariant()
    if settings is None:
        raise NotApplicable("this build has no --numerics invariant to compare batches under")
    compared = dict.fromkeys((True, False), 0)
    for prompt in bench.general[:2]:
        run = bench.run(prompt, mtp=True, draft=WIDTH, **settings)
        for index, follows_rejection in _chosen(run):
            group = run.evidence.groups[index]
            # The group's batch starts with the token before its step: that one is confirmed.
            ids = [*run.evidence.prompt_ids, *run.evidence.ids[: group.step - 1]]
            name = f"{prompt.name}-{group.step}"
            fresh = bench.run_ids(name, ids, mtp=True, draft=WIDTH, n=2, **settings)
            if fresh.evidence.ids[0] != run.evidence.ids[group.step - 1]:
                raise GateFailure(f"{prompt.name}, step {group.step - 1}: another token afresh")
            drafted = fresh.evidence.groups[0].drafted
            if drafted != group.drafted:
                raise GateFailure(
                    f"{prompt.name}, group {index} at step {group.step}: drafted"
                    f" {list(group.drafted)}, a fresh session drafts {list(drafted)}"
                )
            compared[follows_rejection] += 1
    for follows_rejection, words in ((True, "a rejection"), (False, "a full acceptance")):
        if not compared[follows_rejection]:
            raise GateFailure(f"no evidence: no group follows {words}")
    return f"{compared[True]} groups of {WIDTH} after a rejection, {compared[False]} after none"


@gate(
    level="drafts",
    claims="exactly the drafts that match the target's own choice are accepted",
    kills=("accept-one-more", "accept-one-less", "rollback-skipped", "catch-up-tail-kept"),
    needs=("head",),
)
def test_accepted_is_longest_match(bench: Bench) -> str:
    """Every token is its row's argmax, and a group ends where draft and argmax part.

    Kills accept-one-more, accept-one-less, rollback-skipped and catch-up-tail-kept.
    """
    runs = [bench.run(prompt, mtp=True, draft=WIDTH) for prompt in bench.general]
    for prompt, run in zip(bench.general, runs, strict=True):
        _check_argmax(prompt, run)
        _check_groups(prompt, run)
    return accepted_and_rejected(runs, WIDTH)


@gate(
    level="drafts",
    claims="the head's drafts are accepted as often as was recorded",
    kills=(
        "accept-one-less",
        "rollback-skipped",
        "catch-up-tail-kept",
        "catch-up-short",
        "hidden-of-tail",
    ),
    needs=("head",),
)
def test_acceptance_floor(bench: Bench) -> str:
    """Acceptance at draft 3 stays above the floor of this model's prompts.

    A head that is told wrong things, or badly quantised, drafts correctly shaped nonsense:
    the text stays right and only this number falls.

    Kills accept-one-less, rollback-skipped, catch-up-tail-kept, catch-up-short and hidden-of-tail.
    """
    runs = [bench.run(prompt, mtp=True, draft=WIDTH) for prompt in bench.general]
    accepted = sum(run.evidence.n_accepted for run in runs)
    drafted = sum(run.evidence.n_drafted for run in runs)
    if not drafted:
        raise GateFailure("no evidence: nothing drafted")
    floor = bench.prompts.acceptance_floor
    if accepted / drafted < floor:
        raise GateFailure(
            f"{accepted}/{drafted} drafts accepted ({accepted / drafted:.1%}), floor {floor:.0%}"
        )
    return f"{accepted}/{drafted} accepted ({accepted / drafted:.1%}), floor {floor:.0%}"


def _chosen(run: Run) -> list[tuple[int, bool]]:
    """Groups that have one before them, with whether that one had a draft rejected.

    About :data:`GROUPS`, half of either kind, spread evenly over the run.
    """
    groups = run.evidence.groups
    kinds: dict[bool, list[int]] = {True: [], False: []}
    for index in range(1, len(groups)):
        before = groups[index - 1]
        kinds[len(before.accepted) < len(before.drafted)].append(index)
    half = GROUPS // 2
    return [
        (index, kind)
        for kind, found in kinds.items()
        for index in found[:: max(1, len(found) // half)][:half]
    ]


def _check_argmax(prompt: Prompt, run: Run) -> None:
    for step, (token, top) in enumerate(zip(run.evidence.ids, run.evidence.top2, strict=True)):
        if token != top.ids[0]:
            raise GateFailure(
                f"{prompt.name}, step {step}: token {token}, but the argmax of its row is"
                f" {top.ids[0]} (margin {top.margin:.6g})"
            )


def _check_groups(prompt: Prompt, run: Run) -> None:
    ids = run.evidence.ids
    step = 1
    for index, group in enumerate(run.evidence.groups):
        where = f"{prompt.name}, group {index} at step {group.step}"
        if group.step != step:
            raise GateFailure(f"{where}: expected at step {step}")
        n = len(group.accepted)
        if group.accepted != group.drafted[:n]:
            raise GateFailure(f"{where}: accepted {list(group.accepted)} is no prefix of the draft")
        for i, token in enumerate(group.accepted):
            if step + i < len(ids) and ids[step + i] != token:
                raise GateFailure(f"{where}: accepted {token}, generated {ids[step + i]}")
        after = step + n
        if n < len(group.drafted) and after < len(ids) and ids[after] == group.drafted[n]:
            raise GateFailure(f"{where}: draft {n} ({group.drafted[n]}) was right and not accepted")
        step = after + 1

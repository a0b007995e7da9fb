"""Speculation: what drafting may change, and what it may not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from sluice.errors import GateFailure
from sluice.targets import Run
from sluice_gates.bench import DRAFTS, LONG, Bench, accepted_and_rejected, measured
from sluice_gates.drafters import AlwaysWrong, Oracle
from sluice_gates.gate import NotApplicable, gate
from sluice_gates.prompts import Prompt

BEYOND = 8
"""Tokens that a reference run has beyond the runs compared with it: a draft looks ahead."""

LIMITS = range(1, 13)


@gate(
    level="logits",
    claims="the width of the draft changes no logit",
    kills=(
        "accept-one-more",
        "accept-one-less",
        "rollback-skipped",
        "logits-stale-row",
        "catch-up-tail-kept",
        "n-overshot",
    ),
    needs=("head",),
)
def test_draft_1_is_draft_3(bench: Bench) -> str:
    """Drafts 1, 2 and 3 give the same logits, with groups that accept each number of drafts.

    A broken rollback scales with what is rolled back, and a broken accept with what is
    accepted: neither survives this comparison.

    Kills accept-one-more, accept-one-less, rollback-skipped, logits-stale-row, catch-up-tail-kept
    and n-overshot.
    """
    runs, words = [], []
    for draft in DRAFTS:
        mine = [bench.run(prompt, mtp=True, draft=draft) for prompt in bench.general]
        for prompt, run in zip(bench.general, mine, strict=True):
            narrow = bench.run(prompt, mtp=True, draft=1)
            bench.equal(narrow, run, f"{prompt.name}, draft 1 and draft {draft}")
        accepted_and_rejected(mine, draft)
        lengths = Counter(
            len(g.accepted) for r in mine for g in r.evidence.groups if len(g.drafted) == draft
        )
        for length in range(draft + 1):
            if not lengths[length]:
                raise GateFailure(f"no evidence: no group of {draft} drafts accepted {length}")
        shares = " ".join(f"{length}:{lengths[length]}" for length in range(draft + 1))
        words.append(f"draft {draft} groups {shares}")
        runs += mine
    return f"{measured(runs)}; {'; '.join(words)}"


@gate(
    level="logits",
    claims="--mtp-p-min 1 drafts nothing and is plain decoding",
    kills=("n-overshot", "p-min-ignored"),
    needs=("head",),
)
def test_p_min_1_is_plain(bench: Bench) -> str:
    """A head that must be certain drafts nothing, and the run has the plain run's logits.

    Kills n-overshot and p-min-ignored.
    """
    runs = []
    for prompt in bench.general:
        plain = bench.run(prompt)
        silent = bench.run(prompt, mtp=True, mtp_p_min=1.0)
        if silent.evidence.n_drafted:
            raise GateFailure(f"{prompt.name}: {silent.evidence.n_drafted} drafted at p-min 1")
        bench.equal(plain, silent, f"{prompt.name}, plain and --mtp-p-min 1")
        runs += [plain, silent]
    return f"{measured(runs)}, 0 drafted"


@gate(
    level="logits",
    claims="a drafter that is always wrong changes nothing and is never accepted",
    kills=("accept-one-more", "rollback-skipped", "logits-stale-row", "catch-up-tail-kept"),
    needs=("head",),
)
def test_always_wrong_drafter(bench: Bench) -> str:
    """Rejecting every draft of every group leaves the sequence of the batched pass.

    Kills accept-one-more, rollback-skipped, logits-stale-row and catch-up-tail-kept.
    """
    runs = []
    for what, run in _drafted_by(AlwaysWrong, "wrong", bench):
        accepted, drafted = run.evidence.n_accepted, run.evidence.n_drafted
        if accepted:
            raise GateFailure(f"{what}: {accepted} of {drafted} wrong drafts accepted")
        runs.append(run)
    return f"{measured(runs)}, 0/{sum(r.evidence.n_drafted for r in runs)} accepted"


@gate(
    level="logits",
    claims="a drafter that is always right is always accepted and changes nothing",
    kills=(
        "accept-one-more",
        "accept-one-less",
        "rollback-skipped",
        "logits-stale-row",
        "catch-up-tail-kept",
    ),
    needs=("head",),
)
def test_oracle_drafter(bench: Bench) -> str:
    """Accepting every draft of every group leaves the sequence of the batched pass.

    Kills accept-one-more, accept-one-less, rollback-skipped, logits-stale-row and
    catch-up-tail-kept.
    """
    runs = []
    for what, run in _drafted_by(Oracle, "right", bench):
        accepted, drafted = run.evidence.n_accepted, run.evidence.n_drafted
        if accepted != drafted and run.evidence.stop.reason == "n":
            raise GateFailure(f"{what}: {accepted} of {drafted} right drafts accepted")
        runs.append(run)
    return f"{measured(runs)}, {sum(r.evidence.n_accepted for r in runs)} accepted"


@gate(
    level="logits",
    claims="an end of generation inside an accepted group ends the run there",
    kills=(
        "accept-one-more",
        "rollback-skipped",
        "logits-stale-row",
        "catch-up-tail-kept",
        "eog-kept",
    ),
    needs=("head",),
)
def test_end_inside_group(bench: Bench) -> str:
    """Wherever in a group the end-of-generation token lies, nothing after it is handed out.

    An oracle that drafts past the end moves it to every place of groups of 1 to 4 drafts.

    Kills accept-one-more, rollback-skipped, logits-stale-row, catch-up-tail-kept and eog-kept.
    """
    runs, ended = [], 0
    for prompt in bench.prompts.endings:
        reference = bench.run(prompt, mtp=True, n=LONG)
        stop = reference.evidence.stop
        if stop.id is None:
            continue
        if bench.prompts.searched and not _accepts(reference, stop.id):
            raise GateFailure(f"no evidence: {prompt.name} does not end in an accepted group")
        ended += 1
        drafter = Oracle((*sequence(reference), stop.id, 0))
        mine = [bench.run(prompt, mtp=True, draft=d, n=LONG) for d in DRAFTS]
        mine += [
            bench.run(prompt, mtp=True, draft=d, n=LONG, drafter=drafter) for d in (1, 2, 3, 4)
        ]
        for run in mine:
            if stop.id in run.evidence.ids:
                raise GateFailure(f"{prompt.name}: the end token {stop.id} is among the ids")
            bench.equal(reference, run, f"{prompt.name}, draft 3 and another width")
        runs += mine
    if not ended:
        if bench.prompts.searched:
            raise GateFailure("no evidence: no prompt ends by itself")
        raise NotApplicable(f"{bench.model.name} ends none of its prompts by itself")
    return f"{measured(runs)}, {ended} prompts end by themselves"


@gate(
    level="logits",
    claims="-n is never overshot, and a shorter run is the beginning of a longer one",
    kills=(
        "accept-one-more",
        "rollback-skipped",
        "logits-stale-row",
        "catch-up-tail-kept",
        "n-overshot",
    ),
    needs=("head",),
)
def test_limit_inside_group(bench: Bench) -> str:
    """``-n`` at every value from 1 to 12 gives the first n tokens of a long run, and no more.

    Both ``-n`` of the configuration and of the call.

    Kills accept-one-more, rollback-skipped, logits-stale-row, catch-up-tail-kept and n-overshot.
    """
    runs, cut = [], 0
    for prompt in bench.general[:1]:
        reference = bench.run(prompt, mtp=True, draft=1)
        for n in LIMITS:
            at_open = bench.run(prompt, mtp=True, n=n)
            at_call = bench.run(prompt, mtp=True, overrides={"n": n})
            for run in (at_open, at_call):
                got = len(run.evidence.ids)
                if got > n:
                    raise GateFailure(f"{prompt.name}: -n {n} gave {got} tokens")
                bench.equal(run, reference, f"{prompt.name}, -n {n} and the long run", prefix=True)
            runs += [at_open, at_call]
            last = at_open.evidence.groups[-1] if at_open.evidence.groups else None
            cut += last is not None and last.step + len(last.accepted) >= n
    if not cut:
        raise GateFailure("no evidence: no limit fell inside an accepted group")
    return f"{measured(runs)}, {cut} of {len(LIMITS)} limits inside an accepted group"


@gate(
    level="logits",
    claims="--draft-min throws a shorter draft away whole, and changes nothing else",
    kills=("rollback-skipped", "catch-up-tail-kept", "p-min-ignored", "draft-min-ignored"),
    needs=("head",),
)
def test_draft_min(bench: Bench) -> str:
    """With a probability floor, drafts shorter than the minimum vanish; at minimum 1 none do.

    Kills rollback-skipped, catch-up-tail-kept, p-min-ignored and draft-min-ignored.
    """
    for p_min in (0.5, 0.3, 0.7, 0.9):
        free = [bench.run(prompt, mtp=True, mtp_p_min=p_min) for prompt in bench.general]
        if {1, 3} <= _widths(free):
            break
    else:
        raise GateFailure("no evidence: no probability floor gives short and full drafts")
    words = []
    for minimum in (1, 2, 3):
        mine = [
            bench.run(prompt, mtp=True, mtp_p_min=p_min, draft_min=minimum)
            for prompt in bench.general
        ]
        for prompt, run, made in zip(bench.general, free, mine, strict=True):
            if minimum == 1:
                bench.equal(run, made, f"{prompt.name}, --draft-min 0 and 1")
                bench.equal(run, made, f"{prompt.name}, --draft-min 0 and 1", "drafts")
            short = sorted(w for w in _widths([made]) if 0 < w < minimum)
            if short:
                raise GateFailure(f"{prompt.name}: --draft-min {minimum} kept {short[0]} drafts")
        widths = Counter(len(g.drafted) for run in mine for g in run.evidence.groups)
        if not widths[0] or not widths[3]:
            raise GateFailure(f"no evidence: --draft-min {minimum} gave widths {dict(widths)}")
        words.append(f"min {minimum}: " + " ".join(f"{w}:{widths[w]}" for w in sorted(widths)))
    return f"p-min {p_min:g}, drafts by width at {'; '.join(words)}"


def _drafted_by(
    drafter: type[AlwaysWrong | Oracle], kind: str, bench: Bench
) -> Iterator[tuple[str, Run]]:
    """Runs of every width and prompt with the drafts of ``drafter``, each with what it is.

    Raises:
        GateFailure: nothing was drafted, or, once the caller has judged the run, its logits
            are not those of the batched pass.
    """
    for draft in DRAFTS:
        for prompt in bench.general:
            reference = batched(bench, prompt)
            run = bench.run(prompt, mtp=True, draft=draft, drafter=drafter(sequence(reference)))
            if run.evidence.n_drafted == 0:
                raise GateFailure("no evidence: nothing drafted")
            yield f"{prompt.name}, draft {draft}", run
            what = f"{prompt.name}, {kind} drafts and the head's"
            bench.equal(run, reference, what, prefix=True)


def batched(bench: Bench, prompt: Prompt) -> Run:
    """The sequence of the batched pass, a little longer than what is compared with it."""
    return bench.run(prompt, mtp=True, n=bench.n + BEYOND)


def sequence(run: Run) -> tuple[int, ...]:
    """Prompt and generated ids of a run, as drafters are told them."""
    return (*run.evidence.prompt_ids, *run.evidence.ids)


def _widths(runs: list[Run]) -> set[int]:
    return {len(group.drafted) for run in runs for group in run.evidence.groups}


def _accepts(run: Run, token: int) -> bool:
    """Whether the last group drafted the token and had it accepted."""
    groups = run.evidence.groups
    return bool(groups) and token in groups[-1].accepted

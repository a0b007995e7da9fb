"""Numerics: what each profile claims of runs that compute the same rows in other batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sluice.config import DRAFT_MAX, Numerics
from sluice.errors import GateFailure, RequestError
from sluice.targets import Run, draft_groups
from sluice.targets.widths import spelled_drafts
from sluice_gates.bench import Bench, accepted_and_rejected, measured, streamed_mib
from sluice_gates.compare import difference
from sluice_gates.gate import NotApplicable, gate
from sluice_gates.prompts import Prompt

SHORT = 48
"""Tokens of these runs: a moved bit shows in the first rows, or not at all."""

EVERY_DRAFT = range(1, DRAFT_MAX + 1)
STREAMED_DRAFTS = (1, 3, DRAFT_MAX)
P_MINS = (0.2, 0.5, 0.9)
PADDED = 512
LONG_PROMPT = 480
"""Tokens of a prompt whose continuation passes 512 cached positions, where attention changes."""

UBATCHES = (1, 16)
THREADS = (1, 2, 4)


@gate(level="logits", claims="under invariant, --ubatch and threads change no logit")
def test_invariant_ubatch(bench: Bench) -> str:
    """A prompt computed in one pass, in sixteens and token by token gives the same logits.

    Resident and streamed, on 1, 2 and 4 threads. Kills every kernel switch left on that moves
    a bit of this model's types.
    """
    _need(bench, "invariant")
    runs, streamed = [], []
    widths: list[dict[str, Any]] = [{}, *({"ubatch": n} for n in UBATCHES)]
    for prompt in _prompts(bench):
        plain = _run(bench, prompt, "invariant")
        for streams in bench.memory_modes:
            mine = [
                _equal(bench, plain, prompt, "invariant", moe_stream=streams, **changes)
                for changes in widths
            ]
            runs += mine
            streamed += mine if streams else []
        runs += [_equal(bench, plain, prompt, "invariant", threads=n) for n in _threads(bench)]
    mib = f", {streamed_mib(streamed):.0f} MiB streamed" if streamed else ""
    return f"{measured(runs)}{mib}"


@gate(
    level="logits",
    claims="under invariant, MTP output is plain output at every draft width",
    kills=("accept-one-more",),
    needs=("head",),
)
def test_invariant_mtp(bench: Bench) -> str:
    """Drafts 1 to 8, cut short by ``--mtp-p-min`` or not, give the logits of plain decoding.

    Resident and streamed. Kills accept-one-more, and sgemm or the tiled kernels left on.
    """
    return _mtp_is_plain(bench, "invariant")


@gate(
    level="logits",
    claims="under invariant, nothing changes a logit across 512 cached positions",
)
def test_invariant_long(bench: Bench) -> str:
    """A run that passes 512 cached positions is the same at other widths and thread counts.

    There, flash attention would part one row from several, and the prompt's rows from both.
    Kills flash attention left on.
    """
    return _long(bench, "invariant", ({"ubatch": n} for n in UBATCHES))


@gate(
    level="logits",
    claims="under decode-invariant, MTP output is plain output at every draft width",
    kills=("accept-one-more",),
    needs=("head",),
)
def test_decode_invariant_mtp(bench: Bench) -> str:
    """Drafts 1 to 8 give the logits of plain decoding, and the prompt keeps its fast kernels.

    Resident and streamed. Kills accept-one-more, and sgemm or the tiled kernels left on.
    """
    return _mtp_is_plain(bench, "decode-invariant")


@gate(
    level="logits",
    claims="under decode-invariant, drafts and threads change no logit across 512 positions",
)
def test_decode_invariant_long(bench: Bench) -> str:
    """A run that passes 512 cached positions is the same at every draft and thread count.

    Kills flash attention left on.
    """
    return _long(bench, "decode-invariant", ())


@gate(
    level="logits",
    claims="under default, drafts of one width class are equal and some logit moves across",
    kills=("accept-one-more",),
    needs=("head",),
)
def test_default_width_classes(bench: Bench) -> str:
    """Drafts whose widths share a class of every kernel give the same logits; others need not.

    The classes are found by running the kernels. If no logit moves across them on any prompt,
    nothing is shown, and the gate says so. Kills accept-one-more.
    """
    groups = draft_groups(bench.model.path, bench.config().threads)
    runs, moved, across = [], 0, 0
    for prompt in _prompts(bench, every=True):
        firsts = []
        for group in groups:
            mine = [_drafting(bench, prompt, draft) for draft in group]
            for draft, run in zip(group, mine, strict=True):
                what = f"{prompt.name}, draft {group[0]} and draft {draft} of one width class"
                bench.equal(mine[0], run, what)
            firsts.append(mine[0])
            runs += mine
        narrow = bench.run(prompt, ubatch=1)
        for run in (*firsts[1:], narrow):
            across += 1
            moved += difference(firsts[0].evidence, run.evidence, "logits") is not None
    ids, whole = _past_512(bench, "default")
    for n in UBATCHES:
        narrow = bench.run_ids("long", ids, n=SHORT, ubatch=n)
        across += 1
        moved += difference(whole.evidence, narrow.evidence, "logits") is not None
    words = " | ".join(spelled_drafts(group) for group in groups)
    if not moved:
        raise NotApplicable(
            f"vacuous: no logit moved in {across} comparisons across the classes {words}"
        )
    return f"{measured(runs)}; {words}; {moved} of {across} comparisons across them differ"


def _mtp_is_plain(bench: Bench, numerics: Numerics) -> str:
    _need(bench, numerics)
    runs, streamed, full = [], [], []
    for prompt in _prompts(bench):
        plain = _run(bench, prompt, numerics)
        full += [
            _equal(bench, plain, prompt, numerics, mtp=True, draft=draft) for draft in EVERY_DRAFT
        ]
        cut = [
            _equal(bench, plain, prompt, numerics, mtp=True, draft=DRAFT_MAX, mtp_p_min=p_min)
            for p_min in P_MINS
        ]
        widths = {len(group.drafted) for run in cut for group in run.evidence.groups}
        if len(widths) < 2:
            raise GateFailure(
                f"no evidence: {prompt.name}: no p-min of {P_MINS} cuts a draft short"
            )
        runs += [plain, *cut]
        if bench.streams and prompt == bench.general[0]:
            streamed += [
                _equal(bench, plain, prompt, numerics, mtp=True, draft=draft, moe_stream=True)
                for draft in STREAMED_DRAFTS
            ]
    mib = f", {streamed_mib(streamed):.0f} MiB streamed" if streamed else ""
    words = accepted_and_rejected(full, DRAFT_MAX).replace(f"draft {DRAFT_MAX}", "drafts 1 to 8")
    return f"{measured([*runs, *full, *streamed])}{mib}; {words}"


def _long(bench: Bench, numerics: Numerics, others: Iterable[dict[str, Any]]) -> str:
    _need(bench, numerics)
    ids, plain = _past_512(bench, numerics)
    changes = [*others, *({"threads": n} for n in _threads(bench))]
    if bench.model.facts.has_head:
        changes += [{"mtp": True, "draft": draft} for draft in STREAMED_DRAFTS]
    if bench.streams:
        changes.append({"moe_stream": True})
    runs = [plain]
    for change in changes:
        other = bench.run_ids("long", ids, n=SHORT, numerics=numerics, **change)
        bench.equal(plain, other, f"{numerics}, {len(ids)} tokens: plain and {_words(change)}")
        runs.append(other)
    return f"{measured(runs)}, from position {len(ids)} to {len(ids) + len(plain.evidence.ids)}"


def _past_512(bench: Bench, numerics: Numerics) -> tuple[tuple[int, ...], Run]:
    """A prompt of :data:`LONG_PROMPT` tokens that the model does not end soon after, and its run.

    Made of what the model continues the prompts with, over and over.
    """
    ids: list[int] = []
    for prompt in bench.general:
        evidence = bench.run(prompt).evidence
        ids += [*evidence.prompt_ids, *evidence.ids]
    for shift in range(0, len(ids), max(1, len(ids) // 16)):
        turned = ids[shift:] + ids[:shift]
        whole = tuple((turned * -(-LONG_PROMPT // len(ids)))[:LONG_PROMPT])
        run = bench.run_ids("long", whole, n=SHORT, numerics=numerics)
        if len(whole) + len(run.evidence.ids) > PADDED:
            return whole, run
    raise GateFailure(f"no evidence: no run of {LONG_PROMPT} tokens passes {PADDED} positions")


def _need(bench: Bench, numerics: Numerics) -> None:
    """Leave the gate where this build cannot have the profile."""
    try:
        bench.run(bench.general[0], n=1, numerics=numerics)
    except RequestError as err:
        raise NotApplicable(str(err)) from None


def _prompts(bench: Bench, *, every: bool = False) -> tuple[Prompt, ...]:
    """A large model gets one prompt: these gates run each some thirty times."""
    if not bench.model.is_small:
        return bench.general[:1]
    return bench.general if every else bench.general[:2]


def _threads(bench: Bench) -> tuple[int, ...]:
    return tuple(n for n in THREADS if n != bench.config().threads)


def _run(bench: Bench, prompt: Prompt, numerics: Numerics, **changes: Any) -> Run:
    return bench.run(prompt, n=SHORT, numerics=numerics, **changes)


def _equal(bench: Bench, plain: Run, prompt: Prompt, numerics: Numerics, **changes: Any) -> Run:
    """Run with ``changes`` and fail unless it is ``plain``, to the logits."""
    other = _run(bench, prompt, numerics, **changes)
    bench.equal(plain, other, f"{prompt.name}, {numerics}: plain and {_words(changes)}")
    return other


def _drafting(bench: Bench, prompt: Prompt, draft: int) -> Run:
    """Plain for draft 0."""
    return bench.run(prompt, mtp=True, draft=draft) if draft else bench.run(prompt)


def _words(changes: dict[str, Any]) -> str:
    words = [name if value is True else f"{name} {value}" for name, value in changes.items()]
    return " ".join(words) or "again"

"""Divergence: what may differ under default numerics, and exactly how it was seen to differ."""

from __future__ import annotations

from typing import Any

from sluice.errors import GateFailure
from sluice.telemetry.evidence import Evidence
from sluice_gates.bench import LONG, Bench
from sluice_gates.compare import difference, first_differing, first_step
from sluice_gates.gate import NotApplicable, NotRecorded, gate
from sluice_gates.goldens import divergence_place, plain_divergence
from sluice_gates.prompts import Prompt


@gate(
    level="text",
    claims="--ubatch 1 differs from plain exactly where and as recorded",
    kills=("ubatch-ignored",),
)
def test_ubatch_1_divergence(bench: Bench) -> str:
    """A prompt computed token by token gives another text: recorded place, lengths and hashes.

    No speculation is involved: batch width alone moves the last bits, and a near-tie flips.

    Kills ubatch-ignored.
    """
    observed: dict[str, Any] = {}
    words = []
    for prompt in _prompts(bench):
        plain = _plain(bench, prompt)
        narrow = bench.run(prompt, n=LONG, ubatch=1).evidence
        observed[prompt.name] = plain_divergence(plain, narrow)
        if observed[prompt.name]["diverges"]:
            words.append(f"{prompt.name} {_place(plain, narrow)}")
    _compare(bench, "ubatch-1-divergence", observed)
    return f"{len(words)}/{len(observed)} prompts diverge: {'; '.join(words)}"


@gate(
    level="ids",
    claims="MTP differs from plain exactly where recorded, at every draft width alike",
    kills=(
        "accept-one-more",
        "rollback-skipped",
        "logits-stale-row",
        "catch-up-tail-kept",
        "n-overshot",
    ),
    needs=("head",),
)
def test_mtp_divergence(bench: Bench) -> str:
    """A verify batch flips a near-tie at a recorded place, between two recorded tokens.

    Place, tokens and margin are all that is recorded: no speculated output enters a golden.

    Kills accept-one-more, rollback-skipped, logits-stale-row, catch-up-tail-kept and n-overshot.
    """
    observed: dict[str, Any] = {}
    words = []
    for prompt in _prompts(bench):
        plain = _plain(bench, prompt)
        wide = {d: bench.run(prompt, n=LONG, mtp=True, draft=d).evidence for d in (1, 3)}
        observed[prompt.name] = divergence_place(plain, wide[3])
        found = difference(wide[1], wide[3], "logits")
        if found:
            raise GateFailure(f"{prompt.name}, draft 1 and draft 3: {found}")
        if observed[prompt.name]["diverges"]:
            words.append(f"{prompt.name} {_place(plain, wide[3])}")
    _compare(bench, "mtp-divergence", observed)
    return f"{len(words)}/{len(observed)} prompts diverge: {'; '.join(words)}"


@gate(
    level="text",
    claims="the comparison table: control, batch width, two drafts, and drafts with each other",
    kills=(
        "accept-one-more",
        "rollback-skipped",
        "logits-stale-row",
        "catch-up-tail-kept",
        "n-overshot",
        "ubatch-ignored",
    ),
    needs=("head",),
)
def test_comparison_table(bench: Bench) -> str:
    """One prompt shows it all: plain is plain, ``--ubatch 1`` is not, and drafts agree.

    The row of ``--ubatch 1`` settles that batch width moves the text; the last row settles
    that rolling back does not.

    Kills accept-one-more, rollback-skipped, logits-stale-row, catch-up-tail-kept, n-overshot and
    ubatch-ignored.
    """
    prompt = bench.prompts.table
    if prompt is None:
        raise NotApplicable(f"no prompt is recorded to show all five rows on {bench.model.name}")
    plain = _plain(bench, prompt)
    narrow = bench.run(prompt, n=LONG, ubatch=1).evidence
    drafts = {d: bench.run(prompt, n=LONG, mtp=True, draft=d).evidence for d in (1, 3)}
    again = bench.run(prompt, n=LONG, fresh=True).evidence
    rows = [
        ("plain vs plain (control)", _row(plain, again)),
        ("plain vs plain at --ubatch 1, no MTP at all", _row(plain, narrow)),
        ("plain vs --mtp --draft 1", _row(plain, drafts[1])),
        ("plain vs --mtp --draft 3", _row(plain, drafts[3])),
        ("--draft 1 vs --draft 3", _row(drafts[1], drafts[3])),
    ]
    bench.table.extend(rows)
    same = [plain.text == again.text, plain.text == narrow.text, plain.text == drafts[1].text,
            plain.text == drafts[3].text, drafts[1].text == drafts[3].text]  # fmt: skip
    words = "; ".join(f"{what}: {found}" for what, found in rows)
    if same != [True, False, False, False, True]:
        if not bench.goldens.path.exists() and all(same):
            raise NotRecorded(f"{prompt.name} does not diverge on this build; search again")
        raise GateFailure(f"{prompt.name}: {words}")
    return f"{prompt.name}: {words}"


def _prompts(bench: Bench) -> tuple[Prompt, ...]:
    prompts = bench.prompts.divergence
    if not prompts:
        raise NotApplicable(f"no prompt is recorded to diverge on {bench.model.name}")
    return prompts


def _plain(bench: Bench, prompt: Prompt) -> Evidence:
    """The plain run, after its control."""
    first, again = bench.run(prompt, n=LONG), bench.run(prompt, n=LONG, fresh=True)
    bench.equal(first, again, f"{prompt.name}, plain and again")
    return first.evidence


def _compare(bench: Bench, section: str, observed: dict[str, Any]) -> None:
    """Compare with the golden; where nothing diverges there is nothing to show, recorded or not."""
    diverges = any(place["diverges"] for place in observed.values())
    if diverges or bench.goldens.recording or bench.goldens.path.exists():
        bench.goldens.compare(section, observed)
    if not diverges:
        raise NotApplicable(
            f"none of {len(observed)} prompts diverges within {LONG} tokens on {bench.model.name}"
        )


def _place(left: Evidence, right: Evidence) -> str:
    step = first_step(left, right)
    assert step is not None
    return (
        f"char {first_differing(left.text, right.text)} of {len(left.text)}/{len(right.text)},"
        f" token {left.ids[step]}/{right.ids[step]}, margin {left.top2[step].margin:.3g}"
    )


def _row(left: Evidence, right: Evidence) -> str:
    if left.text == right.text:
        return f"identical, {len(left.text)}/{len(right.text)} chars"
    step = first_step(left, right)
    tokens = "" if step is None else f", token {left.ids[step]} → {right.ids[step]}"
    return (
        f"diverges at char {first_differing(left.text, right.text)}{tokens},"
        f" {len(left.text)}/{len(right.text)} chars"
    )

"""What a sweep concludes, in words with figures. Pure.

Tokens a second decide; everything else is said of the arm that they decide for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sluice.sweep import formulas
from sluice.sweep.figures import ArmFigures
from sluice.sweep.ranking import Ranked, Ranking
from sluice.sweep.texts import Texts
from sluice.sweep.words import listed, milliseconds, number, percent, rate

BAND = (0.6, 0.7)
"""Acceptance that is often advised; drawn for the eye, and decided on by nothing."""


@dataclass(frozen=True, slots=True)
class Conclusion:
    """One workload, in sentences.

    ``fastest`` are the arms that nothing beats outside the noise, the fastest first, or that one
    alone where there is no noise floor; ``is_settled`` says that it is one, outside the noise.
    ``acceptance`` is over tokens at the first of them, ``None`` with MTP off.
    """

    workload: str
    fastest: tuple[str, ...]
    is_settled: bool
    acceptance: float | None
    sentences: tuple[str, ...]


def conclude(
    figures: Sequence[ArmFigures], rankings: Sequence[Ranking], texts: Sequence[Texts] = ()
) -> tuple[Conclusion, ...]:
    """One conclusion a workload, in the order of ``figures``; of warm rows where some were cold."""
    ranked = {ranking.workload: ranking for ranking in rankings}
    found = []
    for workload in dict.fromkeys(one.workload for one in figures):
        mine = [one for one in figures if one.workload == workload]
        about = [one for one in texts if one.workload == workload]
        found.append(_conclusion(workload, mine, ranked.get(workload), about))
    return tuple(found)


def in_band(acceptance: float) -> str:
    """Where an acceptance lies: ``below``, ``in`` or ``above`` the advised band."""
    low, high = BAND
    return "below" if acceptance < low else "above" if acceptance > high else "in"


def _conclusion(
    workload: str, figures: Sequence[ArmFigures], ranking: Ranking | None, about: Sequence[Texts]
) -> Conclusion:
    if ranking is None or not ranking.arms:
        why = (
            "No arm was measured."
            if ranking is None
            else "No prompt was measured with every arm: there is nothing to compare."
        )
        return Conclusion(workload, (), False, None, (why, *_unmeasured(figures)))
    warm = {one.arm.name: one for one in figures if one.is_cold is not True}
    fastest = ranking.fastest or (ranking.arms[0].arm,)
    first = warm[fastest[0]]
    sentences = [_fastest(ranking, warm), _against_off(ranking, warm)]
    if first.arm.mtp:
        sentences += [_cost(first, warm), _one_more(first, warm, ranking), _acceptance(first)]
    else:
        sentences += [_first_slot(first, warm, ranking), _acceptance_of_drafting(ranking, warm)]
    sentences += [_undrafted(first), _texts(about), *_unmeasured(figures)]
    return Conclusion(
        workload,
        fastest,
        ranking.is_settled,
        first.acceptance_tokens,
        tuple(sentence for sentence in sentences if sentence),
    )


def _fastest(ranking: Ranking, warm: dict[str, ArmFigures]) -> str:
    first, others = ranking.arms[0], ranking.arms[1:]
    spread = warm[first.arm].effective_tok_s
    over = ""
    if spread is not None and spread.n > 1:
        over = f" (prompts {rate(spread.low)} to {rate(spread.high)})"
    said = f"{first.arm} at {rate(first.effective_tok_s)} tok/s{over}"
    if not others:
        return f"The only arm measured is {said}."
    second = others[0]
    lead = first.effective_tok_s / second.effective_tok_s - 1
    ahead = f"{percent(lead, 1)} ahead of {second.arm} ({rate(second.effective_tok_s)})"
    if ranking.noise is None:
        return (f"{said} came out first, {ahead}. Nothing was repeated, so there is no noise floor"
                " to hold that against, and nothing is ranked.")  # fmt: skip
    noise = (f"one request varies by {percent(ranking.noise.relative_sd, 1)}, from"
             f" {ranking.noise.freedom} repeats")  # fmt: skip
    if ranking.is_settled:
        return (f"Fastest: {said}, {ahead}, outside the {percent(second.floor, 1)} that noise"
                f" alone can make ({noise}).")  # fmt: skip
    tied = [arm for arm in ranking.arms if arm.rank == 1]
    shown = listed([f"{arm.arm} ({rate(arm.effective_tok_s)} tok/s)" for arm in tied])
    return (f"{shown} cannot be told apart: they lie within {percent(tied[-1].behind, 1)}, and"
            f" noise alone can make {percent(tied[-1].floor, 1)} ({noise}).")  # fmt: skip


def _against_off(ranking: Ranking, warm: dict[str, ArmFigures]) -> str:
    first = ranking.arms[0]
    arm = warm[first.arm].arm
    base: Ranked | None = next((a for a in ranking.arms if a.arm == arm.baseline), None)
    if not arm.mtp:
        drafting = [one for one in ranking.arms if warm[one.arm].arm.mtp]
        if not drafting:
            return ""
        if any(one.arm in ranking.fastest for one in drafting):
            return "Drafting is not shown to gain anything here."
        return "Drafting loses here: every arm that drafts is slower."
    if base is None:
        return ""
    times = first.effective_tok_s / base.effective_tok_s
    words = f"That is {number(times)} times {base.arm} ({rate(base.effective_tok_s)} tok/s)"
    if base.floor is not None and base.behind <= base.floor:
        return f"{words}, which is inside the noise: drafting is not shown to gain anything."
    return f"{words}."


def _cost(first: ArmFigures, warm: dict[str, ArmFigures]) -> str:
    cost = first.slot_off
    off = warm.get(first.arm.baseline)
    if not first.arm.is_fixed:
        return ("Its drafts are of no fixed length, so that one slot has no cost of its own: a step"
                f" takes {milliseconds(first.step_s)} ms, all steps counted.")  # fmt: skip
    if cost is None or off is None or off.step_s is None:
        return ""
    tokens = first.tokens_per_step.mean if first.tokens_per_step is not None else None
    return (
        f"A step of {first.arm.name} takes {milliseconds(first.step_s)} ms for {number(tokens)}"
        f" tokens, a token with MTP off {milliseconds(off.step_s)} ms: each draft slot costs"
        f" {milliseconds(cost.cost_s)} ms, {percent(cost.share)} of a token."
    )


def _one_more(first: ArmFigures, warm: dict[str, ArmFigures], ranking: Ranking) -> str:
    """The next longer fixed length, as measured or as the slots so far let expect."""
    if not first.arm.is_fixed:
        return ""
    longer = next((one for one in warm.values() if one.slot_next is not None
                   and one.slot_next.against == first.arm.name), None)  # fmt: skip
    if longer is not None and longer.slot_next is not None:
        return _added(longer, ranking)
    if first.slot_off is None or first.tokens_per_step is None or not first.step_s:
        return ""
    needs = formulas.gain_to_pay(first.slot_off.cost_s, first.tokens_per_step.mean / first.step_s)
    return (f"No longer draft was measured; at the cost of the slots so far, one more must add"
            f" {number(needs)} tokens per step to pay.")  # fmt: skip


def _first_slot(first: ArmFigures, warm: dict[str, ArmFigures], ranking: Ranking) -> str:
    longer = next((one for one in warm.values() if one.slot_next is not None
                   and one.slot_next.against == first.arm.name), None)  # fmt: skip
    return "" if longer is None else _added(longer, ranking)


def _added(longer: ArmFigures, ranking: Ranking) -> str:
    cost = longer.slot_next
    assert cost is not None
    verdict = "so it pays" if cost.pays else "so it does not pay"
    ranked = {one.arm for one in ranking.arms}
    if not {longer.arm.name, cost.against} <= ranked or not ranking.is_apart(
        longer.arm.name, cost.against
    ):
        verdict += ", as far as the noise lets one tell"
    return (
        f"Going on to {longer.arm.name}, each further slot costs {milliseconds(cost.cost_s)} ms"
        f" ({percent(cost.share)} of a token) and must add {number(cost.gain_to_pay)} tokens per"
        f" step; it added {number(cost.gain)}, {verdict}."
    )


def _acceptance(first: ArmFigures) -> str:
    if first.acceptance_tokens is None:
        return ""
    return f"Acceptance there is {_in_words(first)}"


def _acceptance_of_drafting(ranking: Ranking, warm: dict[str, ArmFigures]) -> str:
    """Where drafting does not pay: what the fastest arm that drafts accepts."""
    drafting = [warm[one.arm] for one in ranking.arms if warm[one.arm].arm.mtp]
    if not drafting or drafting[0].acceptance_tokens is None:
        return ""
    return (
        f"The fastest arm that drafts is {drafting[0].arm.name}: its acceptance is"
        f" {_in_words(drafting[0])}"
    )


def _in_words(one: ArmFigures) -> str:
    assert one.acceptance_tokens is not None
    low, high = BAND
    where = in_band(one.acceptance_tokens)
    return (
        f"{number(one.acceptance_tokens)} over tokens and"
        f" {number(one.acceptance_requests)} over requests, {where} the often advised band of"
        f" {low:g} to {high:g}; it is what it is, and decides nothing."
    )


def _undrafted(first: ArmFigures) -> str:
    if not first.arm.mtp or not first.n_undrafted or first.n_verify is None:
        return ""
    return (
        f"{first.n_undrafted} of its {first.n_undrafted + first.n_verify} steps verified no draft:"
        f" its mean len, {number(first.mean_len)}, does not count them."
    )


def _texts(about: Sequence[Texts]) -> str:
    if not about:
        return ""
    if not any(one.differ for one in about):
        return "Every arm gave the same greedy text."
    parts = []
    for one in about:
        if one.differ:
            groups = " / ".join(listed(group.arms) for group in one.groups)
            unsteady = f" (repeats of {listed(one.unsteady)} differ)" if one.unsteady else ""
            parts.append(f"{one.prompt}: {groups}{unsteady}")
    return f"The greedy text is not the same in every arm: {'; '.join(parts)}."


def _unmeasured(figures: Sequence[ArmFigures]) -> list[str]:
    said = []
    for words, counts, reasons in (
        ("refused by rule", [one.n_refused for one in figures], [one.refusals for one in figures]),
        ("failed", [one.n_failed for one in figures], [one.failures for one in figures]),
    ):
        arms = [one.arm.name for one, n in zip(figures, counts, strict=True) if n]
        if arms:
            n = sum(counts)
            whys = dict.fromkeys(why for several in reasons for why in several)
            said.append(f"{n} {'request' if n == 1 else 'requests'} {words} ({listed(arms)}):"
                        f" {'; '.join(whys)}.")  # fmt: skip
    return said

"""The numbers of a generation in words: what ``sluice run`` prints when it is done."""

from __future__ import annotations

import math

from sluice.config import Config
from sluice.telemetry.metrics import CacheReport, Metrics, Predictions

MIB = 1024 * 1024


def lines(metrics: Metrics, config: Config) -> list[str]:
    """One line a subject: generation, prefill, load, streamed bytes and speculation.

    Args:
        metrics: of the finished generation.
        config: of the same run; decides whether streaming and speculation are spoken of.

    Returns:
        Lines without line ends. Rates in tokens per second, times in seconds, sizes in MiB.
    """
    out = [
        f"generation: {_tokens(metrics.n_generated)}"
        + _rate(metrics.n_decoded, metrics.decode_s)
        + (f", {_decodes(metrics.n_decodes)}" if metrics.n_decodes else "")
        + (", to the end of generation" if metrics.n_generated < config.n else ""),
        f"prefill: {_tokens(metrics.n_prompt)}" + _rate(metrics.n_prompt, metrics.prefill_s),
        f"load: {metrics.load_s:.2f} s",
    ]
    if config.moe_stream:
        out.append(_streamed(metrics))
        if metrics.cache is not None:
            out.append(_cache(metrics, metrics.cache))
        if config.overlap:
            out.append(_overlapped(metrics))
        if config.reads_ahead:
            out.append(_ahead(metrics))
        out += [_prediction(name, p) for name, p in metrics.predictions.items()]
    if config.mtp:
        out += [_acceptance(metrics), _effective(metrics)]
        if config.moe_stream:
            out.append(_split(metrics))
    return out


def warnings(metrics: Metrics, config: Config) -> list[str]:
    """What in these numbers the user should not overlook, one line each."""
    if config.mtp and metrics.n_drafted and not metrics.n_accepted:
        return [
            f"0 of {metrics.n_drafted} drafts accepted (0%): speculation was pure overhead;"
            " a badly quantised head is the usual cause, try another quantisation of the model"
        ]
    return []


def _acceptance(m: Metrics) -> str:
    share = f"{m.n_accepted / m.n_drafted:.1%}" if m.n_drafted else "nothing drafted"
    head = f"mtp: {m.n_accepted}/{m.n_drafted} drafts accepted ({share})"
    if not m.n_decodes:
        return f"{head}, no verify decode"
    # The prompt's pass gave the first token. Rounded down: it must read below 1 + --draft.
    n_verified = m.n_decoded
    per_decode = math.floor(100 * n_verified / m.n_decodes) / 100
    return (
        f"{head}, {per_decode:.2f} tokens per verify decode"
        f" ({_decodes(m.n_decodes)} for {_tokens(n_verified)})"
    )


def _effective(m: Metrics) -> str:
    return (
        f"mtp: {m.effective_tok_s:.2f} tok/s effective, with drafting ({m.draft_s:.2f} s)"
        f" and catch-up ({m.catch_up_s:.2f} s) counted"
    )


def _streamed(m: Metrics) -> str:
    generated, stall_s = m.generated.read_bytes, m.generated.stall_s
    return (
        f"streamed: {generated / MIB / max(m.n_decoded, 1):.2f} MiB per token"
        f" ({generated / MIB:.1f} MiB, waited {stall_s:.2f} s for it),"
        f" and {m.prefill.read_bytes / MIB:.1f} MiB in the prefill"
    )


def _cache(m: Metrics, cache: CacheReport) -> str:
    made = m.generated
    routed = made.n_hits + made.n_misses
    share = f"{made.hit_rate:.1%}" if routed else "nothing routed"
    return (
        f"cache: {made.n_hits}/{routed} experts hit ({share}), {made.n_evicted} evicted;"
        f" {cache.peak_bytes / MIB:.1f} of {cache.budget_bytes / MIB:.1f} MiB at the most"
    )


def _overlapped(m: Metrics) -> str:
    made = m.generated
    demanded = made.read_bytes - made.ahead_bytes
    return (
        f"overlap: {made.overlapped_bytes / MIB:.1f} of {demanded / MIB:.1f} MiB were not waited"
        f" for before compute went on; {made.n_late} experts computed after the others"
    )


def _ahead(m: Metrics) -> str:
    made = m.generated
    share = f"{made.n_ahead_used / made.n_ahead:.1%}" if made.n_ahead else "nothing read ahead"
    return (
        f"read ahead: {made.n_ahead_used}/{made.n_ahead} experts used ({share}),"
        f" {made.n_ahead_awaited} of them still on their way; {made.ahead_bytes / MIB:.1f} MiB"
    )


def _prediction(name: str, p: Predictions) -> str:
    share = f"{p.n_right / p.n_named:.1%}" if p.n_named else "nothing named"
    return f"predicted by {name}: {p.n_right}/{p.n_named} experts right ({share})"


def _split(m: Metrics) -> str:
    head, batch = m.head.read_bytes, m.decode.read_bytes
    whole = max(head + batch, 1)
    return (
        f"mtp: {(head + batch) / MIB:.1f} MiB streamed:"
        f" {head / MIB:.1f} MiB ({head / whole:.1%}) by the head,"
        f" {batch / MIB:.1f} MiB ({batch / whole:.1%}) by the verify batch"
    )


def _rate(n: int, seconds: float) -> str:
    return f", {n / seconds:.2f} tok/s" if seconds > 0 else ""


def _tokens(n: int) -> str:
    return f"{n} token" if n == 1 else f"{n} tokens"


def _decodes(n: int) -> str:
    return f"{n} decode" if n == 1 else f"{n} decodes"

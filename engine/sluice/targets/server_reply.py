"""What a llama-server answers: its completion as figures, its counters, its errors.

Pure: bytes in, a ``Reply`` out, or one line that says what is wrong with them.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from sluice.errors import SystemFault

_COUNTER = re.compile(r'^llamacpp:(\w+)(?:\{position="(\d+)"\})? (\S+)$', re.M)
_SHOWN = 120
_MOST = 1 << 53  # what a float, and so JSON elsewhere, still counts one by one


@dataclass(frozen=True, slots=True)
class Reply:
    """One completion of a llama-server.

    ``prompt_n`` tokens of the prompt took ``prompt_ms``, beside ``cached_n`` that were not
    computed; ``predicted_n`` tokens took ``predicted_ms``, the first one's own share being part
    of the prompt's. ``drafted`` tokens were verified and ``accepted`` of them kept, both 0 where
    the server names none. ``stop`` is its word for why it ended: limit, eos or word.

    Only where they could be read: ``verify_steps`` that verified a draft,
    ``accepted_by_position`` in the draft, first one first, and ``mean_len`` as the server's log
    gives it (two decimals) in ``log_line``.
    """

    text: str
    tokens: tuple[int, ...]
    prompt_n: int
    cached_n: int
    prompt_ms: float
    predicted_n: int
    predicted_ms: float
    drafted: int
    accepted: int
    stop: str = ""
    verify_steps: int | None = None
    accepted_by_position: tuple[int, ...] | None = None
    mean_len: float | None = None
    log_line: str = ""

    @property
    def decoded_n(self) -> int:
        """Tokens that ``predicted_ms`` gave: all but the first, which is the prompt's."""
        return max(0, self.predicted_n - 1)

    @property
    def undrafted_steps(self) -> int | None:
        """Steps that verified nothing and gave one token each; None where steps are not known.

        An answer that ends inside an accepted draft hides as many of them as it cut tokens off.
        """
        if self.verify_steps is None:
            return None
        return max(0, self.decoded_n - self.accepted - self.verify_steps)


@dataclass(frozen=True, slots=True)
class Counters:
    """What a server's /metrics have counted since it started.

    ``by_position`` are accepted tokens by their place in the draft.
    """

    drafted: int
    accepted: int
    verify_steps: int
    by_position: tuple[int, ...] = ()

    def since(self, before: Counters) -> Counters:
        """What was added after ``before``."""
        earlier = before.by_position + (0,) * (len(self.by_position) - len(before.by_position))
        return Counters(
            drafted=self.drafted - before.drafted,
            accepted=self.accepted - before.accepted,
            verify_steps=self.verify_steps - before.verify_steps,
            by_position=tuple(b - a for a, b in zip(earlier, self.by_position, strict=False)),
        )


def parse_reply(body: bytes) -> Reply:
    """The ``Reply`` that the body of an answer of /completion holds.

    Raises:
        SystemFault: it is no JSON object, names no timings, or holds a figure that cannot be.
    """
    answer = _object(body)
    timings = answer.get("timings")
    if not isinstance(timings, dict):
        raise SystemFault(f"its answer has no timings: {_shown(body)}; it is no llama-server")
    text, tokens = answer.get("content"), answer.get("tokens", [])
    if not isinstance(text, str):
        raise SystemFault(f"its answer has no content: {_shown(body)}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise SystemFault(f"its answer's content is no Unicode text: {_shown(body)}") from None
    if not isinstance(tokens, list) or not all(_is_count(token) for token in tokens):
        raise SystemFault(f"its answer's tokens are no token ids: {str(tokens)[:_SHOWN]}")
    reply = Reply(
        text=text,
        tokens=tuple(tokens),
        prompt_n=_count(timings, "prompt_n"),
        cached_n=_count(timings, "cache_n", 0),
        prompt_ms=_time(timings, "prompt_ms"),
        predicted_n=_count(timings, "predicted_n"),
        predicted_ms=_time(timings, "predicted_ms"),
        # Absent where nothing was drafted.
        drafted=_count(timings, "draft_n", 0),
        accepted=_count(timings, "draft_n_accepted", 0),
        stop=str(answer.get("stop_type", "")),
    )
    if reply.accepted > reply.drafted:
        raise _nonsense("draft_n_accepted", reply.accepted, f"of {reply.drafted} drafted")
    if reply.predicted_n > 1 and not reply.predicted_ms:
        raise _nonsense("predicted_ms", reply.predicted_ms, f"for {reply.predicted_n} tokens")
    if tokens and len(tokens) > reply.predicted_n:
        raise _nonsense("predicted_n", reply.predicted_n, f"with {len(tokens)} tokens answered")
    return reply


def parse_prompt(body: bytes) -> str:
    """The prompt that the body of an answer of /apply-template holds.

    Raises:
        SystemFault: it holds none.
    """
    prompt = _object(body).get("prompt")
    if not isinstance(prompt, str):
        raise SystemFault(f"its answer has no prompt: {_shown(body)}")
    return prompt


def parse_error(body: bytes) -> str:
    """The message of an answer that is an error, or its first words."""
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return _shown(body)
    return " ".join(str(message).split())[:300]


def parse_counters(body: bytes) -> Counters | None:
    """The draft counters among /metrics; None where this server keeps none."""
    totals: dict[str, int] = {}
    by_position: dict[int, int] = {}
    for name, position, value in _COUNTER.findall(body.decode("utf-8", "replace")):
        try:
            count = int(float(value))
        except (ValueError, OverflowError):
            continue
        if position:
            by_position[int(position)] = count
        else:
            totals[name] = count
    try:
        return Counters(
            drafted=totals["spec_decode_num_draft_tokens_total"],
            accepted=totals["spec_decode_num_accepted_tokens_total"],
            verify_steps=totals["spec_decode_num_drafts_total"],
            by_position=tuple(by_position.get(n, 0) for n in range(len(by_position))),
        )
    except KeyError:
        return None


def _object(body: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        raise SystemFault(f"its answer is no JSON: {_shown(body)}") from None
    if not isinstance(answer, dict):
        raise SystemFault(f"its answer is no JSON object: {_shown(body)}")
    return answer


def _count(timings: dict[str, Any], name: str, otherwise: int | None = None) -> int:
    value: Any = timings.get(name, otherwise)
    if not _is_count(value):
        raise _nonsense(name, value, "not a number of tokens")
    return int(value)


def _time(timings: dict[str, Any], name: str) -> float:
    value = timings.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _nonsense(name, value, "not a time")
    if not 0 <= value < _MOST:  # as NaN is
        raise _nonsense(name, value, "not a time")
    return float(value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST


def _nonsense(name: str, value: object, why: str) -> SystemFault:
    return SystemFault(f"its timings are nonsense: {name} is {str(value)[:_SHOWN]}, {why}")


def _shown(body: bytes) -> str:
    words = " ".join(body[: 4 * _SHOWN].decode("utf-8", "replace").split())
    return repr(words if len(words) <= _SHOWN else f"{words[:_SHOWN]}…")

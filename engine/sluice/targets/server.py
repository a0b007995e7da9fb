"""A llama-server as a target: one that is there already, or one of ours for each arm."""

from __future__ import annotations

import functools
import http.client
import itertools
import json
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sluice.errors import RequestError, SystemFault
from sluice.targets.server_process import ServerProcess, free_port
from sluice.targets.server_reply import (
    Counters,
    Reply,
    parse_counters,
    parse_error,
    parse_prompt,
    parse_reply,
)

_BODY_BYTES = 64 << 20
_HELP_S = 60.0
_LOG_S = 2.0
_ASIDE_S = 10.0
# Newest first: a llama.cpp that has renamed a flag still names the old one, as removed.
_N_MAX = ("--spec-draft-n-max", "--draft-max")
_N_MIN = ("--spec-draft-n-min", "--draft-min")
_P_MIN = ("--spec-draft-p-min", "--draft-p-min")


@dataclass(frozen=True, slots=True)
class ServerDrafts:
    """How a server of ours drafts with the model's MTP head.

    ``n_max`` tokens at most; a draft shorter than ``n_min`` is thrown away; the head stops
    before a token that it gives less than ``p_min``.
    """

    n_max: int
    n_min: int = 0
    p_min: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what llama-server would abort on.

        Raises:
            RequestError: ``n_max`` is no draft.
        """
        if self.n_max < 1:
            raise RequestError(
                f"n_max {self.n_max}: a draft has 1 token or more; leave it out for no MTP"
            )


@dataclass(frozen=True, slots=True)
class Completion:
    """What a server is asked for; ``temperature`` 0 is greedy, ``top_k`` 0 is no limit."""

    prompt: str
    n_predict: int
    temperature: float = 0.0
    top_k: int = 40
    top_p: float = 0.95
    seed: int = 0

    def as_json(self) -> dict[str, Any]:
        """The body of POST /completion."""
        return {
            "prompt": self.prompt,
            "n_predict": self.n_predict,
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": 0.0,  # on by default there, and no part of what was asked
            "seed": self.seed,
            "cache_prompt": False,
            "return_tokens": True,
            "stream": False,
        }


class ServerTarget:
    """Asks one llama-server, one completion at a time; a context that ends a server of ours.

    Every failure is a SystemFault of one line; it names the server, and how it ended and its
    last words where it is ours.
    """

    def __init__(
        self,
        url: str,
        *,
        process: ServerProcess | None = None,
        timeout_s: float = 600.0,
        api_key: str = "",
    ) -> None:
        """Use the server at ``url``, which ``process`` runs if it is ours.

        Raises:
            RequestError: ``url`` is not one of a server.
        """
        try:
            parts = urllib.parse.urlsplit(url)
            is_url = parts.scheme in ("http", "https") and bool(parts.hostname)
            is_url = is_url and (parts.port is None or parts.port > 0)
        except ValueError:
            is_url = False
        if not is_url or not url.isascii() or any(c.isspace() for c in url):
            raise RequestError(f"--server: {url!r}: no URL; as in http://127.0.0.1:8080")
        self.url = url.rstrip("/")
        self.process = process
        self.timeout_s = timeout_s
        self._key = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._has_counters = True
        # What we started is never behind a proxy.
        proxies: dict[str, str] | None = {} if process is not None else None
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies))

    def __enter__(self) -> ServerTarget:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End a server of ours; one that was there already is left alone."""
        if self.process is not None:
            self.process.close()

    def complete(self, completion: Completion) -> Reply:
        """The answer to one completion, computed from its first token on.

        Raises:
            SystemFault: the server died, refused, took longer than ``timeout_s``, or answered
                something that is no completion.
        """
        before = self._counters()
        mark = self.process.log.mark if self.process is not None else 0
        asked = json.dumps(completion.as_json()).encode()
        body = self._ask("/completion", asked, timeout_s=self.timeout_s)
        try:
            reply = parse_reply(body)
        except SystemFault as err:
            raise SystemFault(f"{self._name}: {err}") from None
        return self._with_steps(self._with_log(reply, mark), before)

    def chat_prompt(self, text: str, *, thinking: bool = False) -> str:
        """``text`` as one user's turn in the model's chat template, up to where it answers.

        Args:
            text: what the user says.
            thinking: the template's ``enable_thinking``, where it has that.

        Raises:
            SystemFault: as ``complete``; or the model has no template that takes it.
        """
        asked = {
            "messages": [{"role": "user", "content": text}],
            "chat_template_kwargs": {"enable_thinking": thinking},
        }
        body = self._ask("/apply-template", json.dumps(asked).encode())
        try:
            return parse_prompt(body)
        except SystemFault as err:
            raise SystemFault(f"{self._name}: {err}") from None

    def props(self) -> dict[str, Any]:
        """What the server says of itself at /props; empty where it says nothing."""
        try:
            found = json.loads(self._ask("/props"))
        except (SystemFault, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def wait_until_ready(self, ready_s: float) -> None:
        """Wait for /health.

        Raises:
            SystemFault: the server ended, or is not ready after ``ready_s``.
        """
        until, pause_s, why = time.monotonic() + ready_s, 0.02, ""
        while True:
            if self.process is not None and self.process.exit_code is not None:
                raise self._fault("did not become ready")
            left_s = until - time.monotonic()
            if left_s <= 0:
                raise self._fault(f"not ready after {ready_s:g} s", why)
            try:
                self._send("/health", None, min(5.0, left_s)).close()
                # On a port that another took first, it is the other that is healthy.
                if self.process is None or self.process.exit_code is None:
                    return
            except urllib.error.HTTPError as err:
                why = f"answered {err.code}"
                err.close()
            except (OSError, http.client.HTTPException) as err:
                why = _why(err.reason if isinstance(err, urllib.error.URLError) else err)
            time.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, 0.5)

    def _with_log(self, reply: Reply, mark: int) -> Reply:
        """``reply`` with what the log of a server of ours says of it."""
        if self.process is None or not reply.drafted:
            return reply
        line = self.process.log.draft_line(mark, reply.drafted, reply.accepted, _LOG_S)
        if line is None:
            return reply
        return replace(
            reply,
            mean_len=line.mean_len,
            verify_steps=line.verify_steps,
            log_line=line.text,
        )

    def _with_steps(self, reply: Reply, before: Counters | None) -> Reply:
        """``reply`` with the exact number of verify steps, where the server counts them."""
        if not reply.drafted:
            return replace(reply, verify_steps=0, accepted_by_position=())
        after = self._counters() if before is not None else None
        if before is None or after is None:
            return reply
        added = after.since(before)
        # Anything else is not this request's: others use this server too.
        if (added.drafted, added.accepted) != (reply.drafted, reply.accepted):
            return reply
        return replace(
            reply, verify_steps=added.verify_steps, accepted_by_position=added.by_position
        )

    def _counters(self) -> Counters | None:
        if not self._has_counters:
            return None
        try:
            found = parse_counters(self._ask("/metrics"))
        except SystemFault:
            found = None  # a server that is gone tells so when it is asked for a completion
        self._has_counters = found is not None
        return found

    def _ask(self, path: str, data: bytes | None = None, *, timeout_s: float = _ASIDE_S) -> bytes:
        until = time.monotonic() + timeout_s
        try:
            with self._send(path, data, timeout_s) as response:
                return self._read(response, until)
        except urllib.error.HTTPError as err:
            raise SystemFault(f"{self._name}: answered {err.code}: {_refusal(err)}") from None
        except (OSError, http.client.HTTPException) as err:
            reason = err.reason if isinstance(err, urllib.error.URLError) else err
            if isinstance(reason, TimeoutError):
                raise self._fault(f"no answer to {path} after {timeout_s:g} s") from None
            is_refused = isinstance(err, urllib.error.URLError)
            what = "cannot be reached" if is_refused else f"broke off its answer to {path}"
            raise self._fault(what, _why(reason)) from None

    def _send(self, path: str, data: bytes | None, timeout_s: float) -> http.client.HTTPResponse:
        headers = self._key | ({"Content-Type": "application/json"} if data is not None else {})
        request = urllib.request.Request(f"{self.url}{path}", data=data, headers=headers)
        response: http.client.HTTPResponse = self._opener.open(request, timeout=timeout_s)
        return response

    def _read(self, response: http.client.HTTPResponse, until: float) -> bytes:
        body = b""
        while piece := response.read1(1 << 16):
            body += piece
            if len(body) > _BODY_BYTES:
                raise SystemFault(f"{self._name}: answered more than {_BODY_BYTES >> 20} MiB")
            if time.monotonic() > until:
                raise TimeoutError
        if response.length:  # read1 takes a connection that closed too early for the end
            raise http.client.IncompleteRead(body, response.length)
        return body

    @property
    def _name(self) -> str:
        return self.process.name if self.process is not None else self.url

    def _fault(self, what: str, why: str = "") -> SystemFault:
        """The fault ``what`` of a server that does not speak for itself."""
        if self.process is not None:
            return self.process.fault(what, why)
        return SystemFault(f"{self.url}: {what}{f': {why}' if why else ''}")


def start_server(
    command: Sequence[str],
    drafts: ServerDrafts | None = None,
    *,
    ready_s: float = 600.0,
    timeout_s: float = 600.0,
    grace_s: float = 5.0,
) -> ServerTarget:
    """Start ``command`` on a free port, drafting as ``drafts`` says (None: not at all).

    Raises:
        SystemFault: it does not start, ends, or is not ready in time; nothing is left running.
    """
    port = free_port()
    whole = [*command, *draft_flags(_help(tuple(command)), drafts)]
    whole += ["--host", "127.0.0.1", "--port", str(port)]
    if drafts is not None:
        whole.append("--metrics")
    process = ServerProcess(whole, grace_s=grace_s)
    try:
        target = ServerTarget(
            f"http://127.0.0.1:{port}",
            process=process,
            timeout_s=timeout_s,
            api_key=_api_key(command),
        )
        target.wait_until_ready(ready_s)
    except BaseException:
        process.close()
        raise
    return target


def _api_key(command: Sequence[str]) -> str:
    """The first key that ``command`` lets in; empty where it asks for none."""
    for argument, following in itertools.zip_longest(command, command[1:], fillvalue=""):
        flag, _, value = argument.partition("=")
        if flag == "--api-key":
            return (value or following).partition(",")[0]
    return ""


def draft_flags(help_text: str, drafts: ServerDrafts | None) -> list[str]:
    """The flags for ``drafts`` as a llama-server with this ``--help`` spells them.

    All three values are given: their defaults have changed between releases.

    Raises:
        SystemFault: this llama-server cannot draft with an MTP head.
    """
    known = set(re.findall(r"--[\w-]+", help_text))
    if help_text and "--spec-type" not in known:
        if drafts is None:
            return []
        raise SystemFault("llama-server: has no --spec-type, so no MTP; use a newer llama.cpp")
    if drafts is None:
        return ["--spec-type", "none"]
    # Between May 2026 and its merge, and in forks, the type is called "mtp".
    is_old = bool(re.search(r"(?<![\w-])mtp\b", help_text)) and "draft-mtp" not in help_text
    return [
        *("--spec-type", "mtp" if is_old else "draft-mtp"),
        *(_spelled(_N_MAX, known), str(drafts.n_max)),
        *(_spelled(_N_MIN, known), str(drafts.n_min)),
        *(_spelled(_P_MIN, known), f"{drafts.p_min:g}"),
    ]


def _spelled(spellings: tuple[str, ...], known: set[str]) -> str:
    return next((one for one in spellings if one in known), spellings[0])


@functools.lru_cache(maxsize=8)
def _help(command: tuple[str, ...]) -> str:
    """What ``command --help`` says; empty where it does not end by itself."""
    with ServerProcess([*command, "--help"], grace_s=1.0) as process:
        if process.wait(_HELP_S) is None:
            return ""
        process.log.join(1.0)
        text = "\n".join(process.log.since())
    return text if "--port" in text else ""


def _refusal(err: urllib.error.HTTPError) -> str:
    try:
        with err:
            return parse_error(err.read(_BODY_BYTES))
    except (OSError, http.client.HTTPException):
        return str(err.reason)


def _why(reason: object) -> str:
    words = reason.strerror if isinstance(reason, OSError) and reason.strerror else str(reason)
    return words or type(reason).__name__

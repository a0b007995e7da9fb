"""Arms of a llama-server: one of ours for every arm, or the one that is there already."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from sluice import __version__
from sluice.bundled import model_path
from sluice.decoding.fingerprint import fingerprint
from sluice.errors import RequestError, SluiceError, SystemFault
from sluice.gguf.shards import read_model
from sluice.sweep.answered import answered
from sluice.sweep.arm import Arm
from sluice.sweep.machine import machine
from sluice.sweep.row import Identity, Row
from sluice.sweep.schedule import Request
from sluice.targets.server import Completion, ServerDrafts, ServerTarget, start_server
from sluice.targets.server_process import ServerProcess

WARM_UP_TOKENS = 8
_WARM_UP_CHARACTERS = 200
_VERSION_S = 10.0
_READY_S = 2.0  # it is said to be there
_SHOWN = 300
_HERE = ("127.0.0.1", "localhost", "::1")


def started_identity(command: Sequence[str], model: str | None, n: int | None) -> Identity:
    """The identity of a sweep of servers that ``command`` starts.

    Args:
        command: of a llama-server, without its drafting.
        model: a gguf or ``bundled``; ``None`` takes the one that the command names.
        n: tokens a request, where that is not the workloads' own.

    Raises:
        RequestError: the command names another model than ``model``.
        ModelError: the model cannot be read.
    """
    named = _value(command, ("-m", "--model"))
    threads = _value(command, ("-t", "--threads"))
    digest = _digest(model) if model is not None else None
    if named is not None and Path(named).is_file():
        try:
            served = _digest(named)
        except SluiceError:
            served = named  # for the server to refuse
        if digest is not None and served != digest:
            raise RequestError(
                f"{model}: --server-cmd runs another model, {named}; name the same one, or drop it"
            )
        digest = served
    return Identity(
        target="server-cmd",
        model=digest or named or _value(command, ("-hf", "--hf-repo")) or "not told",
        build=_version(command),
        threads=int(threads) if threads is not None and threads.isdecimal() else 0,
        machine=machine(),
        settings={"command": shlex.join(command), "sluice": __version__}
        | ({} if n is None else {"n": str(n)}),
    )


def given_identity(server: ServerTarget, model: str | None, n: int | None) -> Identity:
    """The identity of a sweep of the server at a URL, by what it says of itself.

    Raises:
        SystemFault: it cannot be reached.
        ModelError: ``model`` cannot be read.
    """
    server.wait_until_ready(_READY_S)
    props = server.props()
    told = props.get("model_path") or props.get("model_alias") or "not told"
    is_here = urlsplit(server.url).hostname in _HERE
    generation = props.get("default_generation_settings")
    ctx = generation.get("n_ctx") if isinstance(generation, dict) else None
    settings = {"url": server.url, "sluice": __version__}
    settings |= {} if ctx is None else {"ctx": str(ctx)}
    settings |= {} if n is None else {"n": str(n)}
    return Identity(
        target="server",
        model=_digest(model) if model is not None else str(told),
        build=str(props.get("build_info") or "not told"),
        machine=machine() if is_here else f"that of {server.url}",
        settings=settings,
    )


class StartedArms:
    """Starts a llama-server for an arm, and asks it something first that is not counted.

    Args:
        command: starts it, without its drafting.
        timeout_s: longest wait for one answer, and for the server to be ready.
    """

    def __init__(self, command: Sequence[str], timeout_s: float) -> None:
        self._command = command
        self._timeout_s = timeout_s

    def refusal(self, request: Request) -> str:
        """Why no llama-server runs the arm; empty if it does."""
        return _refusal(request.arm)

    def open(self, arm: Arm, first: Request) -> ServerArm:
        """A server that drafts as the arm says.

        Raises:
            SystemFault: it does not start, or does not answer.
        """
        drafts = ServerDrafts(arm.n_max, arm.n_min, arm.p_min) if arm.mtp else None
        server = start_server(
            self._command, drafts, ready_s=self._timeout_s, timeout_s=self._timeout_s
        )
        return _warmed(server, first)


class GivenArm:
    """The server at a URL, which drafts as it was started to.

    Args:
        server: the one that is there.
    """

    def __init__(self, server: ServerTarget) -> None:
        self._server = server

    def refusal(self, request: Request) -> str:
        """Why no llama-server runs the arm; empty if it does."""
        return _refusal(request.arm)

    def open(self, arm: Arm, first: Request) -> ServerArm:
        """That server.

        Raises:
            SystemFault: it does not answer.
        """
        return _warmed(self._server, first)


class ServerArm:
    """A running server as an arm."""

    def __init__(self, server: ServerTarget) -> None:
        self._server = server

    def ask(self, request: Request, blank: Row) -> Row:
        """One completion.

        Raises:
            SystemFault: the server died, refused, took too long, or answered nonsense.
        """
        workload = request.workload
        reply = self._server.complete(
            Completion(
                prompt=self._prompt(request),
                n_predict=workload.n,
                temperature=workload.temp,
                top_k=workload.top_k,
                top_p=workload.top_p,
                seed=workload.seed_of(request.repeat),
            )
        )
        return answered(blank, request.arm, reply, is_greedy=workload.is_greedy)

    def warm_up(self, request: Request) -> None:
        """Ask for something short.

        Raises:
            SystemFault: as :meth:`ask`.
        """
        text = request.prompt.text[:_WARM_UP_CHARACTERS]
        self._server.complete(Completion(text, WARM_UP_TOKENS))

    def close(self) -> None:
        """End a server of ours."""
        self._server.close()

    def _prompt(self, request: Request) -> str:
        text, workload = request.prompt.text, request.workload
        if not workload.chat:
            return text
        return self._server.chat_prompt(text, thinking=workload.thinking)


def _warmed(server: ServerTarget, first: Request) -> ServerArm:
    arm = ServerArm(server)
    try:
        arm.warm_up(first)
    except BaseException:
        arm.close()
        raise
    return arm


def _refusal(arm: Arm) -> str:
    try:
        arm.server_flags()
    except RequestError as err:
        return str(err)
    return ""


def _value(command: Sequence[str], flags: Sequence[str]) -> str | None:
    """What the last of ``flags`` in ``command`` is given."""
    found = None
    for place, word in enumerate(command):
        name, equals, value = word.partition("=")
        if word in flags and place + 1 < len(command):
            found = command[place + 1]
        elif equals and name in flags:
            found = value
    return found


def _digest(model: str) -> str:
    return fingerprint(read_model(model_path(model)), "default").model_sha256


def _version(command: Sequence[str]) -> str:
    """What ``command --version`` says; how it names its build."""
    try:
        with ServerProcess([*command, "--version"], grace_s=1.0) as process:
            if process.wait(_VERSION_S) is None:
                return "not told"
            process.log.join(1.0)
            lines = process.log.since()
    except SystemFault:
        return "not told"
    said = [line.strip() for line in lines if line.startswith(("version", "built with"))]
    return ", ".join(said)[:_SHOWN] or "not told"

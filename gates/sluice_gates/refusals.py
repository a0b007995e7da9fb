"""Asking for what must be refused, through each door, and judging how it was refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sluice.config import Config
from sluice.errors import GateFailure, SluiceError
from sluice_gates.bench import Bench

PROMPT = "def "
TRACES = ("Traceback", "GGML_ASSERT", "Error:\n", 'File "')


@dataclass(frozen=True, slots=True)
class Wrong:
    """A request that must be refused.

    Args:
        changes: of the ordinary configuration.
        exit_code: 2 for a wrong request, 3 for a model that cannot be used.
        says: words that the refusal must hold: the flag and what is wrong.
        override: the same wrong, as settings of one call to a session that is right.
        opened: changes of that session's configuration.
    """

    changes: dict[str, Any]
    exit_code: int
    says: tuple[str, ...]
    override: dict[str, Any] | None = None
    opened: dict[str, Any] | None = None


def refused_at_every_door(bench: Bench, wrong: Wrong) -> int:
    """Ask through the command, the Python API and a per-call override; count the refusals."""
    config = bench.config(n=4).replace(**wrong.changes)
    by_api(bench, config, wrong)
    by_command(bench, config, wrong)
    if wrong.override is None:
        return 2
    # Streamed, because that opens a model of any size at once.
    opened = bench.config(n=4, moe_stream=bench.streams).replace(**(wrong.opened or {}))
    by_api(bench, opened, wrong, wrong.override)
    return 3


def by_api(
    bench: Bench, config: Config, wrong: Wrong, override: dict[str, Any] | None = None
) -> None:
    """The request as Python makes it must raise a SluiceError of one line."""
    door = f"API, {_spelled(wrong.changes)}"
    if override:
        door = f"API, {_spelled(override)} of one call"
    try:
        run = bench.target.run(config, PROMPT, overrides=override)
    except SluiceError as err:
        _judge(door, err.exit_code, str(err), wrong)
        return
    except Exception as err:
        raise GateFailure(f"{door}: raised {type(err).__name__}, not a SluiceError") from None
    raise GateFailure(f"{door}: not refused, {len(run.evidence.ids)} tokens generated")


def by_command(bench: Bench, config: Config, wrong: Wrong) -> None:
    """The request as a command must print one line to stderr, nothing to stdout, and exit."""
    door = f"command, {_spelled(wrong.changes)}"
    done = bench.command.run(config, PROMPT)
    if done.exit_code < 0:
        raise GateFailure(f"{door}: killed by signal {-done.exit_code}")
    if done.exit_code == 0:
        raise GateFailure(f"{door}: not refused, {len(done.stdout)} characters generated")
    for trace in TRACES:
        if trace in done.stderr:
            raise GateFailure(f"{door}: a traceback, not a refusal")
    if done.stdout:
        raise GateFailure(f"{door}: {len(done.stdout)} characters on stdout before the refusal")
    _judge(door, done.exit_code, done.stderr.removesuffix("\n"), wrong)


def _judge(door: str, exit_code: int, words: str, wrong: Wrong) -> None:
    if exit_code != wrong.exit_code:
        raise GateFailure(f"{door}: exit code {exit_code}, expected {wrong.exit_code}: {words}")
    if not words.strip() or "\n" in words:
        raise GateFailure(f"{door}: {len(words.splitlines())} lines, expected one: {words!r}")
    for word in wrong.says:
        if word not in words:
            raise GateFailure(f"{door}: does not say {word!r}: {words}")


def _spelled(changes: dict[str, Any] | None) -> str:
    return " ".join(f"{name}={value}" for name, value in (changes or {}).items()) or "as it is"

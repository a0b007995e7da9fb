"""What ``sluice sweep`` is asked for: arms, workloads and target, out of the options. Pure.

Everything that can be refused without a model or a server is refused here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice.bundled import BUNDLED, model_path
from sluice.config import DRAFT_MAX, Config, knobs, validate
from sluice.errors import RequestError
from sluice.sweep.arm import (
    STREAM_KEYS,
    Arm,
    Setting,
    default_arms,
    distinct,
    parse,
    streamed_arms,
)
from sluice.sweep.workload import (
    Workload,
    bundled_workloads,
    check_distinct,
    default_workloads,
    load,
)
from sluice.targets.server_process import split_command

REPEATS_MAX = 1000
CTX_LEAST, CTX_STEP = 4096, 1024
_BYTES_PER_TOKEN = 3
_OF_THE_ENGINE = ("threads", "ctx", "ubatch", "flash_attn", "numerics")


@dataclass(frozen=True, slots=True)
class Plan:
    """A sweep as it was asked for.

    ``model`` is ``bundled`` or an absolute path, ``None`` where a server was not said to run
    any. One of ``config`` (in process), ``command`` and ``url`` is set.
    """

    model: str | None
    arms: tuple[Arm, ...]
    workloads: tuple[Workload, ...]
    repeats: int
    n: int | None
    config: Config | None = None
    command: tuple[str, ...] | None = None
    url: str | None = None


def plan(
    model: str | None,
    *,
    arms: Sequence[str],
    arms_only: bool,
    workloads: Sequence[str],
    workloads_only: bool,
    repeats: int,
    n: int | None,
    server: str | None,
    server_cmd: str | None,
    values: Mapping[str, Any],
    given: Sequence[str],
) -> Plan:
    """The plan that the options spell.

    Args:
        model: as it was given.
        arms, arms_only, workloads, workloads_only, repeats, n, server, server_cmd: the options.
        values: one value for each knob of the engine that the command has; ``ctx`` may be
            ``None``.
        given: names of the knobs that the command line sets.

    Raises:
        RequestError: one line with the flag and what to change.
        ModelError: the bundled model is not in this installation.
    """
    is_server = server is not None or server_cmd is not None
    if server is not None and server_cmd is not None:
        raise RequestError("--server with --server-cmd: a sweep has one target; drop one of them")
    if model is None and not is_server:
        raise RequestError("MODEL is missing: give a gguf or the word bundled; or --server-cmd")
    if not 1 <= repeats <= REPEATS_MAX:
        raise RequestError(f"--repeats {repeats}: must be 1 to {REPEATS_MAX}")
    if is_server and given:
        raise RequestError(
            f"{_flag(given[0])}: is Sluice's own engine's, and a server has its own settings;"
            f" drop it{', or put it into --server-cmd' if server_cmd is not None else ''}"
        )
    if model is not None:
        path = model_path(model)
        model = BUNDLED if model == BUNDLED else str(path.absolute())
    chosen = _workloads(workloads, workloads_only, model == BUNDLED, is_server)
    if n is not None:
        validate(Config(model="model", n=n))
        chosen = tuple(dataclasses.replace(one, n=n) for one in chosen)
    common: dict[str, Any] = {"workloads": chosen, "repeats": repeats, "n": n}
    if server is not None:
        return Plan(model, (_one_arm(arms),), url=server, **common)
    if server_cmd is not None:
        found = _arms(arms, arms_only, ())
        for arm in found:
            arm.server_flags()
        return Plan(model, found, command=split_command(server_cmd), **common)
    assert model is not None
    found = _arms(arms, arms_only, _streamed(values))
    ctx = values["ctx"] if values["ctx"] is not None else context_for(chosen)
    config = validate(
        Config(model=model, **{k: values[k] for k in _OF_THE_ENGINE if k != "ctx"}, ctx=ctx)
    )
    return Plan(model, found, config=config, **common)


def context_for(workloads: Sequence[Workload]) -> int:
    """A context that the prompts should fit into, by a guess of 3 bytes a token.

    A model's tokenizer is not at hand yet; what does not fit in the end is refused by request.
    """
    needed = max(
        len(prompt.text.encode()) // _BYTES_PER_TOKEN + one.n + DRAFT_MAX
        for one in workloads
        for prompt in one.prompts
    )
    return max(CTX_LEAST, -(-needed // CTX_STEP) * CTX_STEP)


def _arms(texts: Sequence[str], only: bool, streamed: tuple[Arm, ...]) -> tuple[Arm, ...]:
    asked = (*streamed, *map(parse, texts))
    if only and not asked:
        raise RequestError("--arms-only: no arm is left; give at least one with --arm")
    return distinct(asked if only else (*default_arms(), *asked))


def _one_arm(texts: Sequence[str]) -> Arm:
    """Of a server that is there already: it drafts as it was started to."""
    arms = distinct(map(parse, texts))
    if len(arms) != 1:
        raise RequestError(
            "--server: how it drafts was fixed when it was started, so it is one arm: say which"
            " with one --arm (off, n_max=3, …), or let --server-cmd start one for each arm"
        )
    arms[0].server_flags()
    return arms[0]


def _streamed(values: Mapping[str, Any]) -> tuple[Arm, ...]:
    defaults = Config(model="model")
    settings: dict[str, Setting] = {
        key: values[key] for key in STREAM_KEYS if values[key] != getattr(defaults, key)
    }
    if not settings.pop("moe_stream", False):
        if settings:
            raise RequestError(
                f"{_flag(next(iter(settings)))}: is of streamed arms; add --moe-stream, or put it"
                " into an --arm"
            )
        return ()
    settings.pop("cache_mb", None)
    return streamed_arms(settings, values["cache_mb"] or "auto")


def _workloads(
    asked: Sequence[str], only: bool, is_bundled: bool, is_server: bool
) -> tuple[Workload, ...]:
    """Those of the target, or of them the ones that are named; and those in files."""
    defaults = default_workloads(speculates_sampled=is_server)
    known = {one.name: one for one in (*defaults, *bundled_workloads())}
    named = [known[text] for text in dict.fromkeys(asked) if text in known]
    files = [_file(text, known) for text in dict.fromkeys(asked) if text not in known]
    if only and not asked:
        raise RequestError("--workloads-only: none is left; give at least one with --workload")
    if not named and not only:
        named = list(bundled_workloads() if is_bundled else defaults)
    return check_distinct([*named, *files])


def _file(text: str, known: Mapping[str, Workload]) -> Workload:
    if not Path(text).exists():
        raise RequestError(
            f"--workload {text}: neither a file nor one of {', '.join(known)}; give one of them"
        )
    return load(Path(text))


def _flag(name: str) -> str:
    return knobs()[name].flag

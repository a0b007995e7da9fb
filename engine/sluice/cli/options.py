"""Command-line options of the run, derived from the knobs of :mod:`sluice.config`.

Flag, range, help text and refusal of a knob stand in ``config.py`` only; a knob that is added
there is an option here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from sluice.config import INT32_MAX, SEED_MAX, Config, knobs
from sluice.errors import RequestError
from sluice.knob import Knob

Command = TypeVar("Command", bound=Callable[..., Any])

_TYPES: dict[type, click.ParamType[Any]] = {
    int: click.INT,
    float: click.FLOAT,
    str: click.STRING,
}
_METAVARS = {int: "N", float: "F"}
_OPEN_ENDED = (INT32_MAX, SEED_MAX)  # limits of a type, not worth a word in the help

_OF_MTP = ("draft", "draft_min", "mtp_p_min", "catch_up")
_OF_STREAMING = ("io_threads", "odirect", "dense_weights")
_OF_CACHE = ("force_cache", "cache_fill", "cache_memory")
_OF_AUTO = ("cache_floor_mb", "cache_ceil_mb")
_OF_AHEAD = ("prefetch_sync",)
_OF_SAMPLING = ("top_k", "top_p", "seed")


def knob_options(command: Command) -> Command:
    """Give ``command`` one option a knob, in declaration order, named as the field."""
    for name in reversed(knobs()):
        command = knob_option(name)(command)
    return command


def knob_option(name: str) -> Callable[[Command], Command]:
    """The option of one knob, named as the field."""
    defaults = {f.name: f.default for f in dataclasses.fields(Config)}
    return _option(name, knobs()[name], defaults[name])


def config_of(model: str, values: Mapping[str, Any], spec_type: str | None = None) -> Config:
    """The configuration that the options spell, not yet validated.

    Args:
        model: path of a gguf, or ``bundled``.
        values: one value a knob, as click parsed it.
        spec_type: llama.cpp's ``--spec-type``.

    Raises:
        RequestError: a ``--spec-type`` that Sluice has not, or that contradicts ``--mtp``.
    """
    config = Config(model=model, **{name: values[name] for name in knobs()})
    if spec_type is None:
        return config
    if spec_type == "draft-mtp":
        return config.replace(mtp=True)
    if spec_type != "none":
        raise RequestError(
            f"--spec-type {spec_type}: Sluice drafts with the model's own head only;"
            " use draft-mtp or none"
        )
    if config.mtp:
        raise RequestError("--spec-type none: contradicts --mtp; drop one of them")
    return config


def idle_flags(config: Config) -> list[str]:
    """One line for every setting that is not at its default and has no effect in this run."""
    defaults = Config(model=config.model)
    idle = [] if config.mtp else [(name, "--mtp") for name in _OF_MTP]
    idle += [] if config.moe_stream else [(name, "--moe-stream") for name in _OF_STREAMING]
    idle += [] if config.cache_mb else [(name, "--cache-mb") for name in _OF_CACHE]
    idle += [] if config.cache_mb == "auto" else [(name, "--cache-mb auto") for name in _OF_AUTO]
    idle += (
        []
        if config.reads_ahead
        else [(name, "--prefetch or --predict-prefetch") for name in _OF_AHEAD]
    )
    hiding = "--overlap, --prefetch or --predict-prefetch"
    idle += [] if config.hides_reads else [("kernel_reads", hiding)]
    idle += [] if config.predict_prefetch else [("predict_spec_max", "--predict-prefetch")]
    idle += [] if config.temp > 0 else [(name, "--temp above 0") for name in _OF_SAMPLING]
    return [
        f"{knobs()[name].flag.rpartition('/')[2]}: has no effect without {needs}"
        for name, needs in idle
        if getattr(config, name) != getattr(defaults, name)
    ]


class _NumberOrWord(click.ParamType[Any]):
    """A whole number, or a word of the knob's; anything else is for ``validate`` to refuse."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return int(value)
        except ValueError:
            return value


def _option(name: str, knob: Knob, default: Any) -> Callable[[Command], Command]:
    kind = type(default)
    if kind is bool:
        return click.option(
            name, knob.flag, *knob.aliases, is_flag=True, default=default, help=_help(knob, default)
        )
    return click.option(
        name,
        knob.flag,
        *knob.aliases,
        type=_NumberOrWord() if knob.words else _TYPES[kind],
        default=default,
        metavar="|".join(knob.choices)
        or "|".join((_METAVARS.get(kind, ""), *knob.words)).strip("|"),
        help=_help(knob, default),
    )


def _help(knob: Knob, default: Any) -> str:
    if isinstance(default, bool):
        return f"{knob.help}  [default: {'on' if default else 'off'}]"
    legal = _range(knob)
    return f"{knob.help}  [{legal + '; ' if legal else ''}default: {default}]"


def _range(knob: Knob) -> str:
    if knob.low is None and knob.high is None:
        return ""
    if knob.high is None or knob.high in _OPEN_ENDED:
        return f"{knob.low:g} or more"
    if knob.low is None:
        return f"{knob.high:g} or less"
    return f"{knob.low:g} to {knob.high:.10g}"

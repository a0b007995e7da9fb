"""What the command line and the refusals know of one setting."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from sluice.errors import RequestError


@dataclass(frozen=True, slots=True)
class Knob:
    """What the command line and the refusals know of one field.

    Args:
        flag: the command-line flag.
        help: one line for ``--help``.
        low, high: inclusive range of a number, ``None`` where open.
        choices: the legal words of a text knob.
        words: words that a number's knob takes in the place of a number.
        group: ``streaming`` or ``cache``, for what lists the settings of either.
        per_call: may be given to ``Session.generate`` as an override.
        aliases: flags of llama.cpp that mean the same.
    """

    flag: str
    help: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    group: str = ""
    per_call: bool = False
    aliases: tuple[str, ...] = ()


def described(default: Any, flag: str, help: str, **rest: Any) -> Any:
    """A dataclass field with a default and a :class:`Knob`."""
    return dataclasses.field(default=default, metadata={"knob": Knob(flag, help, **rest)})


def check_value(value: Any, default: Any, knob: Knob) -> None:
    """Refuse a value that is not of the default's type, or not in the knob's range.

    Raises:
        RequestError: names the flag, the value, and what it must be.
    """
    flag = knob.flag.split("/")[0]
    wants: type = type(default)
    if knob.words and isinstance(value, str):
        if value not in knob.words:
            raise RequestError(f"{flag} {value}: must be a number, or {', '.join(knob.words)}")
        return
    right = isinstance(value, bool) if wants is bool else not isinstance(value, bool)
    if wants is float:
        right = right and isinstance(value, (int, float))
    elif wants is not bool:
        right = right and isinstance(value, wants)
    if not right:
        raise RequestError(f"{flag} {value!r}: must be of type {wants.__name__}")
    if knob.choices and value not in knob.choices:
        raise RequestError(f"{flag} {value}: must be one of {', '.join(knob.choices)}")
    if wants in (int, float):
        if isinstance(value, float) and not math.isfinite(value):
            raise RequestError(f"{flag} {value}: must be a finite number")
        if knob.low is not None and value < knob.low:
            raise RequestError(f"{flag} {value}: must be at least {knob.low:g}")
        if knob.high is not None and value > knob.high:
            raise RequestError(f"{flag} {value}: must be at most {knob.high:.10g}")

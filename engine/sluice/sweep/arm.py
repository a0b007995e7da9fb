"""One way to decode: whether the head drafts, how long, and how experts are streamed. Pure.

The name of an arm is its own spelling in the grammar of ``--arm``, so ``parse(arm.name) == arm``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sluice.config import CacheMb, Config, grouped, knobs, validate
from sluice.errors import RequestError
from sluice.knob import Knob

OFF: Final = "off"

DRAFT_KEYS: Final = {"n_max": "draft", "n_min": "draft_min", "p_min": "mtp_p_min"}
"""Key of ``--arm`` to the field of :class:`Config`."""

STREAM_KEYS: Final = grouped("streaming", "cache")
"""Fields of :class:`Config` that an arm of Sluice's own engine may set."""

Setting = int | str  # and bool, which is an int


@dataclass(frozen=True, slots=True)
class Arm:
    """One arm of a sweep. Build one with :func:`parse`, :func:`off` or :func:`drafting`.

    Args:
        name: the canonical spelling, which identifies the arm in every row.
        mtp: whether the model's own head drafts.
        n_max: tokens drafted before each verify decode, 0 where nothing drafts.
        n_min: a draft shorter than this is thrown away whole.
        p_min: drafting stops where the head's top probability is below this.
        streaming: fields of :class:`Config` that are not at their defaults, in its order.
    """

    name: str
    mtp: bool = False
    n_max: int = 0
    n_min: int = 0
    p_min: float = 0.0
    streaming: tuple[tuple[str, Setting], ...] = ()

    @property
    def is_fixed(self) -> bool:
        """Whether every draft (but a request's last) is ``n_max`` tokens long."""
        return self.mtp and self.p_min == 0

    @property
    def is_streamed(self) -> bool:
        """Whether experts are read from disk."""
        return dict(self.streaming).get("moe_stream") is True

    @property
    def baseline(self) -> str:
        """Name of the arm with MTP off and the same streaming."""
        return _name(False, 0, 0, 0.0, self.streaming)

    @property
    def drafting_name(self) -> str:
        """Name of the arm that drafts alike and streams nothing."""
        return _name(self.mtp, self.n_max, self.n_min, self.p_min, ())

    def config_fields(self) -> dict[str, Any]:
        """The fields of :class:`Config` that make the engine run this arm."""
        fields: dict[str, Any] = dict(self.streaming)
        if self.mtp:
            fields |= {"mtp": True, "draft": self.n_max, "draft_min": self.n_min,
                       "mtp_p_min": self.p_min}  # fmt: skip
        return fields

    def run_flags(self) -> tuple[str, ...]:
        """The flags of ``sluice run`` that run this arm."""
        table = knobs()
        words: list[str] = []
        for name, value in self.config_fields().items():
            if value == _DEFAULTS[name] and name != "draft":  # said anyway: it is the arm
                continue
            flag, _, negative = table[name].flag.partition("/")
            words += (
                [flag if value else negative] if isinstance(value, bool) else [flag, str(value)]
            )
        return tuple(words)

    def server_flags(self) -> tuple[str, ...]:
        """The flags that make a llama-server run this arm; none with MTP off.

        Raises:
            RequestError: the arm streams experts, which is Sluice's own engine's to do.
        """
        if self.streaming:
            raise RequestError(f"--arm {self.name}: a llama-server does not stream experts; drop"
                               " this arm, or sweep without --server")  # fmt: skip
        if not self.mtp:
            return ()
        return (
            "--spec-type", "draft-mtp", "--spec-draft-n-max", str(self.n_max),
            "--spec-draft-n-min", str(self.n_min), "--spec-draft-p-min", f"{self.p_min:g}",
        )  # fmt: skip


def off(streaming: Mapping[str, Setting] | None = None) -> Arm:
    """The arm with MTP off.

    Raises:
        RequestError: as :func:`parse`.
    """
    return _made(False, 0, 0, 0.0, streaming or {}, "--arm off")


def drafting(
    n_max: int,
    *,
    n_min: int = 0,
    p_min: float = 0.0,
    streaming: Mapping[str, Setting] | None = None,
) -> Arm:
    """An arm whose head drafts.

    Raises:
        RequestError: as :func:`parse`.
    """
    return _made(True, n_max, n_min, p_min, streaming or {}, f"--arm n_max={n_max}")


def default_arms() -> tuple[Arm, ...]:
    """MTP off; fixed lengths 2 to 6; 4 with p-min 0.7; 6 with p-min 0.5, 0.7 and 0.85."""
    return (
        off(),
        *(drafting(n) for n in range(2, 7)),
        drafting(4, p_min=0.7),
        *(drafting(6, p_min=p) for p in (0.5, 0.7, 0.85)),
    )


def streamed_arms(
    settings: Mapping[str, Setting] | None = None, cache_mb: CacheMb = "auto"
) -> tuple[Arm, ...]:
    """MTP off and fixed lengths 1 to 4, streamed: each without the cache, then with it.

    Wider drafts route to more experts a step, so short ones are what streaming can gain by.

    Args:
        settings: streaming fields besides ``moe_stream`` that all of them share; those that need
            a cache go to the arms with one only.
        cache_mb: the cache of the arms that have one.

    Raises:
        RequestError: as :func:`parse`.
    """
    shared = {k: v for k, v in (settings or {}).items() if k not in _OF_THE_CACHE}
    of_cache = {k: v for k, v in (settings or {}).items() if k in _OF_THE_CACHE}
    without: dict[str, Setting] = {**shared, "moe_stream": True}
    with_cache: dict[str, Setting] = {"cache_mb": cache_mb, **without, **of_cache}
    return tuple(
        off(streaming) if n == 0 else drafting(n, streaming=streaming)
        for n in range(5)
        for streaming in (without, with_cache)
    )


def distinct(arms: Iterable[Arm]) -> tuple[Arm, ...]:
    """Every arm once, in the order of its first place."""
    return tuple({arm.name: arm for arm in arms}.values())


def parse(text: str) -> Arm:
    """The arm that ``text`` spells: ``off``, or ``n_max=N`` with more keys, comma-separated.

    Keys are ``n_max``, ``n_min``, ``p_min``, and the streaming fields of :data:`STREAM_KEYS`;
    those that are switches take ``on`` or ``off``, and stand for ``on`` without a value.

    Raises:
        RequestError: one line with the text, the key and what to change.
    """
    where = f'--arm "{" ".join(text.split())}"'
    words = [word.strip() for word in text.split(",")]
    given: dict[str, str | None] = {}
    for word in words:
        key, equals, value = (part.strip() for part in word.partition("="))
        if key in given:
            raise RequestError(f"{where}: {key or 'an empty key'} is there twice; give it once")
        given[key] = value if equals else None
    is_off = OFF in given
    if is_off and given.pop(OFF) is not None:
        raise RequestError(f"{where}: off takes no value; write off alone, or n_max=N")
    for key in given:
        if key not in DRAFT_KEYS and key not in STREAM_KEYS:
            known = ", ".join((*DRAFT_KEYS, *STREAM_KEYS))
            raise RequestError(f"{where}: {key or 'an empty key'} is no setting of an arm; those"
                               f" are off, {known}")  # fmt: skip
    if is_off and (drafts := [key for key in DRAFT_KEYS if key in given]):
        raise RequestError(f"{where}: {drafts[0]} says how to draft, and off does not; drop one")
    if not is_off and "n_max" not in given:
        raise RequestError(f"{where}: how long are drafts? give n_max=N, or off")
    values = {key: _value(key, value, where) for key, value in given.items()}
    streaming: dict[str, Setting] = {key: values[key] for key in STREAM_KEYS if key in values}
    return _made(
        not is_off, values.get("n_max", 0), values.get("n_min", 0), values.get("p_min", 0.0),
        streaming, where,
    )  # fmt: skip


_OF_THE_CACHE = frozenset(grouped("cache"))
_DEFAULTS: Final[Mapping[str, Any]] = {f.name: f.default for f in dataclasses.fields(Config)}
_SWITCHES: Final = {"on": True, "true": True, "off": False, "false": False}


def _value(key: str, value: str | None, where: str) -> Any:
    field = DRAFT_KEYS.get(key, key)
    default, knob = _DEFAULTS[field], knobs()[field]
    if isinstance(default, bool):
        if value is None:
            return True
        if value.lower() not in _SWITCHES:
            raise RequestError(f"{where}: {key}={value}: must be on or off")
        return _SWITCHES[value.lower()]
    if not value:
        raise RequestError(f"{where}: {key} needs a value, as in {key}={_example(knob, default)}")
    if isinstance(default, str) or value in knob.words:
        return value
    try:
        return type(default)(value)
    except ValueError:
        wants = "a whole number" if isinstance(default, int) else "a number"
        more = "".join(f", or {word}" for word in knob.words)
        raise RequestError(f"{where}: {key}={value}: must be {wants}{more}") from None


def _example(knob: Knob, default: Any) -> str:
    return knob.choices[0] if knob.choices else "0.7" if isinstance(default, float) else "3"


def _made(
    mtp: bool, n_max: int, n_min: int, p_min: float, streaming: Mapping[str, Setting], where: str
) -> Arm:
    for key in streaming:
        if key not in STREAM_KEYS:
            raise RequestError(f"{where}: {key} is no streaming setting of an arm; those are"
                               f" {', '.join(STREAM_KEYS)}")  # fmt: skip
    kept = tuple((k, streaming[k]) for k in STREAM_KEYS
                 if k in streaming and streaming[k] != _DEFAULTS[k])  # fmt: skip
    p_min = p_min + 0.0  # no negative zero in a name
    arm = Arm(_name(mtp, n_max, n_min, p_min, kept), mtp, n_max, n_min, p_min, kept)
    try:
        validate(Config(model="model", **arm.config_fields()))
    except RequestError as err:
        raise RequestError(f"{where}: {err}") from None
    return arm


def _name(
    mtp: bool, n_max: int, n_min: int, p_min: float, streaming: tuple[tuple[str, Setting], ...]
) -> str:
    words = [f"n_max={n_max}"] if mtp else [OFF]
    words += [f"n_min={n_min}"] if n_min else []
    words += [f"p_min={p_min!r}"] if p_min else []
    for key, value in streaming:
        shown = {True: "on", False: "off"}[value] if isinstance(value, bool) else value
        words.append(key if shown == "on" else f"{key}={shown}")
    return ",".join(words)

from __future__ import annotations

import dataclasses
import math
import sys
from typing import Any

import pytest

from sluice import config as module
from sluice.config import Config, apply_overrides, knobs, validate
from sluice.errors import RequestError

NUMBERS = {
    name: knob for name, knob in knobs().items() if knob.low is not None or knob.high is not None
}
DEFAULTS = {f.name: f.default for f in dataclasses.fields(Config)}
SWITCHES = [name for name in knobs() if isinstance(DEFAULTS[name], bool)]
WORDS = [name for name, knob in knobs().items() if knob.choices]
STREAMING = ("load_all", "poison", "cache_mb", "overlap", "prefetch", "predict_prefetch",
             "predict_log")  # fmt: skip
"""What is refused without --moe-stream."""


def refusal(**changes: Any) -> str:
    with pytest.raises(RequestError) as refused:
        validate(Config(**{"model": "m.gguf"} | changes))
    assert "\n" not in str(refused.value)
    return str(refused.value)


def flag(name: str) -> str:
    return knobs()[name].flag.split("/")[0]


def with_stream(name: str) -> dict[str, Any]:
    """What else must be set for a knob to be legal by itself."""
    needed: dict[str, Any] = {"moe_stream": True} if name in STREAMING else {}
    return needed | ({"cache_mb": 1} if name in ("prefetch", "predict_prefetch") else {})


def test_the_defaults_are_a_legal_run() -> None:
    config = Config(model="m.gguf")
    assert validate(config) is config


@pytest.mark.parametrize("name", NUMBERS)
def test_both_ends_of_a_range_are_legal_and_the_next_value_is_refused(name: str) -> None:
    knob = NUMBERS[name]
    kind = type(DEFAULTS[name])
    assert knob.low is not None
    assert knob.high is not None
    step = 1 if kind is int else 0.25
    for value, beyond, words in (
        (kind(knob.low), kind(knob.low) - step, f"must be at least {knob.low:g}"),
        (kind(knob.high), kind(knob.high) + step, f"must be at most {knob.high:.10g}"),
    ):
        validate(Config(**{"model": "m"} | with_stream(name) | {name: value}))
        said = refusal(**with_stream(name) | {name: beyond})
        assert said == f"{flag(name)} {beyond}: {words}"


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [True, "3", None, [3], 10**400, -(10**400)], ids=repr)
def test_a_number_of_another_type_or_beyond_every_range_is_refused(name: str, value: Any) -> None:
    said = refusal(**with_stream(name) | {name: value})
    if knobs()[name].words and isinstance(value, str):
        assert said == f"{flag(name)} {value}: must be a number, or auto"
        return
    assert said.startswith(f"{flag(name)} {value!r}: must be ")
    if not isinstance(value, int) or value is True:
        assert said.endswith(f"of type {type(DEFAULTS[name]).__name__}")


@pytest.mark.parametrize("name", [n for n in NUMBERS if type(DEFAULTS[n]) is int])
def test_a_count_is_not_a_fraction(name: str) -> None:
    assert refusal(**{name: 3.0}) == f"{flag(name)} 3.0: must be of type int"


@pytest.mark.parametrize("name", [n for n in NUMBERS if type(DEFAULTS[n]) is float])
def test_a_fraction_may_be_whole_but_not_infinite(name: str) -> None:
    validate(Config(**{"model": "m", name: 1}))
    for value in (math.nan, math.inf, -math.inf):
        assert refusal(**{name: value}) == f"{flag(name)} {value}: must be a finite number"


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize("value", [0, 1, "on", None], ids=repr)
def test_a_switch_is_a_bool(name: str, value: Any) -> None:
    said = refusal(**with_stream(name) | {name: value})
    assert said == f"{flag(name)} {value!r}: must be of type bool"


@pytest.mark.parametrize("name", WORDS)
def test_a_word_is_one_of_its_choices(name: str) -> None:
    for word in knobs()[name].choices:
        validate(Config(**{"model": "m", name: word}))
    listed = ", ".join(knobs()[name].choices)
    assert refusal(**{name: "maybe"}) == f"{flag(name)} maybe: must be one of {listed}"
    assert refusal(**{name: ""}) == f"{flag(name)} : must be one of {listed}"
    assert refusal(**{name: True}) == f"{flag(name)} True: must be of type str"


@pytest.mark.parametrize("model", ["", None, 3, b"m.gguf"], ids=repr)
def test_a_model_must_be_named(model: Any) -> None:
    said = refusal(model=model)
    assert said.startswith("MODEL ")
    assert ("is empty: give the path of a gguf" if model == "" else "must be of type str") in said


def test_speculation_needs_greedy_decoding() -> None:
    said = refusal(mtp=True, temp=0.5)
    assert said.startswith("--mtp with --temp 0.5: ")
    assert said.endswith("drop --mtp or set --temp 0")
    validate(Config(model="m", temp=0.5))


def test_a_draft_that_would_always_be_thrown_away_is_refused() -> None:
    said = refusal(mtp=True, draft=2, draft_min=3)
    assert said.startswith("--draft-min 3: above --draft 2")
    assert said.endswith("set --draft-min to 2 or less")
    validate(Config(model="m", mtp=True, draft=3, draft_min=3))
    validate(Config(model="m", draft=2, draft_min=3))


@pytest.mark.parametrize("draft", range(1, 9))
def test_a_pass_too_narrow_for_the_draft_is_refused(draft: int) -> None:
    validate(Config(model="m", mtp=True, draft=draft, ubatch=draft + 2))
    said = refusal(mtp=True, draft=draft, ubatch=draft + 1)
    assert said.startswith(f"--ubatch {draft + 1}: too narrow to verify --draft {draft} ")
    assert f"set --ubatch to {draft + 2} or more" in said
    validate(Config(model="m", draft=draft, ubatch=1))


@pytest.mark.parametrize("name", STREAMING)
def test_what_is_about_streaming_needs_streaming(name: str) -> None:
    value = True if name in SWITCHES else 1
    needed = with_stream(name) | {name: value}
    validate(Config(**{"model": "m"} | needed))
    del needed["moe_stream"]
    said = refusal(**needed)
    assert said == (
        f"{said.partition(':')[0]}: only has a meaning when experts are streamed; add --moe-stream"
    )
    assert said.partition(":")[0] in {flag(name), "--cache-mb"}
    if len(needed) == 1:
        assert said.startswith(f"{flag(name)}: ")


def test_a_cache_that_sizes_itself_needs_streaming() -> None:
    assert refusal(cache_mb="auto").endswith("add --moe-stream")
    validate(Config(model="m", moe_stream=True, cache_mb="auto"))


@pytest.mark.parametrize("changes", [{"prefetch": 1}, {"predict_prefetch": True}], ids=str)
def test_what_is_read_ahead_has_to_be_kept(changes: dict[str, Any]) -> None:
    said = refusal(moe_stream=True, **changes)
    (name,) = changes
    assert said.startswith(f"{flag(name)}: what is read ahead has to be kept, and --cache-mb is 0")
    assert said.endswith(f"add --cache-mb auto, or drop {flag(name)}")
    for cache_mb in ("auto", 1):
        validate(Config(model="m", moe_stream=True, cache_mb=cache_mb, **changes))


def test_the_two_ways_to_read_ahead_exclude_each_other() -> None:
    said = refusal(moe_stream=True, cache_mb=8, prefetch=2, predict_prefetch=True)
    assert said.startswith("--prefetch with --predict-prefetch: ")
    assert said.endswith("drop one")


def test_a_floor_above_the_ceiling_is_refused() -> None:
    said = refusal(moe_stream=True, cache_mb="auto", cache_floor_mb=9, cache_ceil_mb=8)
    assert said.startswith("--cache-floor-mb 9: above --cache-ceil-mb 8; ")
    for floor, ceil in ((8, 8), (9, 0), (0, 8)):
        validate(Config(model="m", moe_stream=True, cache_floor_mb=floor, cache_ceil_mb=ceil))


@pytest.mark.parametrize("name", ["load_all", "poison"])
@pytest.mark.parametrize("cache_mb", [64, "auto"])
def test_a_control_of_streaming_without_a_cache_takes_none(name: str, cache_mb: Any) -> None:
    said = refusal(moe_stream=True, cache_mb=cache_mb, **{name: True})
    assert said.startswith(f"{flag(name)} with --cache-mb {cache_mb}: ")
    assert said.endswith("drop one of them")


def test_nothing_is_left_to_poison_when_all_is_read() -> None:
    said = refusal(moe_stream=True, load_all=True, poison=True)
    assert said.startswith("--load-all with --poison: ")
    assert said.endswith("drop one of them")


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_streaming_is_refused_in_words_where_it_cannot_work(
    platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert refusal(moe_stream=True).startswith("--moe-stream: needs Linux")
    validate(Config(model="m", mtp=True))


@pytest.mark.parametrize("numerics", ["decode-invariant", "invariant"])
def test_flash_attention_is_refused_where_its_kernels_break_the_profile(numerics: Any) -> None:
    said = refusal(numerics=numerics, flash_attn="on")
    assert said.startswith(f"--flash-attn on with --numerics {numerics}: ")
    assert Config(model="m", numerics=numerics).resolved().flash_attn == "off"


def test_an_unknown_setting_is_named_with_the_known_ones() -> None:
    with pytest.raises(RequestError, match=r"^drafts: no such setting; .*\bn\b.*\bdraft\b"):
        Config(model="m").replace(drafts=3)


LOADED = Config(model="m", mtp=True, draft=3)
PER_CALL = {name for name, knob in knobs().items() if knob.per_call}


def test_what_may_change_per_call() -> None:
    legal = {"n": 5, "temp": 0.0, "top_k": 1, "top_p": 0.5, "seed": 1, "draft": 2, "draft_min": 1,
             "mtp_p_min": 0.5}  # fmt: skip
    assert set(legal) | {"cache_mb"} == PER_CALL
    changed = apply_overrides(LOADED, legal)
    assert {name: getattr(changed, name) for name in legal} == legal
    assert LOADED.n == 128


@pytest.mark.parametrize("name", [*(n for n in knobs() if n not in PER_CALL), "model"])
def test_what_is_fixed_at_load_is_refused_per_call_even_unchanged(name: str) -> None:
    value = getattr(LOADED, name)
    with pytest.raises(RequestError) as refused:
        apply_overrides(LOADED, {name: value})
    assert str(refused.value).startswith(
        f"{name}={value!r}: fixed when the session is opened; open another Session with "
    )


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"draft": 4}, "--draft 4: the session was opened for drafts of 3; open it with --draft 4"),
        ({"temp": 0.1}, "--mtp with --temp 0.1"),
        ({"draft": 1, "draft_min": 2}, "--draft-min 2: above --draft 1"),
        ({"n": 0}, "-n 0: must be at least 1"),
        ({"n": True}, "-n True: must be of type int"),
        ({"temp": math.nan}, "--temp nan: must be a finite number"),
        ({"length": 5}, "length: no such setting"),
    ],
    ids=str,
)
def test_an_override_meets_the_same_rules(overrides: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError) as refused:
        apply_overrides(LOADED, overrides)
    assert words in str(refused.value)


CACHED = Config(model="m", moe_stream=True, cache_mb=64)


def test_a_cache_may_be_resized_per_call() -> None:
    for cache_mb in (1, 32, 4096, "auto"):
        assert apply_overrides(CACHED, {"cache_mb": cache_mb}).cache_mb == cache_mb
    assert apply_overrides(CACHED.replace(cache_mb="auto"), {"cache_mb": 3}).cache_mb == 3


@pytest.mark.parametrize(("opened", "asked"), [(64, 0), ("auto", 0), (0, 64), (0, "auto")], ids=str)
def test_a_cache_is_neither_added_nor_taken_away_per_call(opened: Any, asked: Any) -> None:
    with pytest.raises(RequestError) as refused:
        apply_overrides(CACHED.replace(cache_mb=opened), {"cache_mb": asked})
    assert str(refused.value).startswith(
        f"--cache-mb {asked}: the session was opened with {opened}; a cache can be resized, not"
    )


@pytest.mark.parametrize("cache_mb", [-1, 1.5, True, "all", None, 1 << 25], ids=repr)
def test_a_size_that_is_none_is_refused_per_call_too(cache_mb: Any) -> None:
    with pytest.raises(RequestError, match=r"^--cache-mb .*must be "):
        apply_overrides(CACHED, {"cache_mb": cache_mb})


def test_a_wider_draft_is_no_matter_without_a_head() -> None:
    assert apply_overrides(Config(model="m"), {"draft": 8}).draft == 8


def test_no_flag_means_two_settings() -> None:
    spelled = [f for k in knobs().values() for f in (*k.flag.split("/"), *k.aliases)]
    assert len(spelled) == len(set(spelled))
    assert all(f.startswith("-") for f in spelled)


def test_the_names_of_llama_cpp_are_accepted() -> None:
    assert {
        "--threads": "threads",
        "--ctx-size": "ctx",
        "--ubatch-size": "ubatch",
        "--n-predict": "n",
        "--spec-draft-n-max": "draft",
        "--spec-draft-n-min": "draft_min",
        "--spec-draft-p-min": "mtp_p_min",
    }.items() <= {a: name for name, k in knobs().items() for a in k.aliases}.items()


def test_every_setting_is_explained() -> None:
    assert set(knobs()) == {f.name for f in dataclasses.fields(Config)} - {"model"}
    assert all(k.help.endswith((".", ")")) for k in knobs().values())


def test_resolving_makes_what_is_automatic_explicit(monkeypatch: pytest.MonkeyPatch) -> None:
    resolved = Config(model="m").resolved()
    assert resolved.threads >= 1
    assert resolved.flash_attn == "on"
    assert resolved.resolved() == resolved
    assert Config(model="m", threads=3, flash_attn="off").resolved() == Config(
        model="m", threads=3, flash_attn="off"
    )
    # ggml asserts above its own limit of threads.
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda _pid: range(1000), raising=False)
    validate(Config(model="m").resolved())


def test_a_configuration_as_plain_values_rebuilds_it() -> None:
    config = Config(model="m", mtp=True, draft=5)
    assert Config(**config.as_dict()) == config
    assert list(config.as_dict()) == [f.name for f in dataclasses.fields(Config)]


def test_only_a_drafting_run_needs_room_to_roll_back() -> None:
    assert Config(model="m", draft=5).rollback_width == 0
    assert Config(model="m", draft=5, mtp=True).rollback_width == 5


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config(model="m").n = 3  # type: ignore[misc]

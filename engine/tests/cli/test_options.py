from __future__ import annotations

import dataclasses
from typing import Any

import click
import pytest

from sluice.cli.options import config_of, idle_flags, knob_options
from sluice.cli.run import run
from sluice.config import Config, knobs
from sluice.errors import RequestError
from sluice.knob import Knob

OPTIONS = {p.name: p for p in run.params if isinstance(p, click.Option)}
DEFAULTS = {f.name: f.default for f in dataclasses.fields(Config)}


def plain(model: str = "m.gguf") -> dict[str, object]:
    return {name: DEFAULTS[name] for name in knobs()}


@pytest.mark.parametrize(("name", "knob"), knobs().items(), ids=list(knobs()))
def test_every_knob_is_an_option_with_its_flags_and_default(name: str, knob: Knob) -> None:
    option = OPTIONS[name]
    flags = {*knob.flag.split("/"), *knob.aliases}
    assert {*option.opts, *option.secondary_opts} == flags
    assert option.default == DEFAULTS[name]
    assert option.help is not None
    assert knob.help in option.help


def test_the_options_of_the_issue_are_there() -> None:
    flags = {flag for option in OPTIONS.values() for flag in (*option.opts, *option.secondary_opts)}
    named = (
        "-p -f -n -t -c --ubatch --flash-attn --temp --top-k --top-p --seed --moe-stream"
        " --io-threads --no-odirect --load-all --mtp --draft --draft-min --mtp-p-min --evidence"
        " --json --spec-type --spec-draft-n-max --spec-draft-n-min --spec-draft-p-min"
        " --cache-mb --cache-floor-mb --cache-ceil-mb --force-cache --dense-weights --overlap"
        " --prefetch --predict-prefetch --predict-spec-max --predict-log --prefetch-sync"
        " --cache-fill"
    )
    assert flags >= set(named.split())


def test_ranges_and_choices_stand_in_the_help() -> None:
    assert "[1 to 8; default: 3]" in (OPTIONS["draft"].help or "")
    assert "[1 or more; default: 128]" in (OPTIONS["n"].help or "")
    assert OPTIONS["flash_attn"].metavar == "auto|on|off"
    assert OPTIONS["cache_mb"].metavar == "N|auto"
    assert OPTIONS["dense_weights"].metavar == "anon|warm|mmap"
    assert "[0 to 64; default: 0]" in (OPTIONS["prefetch"].help or "")


def test_no_two_options_share_a_flag() -> None:
    flags = [flag for option in OPTIONS.values() for flag in (*option.opts, *option.secondary_opts)]
    assert len(flags) == len(set(flags))


def test_options_come_in_the_order_of_the_knobs() -> None:
    @click.command()
    @knob_options
    def bare(**values: object) -> None: ...

    assert [p.name for p in bare.params] == list(knobs())


def test_defaults_are_the_configs_own() -> None:
    assert config_of("m.gguf", plain()) == Config(model="m.gguf")


def test_spec_type() -> None:
    assert config_of("m", plain(), "draft-mtp").mtp
    assert config_of("m", plain() | {"mtp": True}, "draft-mtp").mtp
    assert not config_of("m", plain(), "none").mtp
    with pytest.raises(RequestError, match=r"--spec-type ngram: .*use draft-mtp or none"):
        config_of("m", plain(), "ngram")
    with pytest.raises(RequestError, match="--spec-type none: contradicts --mtp"):
        config_of("m", plain() | {"mtp": True}, "none")


def test_a_setting_without_effect_is_named() -> None:
    idle = Config(model="m", mtp_p_min=0.5, odirect=False, top_k=3)
    assert idle_flags(idle) == [
        "--mtp-p-min: has no effect without --mtp",
        "--no-odirect: has no effect without --moe-stream",
        "--top-k: has no effect without --temp above 0",
    ]
    assert idle_flags(idle.replace(mtp=True, moe_stream=True, top_k=40)) == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [("64", 64), ("0", 0), ("auto", "auto"), ("-1", -1), ("abc", "abc"), ("1.5", "1.5")],
)
def test_a_number_or_a_word_is_parsed_and_the_rest_is_left_to_be_refused(
    given: str, expected: Any
) -> None:
    parsed = run.make_context("run", ["m.gguf", "-p", "x", "--cache-mb", given]).params
    assert parsed["cache_mb"] == expected


STREAMED = Config(model="m", moe_stream=True)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (Config(model="m", dense_weights="warm"), "--dense-weights: has no effect without --moe-"),
        (Config(model="m", io_threads=2), "--io-threads: has no effect without --moe-stream"),
        (STREAMED.replace(force_cache=True), "--force-cache: has no effect without --cache-mb"),
        (STREAMED.replace(cache_fill=True), "--cache-fill: has no effect without --cache-mb"),
        (STREAMED.replace(cache_floor_mb=1), "--cache-floor-mb: has no effect without --cache-mb "),
        (
            STREAMED.replace(cache_mb=64, cache_ceil_mb=1),
            "--cache-ceil-mb: has no effect without --cache-mb auto",
        ),
        (
            STREAMED.replace(kernel_reads=False),
            "--no-kernel-reads: has no effect without --overlap, --prefetch or --predict-prefetch",
        ),
        (STREAMED.replace(prefetch_sync=True), "--prefetch-sync: has no effect without --prefetch"),
        (
            STREAMED.replace(cache_mb=64, prefetch=1, predict_spec_max=1),
            "--predict-spec-max: has no effect without --predict-prefetch",
        ),
    ],
)
def test_a_setting_of_streaming_without_effect_is_named(config: Config, words: str) -> None:
    (said,) = idle_flags(config)
    assert said.startswith(words)


def test_settings_of_streaming_with_an_effect_are_not_named() -> None:
    full = STREAMED.replace(
        cache_mb="auto", cache_floor_mb=1, cache_ceil_mb=2, force_cache=True, io_threads=2,
        cache_fill=True, kernel_reads=False,
        predict_prefetch=True, predict_spec_max=2, prefetch_sync=True, dense_weights="mmap",
        overlap=True, predict_log=True,
    )  # fmt: skip
    assert idle_flags(full) == []

from __future__ import annotations

import dataclasses

import click
import pytest

from sluice.cli.options import config_of, idle_flags, knob_options
from sluice.cli.run import run
from sluice.config import Config, Knob, knobs
from sluice.errors import RequestError

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
    )
    assert flags >= set(named.split())


def test_ranges_and_choices_stand_in_the_help() -> None:
    assert "[1 to 8; default: 3]" in (OPTIONS["draft"].help or "")
    assert "[1 or more; default: 128]" in (OPTIONS["n"].help or "")
    assert OPTIONS["flash_attn"].metavar == "auto|on|off"


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

from __future__ import annotations

import pytest

from sluice.cli.run import run
from sluice.config import Config, knobs, validate
from sluice.errors import RequestError
from sluice.sweep.arm import (
    STREAM_KEYS,
    Arm,
    default_arms,
    distinct,
    drafting,
    off,
    parse,
    streamed_arms,
)


def test_the_default_arms_are_those_of_the_method() -> None:
    assert [arm.name for arm in default_arms()] == [
        "off", "n_max=2", "n_max=3", "n_max=4", "n_max=5", "n_max=6", "n_max=4,p_min=0.7",
        "n_max=6,p_min=0.5", "n_max=6,p_min=0.7", "n_max=6,p_min=0.85",
    ]  # fmt: skip


def test_streamed_arms_come_without_the_cache_and_with_it() -> None:
    names = [arm.name for arm in streamed_arms({"overlap": True, "prefetch": 2})]
    assert names[:4] == [
        "off,moe_stream,overlap",
        "off,moe_stream,cache_mb=auto,overlap,prefetch=2",
        "n_max=1,moe_stream,overlap",
        "n_max=1,moe_stream,cache_mb=auto,overlap,prefetch=2",
    ]
    assert len(names) == 10
    assert all(arm.is_streamed for arm in streamed_arms())


def test_every_default_arm_can_be_run_and_read_back_from_its_name() -> None:
    for arm in (*default_arms(), *streamed_arms(cache_mb=500)):
        assert parse(arm.name) == arm
        validate(Config(model="bundled", **arm.config_fields()))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("off", "off"),
        (" n_max = 3 , p_min=0.60,n_min=2", "n_max=3,n_min=2,p_min=0.6"),
        ("n_max=3,p_min=0,n_min=0", "n_max=3"),
        ("n_max=3,p_min=-0.0", "n_max=3"),
        ("n_max=3,p_min=1e-05", "n_max=3,p_min=1e-05"),
        ("n_max=2,moe_stream,overlap=off", "n_max=2,moe_stream"),
        ("off,overlap=on,cache_mb=500,moe_stream", "off,moe_stream,cache_mb=500,overlap"),
        ("off,moe_stream,odirect=off,dense_weights=warm",
         "off,moe_stream,odirect=off,dense_weights=warm"),
    ],
)  # fmt: skip
def test_an_arm_has_one_name(text: str, name: str) -> None:
    assert parse(text).name == name
    assert parse(name) == parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "an empty key is no setting of an arm"),
        ("n_max=3,", "an empty key is no setting"),
        (",", "an empty key is there twice"),
        ("3", "3 is no setting of an arm; those are off, n_max"),
        ("p_min=0.6", "how long are drafts"),
        ("off,n_max=3", "n_max says how to draft, and off does not"),
        ("n_max=3\n,x", "x is no setting"),
        ("off=1", "off takes no value"),
        ("n_max=3,n_max=4", "n_max is there twice"),
        ("n_max", "n_max needs a value, as in n_max=3"),
        ("n_max=3,p_min=", "p_min needs a value, as in p_min=0.7"),
        ("n_max=three", "n_max=three: must be a whole number"),
        ("n_max=3,p_min=x", "p_min=x: must be a number"),
        ("n_max=0", "--draft 0: must be at least 1"),
        ("n_max=9", "--draft 9: must be at most 8"),
        ("n_max=3,p_min=1.5", "--mtp-p-min 1.5: must be at most 1"),
        ("n_max=3,p_min=nan", "--mtp-p-min nan: must be a finite number"),
        ("n_max=3,n_min=4", "--draft-min 4: above --draft 3"),
        ("n_max=3,cache_mb=5", "--cache-mb: only has a meaning when experts are streamed"),
        ("n_max=3,moe_stream=perhaps", "moe_stream=perhaps: must be on or off"),
        ("n_max=3,moe_stream,cache_mb=big", "cache_mb=big: must be a whole number, or auto"),
        ("n_max=3,moe_stream,dense_weights=x", "--dense-weights x: must be one of anon"),
        ("n_max=3,load_all", "load_all is no setting of an arm"),
    ],
)
def test_a_wrong_arm_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse(text)
    said = str(caught.value)
    assert said.startswith(f'--arm "{" ".join(text.split())}": ')
    assert message in said
    assert "\n" not in said


def test_an_arm_of_code_is_held_to_the_same_rules() -> None:
    with pytest.raises(RequestError, match="threads is no streaming setting"):
        off({"threads": 4})
    with pytest.raises(RequestError, match="--draft 12: must be at most 8"):
        drafting(12)


def test_the_streaming_keys_are_knobs() -> None:
    assert set(STREAM_KEYS) <= set(knobs())


def test_a_fixed_length_is_one_without_a_threshold() -> None:
    assert drafting(3).is_fixed
    assert not drafting(3, p_min=0.5).is_fixed
    assert not off().is_fixed


def test_the_baseline_streams_in_the_same_way() -> None:
    assert parse("n_max=3,moe_stream,cache_mb=9").baseline == "off,moe_stream,cache_mb=9"
    assert parse("n_max=3,p_min=0.5").baseline == "off"


def test_the_flags_of_a_server() -> None:
    assert off().server_flags() == ()
    assert " ".join(parse("n_max=3,p_min=0.6,n_min=2").server_flags()) == (
        "--spec-type draft-mtp --spec-draft-n-max 3 --spec-draft-n-min 2 --spec-draft-p-min 0.6"
    )
    assert parse("n_max=3,p_min=-0.0").server_flags()[-1] == "0"
    with pytest.raises(RequestError, match="a llama-server does not stream experts"):
        parse("n_max=3,moe_stream").server_flags()


def test_the_flags_of_run() -> None:
    assert off().run_flags() == ()
    assert parse("n_max=3").run_flags() == ("--mtp", "--draft", "3")
    arm = parse("n_max=2,n_min=1,p_min=0.5,moe_stream,odirect=off,cache_mb=auto")
    assert " ".join(arm.run_flags()) == (
        "--moe-stream --no-odirect --cache-mb auto --mtp --draft 2 --draft-min 1 --mtp-p-min 0.5"
    )


@pytest.mark.parametrize(
    "arm", [*default_arms(), *streamed_arms({"odirect": False})], ids=lambda arm: arm.name
)
def test_run_understands_the_flags(arm: Arm) -> None:
    with run.make_context("sluice run", ["bundled", "-p", "x", *arm.run_flags()]) as context:
        given = context.params
    assert {key: given[key] for key in arm.config_fields()} == arm.config_fields()


def test_distinct_arms_keep_their_order() -> None:
    arms = distinct([off(), drafting(3), parse("n_max=3,p_min=0"), off()])
    assert [arm.name for arm in arms] == ["off", "n_max=3"]

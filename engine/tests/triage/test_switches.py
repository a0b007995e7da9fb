from __future__ import annotations

from sluice.config import Config, knobs
from sluice.triage import switches

BASE = Config(model="m", threads=1)


def test_every_knob_is_a_switch_but_the_length() -> None:
    reached = {knob for name in switches.names() for knob in switches._knobs(name)}
    assert reached - set(switches.KERNELS) == set(knobs()) - switches.NOT_SWITCHES


def test_a_profile_is_taken_apart_into_kernels() -> None:
    a, b = switches.setup(BASE), switches.setup(BASE.replace(numerics="invariant"))
    found = {one.name: (one.a, one.b) for one in switches.differing(a, b)}
    assert found == {
        "sgemm": ("on", "off"),
        "tiled": ("on", "off"),
        "flash-attention": ("on", "off"),
    }


def test_turning_all_that_differs_gives_the_other_side() -> None:
    a = switches.setup(BASE)
    b = switches.setup(BASE.replace(numerics="invariant", mtp=True, draft=5, temp=0.5, seed=3))
    names = [one.name for one in switches.differing(a, b)]
    assert switches.turned(a, b, names) == b
    assert switches.turned(b, a, names) == a
    assert switches.turned(a, b, ["tiled"]).off == {"tiled"}
    assert switches.turned(b, a, ["tiled"]).off == {"sgemm"}


def test_without_kernels() -> None:
    off = switches.without(switches.setup(BASE), ["sgemm", "flash-attention"])
    assert (off.off, off.config.flash_attn) == ({"sgemm"}, "off")


def test_a_mixed_profile_stays_whole() -> None:
    found = switches.differing(
        switches.setup(BASE), switches.setup(BASE.replace(numerics="decode-invariant"))
    )
    assert [one.name for one in found] == ["flash-attention", "numerics"]

from __future__ import annotations

import shlex

from sluice.sweep.figures import figures
from sluice.sweep.row import Row
from sluice.sweep.texts import Texts, texts

from .making import row


def one(rows: list[Row]) -> Texts:
    (found,) = texts(figures(rows))
    return found


def test_arms_of_one_text_are_a_group() -> None:
    found = one([row("off", text_sha256="x"), row("n_max=2", text_sha256="x"),
                 row("n_max=3", text_sha256="y")])  # fmt: skip
    assert [(g.letter, g.sha256, g.arms) for g in found.groups] == [
        ("A", "x", ("off", "n_max=2")), ("B", "y", ("n_max=3",)),
    ]  # fmt: skip
    assert found.differ
    assert [found.letters(a) for a in ("off", "n_max=3", "n_max=9")] == ["A", "B", ""]


def test_one_text_does_not_differ_and_sampled_text_is_not_held_against_any() -> None:
    assert not one([row("off"), row("n_max=2")]).differ
    assert texts(figures([row(text_sha256="")])) == ()


def test_an_arm_whose_repeats_differ_is_named() -> None:
    found = one([row(text_sha256="x"), row(repeat=1, text_sha256="y"), row("n_max=2")])
    assert found.unsteady == ("off",)
    assert found.letters("off") == "A/B"


def test_cold_and_warm_texts_are_of_one_arm() -> None:
    found = one([row("off,moe_stream", is_cold=True), row("off,moe_stream", repeat=1,
                 is_cold=False)])  # fmt: skip
    assert [g.arms for g in found.groups] == [("off,moe_stream",)]


def test_each_other_text_has_a_triage_line() -> None:
    found = one([row("off", text_sha256="x"), row("n_max=3", text_sha256="y"),
                 row("n_max=6,p_min=0.5", text_sha256="z")])  # fmt: skip
    lines = found.commands("my model.gguf", ["-f", "out/a b.txt", "-n", "96"])
    assert len(lines) == 2
    words = shlex.split(lines[1])
    assert words[:3] == ["sluice", "triage", "--a"]
    assert shlex.split(words[3]) == ["my model.gguf", "-f", "out/a b.txt", "-n", "96"]
    assert shlex.split(words[5])[5:] == ["--mtp", "--draft", "6", "--mtp-p-min", "0.5"]

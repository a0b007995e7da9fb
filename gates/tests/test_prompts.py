"""The prompts are whole, and every quantisation that is gated by default has its own."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest

from sluice_gates.models import DEFAULT_TYPES
from sluice_gates.prompts import USER_FLOOR, prompt_set

RAW = json.loads(files("sluice_gates").joinpath("data", "prompts.json").read_text("utf-8"))


def test_every_text_is_used_and_says_where_it_is_from() -> None:
    used = set(RAW["general"])
    for found in RAW["quantisations"].values():
        used |= {*found["divergence"], *found["endings"]}
    assert used == set(RAW["texts"])
    for text in RAW["texts"].values():
        assert text["text"]
        assert text["source"]


@pytest.mark.parametrize("quantisation", DEFAULT_TYPES)
def test_default_quantisations_have_prompts(quantisation: str) -> None:
    prompts = prompt_set(quantisation)
    assert prompts.searched
    assert prompts.general
    assert prompts.divergence
    assert prompts.endings
    for names in (prompts.general, prompts.divergence, prompts.endings):
        assert len(set(names)) == len(names)
    assert 0.3 < prompts.acceptance_floor < 0.9
    assert prompts.table is None or prompts.table in prompts.divergence


def test_some_quantisation_shows_the_whole_table() -> None:
    assert any(prompt_set(quantisation).table for quantisation in DEFAULT_TYPES)


def test_another_model_gets_the_general_prompts() -> None:
    prompts = prompt_set(None)
    assert prompts.divergence == prompts.endings == prompts.general
    assert prompts.acceptance_floor == USER_FLOOR
    assert not prompts.searched


def test_a_quantisation_without_a_search_tries_what_was_found_for_others() -> None:
    prompts = prompt_set("Q6_K")
    assert not prompts.searched
    assert prompts.table is None
    for quantisation in DEFAULT_TYPES:
        found = prompt_set(quantisation)
        assert set(found.divergence) <= set(prompts.divergence)
        assert set(found.endings) <= set(prompts.endings)


def test_the_hash_is_of_the_texts() -> None:
    assert len({prompt_set(q).sha256 for q in (None, *DEFAULT_TYPES)}) == 1 + len(DEFAULT_TYPES)

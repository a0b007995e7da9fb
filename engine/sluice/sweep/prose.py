"""Prose prompts of the project's own, short and as long as is asked. Pure."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from importlib.resources import files

from sluice.errors import RequestError

TOKENS_PER_WORD = 1.3
"""Of English prose, roughly; a tokenizer that is at hand counts better."""

_PLACES = (
    "Aldersund",
    "the north quay",
    "Mirren Point",
    "the salt works",
    "Gull Skerry",
    "the upper reservoir",
    "Harrow Bay",
    "the old signal station",
    "Tannet",
    "the breakwater",
    "Corran Mouth",
    "the rope walk",
)
_PEOPLE = (
    "the harbour master",
    "Ines Haldane",
    "Tor Brandvik",
    "the surveyor",
    "the schoolmistress",
    "Edda Voss",
    "the keeper of the light",
    "Marten Quill",
    "the doctor's assistant",
    "old Henrike",
    "the two apprentices",
    "the clerk of works",
)
_THINGS = (
    "a crate of lamp glass",
    "the tide gauge",
    "a length of tarred cable",
    "the spare rudder",
    "three barrels of lime",
    "the brass level",
    "a letter without a stamp",
    "the ledger for May",
    "a coil of copper wire",
    "the storm bell",
    "the new pump",
    "a box of seed potatoes",
)
_WEATHER = (
    "The wind had gone round to the west",
    "A thin rain fell until noon",
    "The fog lay on the water and would not lift",
    "It was clear, and cold for the season",
    "The swell from the night before was still running",
    "The glass had been falling since dawn",
    "There was no wind at all",
    "Sleet came in across the sound",
)
_SENTENCES = (
    "{weather}, and at {place} {person} noted that the water stood {n} inches above the mark.",
    "{person} had asked for {thing}, and it was found at {place} after a search of {n} minutes.",
    "Of the {n} boats expected, all but two had come in by the time {person} left {place}.",
    "Nobody could say why {thing} had been taken to {place}, least of all {person}.",
    "It was agreed that {person} should go to {place} and see to {thing}, whatever the weather.",
    "{weather}; the road to {place} was passable for carts, though not for {thing}.",
    "The account of {person} differs from this in one respect: that there were {n} and not fewer.",
    "When {thing} was weighed again it came to {n} pounds, which {person} would not believe.",
    "From {place} one could see as far as {other}, where {person} was mending {thing}.",
    "{person} paid {n} crowns for {thing} and was thought, at {place}, to have been cheated.",
    "A lamp was seen that night between {place} and {other}, and went out after {n} minutes.",
    "What {person} said about it at {place} was written down, and is given here without change.",
)
_OPENING = (
    "This is the day-book of the harbour at Aldersund, kept by more than one hand. Every entry says"
    " what the weather was, who came and went, and what was lost or found.\n\n"
)
_CLOSING = (
    "\nHere the day-book ends. In a few paragraphs of plain prose, its last reader sets down what"
    " kind of a year it was, who mattered most in it, and what was never explained:\n\n"
)


def estimate(text: str) -> int:
    """About how many tokens ``text`` is, by its words."""
    return round(len(text.split()) * TOKENS_PER_WORD)


def short_prose() -> str:
    """The beginning of a story, about 800 tokens long, that breaks off where one would go on."""
    found = files("sluice.sweep").joinpath("data", "short-prose.txt").read_text(encoding="utf-8")
    return found.rstrip("\n") + "\n\n"


def long_prose(n_tokens: int, count: Callable[[str], int] = estimate) -> str:
    """A day-book of ``n_tokens`` or a little less, the same text for the same size and ``count``.

    Its entries are made from a few sentences that vary: no two are the same, and none is from
    anywhere else.

    Args:
        n_tokens: at least 200.
        count: how many tokens a text is; a model's tokenizer makes the size exact to an entry.

    Raises:
        RequestError: it is to be shorter than its opening and its end.
    """
    if n_tokens < 200:
        raise RequestError(f"long prose of {n_tokens} tokens: too short; 200 is the least")
    entries = _entries()
    # Counting each entry by itself would count the whole text over and over in small pieces
    # badly: take as many as an estimate says, then correct by what the count says.
    taken = list(itertools.islice(entries, max(n_tokens // 100, 1)))
    while count(_joined(taken)) < n_tokens:
        taken += itertools.islice(entries, max(len(taken) // 8, 1))
    low, high = 0, len(taken)  # fits, does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(_joined(taken[:middle])) <= n_tokens else (low, middle)
    return _joined(taken[:low])


def _joined(entries: list[str]) -> str:
    return _OPENING + "\n".join(entries) + _CLOSING


def _entries() -> Iterator[str]:
    """Entry after entry, each of four to seven sentences."""
    for day in itertools.count(1):
        chosen = random.Random(day)  # not by hash(): the same on every machine and Python
        sentences = chosen.sample(_SENTENCES, chosen.randint(4, 7))
        yield f"Day {day}. " + " ".join(_filled(sentence, chosen) for sentence in sentences) + "\n"


def _filled(sentence: str, chosen: random.Random) -> str:
    place, other = chosen.sample(_PLACES, 2)
    text = sentence.format(
        place=place,
        other=other,
        person=chosen.choice(_PEOPLE),
        thing=chosen.choice(_THINGS),
        weather=chosen.choice(_WEATHER),
        n=chosen.randint(3, 97),
    )
    return text[0].upper() + text[1:]

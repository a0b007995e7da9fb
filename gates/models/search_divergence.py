"""Search for prompts that gates need: where a near-tie flips, and where the model ends by itself.

Greedy text rarely depends on the last bits of a logit; a gate that shows that it can needs a
prompt where it does. Snippets are taken from source that the model was never trained on, and
each is run plain, with ``--ubatch 1`` and with ``--mtp``. What is printed is written as JSON,
too, to be put into ``sluice_gates/data/prompts.json`` by hand.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corpus import functions, load_corpus

from sluice.config import Config
from sluice.errors import RequestError
from sluice.targets import EngineTarget, quantize
from sluice.telemetry.evidence import Evidence
from sluice_gates.models import DEFAULT_TYPES, MASTER_TYPE

N_TOKENS = 128
CTX = 1024
SNIPPET_CHARACTERS = (60, 700)


@dataclass
class Found:
    """What a snippet turned out to be good for on one quantisation."""

    text: str
    ubatch_1: str | None = None
    mtp: str | None = None
    table: bool = False
    ending: bool = False
    accepted: int = 0
    drafted: int = 0
    groups: list[int] = field(default_factory=list)


def snippets(seed: int) -> Iterator[str]:
    """Beginnings of held-out documents and functions, of many lengths, cut at a line's end."""
    chooser = random.Random(seed)
    documents = load_corpus().held_out
    pieces = [piece for text in documents for piece in functions(text)]
    seen: set[str] = set()
    while True:
        source = chooser.choice(documents) if chooser.random() < 0.5 else chooser.choice(pieces)
        start = source.rfind("\n", 0, chooser.randrange(len(source))) + 1
        begin = 0 if chooser.random() < 0.5 else start
        rest = source[begin : begin + chooser.randrange(*SNIPPET_CHARACTERS)]
        text = rest[: rest.rfind("\n") + 1]
        if len(text) < SNIPPET_CHARACTERS[0] or text in seen:
            continue
        seen.add(text)
        yield text


def place(left: Evidence, right: Evidence) -> str | None:
    """Where two runs part, with the margin there; ``None`` where they do not."""
    for step, (mine, other) in enumerate(zip(left.ids, right.ids, strict=False)):
        if mine != other:
            return f"step {step}, token {mine}/{other}, margin {left.top2[step].margin:.4g}"
    return None if len(left.ids) == len(right.ids) else "one is longer"


def examine(model: Path, text: str) -> Found | None:
    """Run one snippet; ``None`` where it does not fit the context."""
    target = EngineTarget()
    config = Config(model=str(model), n=N_TOKENS, ctx=CTX, threads=1)

    def run(**changes: Any) -> Evidence:
        return target.run(config.replace(**changes), text).evidence

    try:
        plain, narrow, wide = run(), run(ubatch=1), run(mtp=True, draft=3)
    except RequestError:
        return None
    found = Found(text, place(plain, narrow), place(plain, wide))
    found.accepted, found.drafted = wide.n_accepted, wide.n_drafted
    found.groups = [sum(len(g.accepted) == k for g in wide.groups) for k in range(4)]
    # The end token itself was drafted and accepted, with something before it in its group.
    last = wide.groups[-1] if wide.groups else None
    found.ending = (
        wide.stop.id is not None
        and last is not None
        and wide.stop.id in last.accepted
        and last.accepted.index(wide.stop.id) > 0
    )
    if found.ubatch_1 and found.mtp:
        again, one = run(), run(mtp=True, draft=1)
        found.table = (
            plain == again
            and one.logits_sha256 == wide.logits_sha256
            and plain.text not in (narrow.text, wide.text)
        )
    return found


def search(model: Path, count: int, seed: int) -> list[Found]:
    """Examine ``count`` snippets and keep those that are good for something."""
    kept: list[Found] = []
    accepted = drafted = done = 0
    for text in snippets(seed):
        found = examine(model, text)
        if found is None:
            continue
        done += 1
        accepted, drafted = accepted + found.accepted, drafted + found.drafted
        if found.ubatch_1 or found.mtp or found.ending:
            kept.append(found)
            print(
                f"{model.name} {done}: ubatch 1 {found.ubatch_1}; mtp {found.mtp};"
                f" table {found.table}; ending {found.ending}; groups {found.groups}",
                flush=True,
            )
        if done == count:
            break
    flips = sum(f.ubatch_1 is not None for f in kept), sum(f.mtp is not None for f in kept)
    print(
        f"{model.name}: {done} snippets, {flips[0]} flip with --ubatch 1, {flips[1]} with --mtp,"
        f" {sum(f.table for f in kept)} show the whole table, {sum(f.ending for f in kept)} end"
        f" in an accepted group; {accepted}/{drafted} drafts accepted"
    )
    return kept


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("master", type=Path, help="the bundled model")
    parser.add_argument("--quants", default=",".join(DEFAULT_TYPES))
    parser.add_argument("--count", type=int, default=400, help="snippets a quantisation")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True, help="JSON file")
    chosen = parser.parse_args()
    results: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen.quants.split(","):
            model: Path = chosen.master
            if name != MASTER_TYPE:
                model = quantize(chosen.master, name, Path(folder) / f"{name}.gguf")
            results[name] = [vars(f) for f in search(model, chosen.count, chosen.seed)]
            chosen.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

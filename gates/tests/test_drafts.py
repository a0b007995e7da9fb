"""The gates that see drafts notice what the text never shows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.bundled import BUNDLED, model_path
from sluice.errors import GateFailure
from sluice.targets import model_facts
from sluice.telemetry.evidence import Evidence, Group
from sluice_gates import variants
from sluice_gates.bench import Bench
from sluice_gates.goldens import Goldens
from sluice_gates.models import Model
from sluice_gates.prompts import USER_FLOOR, prompt_set
from sluice_gates.test_drafts import test_acceptance_floor as acceptance_floor
from sluice_gates.test_drafts import test_accepted_is_longest_match as longest_match

BenchMaker = Callable[..., Bench]
Make = Callable[..., Evidence]


def real_bench(path: Path, folder: Path) -> Bench:
    """A bench over the engine and a file that was named."""
    model = Model(path, path.stem, False, model_facts(path))
    prompts = prompt_set("Q8_0")
    return Bench(model, prompts, folder, Goldens(folder, model, ""), n=32, n_general=1)


def test_a_head_of_garbage_writes_the_same_and_is_noticed(tmp_path: Path) -> None:
    """The failure that users see last: right text, no warning, not one draft accepted."""
    master = model_path(BUNDLED)
    good = real_bench(master, tmp_path)
    bad = real_bench(variants.garbage_head(master, tmp_path / "garbage.gguf"), tmp_path)
    prompt = good.general[0]
    left, right = (bench.run(prompt, mtp=True) for bench in (good, bad))
    good.equal(left, right, "the trained head and garbage")
    acceptance_floor(good)
    with pytest.raises(GateFailure, match=r"drafts accepted \(.*%\), floor 40%"):
        acceptance_floor(bad)
    bad.prompts = dataclasses.replace(bad.prompts, acceptance_floor=USER_FLOOR)
    with pytest.raises(GateFailure, match="floor 10%"):
        acceptance_floor(bad)


def test_good_groups_pass(make_bench: BenchMaker, make_speculated: Make) -> None:
    run = make_speculated([5, 6, 7, 8], (1, (6, 9, 9), 1), (3, (8, 1, 1), 1))
    bench = make_bench(lambda _config: run)
    longest_match(bench)
    assert bench.notes == ["draft 3: 2/6 accepted"]


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ([(2, (6, 9), 1)], "group 0 at step 2: expected at step 1"),
        ([(1, (6, 7, 9), 1)], r"draft 1 \(7\) was right and not accepted"),
        ([(1, (9, 9), 1)], "accepted 9, generated 6"),
        ([(1, (6, 9), 1), (4, (8,), 0)], "group 1 at step 4: expected at step 3"),
    ],
)
def test_wrong_groups_are_noticed(
    groups: list[tuple[int, tuple[int, ...], int]],
    words: str,
    make_bench: BenchMaker,
    make_speculated: Make,
) -> None:
    run = make_speculated([5, 6, 7, 8], *groups)
    with pytest.raises(GateFailure, match=words):
        longest_match(make_bench(lambda _config: run))


def test_what_is_no_prefix_is_noticed(make_bench: BenchMaker, make_speculated: Make) -> None:
    run = make_speculated([5, 6, 7], (1, (6, 7), 2))
    run = dataclasses.replace(run, groups=[Group(1, (6, 9), (9,))])
    with pytest.raises(GateFailure, match=r"accepted \[9\] is no prefix of the draft"):
        longest_match(make_bench(lambda _config: run))


def test_a_token_that_is_no_argmax_is_noticed(
    make_bench: BenchMaker, make_speculated: Make
) -> None:
    run = make_speculated([5, 6, 7], (1, (6, 9), 1))
    run = dataclasses.replace(run, ids=[5, 6, 3])
    with pytest.raises(GateFailure, match="step 2: token 3, but the argmax of its row is 7"):
        longest_match(make_bench(lambda _config: run))


def test_drafting_nothing_is_no_evidence(make_bench: BenchMaker, make_speculated: Make) -> None:
    bench = make_bench(lambda _config: make_speculated([5, 6]))
    with pytest.raises(GateFailure, match="no evidence: nothing drafted"):
        acceptance_floor(bench)

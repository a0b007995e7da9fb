"""The registry of gates: names, levels, and what each says of itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.resources import files

import pytest

from sluice.config import Config
from sluice.targets import ModelFacts
from sluice_gates import gate as registry
from sluice_gates.bench import Bench
from sluice_gates.faults import FAULTS
from sluice_gates.gate import Gate, NotApplicable, NotRecorded, all_gates, gate, gate_of
from sluice_gates.models import Model

BenchMaker = Callable[..., Bench]


@pytest.fixture
def _registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_gates", {})


def names() -> dict[str, bool]:
    """Every name ever given, and whether it is in use."""
    text = files("sluice_gates").joinpath("data", "names.txt").read_text(encoding="utf-8")
    rows = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    assert len({row[0] for row in rows}) == len(rows), "a name is there twice"
    return {row[0]: "retired" not in row for row in rows}


def test_the_list_of_names_is_the_registry() -> None:
    in_use = {name for name, used in names().items() if used}
    assert {made.name for made in all_gates()} == in_use


@pytest.mark.parametrize("made", all_gates(), ids=lambda made: made.name)
def test_a_gate_says_what_it_claims_and_kills(made: Gate) -> None:
    words = made.function.__doc__ or ""
    assert made.claims
    assert made.claims == made.claims.strip().rstrip(".")
    assert words.split("\n")[0].endswith(".")
    for fault in made.kills:
        assert fault in FAULTS, f"{made.name} kills {fault}, which is no fault"
        assert re.search(rf"\b{fault}\b", words), f"{made.name}: the docstring lacks {fault}"


@pytest.mark.parametrize("made", all_gates(), ids=lambda made: made.name)
def test_a_gate_that_compares_runs_names_faults(made: Gate) -> None:
    if made.family in (
        "identity", "speculation", "streaming", "sessions", "layouts", "drafts", "divergence"
    ):  # fmt: skip
        assert made.kills


@pytest.mark.usefixtures("_registry")
def test_the_name_comes_from_the_function() -> None:
    @gate(level="ids", claims="nothing")
    def test_nothing_at_all(bench: Bench) -> str:
        return "seen"

    made = gate_of(test_nothing_at_all)
    assert made is not None
    assert made.name == "nothing-at-all"
    assert gate_of(len) is None


@pytest.mark.usefixtures("_registry")
def test_a_name_is_not_given_twice() -> None:
    def test_again(bench: Bench) -> str:
        return ""

    gate(level="ids", claims="one")(test_again)
    gate(level="ids", claims="the same module, loaded again")(test_again)

    def elsewhere(bench: Bench) -> str:
        return ""

    elsewhere.__name__, elsewhere.__module__ = "test_again", "somewhere.else"
    with pytest.raises(ValueError, match="again is taken"):
        gate(level="ids", claims="two")(elsewhere)


@pytest.mark.usefixtures("_registry")
def test_evidence_is_noted(make_bench: BenchMaker) -> None:
    @gate(level="ids", claims="nothing")
    def test_noted(bench: Bench) -> str:
        bench.note("first")
        return "second"

    bench = make_bench()
    test_noted(bench)
    assert bench.notes == ["first", "second"]


@pytest.mark.usefixtures("_registry")
@pytest.mark.parametrize("error", [NotApplicable, NotRecorded])
def test_what_is_no_verdict_skips_and_stays_on_the_bench(
    error: type[Exception], make_bench: BenchMaker
) -> None:
    @gate(level="ids", claims="nothing")
    def test_skipping(bench: Bench) -> str:
        raise error("because")

    bench = make_bench()
    with pytest.raises(pytest.skip.Exception, match=r"^because$"):
        test_skipping(bench)
    assert type(bench.unjudged) is error


@pytest.mark.usefixtures("_registry")
@pytest.mark.parametrize(
    ("need", "words"), [("head", "m.gguf has no MTP head"), ("experts", "m.gguf has no experts")]
)
def test_a_model_without_what_is_needed(
    need: registry.Need, words: str, make_bench: BenchMaker
) -> None:
    @gate(level="ids", claims="nothing", needs=(need,))
    def test_needy(bench: Bench) -> str:
        raise AssertionError("was run")

    bench = make_bench()
    plain = ModelFacts("llama", 0, 0, bench.model.facts.fingerprint)
    bench = make_bench(model=Model(bench.model.path, "m", False, plain))
    made = gate_of(test_needy)
    assert made is not None
    with pytest.raises(NotApplicable, match=words):
        made.run(bench)


def test_the_ordinary_configuration_is_valid(make_bench: BenchMaker) -> None:
    assert make_bench().config() == Config(
        model=str(make_bench().model.path), n=96, ctx=1024, threads=1
    )


def test_every_family_is_listed() -> None:
    package = files("sluice_gates")
    found = {p.name[5:-3] for p in package.iterdir() if p.name.startswith("test_")}
    assert found <= set(registry.FAMILIES)
    ranks = [registry.family_rank(made) for made in all_gates()]
    assert ranks == sorted(ranks)

"""The refusal gates fail when something is let through, or is refused badly."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from sluice.config import Config, knobs, validate
from sluice.errors import GateFailure, ModelError, RequestError
from sluice.targets import Outcome
from sluice.telemetry.evidence import Evidence
from sluice_gates.bench import Bench
from sluice_gates.refusals import Wrong, by_api, by_command, refused_at_every_door
from sluice_gates.test_refusals import _beyond
from sluice_gates.test_refusals import test_refuse_mtp_with_temp as mtp_with_temp
from sluice_gates.test_refusals import test_refuse_out_of_range as out_of_range

BenchMaker = Callable[..., Bench]
WRONG = Wrong({"mtp": True, "temp": 0.7}, 2, ("--mtp", "--temp"), {"temp": 0.7}, {"mtp": True})


@dataclass
class FakeCommand:
    """Ends as it is told; by default as a command that validates."""

    outcome: Outcome | None = None

    def run(self, config: Config, prompt: str) -> Outcome:
        """As the command's."""
        if self.outcome is not None:
            return self.outcome
        try:
            validate(config)
        except RequestError as err:
            return Outcome(2, "", f"sluice: error: {err}\n")
        return Outcome(0, "text", "")


def validating(config: Config) -> RequestError:
    """A target that refuses what ``validate`` refuses."""
    try:
        validate(config)
    except RequestError as err:
        return err
    return RequestError("--other: was right")


@pytest.fixture
def bench(make_bench: BenchMaker) -> Bench:
    """A bench whose engine and command refuse as they should."""
    return make_bench(validating, command=FakeCommand())


def test_a_good_refusal_passes_at_three_doors(bench: Bench) -> None:
    assert refused_at_every_door(bench, WRONG) == 3
    mtp_with_temp(bench)
    assert bench.notes == ["2 requests refused, 6 times in one line"]


def test_a_model_without_a_head_has_no_call_to_override(bench: Bench) -> None:
    facts = dataclasses.replace(bench.model.facts, n_nextn=0)
    bench.model = dataclasses.replace(bench.model, facts=facts)
    mtp_with_temp(bench)
    assert bench.notes == ["2 requests refused, 4 times in one line"]


def test_the_range_gate_asks_for_every_knob_that_has_one(bench: Bench) -> None:
    out_of_range(bench)
    asked = bench.target.configs  # type: ignore[attr-defined]
    default = bench.config()
    for name, knob in knobs().items():
        if knob.low is not None or knob.choices:
            assert any(getattr(c, name) != getattr(default, name) for c in asked), name


@pytest.mark.parametrize(("name", "values"), [
    ("draft", [0, 9]), ("mtp_p_min", [-0.5, 1.5, "nan"]), ("flash_attn", ["neither"]),
    ("mtp", []), ("ctx", [15, 0x80000000]),
])  # fmt: skip
def test_values_beyond_a_range(name: str, values: list[Any]) -> None:
    found = _beyond(knobs()[name], getattr(Config(model="m"), name))
    assert [v if v == v else "nan" for v in found] == values


def test_a_validate_that_lets_it_pass_is_noticed(
    make_bench: BenchMaker, make_evidence: Callable[..., Evidence]
) -> None:
    """The planted fault of the family: one rule is gone, as if nobody had written it."""

    def lenient(config: Config) -> RequestError | Evidence:
        return make_evidence() if config.mtp and config.temp > 0 else validating(config)

    bench = make_bench(lenient, command=FakeCommand())
    with pytest.raises(GateFailure, match=r"API, mtp=True temp=0.7: not refused, 3 tokens"):
        mtp_with_temp(bench)


def test_a_call_that_is_let_through_is_noticed(
    make_bench: BenchMaker, make_evidence: Callable[..., Evidence]
) -> None:
    """The same hole behind one door only: a setting of one call."""
    seen: list[Config] = []

    def lenient(config: Config) -> RequestError | Evidence:
        seen.append(config)
        return make_evidence() if len(seen) > 1 else validating(config)

    bench = make_bench(lenient, command=FakeCommand())
    with pytest.raises(GateFailure, match=r"API, temp=0.7 of one call: not refused"):
        mtp_with_temp(bench)


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (Outcome(0, "text", ""), "not refused, 4 characters generated"),
        (Outcome(-6, "", "GGML_ASSERT(x) failed"), "killed by signal 6"),
        (Outcome(1, "", 'Traceback (most recent call last):\n  File "x"'), "a traceback"),
        (Outcome(2, "te", "sluice: error: --mtp with --temp\n"), "2 characters on stdout"),
        (Outcome(3, "", "sluice: error: --mtp with --temp\n"), "exit code 3, expected 2"),
        (Outcome(2, "", "one --mtp --temp\ntwo\n"), "2 lines, expected one"),
        (Outcome(2, "", ""), "0 lines, expected one"),
        (Outcome(2, "", "sluice: error: no\n"), "does not say '--mtp'"),
    ],
)
def test_a_bad_refusal_of_the_command_is_noticed(
    outcome: Outcome, words: str, make_bench: BenchMaker
) -> None:
    bench = make_bench(command=FakeCommand(outcome))
    with pytest.raises(GateFailure, match=words):
        by_command(bench, bench.config(), WRONG)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ModelError("--mtp with --temp"), "exit code 3, expected 2"),
        (RequestError("--mtp with\n--temp"), "2 lines, expected one"),
        (RequestError("something"), "does not say '--mtp'"),
    ],
)
def test_a_bad_refusal_of_the_api_is_noticed(
    error: Exception, words: str, make_bench: BenchMaker
) -> None:
    bench = make_bench(lambda _config: error)
    with pytest.raises(GateFailure, match=words):
        by_api(bench, bench.config(), WRONG)


def test_an_error_that_is_not_ours_is_noticed(make_bench: BenchMaker) -> None:
    def broken(_config: Config) -> Evidence:
        raise KeyError("temp")

    bench = make_bench(broken)
    with pytest.raises(GateFailure, match="raised KeyError, not a SluiceError"):
        by_api(bench, bench.config(), WRONG)

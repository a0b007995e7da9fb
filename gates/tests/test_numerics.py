"""The numerics gates fail when any one of the switches is left on, and hold on every type."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.bundled import BUNDLED, model_path
from sluice.config import Config
from sluice.decoding import numerics, session
from sluice.errors import GateFailure, SystemFault
from sluice.llama import kernels
from sluice.targets import EngineTarget, quantize
from sluice.targets.widths import spelled_drafts
from sluice_gates.bench import Bench
from sluice_gates.gate import NotApplicable, all_gates
from sluice_gates.goldens import Goldens
from sluice_gates.models import made_once, open_model
from sluice_gates.prompts import prompt_set

GATES = {gate.name: gate for gate in all_gates() if gate.family == "numerics"}
TYPES = ("F32", "F16", "BF16", "Q8_0", "Q5_0", "Q4_0", "Q4_K_M", "Q6_K", "IQ4_XS", "MXFP4_MOE")
FEW = 12
BenchMaker = Callable[..., Bench]

pytestmark = pytest.mark.xdist_group("numerics")


@pytest.fixture
def bench_of(tmp_path: Path) -> Callable[[str], Bench]:
    """Benches of the bundled model in one type, with an empty cache of runs."""

    def make(label: str) -> Bench:
        model = open_model(BUNDLED, label, tmp_path)
        prompts = prompt_set(model.quantisation)
        return Bench(model, prompts, tmp_path, Goldens(tmp_path, model, prompts.sha256))

    return make


def leave_on(switch: str, patch: pytest.MonkeyPatch) -> None:
    """Let the profiles forget one switch, and the self-check find nothing wrong with that."""
    if switch == "flash attention":
        shape = session.ContextShape
        patch.setattr(
            session, "ContextShape", lambda **given: shape(**given | {"flash_attn": True})
        )
    else:
        forget(switch, patch)
        patch.setattr(numerics, "prove", lambda *_: None)


def forget(switch: str, patch: pytest.MonkeyPatch) -> None:
    """Let this switch stay as it is whenever kernels are switched off."""
    real = kernels.switched_off
    patch.setattr(kernels, "switched_off", lambda given: real([s for s in given if s != switch]))


@pytest.mark.parametrize(
    ("switch", "gate"),
    [
        ("sgemm", "invariant-ubatch"),
        ("sgemm", "invariant-mtp"),
        ("sgemm", "decode-invariant-mtp"),
        ("tiled", "invariant-ubatch"),
        ("tiled", "invariant-mtp"),
        ("tiled", "decode-invariant-mtp"),
        ("flash attention", "invariant-long"),
        ("flash attention", "decode-invariant-long"),
    ],
)
def test_a_switch_left_on_is_caught(
    switch: str, gate: str, bench_of: Callable[[str], Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = bench_of("Q4_K_M")
    if switch in kernels.KERNELS and not kernels.present(switch):
        pytest.skip(f"this build has no {switch} kernels")
    GATES[gate].run(bench)
    bench.runs.clear()
    leave_on(switch, monkeypatch)
    with pytest.raises(GateFailure, match=r"logits .* / "):
        GATES[gate].run(bench)


@pytest.mark.parametrize("switch", sorted(kernels.KERNELS))
def test_the_self_check_refuses_a_switch_left_on(
    switch: str, bench_of: Callable[[str], Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kernels.present(switch):
        pytest.skip(f"this build has no {switch} kernels")
    monkeypatch.setattr(numerics, "_proven", set())
    forget(switch, monkeypatch)
    with pytest.raises(SystemFault, match=r"weights give other bits for [28] rows than for one"):
        GATES["invariant-ubatch"].run(bench_of("Q4_K_M"))


@pytest.mark.parametrize(
    ("group", "words"),
    [
        ((0,), "plain"),
        ((4,), "draft 4"),
        ((1, 3, 5), "draft 1, 3, 5"),
        ((0, 1, 2, 3, 7), "plain = draft 1 to 3, 7"),
    ],
)
def test_a_group_of_drafts_in_words(group: tuple[int, ...], words: str) -> None:
    assert spelled_drafts(group) == words


def test_no_difference_across_the_classes_is_called_vacuous(
    bench_of: Callable[[str], Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice_gates.test_numerics.difference", lambda *_: None)
    with pytest.raises(NotApplicable, match=r"vacuous: no logit moved in .* comparisons"):
        GATES["default-width-classes"].run(bench_of("Q8_0"))


@pytest.mark.parametrize("label", TYPES)
def test_every_type_is_invariant(label: str, tmp_path: Path) -> None:
    """Few tokens: all widths, all types, decode-invariant included."""
    path = master = model_path(BUNDLED)
    if label != "Q8_0":
        path = made_once(master, label, lambda m, out: quantize(m, label, out), tmp_path)
    prompt = prompt_set(None).general[1].text

    def rows(profile: str, **changes: object) -> list[str]:
        config = Config(model=str(path), n=FEW, ctx=256, threads=1, numerics=profile, **changes)
        return EngineTarget().run(config, prompt).evidence.logits_sha256

    plain = rows("invariant")
    for ubatch in (1, 16):
        assert rows("invariant", ubatch=ubatch) == plain
    for profile, expected in (("invariant", plain), ("decode-invariant", rows("decode-invariant"))):
        for draft in range(1, 9):
            assert rows(profile, mtp=True, draft=draft) == expected, (profile, draft)
    assert rows("invariant", moe_stream=True, mtp=True, draft=3) == plain

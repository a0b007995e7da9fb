from __future__ import annotations

import hashlib

import pytest

from sluice.config import Config
from sluice.sweep.arm import Arm, parse
from sluice.sweep.figures import figures
from sluice.sweep.measured import measured
from sluice.sweep.row import Row
from sluice.sweep.workload import bundled_workloads
from sluice.targets import EngineTarget, Run

from .making import IDENTITY

GREEDY = bundled_workloads()[0]


def ran(arm: Arm, **changes: object) -> tuple[Run, Row]:
    """The first prompt of the bundled model's workload, 40 tokens at most."""
    prompt = GREEDY.prompts[0]
    fields = {**GREEDY.config_fields(), **arm.config_fields(), "n": 40, **changes}
    run = EngineTarget().run(Config(model="bundled", threads=1, **fields), prompt.text)
    blank = Row(identity=IDENTITY.key, arm=arm.name, workload=GREEDY.name,
                workload_key=GREEDY.key, prompt=prompt.name, repeat=0)  # fmt: skip
    return run, measured(blank, arm, run.evidence, run.metrics)


@pytest.mark.parametrize(
    "name", ["off", "n_max=3", "n_max=6,p_min=0.7", "n_max=6,n_min=4,p_min=0.5"]
)
def test_a_real_run_makes_a_row_whose_counts_agree(name: str) -> None:
    run, row = ran(parse(name))
    assert row.ok, row.error
    assert row.n_steps == run.metrics.n_decodes
    assert row.n_decoded == len(run.evidence.ids) - 1
    assert run.evidence.stop.reason == "n"
    # Every step gives its accepted drafts and one token; the limit may cut the last one short.
    assert row.n_steps is not None
    assert 0 <= row.n_steps + row.n_accepted - row.n_decoded <= 6
    assert row.text_sha256 == hashlib.sha256(run.evidence.text.encode()).hexdigest()
    assert row.read_bytes is None
    (found,) = figures([row])
    assert found.effective_tok_s is not None
    assert found.effective_tok_s.mean == pytest.approx(run.metrics.effective_tok_s)
    assert found.tok_s is not None
    assert found.tok_s.mean == pytest.approx(run.metrics.tok_s)
    assert (found.n_drafted, found.n_accepted) == (run.metrics.n_drafted, run.metrics.n_accepted)


def test_a_text_that_ends_by_itself_counts_the_token_that_ends_it() -> None:
    run, row = ran(parse("off"), n=96)
    assert run.evidence.stop.reason == "eog"
    assert row.n_decoded == row.n_steps == len(run.evidence.ids)


def test_arms_of_the_bundled_model_share_one_text_and_acceptance_falls_with_length() -> None:
    rows = [ran(parse(name))[1] for name in ("off", "n_max=2", "n_max=6")]
    off, two, six = figures(rows)
    assert off.hashes == two.hashes == six.hashes
    assert two.acceptance_tokens is not None
    assert six.acceptance_tokens is not None
    assert two.acceptance_tokens > six.acceptance_tokens
    assert two.slot_off is not None
    assert six.slot_next is not None
    assert six.slot_next.against == "n_max=2"
    assert [p.place for p in six.places] == [1, 2, 3, 4, 5, 6]


def test_sampled_text_is_not_hashed() -> None:
    assert ran(parse("off"), temp=1.0)[1].text_sha256 == ""


def test_a_streamed_run_tells_what_it_read() -> None:
    arm = parse("n_max=2,moe_stream")
    run, row = ran(arm)
    assert row.read_bytes == run.metrics.generated.read_bytes
    assert row.read_bytes
    assert row.stall_s == run.metrics.generated.stall_s

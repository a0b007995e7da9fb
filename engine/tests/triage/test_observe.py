"""Observed runs of the bundled model."""

from __future__ import annotations

import numpy as np
import pytest

from sluice.llama import tensor
from sluice.seams import Nodes, Seams
from sluice.triage.localise import locate
from sluice.triage.observe import Observer
from sluice.triage.side import Side


def observed(lab, **settings):
    side = Side(lab.q8.replace(n=6, **settings), lab.prompt)
    observer = Observer()
    return side.run(observer).evidence, observer, side


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"ubatch": 1},
        {"mtp": True},
        {"moe_stream": True},
        {"moe_stream": True, "mtp": True, "draft": 1},
        {"moe_stream": True, "cache_mb": 2, "cache_memory": "slots"},
        {"moe_stream": True, "cache_mb": 2, "cache_memory": "slots", "mtp": True},
        {"moe_stream": True, "overlap": True},
        {"moe_stream": True, "cache_mb": 2, "overlap": True, "prefetch": 1, "io_threads": 4},
        {"moe_stream": True, "cache_mb": 2, "cache_memory": "pages"},
        {"flash_attn": "off"},
        {"numerics": "invariant", "mtp": True},
    ],
    ids=str,
)
def test_observing_changes_nothing(lab, settings) -> None:
    evidence, observer, side = observed(lab, **settings)
    assert evidence == side.run().evidence
    assert not observer.bad_slices
    assert bool(observer.n_slices_checked) == settings.get("moe_stream", False)
    assert locate(observer.decodes, observer.decodes, same_loop=True).pair is None


def test_every_layer_is_seen_and_every_row(lab) -> None:
    evidence, observer, _ = observed(lab)
    prompt, *steps = observer.decodes
    n_prompt = len(evidence.prompt_ids)
    assert [len(d.tokens) for d in observer.decodes] == [n_prompt] + [1] * 5
    assert {look.layer for look in prompt.looks.values()} == {None, 0, 1, 2, 3}
    assert all(d.routed[3].shape == (len(d.tokens), 2) for d in observer.decodes)
    by_name = {look.where: look for look in prompt.looks.values()}
    assert len(by_name["layer 2 ffn_moe_out"].digests) == n_prompt
    assert len(by_name["result_output"].digests) == 1
    assert by_name["layer 0 mul_mat(attn_qkv)"].weight == "blk.0.attn_qkv.weight"
    assert steps[0].looks.keys() - prompt.looks.keys() == set()


def test_the_head_is_seen(lab) -> None:
    _, observer, _ = observed(lab, mtp=True)
    head = [d for d in observer.decodes if d.is_head]
    assert head
    assert all(d.hidden for d in head)
    assert {look.layer for d in head for look in d.looks.values()} == {None, 4}


def test_values_of_one_decode_are_captured(lab) -> None:
    side = Side(lab.q8.replace(n=4), lab.prompt)
    observer = Observer(capture=(2, 0))
    side.run(observer)
    values = observer.decodes[2].values
    assert len(values) > 100
    assert not observer.decodes[1].values
    assert not observer.decodes[1].looks.keys() - {
        k for k in observer.decodes[1].looks if k[0].startswith(("result", "ffn_moe_topk"))
    }
    (logits,) = [v for key, v in values.items() if key[0] == "result_output"]
    assert np.array_equal(logits.reshape(-1), observer.decodes[2].logits[0])


class Neighbour(Seams):
    """The up projection of expert 3 of layer 2 is read from the expert beside it."""

    def slice_source(self, layer: int, part: str, expert: int, n_expert: int) -> int | None:
        return expert + ((layer, part, expert) == (2, "up", 3))


@pytest.mark.parametrize(
    "settings",
    [{}, *({"cache_mb": 2, "cache_memory": kind} for kind in ("slots", "pages"))],
    ids=str,
)
def test_a_slice_of_another_expert_is_found_wherever_it_stands(lab, settings) -> None:
    side = Side(
        lab.q8.replace(moe_stream=True, odirect=False, **settings), lab.prompt, fault=Neighbour
    )
    observer, sound = Observer(), Observer()
    side.run(observer)
    Side(lab.q8, lab.prompt).run(sound)
    (bad,) = observer.bad_slices
    assert (bad.tensor.name, bad.expert) == ("blk.2.ffn_up_exps.weight", 3)
    assert bad.holds == "the bytes of expert 4 of blk.2.ffn_up_exps.weight"
    # What the graph shows as routed is what the router chose, not where it stands.
    assert observer.decodes[0].routed[2].max() < 8
    assert np.array_equal(observer.decodes[0].routed[2], sound.decodes[0].routed[2])


class Writes(Seams, Nodes):
    def nodes(self) -> Nodes:
        return self

    def wants(self, is_head: bool, address: int) -> bool:
        return tensor.name(address) == "result_output"

    def computed(self, is_head: bool, address: int) -> None:
        values = tensor.values(address)
        assert values is not None
        values[..., 7] = 1000


def test_what_is_written_into_a_node_is_what_the_run_goes_on_with(lab) -> None:
    outcome = Side(lab.q8.replace(n=3), lab.prompt, fault=Writes).run()
    assert outcome.evidence.ids == [7, 7, 7]

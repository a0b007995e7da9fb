"""Planted causes, each triaged: the confusion matrix.

Every cause is planted into an engine that runs a real model. It has to come out in its class,
and where a layer and a node were planted, at that layer and node.
"""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sluice.config import Config
from sluice.gguf.header import read_header
from sluice.llama import tensor
from sluice.seams import Nodes, Seams
from sluice.telemetry.evidence import Stop
from sluice.triage.finding import CLASSES, Class, Finding
from sluice.triage.observe import Observer
from sluice.triage.side import Fault, Side
from sluice.triage.triage import Compared, triage
from sluice_gates.collector import SUMMARY
from sluice_gates.faults import FAULTS

Lab = Any  # see conftest.py

SPARE_ID = 980  # a token that the texts do not hold
STEP_ULP = 1


@dataclasses.dataclass(frozen=True)
class Cause:
    """What is planted, and what has to be found: class, layer, node; ``one_slice`` and no other."""

    name: str
    expected: Class
    triage: Callable[..., Finding]
    layer: int | None = None
    node: str | None = None
    one_slice: bool = False


class OneNode(Seams, Nodes):
    """One value of one node of one layer is moved by one ULP, in every decode."""

    def __init__(self, name: str) -> None:
        self._name = name

    def nodes(self) -> Nodes:
        return self

    def wants(self, is_head: bool, address: int) -> bool:
        return not is_head and tensor.name(address) == self._name

    def computed(self, is_head: bool, address: int) -> None:
        values = tensor.values(address)
        assert values is not None
        values.reshape(-1)[:1].view(np.int32)[...] += STEP_ULP


class OneScale(Seams):
    """The weights of one expert are too large by a millionth, whenever they are read."""

    def __init__(self, expert: int) -> None:
        self._expert = expert

    def slice_read(self, layer: int, part: str, expert: int, data: memoryview) -> None:
        if (layer, part, expert) == (2, "up", self._expert):
            np.frombuffer(data, np.float32)[...] *= np.float32(1 + 1e-6)


class StateKept(Seams, Nodes):
    """After a rejection one layer's recurrent state is not the one to go on from."""

    def __init__(self) -> None:
        self._after_rejection = False
        self._armed = False

    def nodes(self) -> Nodes:
        return self

    def rolls_back(self, n_rejected: int) -> bool:
        self._after_rejection = True
        return True

    def begins(
        self,
        is_head: bool,
        tokens: Sequence[int],
        position: int,
        outputs: str,
        hidden: npt.NDArray[np.float32] | None,
    ) -> None:
        if not is_head:
            self._armed, self._after_rejection = self._after_rejection, False

    def wants(self, is_head: bool, address: int) -> bool:
        return (
            self._armed
            and not is_head
            and tensor.op(address) == "GET_ROWS"
            and tensor.name(tensor.sources(address)[0]).startswith("cache_s_l1")
        )

    def computed(self, is_head: bool, address: int) -> None:
        values = tensor.values(address)
        if values is not None:
            values *= np.float32(0.5)


def run(lab: Lab, a: Compared, b: Compared, fault: Fault | None = None, **rest: Any) -> Finding:
    return triage(a, b, prompt=rest.pop("prompt", lab.prompt), fault=fault, isolated=False, **rest)


def between(settings_a: dict[str, object], settings_b: dict[str, object], *, f32: bool = False):
    """Two runs of one model under two settings, nothing planted."""

    def do(lab: Lab) -> Finding:
        base = lab.f32 if f32 else lab.q8
        return run(lab, base.replace(**settings_a), base.replace(**settings_b))

    return do


def planted(
    fault: Fault, settings: dict[str, object], *, f32: bool = False, against: object = None
):
    """One configuration, with a fault on side B; ``against`` are other settings for side A."""

    def do(lab: Lab) -> Finding:
        base = lab.f32 if f32 else lab.q8
        side_a = base.replace(**(settings if against is None else against))
        return run(lab, side_a, base.replace(**settings), fault)

    return do


def of_gates(name: str, settings: dict[str, object]):
    """A fault of the gates' fault module."""
    return planted(FAULTS[name], settings)


def one_ulp(node: str):
    return planted(lambda: OneNode(node), {}, f32=True)


def routing_flat(lab: Lab) -> Finding:
    # Of two rows, the flat view shows the first one's four likeliest experts.
    ids = lab.run(lab.q8.replace(n=1)).prompt_ids[:2]
    streamed = lab.q8.replace(moe_stream=True)
    return run(lab, lab.q8, streamed, FAULTS["routing-flat"], prompt=ids)


def variant(lab: Lab, name: str, change: Callable[[npt.NDArray[np.float32]], None], tensor_name):
    """The F32 model with one tensor's values changed in place."""
    out = lab.folder / f"{name}.gguf"
    shutil.copyfile(lab.f32.model, out)
    info = read_header(Path(lab.f32.model)).tensors[tensor_name]
    values = np.memmap(out, np.float32, "r+", info.offset, info.shape[::-1])
    change(values)
    values.flush()
    return lab.f32.replace(model=str(out))


def tied(lab: Lab, token: int) -> Config:
    """A model whose spare token has ``token``'s output row, each weight one ULP larger."""

    def change(rows: npt.NDArray[np.float32]) -> None:
        rows[SPARE_ID] = np.nextafter(rows[token], np.copysign(np.float32(np.inf), rows[token]))

    return variant(lab, f"tied-{token}", change, "output.weight")


def tie(**settings: object):
    """The first token whose duplicated row flips under ``settings``."""

    def do(lab: Lab) -> Finding:
        plain = lab.f32.replace(n=32)
        for token, _ in Counter(lab.run(plain, lab.longer).ids).most_common():
            made = tied(lab, token).replace(n=32)
            other = made.replace(**settings)
            if lab.run(made, lab.longer).ids != lab.run(other, lab.longer).ids:
                return run(lab, made, other, prompt=lab.longer)
        raise AssertionError("no duplicated row flips on this processor")

    return do


def duplicated_row(lab: Lab) -> Finding:
    token = lab.run(lab.f32).ids[0]

    def change(rows: npt.NDArray[np.float32]) -> None:
        rows[3] = rows[token]  # an equal logit at a lower id wins

    return run(lab, lab.f32, variant(lab, "duplicated", change, "output.weight"))


def routed_expert(lab: Lab) -> int:
    """An expert that layer 2 routes the prompt's last token to."""
    observer = Observer()
    Side(lab.f32.replace(n=1), lab.prompt).run(observer)
    return int(observer.decodes[0].routed[2][-1][0])


def scaled_in_file(lab: Lab) -> Finding:
    def change(experts: npt.NDArray[np.float32]) -> None:
        experts[routed_expert(lab)] *= np.float32(1 + 1e-6)

    return run(lab, lab.f32, variant(lab, "scaled", change, "blk.2.ffn_up_exps.weight"))


def scaled_in_memory(lab: Lab) -> Finding:
    expert = routed_expert(lab)
    return run(lab, lab.f32, lab.f32.replace(moe_stream=True), lambda: OneScale(expert))


def eog_kept(lab: Lab) -> Finding:
    made = lab.run(lab.q8)
    ended = dataclasses.replace(
        made,
        **{n: getattr(made, n)[:-1] for n in ("ids", "logits_sha256", "top2")},
        stop=Stop("eog", made.ids[-1], made.logits_sha256[-1]),
    )
    # Side B hands out the token that ended side A.
    kept = dataclasses.replace(made, stop=ended.stop)
    return run(lab, ended, kept, localise=False, attribution=False)


def cut_short(lab: Lab) -> Finding:
    made = lab.run(lab.q8)
    return run(lab, made, dataclasses.replace(made, logits_sha256=made.logits_sha256[:5]))


def cut_tokens(lab: Lab) -> Finding:
    made = lab.run(lab.q8)
    names = ("ids", "logits_sha256", "top2")
    return run(lab, made, dataclasses.replace(made, **{n: getattr(made, n)[:5] for n in names}))


def other_text(lab: Lab) -> Finding:
    made = lab.run(lab.q8)
    return run(lab, made, dataclasses.replace(made, text=made.text + " "))


def other_prompt(lab: Lab) -> Finding:
    made = lab.run(lab.q8)
    return run(lab, made, lab.run(lab.q8, "def main():\n"))


STREAM = {"moe_stream": True}
ONE_LANE = STREAM | {"io_threads": 1}  # windows overlap: wrong bytes come in the order of reads
MTP = {"mtp": True}
SAMPLED = {"temp": 1.0, "seed": 1}

CAUSES = (
    Cause("the same run twice", "IDENTICAL", between({}, {})),
    Cause("drafts of 1 and of 3", "IDENTICAL", between(MTP | {"draft": 1}, MTP)),
    Cause("resident and streamed", "IDENTICAL", between({}, STREAM)),
    Cause("--ubatch 1", "NUMERIC", between({}, {"ubatch": 1}, f32=True), 0, "mul_mat(attn_qkv)"),
    Cause("--mtp", "NUMERIC", between({}, MTP, f32=True), 0, "mul_mat(attn_qkv)"),
    Cause("--flash-attn off", "NUMERIC", between({}, {"flash_attn": "off"}, f32=True), 3),
    Cause("--numerics invariant", "NUMERIC", between({}, {"numerics": "invariant"}, f32=True), 0),
    Cause("one ULP, a norm", "NUMERIC", one_ulp("attn_post_norm-2"), 2, "attn_post_norm"),
    Cause("one ULP, a routing weight", "NUMERIC", one_ulp("ffn_moe_weights_norm-1"), 1,
          "ffn_moe_weights_norm"),
    Cause("one ULP, a residual", "NUMERIC", one_ulp("l_out-3"), 3, "l_out"),
    Cause("one ULP, linear attention", "NUMERIC", one_ulp("attn_output-0"), 0, "attn_output"),
    Cause("duplicated row, --ubatch 1", "NEAR_TIE_FLIP", tie(ubatch=1), 0, "mul_mat(attn_qkv)"),
    Cause("duplicated row, --mtp", "NEAR_TIE_FLIP", tie(mtp=True), 0, "mul_mat(attn_qkv)"),
    Cause("duplicated row, two models", "WEIGHT_BYTES", duplicated_row, None, "result_output"),
    Cause("expert scaled, two models", "WEIGHT_BYTES", scaled_in_file, 2, "ffn_moe_up", True),
    Cause("expert scaled, streamed", "WEIGHT_BYTES", scaled_in_memory, 2, "ffn_moe_up", True),
    Cause("slice-neighbour", "WEIGHT_BYTES", of_gates("slice-neighbour", ONE_LANE), 0,
          "ffn_moe_up", True),
    Cause("slice-missing", "WEIGHT_BYTES", of_gates("slice-missing", STREAM), 1, "ffn_moe_down"),
    Cause("slice-stale", "WEIGHT_BYTES", of_gates("slice-stale", STREAM), 2),
    Cause("slice-raced", "WEIGHT_BYTES", of_gates("slice-raced", STREAM)),
    Cause("slice-bit-flip", "WEIGHT_BYTES", of_gates("slice-bit-flip", STREAM), 0, "ffn_moe_down"),
    Cause("routing-flat", "WEIGHT_BYTES", routing_flat),
    Cause("routing-first-row", "WEIGHT_BYTES", of_gates("routing-first-row", STREAM), 0,
          "ffn_moe_gate"),
    Cause("accept-one-more", "LOGIC", of_gates("accept-one-more", MTP)),
    Cause("accept-one-more, from plain", "LOGIC", planted(FAULTS["accept-one-more"], MTP,
                                                          against={})),
    Cause("accept-one-less", "LOGIC", of_gates("accept-one-less", MTP)),
    Cause("logits-stale-row", "LOGIC", of_gates("logits-stale-row", MTP)),
    Cause("logits-stale-row, from plain", "LOGIC", planted(FAULTS["logits-stale-row"], MTP,
                                                           against={})),
    Cause("n-overshot", "LOGIC", of_gates("n-overshot", MTP)),
    Cause("eog-kept", "LOGIC", eog_kept),
    Cause("rollback-skipped", "STATE_ROLLBACK", of_gates("rollback-skipped", MTP)),
    Cause("recurrent state kept", "STATE_ROLLBACK", planted(StateKept, MTP), 1,
          "get_rows(cache_s_l1 (reshaped))"),
    Cause("recurrent state kept, from plain", "STATE_ROLLBACK", planted(StateKept, MTP,
                                                                        against={}), 1,
          "attn_output"),
    Cause("catch-up-tail-kept", "STATE_ROLLBACK", of_gates("catch-up-tail-kept", MTP)),
    Cause("catch-up-short", "STATE_ROLLBACK", of_gates("catch-up-short", MTP)),
    Cause("hidden-shifted", "STATE_ROLLBACK", of_gates("hidden-shifted", MTP)),
    Cause("hidden-of-tail", "STATE_ROLLBACK", of_gates("hidden-of-tail", MTP)),
    Cause("p-min-ignored", "CONFIG", of_gates("p-min-ignored", MTP | {"mtp_p_min": 0.5})),
    Cause("draft-min-ignored", "CONFIG", of_gates("draft-min-ignored", MTP | {"draft_min": 2})),
    Cause("stream-ignored", "CONFIG", of_gates("stream-ignored", STREAM)),
    Cause("load-all-ignored", "CONFIG", of_gates("load-all-ignored", STREAM | {"load_all": True})),
    Cause("catch-up-ignored", "CONFIG", of_gates("catch-up-ignored", MTP | {"catch_up": "batch"})),
    Cause("ubatch-ignored", "CONFIG", of_gates("ubatch-ignored", {"ubatch": 1})),
    Cause("another seed", "CONFIG", between(SAMPLED, SAMPLED | {"seed": 2})),
    Cause("another length", "CONFIG", between({}, {"n": 12})),
    Cause("another prompt", "CONFIG", other_prompt),
    Cause("evidence without its hashes", "HARNESS", cut_short),
    Cause("evidence cut short", "HARNESS", cut_tokens),
    Cause("evidence with another text", "HARNESS", other_text),
)  # fmt: skip


def wrongly_placed(cause: Cause, finding: Finding) -> str | None:
    """What is named in the place of the planted layer, node or slice."""
    first = finding.where
    if cause.layer is not None and (first is None or first.layer != cause.layer):
        return f"layer {first.layer if first else None}"
    if cause.node is not None and (first is None or first.name != cause.node):
        return f"node {first.name if first else None}"
    slices = finding.localisation.slices if finding.localisation is not None else ()
    places = [(one.layer, f"ffn_moe_{one.part}") for one in slices]
    if cause.one_slice and places != [(cause.layer, cause.node)]:
        return f"slices {places}"
    return None


def table(found: list[tuple[Cause, Finding, float]]) -> str:
    """The causes one a line, and the matrix of planted by found classes."""
    lines = []
    for cause, finding, seconds in found:
        where = finding.where.where if finding.where is not None else "–"
        lines.append(f"{cause.name:34}{cause.expected:16}{finding.classification.name:16}"
                     f"{where:38}{seconds:5.1f} s")  # fmt: skip
    count = Counter((c.expected, f.classification.name) for c, f, _ in found)
    lines += ["", "planted \\ found".ljust(16) + "".join(name[:10].rjust(12) for name in CLASSES)]
    for planted_class in CLASSES:
        row = [count[planted_class, name] for name in CLASSES]
        if any(row):
            cells = "".join((str(n) if n else "·").rjust(12) for n in row)
            lines.append(planted_class.ljust(16) + cells)
    return "\n".join(lines)


def test_every_planted_cause(lab: Lab, record_property: Callable[[str, object], None]) -> None:
    found = []
    for cause in CAUSES:
        began = time.perf_counter()
        finding = cause.triage(lab)
        found.append((cause, finding, time.perf_counter() - began))
        assert finding.to_json()
    record_property(SUMMARY, f"confusion matrix of the triage\n{table(found)}")
    wrong = [
        f"{cause.name}: {finding.classification}"
        for cause, finding, _ in found
        if finding.classification.name != cause.expected
    ]
    assert not wrong
    misplaced = {c.name: words for c, f, _ in found if (words := wrongly_placed(c, f))}
    assert not misplaced
    changed = [c.name for c, f, _ in found if f.localisation and f.localisation.observing_changed]
    assert not changed

"""Whether a node's movement is what its kernel does between two batch widths.

The node's own weight is multiplied on the real kernels, outside any model, at both widths.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sluice.decoding import widths
from sluice.errors import SluiceError
from sluice.gguf.shards import read_model
from sluice.llama import kernels
from sluice.triage.finding import NodeDifference

WIDEST = 65
"""No kernel known to us changes beyond; wider batches are taken for this width."""

_KERNELS = {"MUL_MAT": "mul_mat", "MUL_MAT_ID": "mul_mat_id", "FLASH_ATTN_EXT": "flash_attn"}


@dataclass(frozen=True, slots=True)
class WidthVerdict:
    """Whether the first differing node is explained by a width class, in a sentence.

    ``explained`` is ``None`` where it could not be tried.
    """

    explained: bool | None
    words: str


def verdict(
    node: NodeDifference,
    model: Path,
    *,
    off_a: Iterable[str] = (),
    off_b: Iterable[str] = (),
) -> WidthVerdict:
    """Hold the node's product at both sides' widths against each other.

    Args:
        node: the first differing node.
        model: its file.
        off_a, off_b: kernels that are switched off on either side.
    """
    kernel = _KERNELS.get(node.op)
    off_a, off_b = frozenset(off_a), frozenset(off_b)
    if kernel is None:
        return WidthVerdict(False, f"{node.where} ({node.op}) does not depend on how many rows"
                                   " are computed together")  # fmt: skip
    if node.rows_a == node.rows_b and off_a == off_b:
        return WidthVerdict(False, f"{node.where} was computed with {node.rows_a} rows on both"
                                   " sides, by the same kernels")  # fmt: skip
    if kernel == "flash_attn" and node.rows_a != node.rows_b:
        return WidthVerdict(True, f"{node.where}: flash attention takes another path for"
                                  f" {node.rows_a} than for {node.rows_b} rows")  # fmt: skip
    try:
        with kernels.switched_off(sorted(off_a & off_b)):
            found = _classes(node, model, kernel)
    except SluiceError as err:
        return WidthVerdict(None, f"width classes cannot be told here: {err}")
    if found is None:
        return WidthVerdict(None, f"no {kernel} of {node.weight_type} is in the model's header")
    spelled = f"{kernel} of {found.type_name}: rows {widths.spelled(found.classes)}"
    if off_a != off_b:
        names = ", ".join(sorted(off_a ^ off_b))
        return WidthVerdict(True, f"{node.where}: {names} is off on one side only ({spelled})")
    a, b = min(node.rows_a, WIDEST), min(node.rows_b, WIDEST)
    apart = not found.same(a, b)
    return WidthVerdict(
        apart,
        f"{node.where}: {a} and {b} rows are in {'other' if apart else 'the same'} width"
        f" class{'es' if apart else ''} ({spelled})",
    )


def _classes(node: NodeDifference, model: Path, kernel: str) -> widths.KernelClasses | None:
    header = read_model(model)
    wanted = (kernel, (node.weight_type or "f16").upper())
    found = widths.examine(header, flash_attn=False, only=lambda pair: pair == wanted)
    return next((one for one in found if (one.kernel, one.type_name) == wanted), None)

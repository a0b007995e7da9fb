"""Width classes: which batch widths give a row the same bits, found by running the kernels.

A kernel's classes partition the widths 1, 2, 3, …: within a class a row has the same bits
whatever the width, across classes it has not. Each width is computed on copies of one row, so
a row that depended on its place in the batch would show, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from sluice.config import DRAFT_MAX
from sluice.gguf.header import Header, TensorInfo
from sluice.llama import matmul
from sluice.llama.attention import flash_attention

Kernel = Literal["mul_mat", "mul_mat_id", "flash_attn"]
Classes = tuple[tuple[int, ...], ...]

WIDTHS = range(1, 66)
"""Widths that are examined: past 64, where the last kernel known to us takes over."""

CACHED = (256, 512)
"""Cached positions that attention is examined at: llama.cpp pads them to multiples of 256, and
ggml computes a single row otherwise from 512 on."""

ATTENTION = "attention"
"""The sample of a kernel that takes cached keys and no weight."""

_ROWS_MAX = 256  # of a weight; the kernels take groups of at most 64


@dataclass(frozen=True, slots=True)
class KernelClasses:
    """The width classes of one kernel on one type.

    ``sample`` is the tensor that it was run on, ``classes`` the widths, each class in order and
    the classes by their first width.
    """

    kernel: Kernel
    type_name: str
    sample: str
    classes: Classes

    def same(self, width: int, other: int) -> bool:
        """Whether decodes of these two widths give a row the same bits.

        An expert computes as many rows as were routed to it, anything from 1 to the width: so
        for ``mul_mat_id`` every one of these has to be in one class.
        """
        if width == other:
            return True
        wanted = {width, other}
        if self.kernel == "mul_mat_id":
            wanted = set(range(1, max(wanted) + 1))
        return any(wanted <= set(one) for one in self.classes)

    def constant_up_to(self, width: int) -> bool:
        """Whether all widths from 1 to ``width`` are in one class."""
        return set(range(1, width + 1)) <= set(self.classes[0])


def examine(
    header: Header,
    *,
    flash_attn: bool,
    threads: int = 1,
    at: Iterable[int] = WIDTHS,
    only: Callable[[tuple[str, str]], bool] = lambda _pair: True,
) -> list[KernelClasses]:
    """The classes of every product of the model's graph, and of its attention.

    Args:
        header: of the model; its own weights are used.
        flash_attn: whether attention is fused, or products with F16 keys.
        threads: compute threads.
        at: the widths.
        only: which products, by kernel and type; fused attention is examined whatever it says.

    Raises:
        SystemFault: the kernels cannot be run by themselves on this build.
    """
    wanted = tuple(at)
    found_in = samples(header)
    sources = {pair: [_weight(header, i) for i in infos] for pair, infos in found_in.items()}
    names = {pair: infos[0].name for pair, infos in found_in.items()}
    width = key_width(header)
    if width and not flash_attn:
        sources.setdefault(("mul_mat", "F16"), []).append(_keys(width))
        names.setdefault(("mul_mat", "F16"), ATTENTION)
    found = [
        KernelClasses(
            kernel, kind, names[kernel, kind], classify(_bits(parts, kernel, threads), wanted)
        )
        for (kernel, kind), parts in sources.items()
        if only((kernel, kind))
    ]
    if width and flash_attn:
        found += [
            KernelClasses(
                "flash_attn",
                "F16",
                f"{ATTENTION}, {cached} positions",
                classify(_flash(width, cached, threads), wanted),
            )
            for cached in CACHED
        ]
    return found


def samples(header: Header) -> dict[tuple[Kernel, str], list[TensorInfo]]:
    """Tensors of each product and type, one of each shape that could be computed otherwise."""
    found: dict[tuple[Kernel, str], dict[tuple[int, int], TensorInfo]] = {}
    for info in header.tensors.values():
        if len(info.shape) < 2 or "conv1d" in info.name or _only_looked_up(header, info):
            continue
        kernel: Kernel = "mul_mat_id" if "_exps." in info.name else "mul_mat"
        shape = (info.shape[0], min(_ROWS_MAX, info.shape[1]))
        found.setdefault((kernel, info.type_name), {}).setdefault(shape, info)
    return {pair: list(found[pair].values()) for pair in sorted(found)}


def key_width(header: Header) -> int:
    """Elements of an attention head's key, 0 where the header does not say."""
    width = header.number("attention.key_length")
    heads = header.number("attention.head_count")
    return width or (header.number("embedding_length") // heads if heads else 0)


def classify(bits: Callable[[int], object], widths: Iterable[int] = WIDTHS) -> Classes:
    """Group ``widths`` by what ``bits`` (hashable) makes of them."""
    groups: dict[object, list[int]] = {}
    for width in widths:
        groups.setdefault(bits(width), []).append(width)
    return tuple(tuple(group) for group in groups.values())


def interchangeable(classes: Iterable[KernelClasses]) -> tuple[tuple[int, ...], ...]:
    """Drafts 0 (plain) to 8 in groups that give the same bits; draft d verifies d + 1 rows."""
    kernels = list(classes)
    groups: list[list[int]] = []
    for draft in range(DRAFT_MAX + 1):
        for group in groups:
            if all(kernel.same(group[0] + 1, draft + 1) for kernel in kernels):
                group.append(draft)
                break
        else:
            groups.append([draft])
    return tuple(tuple(group) for group in groups)


def spelled(classes: Classes) -> str:
    """The classes in words: ``1 | 2 to 7 | 8 to 65``."""
    return " | ".join(", ".join(_runs(one)) for one in classes)


def spelled_drafts(group: tuple[int, ...]) -> str:
    """A group of drafts in words, plain being draft 0: ``plain = draft 1 to 3, 5``."""
    drafts = tuple(draft for draft in group if draft)
    words = ["plain"] if 0 in group else []
    return " = ".join([*words, *([f"draft {spelled((drafts,))}"] if drafts else [])])


def _runs(numbers: tuple[int, ...]) -> list[str]:
    runs: list[list[int]] = []
    for n in numbers:
        if runs and runs[-1][-1] == n - 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return [f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]


def _only_looked_up(header: Header, info: TensorInfo) -> bool:
    # Without an output matrix the embedding is multiplied with, too.
    return info.name == "token_embd.weight" and "output.weight" in header.tensors


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A matrix to multiply rows with; ``shape`` is (elements a row, rows)."""

    kind: GGMLQuantizationType
    shape: tuple[int, int]
    read: Callable[[], bytes]


def _bits(matrices: list[_Matrix], kernel: Kernel, threads: int) -> Callable[[int], object]:
    """What the rows of a batch of a width come to, with each matrix."""
    loaded = [(one, one.read(), _random(1, one.shape[0])) for one in matrices]

    def of_width(width: int) -> tuple[frozenset[bytes], ...]:
        return tuple(
            _distinct_rows(
                matmul.product(
                    weights,
                    int(one.kind),
                    one.shape,
                    np.repeat(row, width, axis=0),
                    routed=kernel == "mul_mat_id",
                    threads=threads,
                )
            )
            for one, weights, row in loaded
        )

    return of_width


def _weight(header: Header, info: TensorInfo) -> _Matrix:
    kind = GGMLQuantizationType[info.type_name]
    block, block_bytes = GGML_QUANT_SIZES[kind]
    n_rows = min(_ROWS_MAX, info.shape[1])

    def read() -> bytes:
        with header.path_of(info).open("rb") as file:
            file.seek(info.offset)
            return file.read(n_rows * (info.shape[0] // block * block_bytes))

    return _Matrix(kind, (info.shape[0], n_rows), read)


def _keys(width: int) -> _Matrix:
    def read() -> bytes:
        return _random(_ROWS_MAX, width).astype(np.float16).tobytes()

    return _Matrix(GGMLQuantizationType.F16, (width, _ROWS_MAX), read)


def _flash(width: int, cached: int, threads: int) -> Callable[[int], frozenset[bytes]]:
    query = _random(1, width)
    keys, values = (_random(2 * cached, width).astype(np.float16)[i::2] for i in (0, 1))

    def of_width(n: int) -> frozenset[bytes]:
        return _distinct_rows(
            flash_attention(np.repeat(query, n, axis=0), keys, values, threads=threads)
        )

    return of_width


def _distinct_rows(out: npt.NDArray[np.float32]) -> frozenset[bytes]:
    return frozenset(row.tobytes() for row in out)


def _random(n: int, width: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal((n, width)).astype(np.float32)

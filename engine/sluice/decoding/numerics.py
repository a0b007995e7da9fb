"""Numerics profiles: which kernels a session may use, and the proof that the profile holds.

``default`` leaves ggml as it is: the bits of a row depend on how many rows are computed with
it. ``invariant`` switches the width-dependent kernels off for as long as such a session is
open: single-row and many-row results are the same bits. ``decode-invariant`` does so for
decodes only and keeps the fast kernels for the prompt: plain and MTP output are the same bits,
``--ubatch 1`` is other arithmetic.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from sluice.errors import RequestError, SystemFault
from sluice.gguf.header import Header, TensorInfo
from sluice.llama import kernels, library, matmul

CHECK_WIDTHS = (2, 4, 8, 9)
"""Batch widths that the self-check holds against a single row."""

_CHECK_ROWS = 256  # of a weight; the tiled kernels take groups of 64
_lock = threading.RLock()
_open: dict[str, int] = {}
_held = contextlib.ExitStack()
_proven: set[tuple[str, int]] = set()


class Numerics:
    """One session's hold on its profile; :meth:`close` gives it back.

    Args:
        profile: a ``--numerics`` word.
        header: of the model, for the self-check of its weight types.

    Raises:
        RequestError: sessions of another profile are open, or this build cannot do it.
        SystemFault: the self-check found a width that changes a bit.
    """

    def __init__(self, profile: str, header: Header) -> None:
        self.profile = profile
        self._is_open = False
        with _lock:
            other = next((name for name in _open if name != profile), None)
            if other is not None:
                raise RequestError(
                    f"--numerics {profile}: a session with --numerics {other} is open in this"
                    " process, and the kernels are the whole process's; close it first"
                )
            if profile != "default":
                _refuse_where_impossible(profile)
                prove(header)
            if not _open and profile == "invariant":
                _held.enter_context(kernels.switched_off(kernels.KERNELS))
            _open[profile] = _open.get(profile, 0) + 1
            self._is_open = True

    @contextlib.contextmanager
    def decoding(self) -> Iterator[None]:
        """Around every decode that is not part of the prompt."""
        if self.profile != "decode-invariant":
            yield
            return
        with _lock, kernels.switched_off(kernels.KERNELS):
            yield

    @contextlib.contextmanager
    def prefilling(self) -> Iterator[None]:
        """Around every decode of the prompt."""
        # Another session's decode must not switch the kernels in the middle of it.
        with _lock if self.profile == "decode-invariant" else contextlib.nullcontext():
            yield

    def close(self) -> None:
        """Give the profile back; the last session's return puts the kernels back."""
        with _lock:
            if not self._is_open:
                return
            self._is_open = False
            _open[self.profile] -= 1
            if not _open[self.profile]:
                del _open[self.profile]
                _held.close()


def prove(header: Header) -> None:
    """Hold every weight type of the model to the claim, on the real kernels, switched off.

    A row computed alone must have the bits that it has among 2, 4, 8 and 9 rows. Each type is
    checked once a process, on bytes of the model's own weights.

    Raises:
        SystemFault: names the type, the operation and the width that differ.
    """
    with kernels.switched_off(kernels.KERNELS):
        for info in samples(header):
            number = int(GGMLQuantizationType[info.type_name])
            if (library.version(), number) in _proven:
                continue
            width = first_changed_width(header, info, CHECK_WIDTHS)
            if width is not None:
                raise SystemFault(
                    f"--numerics invariant: on this processor {info.type_name} weights give other"
                    f" bits for {width} rows than for one ({info.name}); use --numerics default"
                )
            _proven.add((library.version(), number))


def samples(header: Header) -> list[TensorInfo]:
    """One tensor of each type that matrix products take, the one with the longest rows."""
    best: dict[str, TensorInfo] = {}
    for info in header.tensors.values():
        if len(info.shape) < 2 or "conv1d" in info.name:
            continue
        known = best.get(info.type_name)
        if known is None or info.shape[0] > known.shape[0]:
            best[info.type_name] = info
    return list(best.values())


def first_changed_width(header: Header, info: TensorInfo, widths: tuple[int, ...]) -> int | None:
    """The first width whose leading row has other bits than the row alone; ``None`` if none."""
    for routed in (False, True):
        alone = leading_row(header, info, 1, routed=routed)
        for width in widths:
            if leading_row(header, info, width, routed=routed) != alone:
                return width
    return None


def leading_row(header: Header, info: TensorInfo, width: int, *, routed: bool) -> bytes:
    """The bits of row 0 of a product of ``width`` rows with the first rows of a weight."""
    block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[info.type_name]]
    row_bytes = info.shape[0] // block * block_bytes
    n_rows = min(_CHECK_ROWS, info.shape[1])
    with header.path.open("rb") as file:
        file.seek(info.offset)
        weights = file.read(n_rows * row_bytes)
    rows = np.random.default_rng(0).standard_normal((width, info.shape[0])).astype(np.float32)
    number = int(GGMLQuantizationType[info.type_name])
    out = matmul.product(weights, number, (info.shape[0], n_rows), rows, routed=routed)
    return bytes(out[0].tobytes())


def _refuse_where_impossible(profile: str) -> None:
    for switch, remedy in (
        ("sgemm", "build llama-cpp-python with CMAKE_ARGS=-DGGML_LLAMAFILE=OFF"),
        ("tiled", "use the pinned llama-cpp-python on Linux"),
    ):
        if kernels.present(switch) and not kernels.switchable(switch):
            raise RequestError(
                f"--numerics {profile}: this build's {switch} kernels cannot be switched off"
                f" here; {remedy}"
            )

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

from sluice.decoding import widths
from sluice.errors import RequestError, SystemFault
from sluice.gguf.header import Header
from sluice.llama import kernels

CHECK_WIDTHS = (2, 4, 8, 9)
"""Batch widths that the self-check holds against a single row."""

_lock = threading.RLock()
_open: dict[str, int] = {}
_held = contextlib.ExitStack()
_proven: set[tuple[str, str]] = set()  # kernel and type


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
                prove(header, profile)
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


def prove(header: Header, profile: str) -> None:
    """Hold every product of the model to the claim, on the real kernels, switched off.

    A row computed alone must have the bits that it has among 2, 4, 8 and 9 rows. Each type is
    checked once a process, on bytes of the model's own weights.

    Args:
        header: of the model.
        profile: the ``--numerics`` word that a refusal names.

    Raises:
        SystemFault: names the type, the operation and the width that differ.
    """
    with kernels.switched_off(kernels.KERNELS):
        for found in widths.examine(
            header,
            flash_attn=False,
            at=(1, *CHECK_WIDTHS),
            only=lambda pair: pair not in _proven,
        ):
            if len(found.classes) > 1:
                raise SystemFault(
                    f"--numerics {profile}: on this processor {found.type_name} weights give other"
                    f" bits for {found.classes[1][0]} rows than for one ({found.kernel} of"
                    f" {found.sample}); use --numerics default"
                )
            _proven.add((found.kernel, found.type_name))


def obstacle(profile: str) -> tuple[str, str] | None:
    """Why this build cannot have ``profile``, and the remedy; ``None`` where it can."""
    if profile == "default":
        return None
    for switch, remedy in (
        ("sgemm", "build llama-cpp-python with CMAKE_ARGS=-DGGML_LLAMAFILE=OFF"),
        ("tiled", "use the pinned llama-cpp-python on Linux"),
    ):
        if kernels.present(switch) and not kernels.switchable(switch):
            return f"this build's {switch} kernels cannot be switched off here", remedy
    return None


def _refuse_where_impossible(profile: str) -> None:
    found = obstacle(profile)
    if found is not None:
        raise RequestError(f"--numerics {profile}: {'; '.join(found)}")

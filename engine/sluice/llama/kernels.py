"""Switch ggml's width-dependent matmul kernels off and on, in the running process.

Three kernels of libggml-cpu answer "not mine" for some batch widths and take the work for
others; then the last bits of a row depend on how many rows were computed with it. libggml-cpu
calls each through its own call slot. Pointing the slot at an exported function of the same
library that returns 0 on this processor makes the kernel decline always, and every width goes
to ``vec_dot``. Nothing is latched: a slot can be switched between any two decodes.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterable, Iterator

from sluice.llama import library, slots

KERNELS = {
    "sgemm": ("llamafile_sgemm",),
    "tiled": ("ggml_compute_forward_mul_mat_tiled", "ggml_compute_forward_mul_mat_id_tiled"),
}
"""Switch name to the imported functions behind it."""

# Feature questions whose answer is 0 on every processor that Sluice supports.
_ZERO = "ggml_cpu_has_wasm_simd"


def has_llamafile() -> bool:
    """Whether this build has ``llamafile_sgemm`` at all."""
    lib = _ggml_cpu()
    return lib is not None and bool(lib.ggml_cpu_has_llamafile())


def switchable(switch: str) -> bool:
    """Whether every slot of ``switch`` can be redirected in this process."""
    return _zero_function() is not None and all(
        _slot(symbol) is not None for symbol in KERNELS[switch]
    )


def present(switch: str) -> bool:
    """Whether this build can take the kernel in the first place."""
    return has_llamafile() if switch == "sgemm" else _has_tiled()


def slots_found() -> dict[str, bool]:
    """Every imported function that can be switched, and whether its call slot was found."""
    return {symbol: _slot(symbol) is not None for group in KERNELS.values() for symbol in group}


@contextlib.contextmanager
def switched_off(switches: Iterable[str]) -> Iterator[None]:
    """While the block runs, the kernels of ``switches`` decline; absent ones are no matter."""
    zero = _zero_function()
    found = {
        slot: zero
        for switch in switches
        for symbol in KERNELS[switch]
        if (slot := _slot(symbol)) is not None and zero is not None
    }
    with slots.redirected(found):
        yield


def _slot(symbol: str) -> int | None:
    path = library.loaded("libggml-cpu")
    return None if path is None else slots.find_slot(path, symbol)


@functools.cache
def _ggml_cpu() -> ctypes.CDLL | None:
    path = library.loaded("libggml-cpu")
    return None if path is None else ctypes.CDLL(str(path))


def _has_tiled() -> bool:
    lib = _ggml_cpu()
    return lib is not None and hasattr(lib, KERNELS["tiled"][0])


@functools.cache
def _zero_function() -> int | None:
    lib = _ggml_cpu()
    if lib is None or not hasattr(lib, _ZERO) or lib[_ZERO]() != 0:
        return None
    return ctypes.cast(lib[_ZERO], ctypes.c_void_p).value

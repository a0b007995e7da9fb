"""Make another quantisation of a gguf with ``llama_model_quantize``."""

from __future__ import annotations

import os
from pathlib import Path

from llama_cpp import llama_cpp as api

from sluice.errors import ModelError, RequestError, SystemFault
from sluice.llama import library
from sluice.telemetry.files import atomic

_PREFIXES = ("LLAMA_FTYPE_MOSTLY_", "LLAMA_FTYPE_ALL_")


def file_types() -> dict[str, int]:
    """Names of the quantisations that this llama.cpp can write (``Q4_K_M``, …) to their number."""
    return {
        name.removeprefix(prefix): int(getattr(api, name))
        for prefix in _PREFIXES
        for name in dir(api)
        if name.startswith(prefix)
    }


def quantize(master: Path, type_name: str, out: Path, *, threads: int = 1) -> Path:
    """Write ``master`` requantised as ``type_name`` to ``out``, whole or not at all.

    A malformed master can end the process: :func:`sluice.targets.quantize` refuses it first.

    Raises:
        RequestError: an unknown type name.
        ModelError: llama.cpp could not do it, in its own words.
        SystemFault: nothing can be written beside ``out``.
    """
    library.start()
    table = file_types()
    if type_name not in table:
        raise RequestError(f"{type_name}: no such quantisation; there are {', '.join(table)}")
    params = api.llama_model_quantize_default_params()
    params.ftype = table[type_name]
    params.nthread = threads
    params.allow_requantize = True
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise SystemFault(f"{out}: cannot be written: {err.strerror}") from None
    with atomic(out) as part:
        library.forget_errors()
        status = api.llama_model_quantize(os.fsencode(master), os.fsencode(part), params)
        if status != 0:
            said = library.last_error("no reason given")
            raise ModelError(f"{master}: cannot be made {type_name}: {said}")
    return out

"""The loaded llama.cpp: its version, its log, and a check that its structs are as we read them."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import llama_cpp
from llama_cpp import llama_cpp as api

from sluice.errors import SystemFault

_LOG_WARN, _LOG_ERROR, _LOG_CONT = 3, 4, 5  # GGML_LOG_LEVEL_*


class _Said(threading.local):
    """What llama.cpp has said in calls of this thread, by level."""

    def __init__(self) -> None:
        self.level = 0
        self.lines: dict[int, deque[str]] = {
            _LOG_WARN: deque(maxlen=8),
            _LOG_ERROR: deque(maxlen=8),
        }


_said = _Said()


def _keep_errors(level: int, text: bytes, _data: ctypes.c_void_p) -> None:
    # llama_cpp's own callback prints to stderr; ours keeps the last words for our messages.
    if level != _LOG_CONT:
        _said.level = level
    if _said.level in _said.lines and text:
        lines = (line.strip(" =") for line in text.decode("utf-8", "replace").splitlines())
        _said.lines[_said.level].extend(line for line in lines if line)


_log_callback = api.llama_log_callback(_keep_errors)


@functools.cache
def start() -> None:
    """Initialise llama.cpp once for this process.

    Raises:
        SystemFault: the build's ``ggml_tensor`` is not the struct that the streamer reads.
    """
    from sluice.llama import tensor

    api.llama_log_set(_log_callback, ctypes.c_void_p(0))
    api.llama_backend_init()
    tensor.check_layout()


def forget_errors() -> None:
    """Drop what llama.cpp has said so far in this thread."""
    for lines in _said.lines.values():
        lines.clear()


def last_error(default: str) -> str:
    """llama.cpp's own last words since :func:`forget_errors`, on one line.

    Errors come before warnings, which are all that it has for some failures.
    """
    for level in (_LOG_ERROR, _LOG_WARN):
        if _said.lines[level]:
            return _reason(_said.lines[level])
    return default


def _reason(spoken: Sequence[str]) -> str:
    # The reason comes first, and then lines that only say what failed with it; but the loader
    # marks its reason.
    for line in spoken:
        for mark in ("error loading model: ", "error loading model hyperparameters: "):
            if mark in line:
                return line.split(mark, 1)[1]
    return spoken[0]


def version() -> str:
    """The version of llama-cpp-python."""
    return str(llama_cpp.__version__)


def system_info() -> str:
    """ggml's own line on the instruction sets and features that it was built with."""
    return str(api.llama_print_system_info().decode()).strip(" |")


@functools.cache
def folder() -> Path:
    """The folder that holds the shared libraries of llama-cpp-python."""
    return Path(llama_cpp.__file__).resolve().parent / "lib"


@functools.cache
def loaded(name: str) -> Path | None:
    """The file that this process has mapped for library ``name`` (``libggml-cpu``).

    A wheel holds the same library under several names, as copies: opening another of them
    would load a second instance with tables of its own. ``None`` where that cannot be told.
    """
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return None
    for line in maps.read_text(encoding="utf-8").splitlines():
        path = Path(line.split(maxsplit=5)[-1])
        if path.name.startswith(f"{name}.so") and path.parent == folder():
            return path
    return None


@functools.cache
def ggml_base() -> ctypes.CDLL:
    """libggml-base, which llama_cpp has loaded but does not bind.

    Raises:
        SystemFault: this build has no such library.
    """
    names = ("libggml-base.so", "libggml-base.dylib", "ggml-base.dll")
    for path in (loaded("libggml-base"), *(folder() / name for name in names)):
        if path is not None and path.exists():
            return ctypes.CDLL(str(path))
    raise SystemFault(f"{folder()}: has no libggml-base; reinstall llama-cpp-python")

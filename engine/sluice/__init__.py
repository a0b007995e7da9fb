"""Sluice: run, draft and gate Mixture-of-Experts models larger than memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sluice.config import Config
from sluice.errors import GateFailure, ModelError, RequestError, SluiceError, SystemFault

if TYPE_CHECKING:
    from sluice.decoding.session import Session

__version__ = "0.1.0"
__all__ = [
    "Config",
    "GateFailure",
    "ModelError",
    "RequestError",
    "Session",
    "SluiceError",
    "SystemFault",
]


def __getattr__(name: str) -> Any:
    # Session pulls in llama.cpp's libraries; a command that only validates must not wait.
    if name == "Session":
        from sluice.decoding.session import Session

        return Session
    raise AttributeError(f"module 'sluice' has no attribute {name!r}")

"""The errors that Sluice raises, each with the exit code of the command.

Every message is one line: what is wrong, where (file, tensor, flag), what to change.
"""

from __future__ import annotations


class SluiceError(Exception):
    """Base of every error raised on purpose; ``exit_code`` is what the command exits with."""

    exit_code = 3


class RequestError(SluiceError):
    """The request is wrong: a flag, a range, a combination, a prompt that does not fit."""

    exit_code = 2


class ModelError(SluiceError):
    """The model file cannot be used: unreadable, cut short, without what was asked of it."""


class SystemFault(SluiceError):
    """The machine or llama.cpp failed under a request that was right."""


class ReadFault(SystemFault):
    """A slice could not be read: names the file, the offset, the tensor and what was read."""


class GateFailure(SluiceError, AssertionError):
    """A gate found a difference, or found no evidence to judge by."""

    exit_code = 1

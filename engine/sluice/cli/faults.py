"""How anything that ends a command early reaches the user: one line, one exit code."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import traceback
from collections.abc import Callable

import click

from sluice.errors import RequestError, SluiceError, SystemFault

INTERNAL = 3
INTERRUPTED = 130
PIPE_CLOSED = 141
TRACEBACK_VARIABLE = "SLUICE_TRACEBACK"


class PipeClosed(Exception):
    """Whoever read standard output has gone; nobody is left to tell."""


def one_line(text: str) -> str:
    """``text`` on one line, with everything that a terminal would act on written as an escape."""
    return "".join(c if c.isprintable() else _escape(c) for c in text.strip())


def complain(text: str) -> None:
    """Write ``sluice: <text>`` to stderr, as one line."""
    click.echo(f"sluice: {one_line(text)}", err=True)


def warn(text: str) -> None:
    """Write one warning line to stderr."""
    complain(f"warning: {text}")


def guarded(action: Callable[[], int | None]) -> int:
    """Run ``action`` and return the exit code; an exception becomes one line on stderr.

    Returns:
        What ``action`` returned (``None`` is 0), the ``exit_code`` of a SluiceError, 2 for a
        command line that click refused, 130 after Ctrl-C, 141 when standard output was closed,
        3 for a defect of Sluice itself.
    """
    with contextlib.suppress(OSError):  # stderr itself may be gone
        return _guarded(action)
    return PIPE_CLOSED


def _guarded(action: Callable[[], int | None]) -> int:
    try:
        return action() or 0
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except SluiceError as err:
        complain(f"error: {err}")
        return err.exit_code
    except click.ClickException as err:
        complain(f"error: {_usage(err)}")
        return RequestError.exit_code
    except (KeyboardInterrupt, click.Abort):
        complain("interrupted")
        return INTERRUPTED
    except (PipeClosed, BrokenPipeError):
        _silence_stdout()
        return PIPE_CLOSED
    except (OSError, MemoryError) as err:
        complain(f"error: the system refused: {str(err) or 'out of memory'}; {_remedy(err)}")
        return SystemFault.exit_code
    except Exception as err:
        if os.environ.get(TRACEBACK_VARIABLE):
            traceback.print_exc()
        what = f"{type(err).__name__}: {err}" if str(err) else type(err).__name__
        complain(f"internal error: {what}; run with {TRACEBACK_VARIABLE}=1 to see where")
        return INTERNAL


def _remedy(err: OSError | MemoryError) -> str:
    if isinstance(err, OSError) and err.errno in (errno.EMFILE, errno.ENFILE):
        return "allow more open files (ulimit -n)"
    if isinstance(err, MemoryError) or err.errno == errno.ENOMEM:
        return "free memory, or lower -c or --ubatch"
    return f"run with {TRACEBACK_VARIABLE}=1 to see where"


def _usage(err: click.ClickException) -> str:
    context = getattr(err, "ctx", None)
    command = context.command_path if context is not None else "sluice"
    return f"{err.format_message().rstrip('.')}; try `{command} --help`"


def _silence_stdout() -> None:
    """Let the interpreter's last flush of what was never read go nowhere."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")

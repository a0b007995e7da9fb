"""The command ``sluice``: its subcommands, and the exit code of every ending."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from sluice import __version__
from sluice.cli.doctor import doctor
from sluice.cli.faults import guarded
from sluice.cli.gate import gate
from sluice.cli.goldens import compare_goldens
from sluice.cli.run import run
from sluice.cli.sweep import sweep
from sluice.cli.triage import triage


@click.group(
    "sluice",
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="sluice %(version)s")
def cli() -> None:
    """Run, draft and gate Mixture-of-Experts models larger than memory."""


cli.add_command(run)
cli.add_command(gate)
cli.add_command(doctor)
cli.add_command(sweep)
cli.add_command(triage)
cli.add_command(compare_goldens)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Entry of the command: run it on ``argv`` (without the program's name) and exit.

    Nothing but ``SystemExit`` leaves this function; see :func:`sluice.cli.faults.guarded`.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a locale must not break a message
    sys.exit(guarded(lambda: _dispatch(sys.argv[1:] if argv is None else argv)))


def _dispatch(argv: Sequence[str]) -> int | None:
    # Not cli.main(): it prints usage errors, Ctrl-C and closed pipes in its own way.
    with cli.make_context("sluice", list(argv)) as context:
        code: int | None = cli.invoke(context)
        return code


if __name__ == "__main__":
    main()

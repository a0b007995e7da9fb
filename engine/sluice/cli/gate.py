"""``sluice gate``: run the gates, print their verdicts."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from sluice.bundled import BUNDLED, model_path
from sluice.cli.files import check_output_file, check_output_folder
from sluice.cli.suite import Suite
from sluice.cli.verdicts import closing
from sluice.errors import RequestError

_FILE = click.Path(path_type=Path)


@click.command()
@click.argument("model", default=BUNDLED)
@click.option(
    "quants",
    "--quants",
    metavar="Q,…|all",
    help="Quantisations of the bundled model to run on; refused with another MODEL, which is run as"
    " it is.  [default: Q8_0,Q4_K_M,MXFP4_MOE]",
)
@click.option("strict", "--strict", is_flag=True, help="A gate with no recorded value fails.")
@click.option("json_file", "--json", metavar="FILE", type=_FILE, help="Write the verdicts to FILE.")
@click.option("junit", "--junit", metavar="FILE", type=_FILE, help="Write JUnit XML to FILE.")
@click.option(
    "evidence_dir",
    "--evidence-dir",
    metavar="DIR",
    type=_FILE,
    help="Keep the evidence file of every run in DIR.",
)
@click.option(
    "goldens",
    "--goldens",
    metavar="DIR",
    type=_FILE,
    help="Recorded values to judge by, in the place of the installed ones.",
)
@click.option(
    "expression", "-k", metavar="EXPR", help="Only the gates whose name matches (pytest's -k)."
)
@click.option(
    "workers",
    "--workers",
    metavar="N",
    type=int,
    default=1,
    help="Gates run side by side.  [1 or more; default: 1]",
)
@click.option("verbose", "-v", "--verbose", is_flag=True, help="Show pytest's output on stderr.")
def gate(
    model: str,
    quants: str | None,
    strict: bool,
    json_file: Path | None,
    junit: Path | None,
    evidence_dir: Path | None,
    goldens: Path | None,
    expression: str | None,
    workers: int,
    verbose: bool,
) -> int:
    """Prove on MODEL (by default the bundled model) what Sluice may claim.

    Prints one verdict a gate, the tables that gates made, and a closing verdict. Exit codes: 0 no
    gate failed, 1 a gate failed (with --strict also: is not recorded) or none applies to MODEL, 2
    the request is wrong, 3 a gate could not run.
    """
    started_s = time.monotonic()
    if workers < 1:
        raise RequestError(f"--workers {workers}: must be at least 1")
    if quants is not None and model != BUNDLED:
        raise RequestError(
            f"--quants {quants}: only the bundled model is quantised anew; drop it, or MODEL"
        )
    if model != BUNDLED:
        model = str(model_path(model).absolute())
    else:
        model_path(model)
    for flag, file in (("--json", json_file), ("--junit", junit)):
        if file is not None:
            check_output_file(flag, file)
    if goldens is not None and not goldens.is_dir():
        raise RequestError(f"--goldens {goldens}: no such folder")
    if evidence_dir is not None:
        check_output_folder("--evidence-dir", evidence_dir)
    suite = Suite(
        model=model,
        quants=quants,
        strict=strict,
        goldens=goldens,
        evidence_dir=evidence_dir,
        junit=junit,
        expression=expression,
        workers=workers,
    )
    with _watching(verbose) as line:
        report = suite.run(line)

    from sluice.cli.table import print_table  # rich: not before it is needed

    print_table(report)
    for text in report.tables:
        click.echo(f"{text}\n")
    if json_file is not None:
        report.write(json_file)
    code = report.exit_of(strict)
    click.echo(closing(report, code, time.monotonic() - started_s))
    return code


@contextlib.contextmanager
def _watching(verbose: bool) -> Iterator[Callable[[str], None]]:
    """Where pytest's lines go: to stderr, to one changing line of a terminal, or nowhere."""
    if verbose:
        yield lambda text: click.echo(text, err=True)
        return
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status("gates: collecting") as status:
        yield lambda text: status.update(f"gates: {escape(text)}") if text else None

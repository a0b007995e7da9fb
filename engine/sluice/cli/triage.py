"""``sluice triage``: what differs between two runs, where it begins, and of what class it is."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sluice.bundled import BUNDLED, model_path
from sluice.cli.exits import exit_of
from sluice.cli.files import check_output_file
from sluice.cli.interrupt import Interrupt
from sluice.cli.options import config_of
from sluice.cli.output import Output
from sluice.cli.prompt import read_prompt
from sluice.cli.run import run
from sluice.config import Config, validate
from sluice.errors import RequestError
from sluice.telemetry.evidence import Evidence
from sluice.telemetry.files import write_whole

if TYPE_CHECKING:
    from sluice.triage.side import Side


@dataclass(frozen=True, slots=True)
class Asked:
    """One side as the command line names it: evidence, or settings with or without a prompt."""

    label: str
    evidence: Evidence | None = None
    config: Config | None = None
    prompt: str | None = None


@click.command()
@click.argument("a", required=False)
@click.argument("b", required=False)
@click.option("--a", "line_a", metavar='"…"', help="Arguments of `sluice run` in the place of A.")
@click.option("--b", "line_b", metavar='"…"', help="Arguments of `sluice run` in the place of B.")
@click.option("text", "-p", "--prompt", metavar="TEXT", help="Prompt of whatever has none itself.")
@click.option("file", "-f", "--file", metavar="FILE", help="Read that prompt from FILE.")
@click.option(
    "localise",
    "--localise/--no-localise",
    default=True,
    help="Run both again and look at every node of their graphs.  [default: on]",
)
@click.option(
    "attribute",
    "--attribute/--no-attribute",
    default=True,
    help="Run what lies between the two, one switch at a time.  [default: on]",
)
@click.option(
    "as_json", "--json", is_flag=True, help="Print one JSON object, not a screen of text."
)
@click.option(
    "html",
    "--html",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write a page with texts, margins, movements and a map of the nodes to FILE.",
)
def triage(
    a: str | None,
    b: str | None,
    line_a: str | None,
    line_b: str | None,
    text: str | None,
    file: str | None,
    localise: bool,
    attribute: bool,
    as_json: bool,
    html: Path | None,
) -> int:
    """Say what differs between A and B, and why.

    A and B are evidence files, or two models of one shape that are run with one prompt; --a and
    --b run command lines, as in --a "bundled -p def" --b "bundled -p def --ubatch 1". Exit codes:
    0 the two are identical, 1 they differ, 2 the request is wrong, 3 a side could not be run.
    """
    names = [name for name in (a, b) if name is not None]
    asked = [_command(line, flag) if line is not None else _named(names, flag)
             for line, flag in ((line_a, "--a"), (line_b, "--b"))]  # fmt: skip
    if names:
        raise RequestError(f"{names[0]}: a third side; a triage has two")
    common = read_prompt(text, file) if text is not None or file is not None else None
    if html is not None:
        html = check_output_file("--html", html)
    output = Output()
    _check_prompts(asked, common)

    from sluice.triage.report import lines  # loads llama.cpp: only once nothing is refused
    from sluice.triage.triage import triage as triaged

    with Interrupt(before=lambda: None):
        finding = triaged(
            *(_side(one, asked, common) for one in asked),
            localise=localise,
            attribution=attribute,
            labels=(asked[0].label, asked[1].label),
        )
    if html is not None:
        from sluice.triage.page import page

        write_whole(html, page(finding))
    output.write(finding.to_json() if as_json else "\n".join(lines(finding)) + "\n")
    return exit_of([finding.classification.name])


def _command(line: str, flag: str) -> Asked:
    """A side that is arguments of ``sluice run``."""
    try:
        words = shlex.split(line)
    except ValueError as err:
        raise RequestError(f"{flag} {line}: not a command line: {err}") from None
    words = words[1:] if words[:1] == ["sluice"] else words
    words = words[1:] if words[:1] == ["run"] else words
    with run.make_context("sluice run", words) as context:
        given: dict[str, Any] = dict(context.params)
    for extra in ("evidence", "as_json"):
        if given.pop(extra):
            raise RequestError(f"{flag}: --{'json' if extra == 'as_json' else extra} has no meaning"
                               " in a triage; drop it")  # fmt: skip
    model, spec_type = given.pop("model"), given.pop("spec_type")
    text, file = given.pop("text"), given.pop("file")
    config = validate(config_of(model, given, spec_type))
    model_path(config.model)
    prompt = read_prompt(text, file) if text is not None or file is not None else None
    return Asked(line, config=config, prompt=prompt)


def _named(names: list[str], flag: str) -> Asked:
    """A side that is a file: evidence, or a model to run."""
    if not names:
        raise RequestError(
            f"one side is missing: give evidence files or models as A and B, or {flag} with the"
            " arguments of `sluice run`"
        )
    from sluice.gguf.header import MAGIC  # loads numpy and gguf

    name = names.pop(0)
    if name != BUNDLED:
        path = model_path(name)
        try:
            with path.open("rb") as start:
                is_model = start.read(len(MAGIC)) == MAGIC
        except OSError as err:
            raise RequestError(f"{name}: cannot be read: {err.strerror}") from None
        if not is_model:
            return Asked(name, evidence=Evidence.read(path))
    model_path(name)
    return Asked(name, config=validate(Config(model=name)))


def _check_prompts(asked: list[Asked], common: str | None) -> None:
    if common is None and not any(one.evidence or one.prompt for one in asked):
        raise RequestError("no prompt: models and command lines are run with -p TEXT or -f FILE")


def _side(one: Asked, asked: list[Asked], common: str | None) -> Evidence | Side:
    """What the triage takes; a side without a prompt gets the common one, or the other's."""
    from sluice.triage.side import Side

    if one.evidence is not None:
        return one.evidence
    assert one.config is not None
    other = next(side for side in asked if side is not one)
    prompt: str | tuple[int, ...] | None = one.prompt if one.prompt is not None else common
    if prompt is None and other.evidence is not None:
        prompt = tuple(other.evidence.prompt_ids)
    if prompt is None:
        prompt = other.prompt
    assert prompt is not None
    return Side(one.config, prompt)

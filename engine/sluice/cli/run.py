"""``sluice run``: one prompt through one model, text to stdout, telemetry to stderr."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sluice.bundled import model_path
from sluice.cli.faults import warn
from sluice.cli.files import check_output_file
from sluice.cli.interrupt import Interrupt
from sluice.cli.options import config_of, idle_flags, knob_options
from sluice.cli.output import Output
from sluice.cli.progress import Progress
from sluice.cli.prompt import check_source, read_prompt
from sluice.config import Config, validate
from sluice.errors import SluiceError
from sluice.telemetry import summary

if TYPE_CHECKING:
    from sluice.telemetry.evidence import Evidence
    from sluice.telemetry.metrics import Metrics

SCHEMA = "sluice-run/1"


@click.command()
@click.argument("model")
@click.option("text", "-p", "--prompt", metavar="TEXT", help="The prompt.")
@click.option(
    "file", "-f", "--file", metavar="FILE", help="Read the prompt from FILE as it is; - is stdin."
)
@knob_options
@click.option(
    "spec_type",
    "--spec-type",
    metavar="draft-mtp|none",
    help="llama.cpp's name for --mtp (draft-mtp) or for leaving it off (none).",
)
@click.option(
    "evidence",
    "--evidence",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write what was computed to FILE as JSON: ids, hashes of the logits, top two, groups.",
)
@click.option(
    "as_json", "--json", is_flag=True, help="Print one JSON object in the place of the text."
)
def run(
    model: str,
    text: str | None,
    file: str | None,
    spec_type: str | None,
    evidence: Path | None,
    as_json: bool,
    **values: Any,
) -> None:
    """Generate text with MODEL, a gguf file or the word `bundled`.

    The text streams to stdout, whole characters as they come; telemetry goes to stderr.
    Exit codes: 0 done, 2 the request is wrong, 3 the model or the machine failed.
    """
    check_source(text, file)
    config = validate(config_of(model, values, spec_type))
    path = model_path(config.model)
    if evidence is not None:
        from sluice.gguf.shards import files_by_name  # loads numpy and gguf

        inputs = [*files_by_name(path), *([Path(file)] if file not in (None, "-") else [])]
        evidence = check_output_file("--evidence", evidence, inputs=inputs)
    for line in idle_flags(config):
        warn(line)
    output = Output()
    prompt = read_prompt(text, file)
    progress = Progress()
    line = "interrupted" if evidence is None else "interrupted; no evidence written"
    with Interrupt(before=progress.close, line=line) as interrupt:
        _generate(config, prompt, evidence, as_json, output, progress, interrupt)


def _generate(
    config: Config,
    prompt: str,
    evidence: Path | None,
    as_json: bool,
    output: Output,
    progress: Progress,
    interrupt: Interrupt,
) -> None:
    from sluice.decoding.session import Session  # loads llama.cpp: only once nothing is refused

    def warn_clear_of_bars(message: str) -> None:
        progress.close()
        warn(message)

    try:
        with Session(config, progress=progress, warn=warn_clear_of_bars) as session:
            generation = session.generate(prompt, record=evidence is not None or as_json)
            started = False
            try:
                for token in generation:
                    progress.close()
                    if token.text and not as_json:
                        started = True
                        output.write(token.text)
                if generation.tail and not as_json:
                    output.write(generation.tail)
            except SluiceError:
                if started:
                    output.write("\n")
                raise
            metrics, resolved = generation.metrics, session.config
            recorded = generation.evidence() if evidence is not None or as_json else None
    finally:
        progress.close()
    output.write("\n" if not as_json or recorded is None else _document(recorded, metrics))
    if evidence is not None and recorded is not None:
        with interrupt.held_back():
            recorded.write(evidence)
            interrupt.line = "interrupted"
    for line in summary.lines(metrics, resolved):
        click.echo(line, err=True)
    for line in summary.warnings(metrics, resolved):
        warn(line)


def _document(evidence: Evidence, metrics: Metrics) -> str:
    derived = {
        "read_bytes": metrics.read_bytes,
        "tok_s": metrics.tok_s,
        "effective_tok_s": metrics.effective_tok_s,
    }
    return (
        json.dumps(
            {
                "schema": SCHEMA,
                "text": evidence.text,
                "ids": evidence.ids,
                "stop": dataclasses.asdict(evidence.stop),
                "metrics": metrics.as_dict() | derived,
                "config": evidence.config,
                "fingerprint": dataclasses.asdict(evidence.fingerprint),
            },
            indent=1,
        )
        + "\n"
    )

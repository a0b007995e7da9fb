"""``sluice doctor``: what this build can do for a model."""

from __future__ import annotations

import json

import click

from sluice.bundled import BUNDLED, model_path
from sluice.cli.options import knob_option
from sluice.cli.output import Output
from sluice.config import Config, validate


@click.command()
@click.argument("model", default=BUNDLED)
@knob_option("threads")
@knob_option("ubatch")
@click.option("as_json", "--json", is_flag=True, help="Print one JSON object.")
def doctor(model: str, threads: int, ubatch: int, as_json: bool) -> None:
    """Examine this build for MODEL (by default the bundled model).

    Runs the real kernels on weights of the model and prints their width classes, which numerics
    profiles hold, which drafts give the same bits, and what --moe-stream would read. Exit codes:
    0 examined, whatever was found; 2 the request is wrong, 3 the model cannot be read.
    """
    config = validate(Config(model=model, threads=threads, ubatch=ubatch)).resolved()
    path = model_path(config.model)
    from sluice.doctor.examination import examine  # loads llama.cpp: only once nothing is refused
    from sluice.doctor.words import lines

    output = Output()
    found = examine(path, threads=config.threads, ubatch=config.ubatch)
    output.write(json.dumps(found.as_dict(), indent=1) if as_json else "\n".join(lines(found)))
    output.write("\n")

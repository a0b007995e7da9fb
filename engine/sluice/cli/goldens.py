"""``sluice compare-goldens``: what moved between two recordings, by class."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import click

from sluice.cli.exits import IDENTICAL, exit_of
from sluice.cli.output import Output
from sluice.errors import RequestError

SCHEMA = "sluice-golden/1"


@click.command("compare-goldens")
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@click.option("as_json", "--json", is_flag=True, help="Print one JSON object.")
def compare_goldens(old: Path, new: Path, as_json: bool) -> int:
    """Say what moved between the recorded values OLD and NEW, by class.

    Each is a golden file, or a folder of them; files are matched by the model that they belong
    to. Exit codes: 0 nothing moved, 1 something did, 2 the request is wrong.
    """
    from sluice.triage.releases import changes, counted, fingerprint_changes

    pairs = _pairs(_goldens(old), _goldens(new), old, new)
    found = [change for left, right in pairs for change in changes(left, right)]
    prints = sorted({words for pair in pairs for words in fingerprint_changes(*pair)})
    output = Output()
    if as_json:
        document = {
            "schema": "sluice-releases/1",
            "fingerprint": prints,
            "changes": [dataclasses.asdict(change) for change in found],
        }
        output.write(json.dumps(document, indent=1) + "\n")
    else:
        for words in prints:
            output.write(f"{words}\n")
        for change in found:
            if change.name != IDENTICAL:
                where = ", ".join(p for p in (change.model, change.section, change.run) if p)
                output.write(f"{change.name}  {where}: {change.words}\n")
        output.write(f"{len(pairs)} models: {counted(found)}\n")
    return exit_of(change.name for change in found)


def _goldens(path: Path) -> dict[str, dict[str, Any]]:
    """Goldens by their model's name and numerics."""
    files = sorted(path.glob("*.yml")) if path.is_dir() else [path]
    if not files:
        raise RequestError(f"{path}: no golden in this folder; goldens end in .yml")
    found: dict[str, dict[str, Any]] = {}
    for file in files:
        golden = _load(file)
        name = f"{golden['model']} {golden['fingerprint'].get('numerics', '')}"
        if name in found:
            raise RequestError(f"{path}: two goldens of {name.strip()}; give their files")
        found[name] = golden
    return found


def _load(path: Path) -> dict[str, Any]:
    import yaml

    try:
        golden = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as err:
        raise RequestError(f"{path}: cannot be read as a golden: {err}") from None
    if not isinstance(golden, dict) or golden.get("schema") != SCHEMA:
        raise RequestError(f"{path}: not a golden of schema {SCHEMA}")
    for key in ("fingerprint", "sections"):
        if not isinstance(golden.get(key), dict):
            raise RequestError(f"{path}: a golden without {key}")
    return golden | {"model": str(golden.get("model", ""))}


def _pairs(
    old: dict[str, dict[str, Any]], new: dict[str, dict[str, Any]], left: Path, right: Path
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    if len(old) == len(new) == 1:
        return [(next(iter(old.values())), next(iter(new.values())))]
    shared = [name for name in old if name in new]
    if not shared:
        raise RequestError(f"{left} and {right}: no model is in both; there are"
                           f" {', '.join(old)} / {', '.join(new)}")  # fmt: skip
    return [(old[name], new[name]) for name in shared]

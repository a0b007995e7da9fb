"""One arm of an attribution, in a process of its own.

``python -m sluice.triage.arm`` reads a JSON object from standard input (``config``, ``off``,
``prompt_ids``) and writes one to standard output: ``evidence``, ``failed`` (a message or null).
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from sluice.config import Config
from sluice.errors import SluiceError, SystemFault
from sluice.telemetry.evidence import Evidence
from sluice.triage.side import Outcome, Side

TIMEOUT_S = 600.0


def in_own_process(side: Side, *, timeout_s: float = TIMEOUT_S) -> Outcome:
    """Run ``side`` by this interpreter, apart from whatever this process has done before.

    Raises:
        SystemFault: the process ended otherwise than with an answer.
    """
    asked = {
        "config": side.config.as_dict(),
        "off": sorted(side.off),
        "prompt": side.prompt,
    }
    line = [sys.executable, "-m", "sluice.triage.arm"]
    try:
        done = subprocess.run(
            line, input=json.dumps(asked), capture_output=True, timeout=timeout_s,
            encoding="utf-8", errors="backslashreplace", check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise SystemFault(f"an arm was still running after {timeout_s:g} s") from None
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
        evidence = answer["evidence"]
        if evidence is None:
            raise SystemFault(str(answer["failed"]))
        return Outcome(Evidence.from_json(json.dumps(evidence)), answer["failed"])
    except (ValueError, IndexError, KeyError, TypeError):
        said = (done.stderr.strip().splitlines() or ["nothing said"])[-1]
        raise SystemFault(f"an arm ended with exit code {done.returncode}: {said}") from None


def main() -> None:
    """See the module."""
    asked = json.load(sys.stdin)
    answer: dict[str, Any] = {"evidence": None, "failed": None}
    prompt = asked["prompt"]
    try:
        side = Side(
            Config(**asked["config"]),
            prompt if isinstance(prompt, str) else tuple(prompt),
            off=frozenset(asked["off"]),
        )
        outcome = side.run()
        answer = {"evidence": json.loads(outcome.evidence.to_json()), "failed": outcome.failed}
    except SluiceError as err:
        answer["failed"] = str(err)
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()

"""The command on the bundled model, in a process of its own."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.telemetry.evidence import Evidence

from .conftest import Ran, environment
from .test_interrupt import LISTENING

Command = Callable[..., Ran]

PLAIN = ("run", "bundled", "-t", "1", "-p", "def main(")
COMMAND = LISTENING + "import sys\nfrom sluice.cli.main import main\nmain(sys.argv[1:])\n"


def started(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-c", COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )


def test_plain_json_and_evidence_tell_the_same_text(process: Command, tmp_path: Path) -> None:
    plain = process(*PLAIN, "-n", 24, "--evidence", tmp_path / "ev.json")
    assert plain.code == 0
    evidence = Evidence.read(tmp_path / "ev.json")
    assert plain.out == evidence.text + "\n"
    document = json.loads(process(*PLAIN, "-n", 24, "--json").out)
    assert document["text"] == evidence.text
    assert document["ids"] == evidence.ids
    assert document["config"] == evidence.config
    assert [line.split(":")[0] for line in plain.err.splitlines()] == [
        *("generation", "prefill", "load"),
    ]


def test_the_lines_of_a_streamed_speculated_run(process: Command) -> None:
    ran = process(*PLAIN, "-n", 24, "--spec-type", "draft-mtp", "--moe-stream")
    assert ran.code == 0
    found = re.search(
        r"^mtp: (\d+)/(\d+) drafts accepted \(([\d.]+)%\), ([\d.]+) tokens per verify decode"
        r" \((\d+) decodes for (\d+) tokens\)$",
        ran.err,
        re.MULTILINE,
    )
    assert found is not None
    accepted, drafted, _, per_decode, decodes, _ = map(float, found.groups())
    assert accepted <= drafted == 3 * decodes
    assert 1 <= per_decode <= 4
    assert re.search(r"^streamed: [1-9][\d.]* MiB per token ", ran.err, re.MULTILINE)
    assert re.search(r"^mtp: [\d.]+ MiB streamed: [1-9].* by the head", ran.err, re.MULTILINE)
    assert re.search(r"^mtp: [\d.]+ tok/s effective", ran.err, re.MULTILINE)


def test_a_stream_is_whole_characters(process: Command) -> None:
    """At a high temperature bytes of characters come alone: each read must decode by itself."""
    flags = ["-n", "200", "--temp", "3", "--top-k", "0", "--top-p", "1", "--seed", "5"]
    with started(*PLAIN[:-1], "# 日本語 é", *flags) as child:
        assert child.stdout is not None
        reads = 0
        while piece := child.stdout.raw.read(65536):  # type: ignore[attr-defined]
            piece.decode("utf-8")
            reads += 1
        assert child.wait(60) == 0
    assert reads > 10


def test_a_reader_that_leaves_ends_the_run_quietly() -> None:
    with started(*PLAIN, "-n", "3000") as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.read(1)
        child.stdout.close()
        assert child.stderr.read() == b""
        assert child.wait(60) == 141


@pytest.mark.parametrize("flags", [[], ["--moe-stream"], ["--moe-stream", "--mtp"]], ids=" ".join)
def test_an_interrupt_ends_the_run(flags: list[str], tmp_path: Path) -> None:
    evidence = str(tmp_path / "ev.json")
    with started(*PLAIN, "-n", "3000", "--temp", "0", "--evidence", evidence, *flags) as child:
        assert child.stdout is not None
        first = child.stdout.read(1)
        child.send_signal(signal.SIGINT)
        rest, err = child.communicate(timeout=60)
    assert first
    assert child.returncode == 130
    assert err == b"sluice: interrupted; no evidence written\n"
    assert list(tmp_path.iterdir()) == []
    (first + rest).decode("utf-8")


@pytest.mark.parametrize(
    ("flags", "code", "says"),
    [
        (["-n", "5000"], 2, "-c 4096: "),
        (["-n", "4", "--evidence", "no/such.json"], 2, "--evidence no/such.json: "),
        (["-n", "4", "--mtp", "--temp", "1"], 2, "--mtp with --temp 1: "),
    ],
)
def test_refusals(flags: list[str], code: int, says: str, process: Command) -> None:
    ran = process(*PLAIN, *flags)
    assert ran.code == code
    assert ran.refusal().startswith(says)

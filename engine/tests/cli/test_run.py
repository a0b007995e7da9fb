from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.cli.main import main
from sluice.errors import ModelError, ReadFault
from sluice.telemetry.evidence import Evidence
from sluice.telemetry.metrics import Metrics

from .conftest import FakeEngine, Ran

Command = Callable[..., Ran]
TEXT = "Once é\n日本"


def test_text_to_stdout_telemetry_to_stderr(
    command: Command, engine: FakeEngine, model: Path
) -> None:
    ran = command("run", model, "-p", "the prompt", "-n", 5)
    assert (ran.code, ran.out) == (0, TEXT + "\n")
    assert ran.err.splitlines() == [
        "generation: 5 tokens",
        "prefill: 4 tokens",
        "load: 1.50 s",
    ]
    assert (engine.prompt, engine.record) == ("the prompt", False)


def test_every_piece_is_out_before_the_next_is_computed(
    engine: FakeEngine, model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []
    engine.pieces = ["a", "", "é", "b"]
    engine.before_token = lambda step: seen.append(capfd.readouterr().out)
    with pytest.raises(SystemExit):
        main(["run", str(model), "-p", "x"])
    assert seen == ["", "a", "", "é"]
    assert capfd.readouterr().out == "b\n"


def test_flags_reach_the_session(command: Command, engine: FakeEngine, model: Path) -> None:
    flags = "--temp 0 --draft 5 --spec-draft-n-min 2 --spec-draft-p-min 0.5 --spec-type draft-mtp"
    flags += " --moe-stream --no-odirect --io-threads 2 -t 1 -c 99 -n 7 --ubatch 16 --seed 3"
    assert command("run", model, "-p", "x", *flags.split()).code == 0
    c = engine.config
    assert (c.mtp, c.draft, c.draft_min, c.mtp_p_min) == (True, 5, 2, 0.5)
    assert (c.moe_stream, c.odirect, c.io_threads) == (True, False, 2)
    assert (c.threads, c.ctx, c.n, c.ubatch, c.seed) == (1, 99, 7, 16, 3)
    assert c.model == str(model)


def test_json(command: Command, engine: FakeEngine, model: Path) -> None:
    ran = command("run", model, "-p", "x", "--json")
    document = json.loads(ran.out)
    assert list(document) == [
        *("schema", "text", "ids", "stop", "metrics", "config", "fingerprint"),
    ]
    assert (document["text"], document["ids"]) == (TEXT, [0, 1, 2, 3, 4])
    assert document["stop"]["reason"] == "n"
    assert document["metrics"]["n_generated"] == 5
    assert document["config"]["model"] == str(model)
    assert engine.record


def test_evidence(command: Command, engine: FakeEngine, model: Path, tmp_path: Path) -> None:
    ran = command("run", model, "-p", "x", "--evidence", tmp_path / "ev.json")
    assert (ran.code, ran.out) == (0, TEXT + "\n")
    assert Evidence.read(tmp_path / "ev.json").text == TEXT


def test_evidence_never_overwrites_a_shard(command: Command, tmp_path: Path) -> None:
    shards = [tmp_path / f"m-0000{i}-of-00002.gguf" for i in (1, 2)]
    for path in shards:
        path.write_bytes(b"GGUF")
    said = command("run", shards[0], "-p", "x", "--evidence", shards[1]).refusal()
    assert said.startswith(f"--evidence {shards[1]}: the run reads that file")


def test_warnings(command: Command, engine: FakeEngine, model: Path) -> None:
    engine.warning = "buffered\nreads"
    engine.metrics = Metrics(n_generated=4, n_decodes=3, n_drafted=9)
    ran = command("run", model, "-p", "x", "--mtp")
    assert ran.code == 0
    warned = [line for line in ran.err.splitlines() if line.startswith("sluice: warning: ")]
    assert warned[0] == "sluice: warning: buffered\\nreads"
    assert "0 of 9 drafts accepted (0%)" in warned[1]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-n", "many", "-p", "x"], "'-n'"),
        (["-n", "many", "-p", "x"], "'many' is not a valid integer"),
        (["--temp", "warm", "-p", "x"], "'warm' is not a valid float"),
        (["--tmep", "1", "-p", "x"], "--tmep"),
        (["--tmep", "1", "-p", "x"], "; try `sluice run --help`"),
        (["-p"], "-p"),
        (["-p", "x", "left over"], "(left over)"),
        (["-p", "x", "-n", "0"], "-n 0: must be at least 1"),
        (["-p", "x", "--draft", "9"], "--draft 9: must be at most 8"),
        (["-p", "x", "--seed", "-1"], "--seed -1: must be at least 0"),
        (["-p", "x", "--top-p", "nan"], "--top-p nan: must be a finite number"),
        (["-p", "x", "--flash-attn", "maybe"], "--flash-attn maybe: must be one of auto, on, off"),
        (["-p", "x", "--mtp", "--temp", "0.5"], "--mtp with --temp 0.5: "),
        (["-p", "x", "--mtp", "--ubatch", "4"], "--ubatch 4: too narrow"),
        (["-p", "x", "--load-all"], "--load-all: only has a meaning when"),
        (["-p", "x", "--spec-type", "draft-eagle3"], "--spec-type draft-eagle3: "),
        (["-p", "x", "-f", "-"], "-p with -f: "),
        ([], "no prompt: "),
        (["-f", "no such"], "-f no such: cannot be read: "),
        (["-p", "x", "--evidence", "no/such.json"], "--evidence no/such.json: the folder no "),
        (["-p", "x", "--evidence", "/dev/null"], "--evidence /dev/null: is not a regular file"),
    ],
)
def test_refusals(
    arguments: list[str], says: str, command: Command, engine: FakeEngine, model: Path
) -> None:
    ran = command("run", model, *arguments)
    assert says in ran.refusal()
    assert ran.code == 2
    assert engine.prompt is None


def test_a_model_that_is_not_there(command: Command, engine: FakeEngine, tmp_path: Path) -> None:
    ran = command("run", tmp_path / "no\nsuch.gguf", "-p", "x")
    assert ran.code == 2
    assert "no\\nsuch.gguf: no such file" in ran.refusal()
    assert "is a folder" in command("run", tmp_path, "-p", "x").refusal()


def test_a_model_that_does_not_open(command: Command, engine: FakeEngine, model: Path) -> None:
    engine.on_open = ModelError("tensor 'blk.4.nextn.eh_proj.weight' not found\n")
    ran = command("run", model, "-p", "x")
    assert ran.code == 3
    assert ran.refusal() == "tensor 'blk.4.nextn.eh_proj.weight' not found"


def test_a_fault_in_mid_text_ends_the_line_and_writes_no_evidence(
    command: Command, engine: FakeEngine, model: Path, tmp_path: Path
) -> None:
    engine.pieces = ["Once", ReadFault("short read")]
    ran = command("run", model, "-p", "x", "--evidence", tmp_path / "ev.json")
    assert (ran.code, ran.out, ran.err) == (3, "Once\n", "sluice: error: short read\n")
    assert not list(tmp_path.glob("*ev.json*"))
    ran = command("run", model, "-p", "x", "--json")
    assert (ran.code, ran.out, ran.err) == (3, "", "sluice: error: short read\n")


def test_a_defect(command: Command, engine: FakeEngine, model: Path) -> None:
    engine.on_open = IndexError("list index\nout of range")
    ran = command("run", model, "-p", "x")
    assert ran.code == 3
    assert ran.err.startswith("sluice: internal error: IndexError: list index\\nout of range; ")
    assert len(ran.err.splitlines()) == 1

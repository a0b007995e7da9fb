"""``sluice sweep`` whole: the bundled model in process, and servers that fail and that do not."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.bundled import model_path
from sluice.cli.sweep_plan import context_for
from sluice.cli.sweep_progress import SweepProgress, left
from sluice.sweep.row import Key, Row
from sluice.sweep.rows import read
from sluice.sweep.schedule import schedule
from sluice.sweep.workload import Prompt, Workload, bundled_workloads, default_workloads
from sluice.targets.server_process import ServerProcess, free_port

from .conftest import Ran, environment

Command = Callable[..., Ran]
FAKE = Path(__file__).parents[1] / "sweep" / "fake_server.py"
FILES = ["acceptance.png", "figures.json", "index.html", "places.png", "rates.png", "rows.jsonl",
         "steps.png", "table.txt"]  # fmt: skip
ARMS = ("--arms-only", "--arm", "off", "--arm", "n_max=2", "--arm", "n_max=4,p_min=0.7")


def workload(folder: Path, *texts: str, n: int = 12, **changes: Any) -> Path:
    path = folder / "mine.json"
    prompts = [{"name": f"p{i}", "text": text} for i, text in enumerate(texts)]
    values = {"schema": "sluice-workload/1", "name": "mine", "n": n, "chat": False}
    path.write_text(json.dumps(values | {"prompts": prompts} | changes), encoding="utf-8")
    return path


@pytest.fixture
def mine(tmp_path: Path) -> list[object]:
    """Two short prompts, and nothing else."""
    file = workload(tmp_path, "import os\n\n\ndef main(", "class Queue:\n    def put(self")
    return ["--workloads-only", "--workload", file, "-t", 1]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def rows(out: Path) -> dict[Key, Row]:
    return {row.key: row for row in read(out).rows}


def fake(*arguments: object) -> str:
    return shlex.join([sys.executable, str(FAKE), *map(str, arguments)])


def test_a_sweep_in_process_from_end_to_end(
    command: Command, mine: list[object], out: Path, tmp_path: Path
) -> None:
    sweep = ("sweep", "bundled", "--out", out, *mine, *ARMS, "--repeats", 2, "--workload",
             "sampled-python", "-n", 10)  # fmt: skip
    ran = command(*sweep)
    assert ran.code == 0
    assert "Traceback" not in ran.err
    assert "sweep: repeat 1/2  n_max=2: " in ran.err
    assert ran.out == (out / "table.txt").read_text(encoding="utf-8")
    assert sorted(path.name for path in out.iterdir()) == sorted([*FILES, "prompts"])
    found = rows(out)
    assert len(found) == 3 * 2 * (2 + 4)
    counts = Counter((row.workload, row.arm, row.outcome) for row in found.values())
    assert counts["mine", "n_max=2", "ok"] == counts["mine", "off", "ok"] == 4
    assert counts["sampled-python", "off", "ok"] == 8
    assert counts["sampled-python", "n_max=2", "refused"] == 8
    assert "speculation needs greedy decoding" in ran.out
    drafted = found["n_max=2", "mine", "p0", 0, None]
    assert drafted.n_decoded == 9
    assert 0 < drafted.n_accepted <= drafted.n_drafted
    assert len(drafted.text_sha256) == 64
    document = json.loads((out / "figures.json").read_text(encoding="utf-8"))
    assert document["identity"]["settings"]["n"] == "10"
    assert (out / "rates.png").read_bytes().startswith(b"\x89PNG")

    before = (out / "rows.jsonl").read_bytes()
    again = command(*sweep)
    assert (again.code, again.out) == (0, ran.out)
    assert (out / "rows.jsonl").read_bytes() == before, "what is done or refused is not made again"

    for path, there in ((out, "replayed"), (out / "rows.jsonl", "replayed too")):
        replayed = command("sweep", "--replay", path, "--out", tmp_path / there)
        assert (replayed.code, replayed.out) == (0, ran.out)
        for name in FILES:
            if name != "rows.jsonl":
                assert (tmp_path / there / name).read_bytes() == (out / name).read_bytes()
    values = json.loads(command("sweep", "--replay", out, "--json").out)
    assert values == document

    line = command("sweep", "bundled", "--out", out, *mine, *ARMS, "-c", 512, "-n", 10).refusal()
    assert "rows of another configuration (ctx: 512 here, 4096 there); give another --out" in line
    line = command("sweep", "bundled", "--out", out, *mine, *ARMS).refusal()
    assert "n: not set here, 10 there" in line
    assert (out / "rows.jsonl").read_bytes() == before

    compared = command("sweep", "--compare", out, tmp_path / "out", "--out", tmp_path / "both")
    assert compared.code == 0
    assert "nothing but the time" in compared.out
    assert compared.out == (tmp_path / "both" / "compare.txt").read_text(encoding="utf-8")
    pairs = json.loads((tmp_path / "both" / "compare.json").read_text(encoding="utf-8"))["pairs"]
    assert {pair["verdict"] for pair in pairs} == {"within noise"}


def test_streamed_arms_are_measured_cold_and_warm(
    command: Command, mine: list[object], out: Path
) -> None:
    arms = ["--arm", "off,moe_stream", "--arm", "n_max=2,moe_stream,cache_mb=auto"]
    ran = command("sweep", "bundled", "--out", out, *mine, "--arms-only", *arms, "--repeats", 1)
    assert ran.code == 0
    assert "n_max=2,moe_stream,cache_mb=auto (warm)" in ran.out
    assert "MiB/accepted" in ran.out
    found = rows(out)
    assert len(found) == 2 * 2 * 2
    uncached = found["off,moe_stream", "mine", "p0", 0, False]
    cached = found["n_max=2,moe_stream,cache_mb=auto", "mine", "p0", 0, False]
    assert uncached.read_bytes
    assert cached.read_bytes == 0, "all of it is in the cache by then"


def test_the_streamed_arms_by_default_are_those_with_and_without_the_cache(
    command: Command, mine: list[object], out: Path
) -> None:
    ran = command(
        "sweep", "bundled", "--out", out, *mine, "--arms-only", "--moe-stream", "--cache-mb", 64,
        "-n", 4, "--repeats", 1,
    )  # fmt: skip
    assert ran.code == 0
    arms = {key.arm for key in rows(out)}
    assert len(arms) == 10
    assert {"off,moe_stream", "n_max=4,moe_stream,cache_mb=64"} <= arms


def test_ctrl_c_keeps_what_is_done_and_the_same_command_goes_on(
    command: Command, out: Path
) -> None:
    sweep = ["sweep", "bundled", "--out", str(out), *ARMS, "--workload", "greedy-python",
             "-n", "48", "-t", "1", "--repeats", "3"]  # fmt: skip
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "sluice.cli.main", *sweep],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
    ) as going:  # fmt: skip
        wait_for(lambda: lines_of(out / "rows.jsonl") >= 4)
        going.send_signal(signal.SIGINT)
        _, err = going.communicate(timeout=60)
    assert going.returncode == 130
    assert "Traceback" not in err
    last = err.splitlines()[-1]
    kept = read(out).rows
    assert last == (
        f"sluice: interrupted; {len(kept)} of 36 requests are in {out}: the same command goes on"
        f" from there, sluice sweep --replay {out} shows them"
    )
    assert 3 <= len(kept) < 36
    before = (out / "rows.jsonl").read_bytes()
    ran = command(*sweep)
    assert ran.code == 0
    assert f"sweep: {len(kept)} of 36 requests are there already" in ran.err
    after = (out / "rows.jsonl").read_bytes()
    assert after.startswith(before)
    assert len(after.splitlines()) == 1 + 36, "none was made twice"
    assert set(rows(out)) == keys_of(3)


def keys_of(repeats: int) -> set[Key]:
    from sluice.sweep.arm import parse

    arms = [parse(text) for text in ("off", "n_max=2", "n_max=4,p_min=0.7")]
    visits = schedule(arms, bundled_workloads()[:1], repeats)
    return {request.key for visit in visits for request in visit.requests}


def test_a_server_that_fails_costs_its_rows_and_not_the_sweep(
    command: Command, tmp_path: Path, out: Path
) -> None:
    file = workload(tmp_path, "well", "DIE", "HANG", "NONSENSE", "well again")
    sweep = ("sweep", "--out", out, "--server-cmd", fake(), "--workloads-only", "--workload", file,
             "--arms-only", "--arm", "n_max=3", "--arm", "n_max=5", "--repeats", 1,
             "--timeout", 3)  # fmt: skip
    ran = command(*sweep)
    assert ran.code == 0
    assert ran.err.endswith("8 requests failed, for the reasons above; the same command makes them"
                            " again\n")  # fmt: skip
    found = rows(out)
    errors = {key.prompt: row.error for key, row in found.items() if key.arm == "n_max=3"}
    assert errors["p0"] == errors["p4"] == ""
    assert "ended with exit code 7" in errors["p1"]
    assert "out of luck" in errors["p1"]
    assert "no answer to /completion after 3 s" in errors["p2"]
    assert "predicted_ms is soon, not a time" in errors["p3"]
    starts = {row.error for key, row in found.items() if key.arm == "n_max=5"}
    assert len(starts) == 1
    assert "ended with exit code 3" in starts.pop()
    good = found["n_max=3", "mine", "p0", 0, None]
    # No counters, no mean length in the log: at a fixed length the steps follow from the counts.
    assert (good.n_drafted, good.n_verify, good.n_undrafted) == (15, 5, 0)


def test_what_was_measured_is_shown_where_the_report_cannot_be_written(
    command: Command, mine: list[object], out: Path
) -> None:
    (out / "index.html").mkdir(parents=True)
    ran = command("sweep", "bundled", "--out", out, *mine, "--arms-only", "--arm", "off",
                  "--repeats", 1, "-n", 4)  # fmt: skip
    assert ran.code == 3
    assert "index.html: cannot be written" in ran.err.splitlines()[-1]
    assert ran.out == (out / "table.txt").read_text(encoding="utf-8")


def test_where_nothing_could_be_measured_the_sweep_says_so(
    command: Command, mine: list[object], out: Path
) -> None:
    ran = command("sweep", "--out", out, "--server-cmd", fake(), *mine[:3], "--arms-only",
                  "--arm", "n_max=5", "--repeats", 1)  # fmt: skip
    assert ran.code == 3
    assert "nothing was measured" in ran.err.splitlines()[-1]
    assert "failed to load the draft" in ran.out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_server_of_ours_outlives_the_sweep(tmp_path: Path, out: Path, number: int) -> None:
    pid_file = tmp_path / "pid"
    sweep = ["sweep", "--out", out, "--server-cmd", fake(pid_file), "--workloads-only",
             "--workload", workload(tmp_path, "HANG"), "--arms-only", "--arm", "off"]  # fmt: skip
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "sluice.cli.main", *map(str, sweep)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
    ) as going:  # fmt: skip
        wait_for(lambda: pid_file.exists() and pid_file.read_text() != "")
        pid = int(pid_file.read_text())
        going.send_signal(number)
        _, err = going.communicate(timeout=60)
    if number == signal.SIGINT:
        assert going.returncode == 130
        assert "interrupted; 0 of 3 requests" in err
        assert not is_there(pid)
    wait_for(lambda: not is_there(pid))


@pytest.fixture
def given() -> Iterator[str]:
    """The URL of a server that is there already; it does not draft."""
    port = free_port()
    with ServerProcess([sys.executable, str(FAKE), "--port", str(port)], grace_s=0.2):
        yield f"http://127.0.0.1:{port}"


def test_a_server_that_is_there_is_one_arm(
    command: Command, mine: list[object], out: Path, given: str
) -> None:
    sweep = ("sweep", "--out", out, "--server", given, *mine[:3], "--repeats", 2)
    assert "it is one arm" in command(*sweep).refusal()
    assert "it is one arm" in command(*sweep, "--arm", "off", "--arm", "n_max=2").refusal()
    ran = command(*sweep, "--arm", "off")
    assert ran.code == 0
    recorded = read(out)
    assert (recorded.identity.target, recorded.identity.model) == ("server", "m.gguf")
    assert recorded.identity.build == "b1"
    assert [row.outcome for row in recorded.rows] == ["ok"] * 4
    ran = command("sweep", "--out", out, "--server", "http://127.0.0.1:9", "--arm", "off")
    assert ran.code == 3
    assert "http://127.0.0.1:9: not ready" in ran.err


def test_a_real_llama_server_is_swept(
    command: Command, llama_server: Path, mine: list[object], out: Path
) -> None:
    line = shlex.join([str(llama_server), "-m", str(model_path("bundled")), "-t", "1", "-c", "512",
                       "-np", "1"])  # fmt: skip
    ran = command("sweep", "bundled", "--server-cmd", line, "--out", out, *mine[:3], "--repeats",
                  2, "--arms-only", "--arm", "off", "--arm", "n_max=2")  # fmt: skip
    assert ran.code == 0, ran.err
    found = rows(out)
    assert {row.outcome for row in found.values()} == {"ok"}
    assert len(found) == 2 * 2 * 2
    drafted = found["n_max=2", "mine", "p0", 0, None]
    off = found["off", "mine", "p0", 0, None]
    assert (off.n_decoded, off.n_drafted, off.n_steps) == (11, 0, 11)
    assert 0 < drafted.n_accepted <= drafted.n_drafted
    assert drafted.n_verify is not None
    assert read(out).identity.threads == 1
    assert read(out).identity.build.startswith("version: ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--out is missing"),
        (["bundled"], "--out is missing"),
        (["--out", "F"], "MODEL is missing"),
        (["nosuch.gguf", "--out", "F"], "nosuch.gguf: no such file"),
        (["bundled", "--out", "F", "--arm", "n_max=9"], "must be at most 8"),
        (["bundled", "--out", "F", "--arms-only"], "no arm is left"),
        (["bundled", "--out", "F", "--workloads-only"], "none is left"),
        (["bundled", "--out", "F", "--workload", "nosuch"], "neither a file nor one of"),
        (["bundled", "--out", "F", "--repeats", "0"], "--repeats 0: must be 1 to 1000"),
        (["bundled", "--out", "F", "--timeout", "0"], "--timeout 0: must be"),
        (["bundled", "--out", "F", "-n", "0"], "-n 0: must be at least 1"),
        (["bundled", "--out", "F", "-c", "8"], "-c 8: must be at least 16"),
        (["bundled", "--out", "F", "--overlap"], "--overlap: is of streamed arms"),
        (["--out", "F", "--server-cmd", "nosuch-server"], "no such program"),
        (["--out", "F", "--server-cmd", "sh", "-t", "3"], "-t: is Sluice's own engine's"),
        (["--out", "F", "--server-cmd", "sh", "--arm", "off,moe_stream"], "not stream experts"),
        (["--out", "F", "--server-cmd", "sh", "--server", "http://h"], "one target"),
        (["--out", "F", "--server", "h", "--arm", "off"], "no URL"),
        (["--replay", "nosuch"], "nosuch: cannot be read"),
        (["--replay", "x", "--arm", "off"], "--arm with --replay"),
        (["bundled", "--replay", "x"], "MODEL with --replay"),
        (["--compare", "nosuch", "x"], "nosuch: cannot be read"),
        (["--compare", "x", "y", "--replay", "z"], "--compare with --replay"),
    ],
)
def test_what_is_wrong_is_refused_in_one_line(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str],
    words: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    ran = command("sweep", *arguments)
    assert ran.code == 2
    assert words in ran.refusal()
    assert not list(tmp_path.glob("F/*"))


def test_a_server_of_another_model_is_refused(
    command: Command, tmp_path: Path, tiny_gguf: Callable[..., Path]
) -> None:
    other = tiny_gguf(tmp_path / "other.gguf", {"token_embd.weight": (4, 4)})
    ran = command("sweep", "bundled", "--out", tmp_path / "F", "--server-cmd", f"sh -m {other}")
    assert ran.code == 2
    assert "--server-cmd runs another model" in ran.refusal()


def test_the_context_fits_the_prompts() -> None:
    assert context_for(bundled_workloads()) == 4096
    assert 24_000 + 1536 < context_for(default_workloads(speculates_sampled=False)) < 65_536
    assert context_for([Workload("w", (Prompt("p", "é" * 30_000),), n=1000)]) == 21_504


def test_the_time_left_is_said_in_words() -> None:
    said = [left(seconds) for seconds in (None, 0.2, 89, 600, 9000)]
    assert said == ["", ", about 1 s left", ", about 89 s left", ", about 10 min left",
                    ", about 2.5 h left"]  # fmt: skip


def test_a_terminal_sees_arm_workload_and_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    from sluice.sweep.arm import parse

    (visit,) = schedule([parse("n_max=3")], [Workload("code", (Prompt("a", "x"),), n=8)], 1)
    progress = SweepProgress(2, shown=True)
    written: list[tuple[int, int]] = []
    progress.on_written = lambda done, total: written.append((done, total))
    progress.begins(visit.requests[0], 3, 8, 42.0)
    progress.wrote(4, 8)
    progress.close()
    progress.close()
    shown = capsys.readouterr().err
    assert "repeat 1/2  n_max=3  code, a, about 42 s left" in shown
    assert written == [(4, 8)]


def is_there(pid: int) -> bool:
    """Whether a process runs; one that ended and was not waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def lines_of(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.005)

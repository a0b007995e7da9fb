from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import rounds
import streaming
from peer import PeerRun
from report import Taken
from sluice.targets.cgroup import why_no_cgroup

ARMS = ["raw", "resident", "off", "third+predict", "limit-auto", "peer-third"]


def test_a_benchmark_from_end_to_end(
    routed_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A peer of 10 ms a token; test_peer.py runs commands for real.
    monkeypatch.setenv("BENCH_PEER", "peer {model} {n} {cache_mb}")
    monkeypatch.setattr(
        rounds, "run_peer", lambda command, _timeout_s: PeerRun(int(command[2]) / 100, 5 << 20)
    )
    monkeypatch.setattr(rounds, "prompt_ids", lambda _n: [5, 6, 7])
    monkeypatch.setattr(rounds, "RAW_BYTES", 16 << 20)
    # The limit is for a model of GBs: here it has to hold the interpreter, too.
    monkeypatch.setattr(rounds.Subject, "limit_bytes", property(lambda _self: 400 << 20))
    out, plot = tmp_path / "new" / "b.json", tmp_path / "b.png"
    arguments = ["--model", str(routed_model), "--rounds", "2", "--n", "16", "-t", "1",
                 "--json", str(out), "--plot", str(plot), "--only", *ARMS]  # fmt: skip
    assert streaming.main(arguments) == 0
    said = capsys.readouterr()
    document = json.loads(out.read_text(encoding="utf-8"))
    assert document["schema"] == "sluice-bench/3"
    arms = {arm["name"]: arm for arm in document["arms"]}
    limited = {"limit-auto"} if why_no_cgroup() is None else set()
    assert set(arms) == set(ARMS) - {"limit-auto"} | limited
    for arm in arms.values():
        assert len(arm["rounds"]) == 2
        owns = [r["own"] for r in arm["rounds"]]
        besides = [r["beside"] for r in arm["rounds"]]
        if arm["name"] != "raw":
            assert [own["error"] for own in owns] == ["", ""]
            assert f"| {arm['label']} |" in said.out
        if arm["name"].startswith("limit"):
            assert besides == [{}, {}]
        else:
            assert [set(beside) for beside in besides] == [{"raw", "resident"}] * 2
            assert all(beside["resident"]["n_tokens"] == 16 for beside in besides)
    assert arms["peer-third"]["summary"]["tok_s"]["median"] == pytest.approx(100)
    for name in limited:
        peaks = [r["own"]["group_peak_bytes"] for r in arms[name]["rounds"]]
        assert all(0 < peak <= 400 << 20 for peak in peaks), peaks
    assert sum(": wanted " in line for line in said.out.splitlines()) == len(document["bars"]) == 4
    assert said.err.count("round 2 of 2") == len(arms)
    assert plot.exists() or "matplotlib is not installed" in said.out


def test_without_memory_for_two_models_arms_follow_each_other(
    routed_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rounds, "prompt_ids", lambda _n: [5, 6, 7])
    monkeypatch.setattr(rounds, "available_bytes", lambda: 1 << 30)
    out = tmp_path / "b.json"
    arguments = ["--model", str(routed_model), "--rounds", "1", "--n", "8", "-t", "1",
                 "--json", str(out), "--plot", str(tmp_path / "b.png"),
                 "--only", "resident", "off"]  # fmt: skip
    assert streaming.main(arguments) == 0
    said = capsys.readouterr()
    document = json.loads(out.read_text(encoding="utf-8"))
    assert "1024 MiB of memory are available" in said.err
    assert document["not_in_turns"] in said.err
    assert [arm["rounds"][0]["beside"] for arm in document["arms"]] == [{}, {}]
    assert document["arms"][1]["summary"]["to_resident"]["median"] > 0


@pytest.mark.parametrize(
    ("n", "turns"),
    [(1, (1, 1)), (7, (1, 7)), (16, (1, 16)), (17, (2, 9)), (60, (4, 15)), (64, (4, 16))],
)
def test_turns_are_of_sixteen_tokens_at_most(n: int, turns: tuple[int, int]) -> None:
    assert rounds.turns_of(n) == turns


@pytest.mark.parametrize("spare", [-1, 0])
def test_the_model_has_to_fit_twice(
    routed_model: Path, monkeypatch: pytest.MonkeyPatch, spare: int
) -> None:
    subject = streaming._subject(routed_model)
    needed = 2 * subject.file_bytes + rounds.SPARE_BYTES
    monkeypatch.setattr(rounds, "available_bytes", lambda: needed + spare)
    assert bool(rounds.why_not_in_turns(subject)) == (spare < 0)
    monkeypatch.setattr(rounds, "available_bytes", lambda: None)
    assert not rounds.why_not_in_turns(subject)


def test_who_dies_beside_an_arm_is_replaced_for_the_next(
    routed_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "prompt_ids", lambda _n: [5, 6, 7])
    taken = rounds._taken
    subject = streaming._subject(routed_model)
    how = rounds.How(turns=1, turn_tokens=8, warm=2, rounds=1, threads=1, io_threads=2, peer="")
    arms = streaming._arms(subject, how, ["resident", "off", "off+overlap"])

    def kills_first(*given: Any) -> Taken:
        if not done:
            given[3]["resident"]._process.kill()
        done.append(given[1].name)
        return taken(*given)

    done: list[str] = []
    monkeypatch.setattr(rounds, "_taken", kills_first)
    (here,) = rounds.measure(subject, arms, how, takes_turns=True)
    errors = [here[name].beside["resident"].error for name in done]
    assert errors == ["ended with -9", "", ""]
    assert [here[name].own.error for name in done] == ["", "", ""]


@pytest.mark.parametrize(
    ("arguments", "template", "words"),
    [
        (["--only", "half"], "", "--only half: no such arm; there are raw, resident, off"),
        ([], "peer {n}", "has no {model}"),
        (["--n", "0"], "", "--n 0: must be 1 or more"),
        (["--rounds", "-1"], "", "--rounds -1: must be 1 or more"),
    ],
)
def test_a_wrong_request_is_one_line_and_exit_code_2(
    arguments: list[str],
    template: str,
    words: str,
    bundled: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BENCH_PEER", template)
    assert streaming.main(["--model", str(bundled), *arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith("bench: error: ")
    assert words in said
    assert said.count("\n") == 1

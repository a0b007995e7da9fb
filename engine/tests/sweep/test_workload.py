from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sluice.config import SEED_MAX, Config, validate
from sluice.errors import RequestError
from sluice.sweep.workload import (
    Workload,
    bundled_workloads,
    check_distinct,
    default_workloads,
    load,
)

GOOD: dict[str, Any] = {
    "schema": "sluice-workload/1",
    "name": "mine",
    "prompts": [{"name": "one", "text": "def f():\n"}],
}


def written(folder: Path, value: Any, name: str = "w.json") -> Path:
    path = folder / name
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


def test_the_default_workloads_are_those_of_the_method() -> None:
    greedy, sampled, short, long = default_workloads(speculates_sampled=True, long_tokens=2000)
    assert [w.name for w in (greedy, sampled, short, long)] == [
        "greedy-code", "sampled-code", "short-prose", "long-prose",
    ]  # fmt: skip
    assert greedy.is_greedy
    assert not greedy.thinking
    assert greedy.n == 1536
    assert sampled.prompts == greedy.prompts
    assert (sampled.temp, sampled.top_p, sampled.top_k) == (1.0, 0.95, 20)
    assert sampled.thinking
    assert (short.temp, len(short.prompts), len(long.prompts)) == (1.0, 1, 1)
    for workload in (greedy, sampled, short, long):
        validate(Config(model="bundled", **workload.config_fields(3)))


def test_prose_is_greedy_where_sampled_arms_are_refused() -> None:
    workloads = default_workloads(speculates_sampled=False, long_tokens=2000)
    assert [w.is_greedy for w in workloads] == [True, False, True, True]


def test_each_code_prompt_brings_ten_tests_that_are_python() -> None:
    for prompt in default_workloads(speculates_sampled=True, long_tokens=500)[0].prompts:
        source = prompt.text[prompt.text.index("import pytest") :]
        compile(source, prompt.name, "exec")
        assert source.count("\ndef test_") == 10


def test_the_bundled_model_is_given_python_only() -> None:
    greedy, sampled = bundled_workloads()
    assert greedy.is_greedy
    assert not sampled.is_greedy
    assert not greedy.chat
    assert len(greedy.prompts) == 4
    assert sampled.prompts == greedy.prompts


def test_the_key_follows_the_request_and_not_the_name(tmp_path: Path) -> None:
    base = load(written(tmp_path, GOOD))
    assert load(written(tmp_path, GOOD | {"name": "other"})).key == base.key
    assert load(written(tmp_path, GOOD | {"temp": 0})).key == base.key
    for change in ({"n": 8}, {"temp": 0.5}, {"chat": False}, {"seed": 1}):
        assert load(written(tmp_path, GOOD | change)).key != base.key


def test_repeats_of_a_sampled_workload_are_other_texts() -> None:
    greedy, sampled = bundled_workloads()
    assert [greedy.seed_of(r) for r in range(3)] == [42, 42, 42]
    assert [sampled.seed_of(r) for r in range(3)] == [42, 43, 44]
    last = Workload("w", sampled.prompts, temp=1.0, seed=SEED_MAX)
    assert last.seed_of(1) == 0


def test_a_file_that_is_not_json_is_one_greedy_prompt(tmp_path: Path) -> None:
    (tmp_path / "tale.txt").write_bytes(b"Once upon a time\r\n")
    found = load(tmp_path / "tale.txt")
    assert (found.name, found.is_greedy) == ("tale", True)
    assert [(p.name, p.text) for p in found.prompts] == [("tale", "Once upon a time\r\n")]


def test_a_prompt_may_lie_in_a_file_beside_it(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_bytes("é\r\n".encode())
    raw = GOOD | {"prompts": [{"name": "one", "file": "p.txt"}], "temp": 0.5, "n": 7}
    found = load(written(tmp_path, raw))
    assert found.prompts[0].text == "é\r\n"
    assert (found.temp, found.n) == (0.5, 7)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "x"}, "schema 'x', this Sluice reads 'sluice-workload/1'"),
        ({"name": ""}, "name '': must be 1 to 60 printable characters"),
        ({"name": "a\nb"}, "name 'a\\nb': must be"),
        ({"name": 3}, "name 3: must be"),
        ({"prompts": []}, "prompts must be a list of at least one prompt"),
        ({"prompts": "x"}, "prompts must be a list"),
        ({"prompts": ["x"]}, "prompt 1: must be {"),
        ({"prompts": [{"name": "a", "text": "x", "file": "y"}]}, "prompt 1: must be {"),
        ({"prompts": [{"name": "a", "text": " \n"}]}, "prompt 1: the prompt is empty"),
        ({"prompts": [{"name": "a", "text": 5}]}, "prompt 1: the prompt is empty or no text"),
        ({"prompts": [{"name": "a", "text": "\ud800"}]}, "half a character"),
        ({"prompts": [{"name": "a", "file": "none.txt"}]}, "none.txt cannot be read: No such"),
        ({"prompts": [{"name": "a", "file": 5}]}, "file must be the name of a file"),
        ({"prompts": [{"name": "a", "text": "x"}] * 2}, "prompt 2: the name a is there twice"),
        ({"temp": -1}, "--temp -1: must be at least 0"),
        ({"temp": "hot"}, "--temp 'hot': must be of type float"),
        ({"top_p": 2}, "--top-p 2: must be at most 1"),
        ({"top_k": 1.5}, "--top-k 1.5: must be of type int"),
        ({"n": 0}, "-n 0: must be at least 1"),
        ({"seed": "x", "temp": 1}, "--seed 'x': must be of type int"),
        ({"chat": 1}, "chat is 1; must be true or false"),
        ({"draft": 3}, "draft is no setting of a workload; those are name, prompts, n,"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = written(tmp_path, GOOD | change)
    with pytest.raises(RequestError) as caught:
        load(path)
    assert str(caught.value).startswith(f"--workload {path}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "name", "message"),
    [
        (b"{", "w.json", "not JSON"),
        (b"[" * 100_000, "w.json", "not JSON"),
        (b"[]", "w.json", "must be one JSON object"),
        (b'{"schema": "sluice-workload/1", "prompts": []}', "w.json", "name is missing"),
        (b"ab\xff", "w.txt", "w.txt is not UTF-8 at byte 2"),
        (b"  \n", "w.txt", "the prompt is empty"),
    ],
)
def test_a_broken_file_is_refused_in_one_line(
    tmp_path: Path, data: bytes, name: str, message: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(RequestError, match=message):
        load(tmp_path / name)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.json", Path("a\0b")):
        with pytest.raises(RequestError, match="cannot be read"):
            load(path)


def test_two_workloads_of_one_name_are_refused() -> None:
    greedy, sampled = bundled_workloads()
    assert check_distinct([greedy, sampled]) == (greedy, sampled)
    with pytest.raises(RequestError, match="workload greedy-python is there twice"):
        check_distinct([greedy, greedy])

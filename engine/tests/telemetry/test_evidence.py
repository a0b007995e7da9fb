from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import RequestError
from sluice.telemetry.evidence import (
    SCHEMA,
    Evidence,
    Fingerprint,
    Group,
    Stop,
    Top2,
)


def evidence(**changes: Any) -> Evidence:
    values: dict[str, Any] = {
        "config": {"model": "m.gguf", "mtp": True, "temp": 0.0},
        "fingerprint": Fingerprint("0.3.36", "AVX2 = 1", "default", "ab" * 32),
        "prompt_ids": [1, 2, 3],
        "ids": [4, 5],
        "text": "é\n\ufffd\x00\u2028",
        "text_sha256": "cd" * 32,
        "logits_sha256": ["00" * 32, "11" * 32],
        "top2": [Top2((4, 9), (1.5, -0.1)), Top2((5, 4), (3.4028234663852886e38, 1e-45))],
        "groups": [Group(1, (5, 6, 7), (5,)), Group(3, (), ())],
        "stop": Stop("eog", 0, "22" * 32),
    }
    return Evidence(**values | changes)


def test_what_is_written_is_read_back_the_same() -> None:
    one = evidence()
    back = Evidence.from_json(one.to_json())
    assert back == one
    assert back.to_json() == one.to_json()
    assert type(back.top2[0].ids) is type(back.groups[0].drafted) is tuple


def test_the_file_is_one_object_in_schema_order_with_lf() -> None:
    text = evidence().to_json()
    assert list(json.loads(text)) == [
        "schema", "config", "fingerprint", "prompt_ids", "ids", "text", "text_sha256",
        "logits_sha256", "top2", "groups", "stop",
    ]  # fmt: skip
    assert json.loads(text)["schema"] == SCHEMA
    assert text.endswith("}\n")
    assert "\r" not in text
    assert text.isascii()


def test_float32_logits_survive_to_the_bit() -> None:
    import numpy as np

    values = np.random.default_rng(1).standard_normal(200).astype(np.float32)
    pairs = [Top2((0, 1), (float(a), float(b))) for a, b in values.reshape(-1, 2)]
    back = Evidence.from_json(evidence(top2=pairs).to_json())
    read = np.array([t.logits for t in back.top2], np.float32).ravel()
    assert read.tobytes() == values.tobytes()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not an evidence file"),
        ("hello", "not an evidence file"),
        ("[1, 2]", "not an evidence file"),
        ("3", "not an evidence file"),
        ('"schema"', "not an evidence file"),
        ("{}", "not an evidence file ('schema'); write one with --evidence"),
        ('{"schema": "sluice-evidence/99"}', "schema sluice-evidence/99, this Sluice reads"),
        (f'{{"schema": "{SCHEMA}"}}', f"{SCHEMA} but incomplete"),
    ],
    ids=range(8),
)  # fmt: skip
def test_what_is_no_evidence_is_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(RequestError) as refused:
        Evidence.from_json(text, "e.json")
    assert str(refused.value).startswith("e.json: ")
    assert words in str(refused.value)


@pytest.mark.parametrize("key", json.loads(evidence().to_json()))
def test_a_missing_key_is_refused_in_words(key: str) -> None:
    raw = json.loads(evidence().to_json())
    del raw[key]
    if key in ("groups", "stop"):
        with pytest.raises(RequestError, match=f"incomplete .*{key}"):
            Evidence.from_json(json.dumps(raw))
        return
    with pytest.raises(RequestError, match=key):
        Evidence.from_json(json.dumps(raw))


@pytest.mark.parametrize(
    ("key", "value"),
    [("top2", [3]), ("top2", 7), ("groups", [{"step": 1}]), ("fingerprint", []), ("stop", None),
     ("stop", {"why": "n"}), ("extra", 1)],
    ids=str,
)  # fmt: skip
def test_a_value_of_another_form_is_refused_in_words(key: str, value: Any) -> None:
    raw = json.loads(evidence().to_json()) | {key: value}
    with pytest.raises(RequestError, match="incomplete"):
        Evidence.from_json(json.dumps(raw))


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b'{"text": "\xe9"}')
    for path in (tmp_path / "none.json", tmp_path, tmp_path / "latin"):
        with pytest.raises(RequestError, match="cannot be read as evidence"):
            Evidence.read(path)


def test_counts_are_over_all_groups() -> None:
    assert (evidence().n_drafted, evidence().n_accepted) == (3, 1)
    assert evidence().speculated
    assert not evidence(config={"mtp": False}).speculated
    assert not evidence(config={}).speculated


def test_writing_and_reading_a_file(tmp_path: Path) -> None:
    path = tmp_path / "e.json"
    evidence().write(path)
    assert Evidence.read(path) == evidence()
    assert path.read_bytes() == evidence().to_json().encode()
    assert list(tmp_path.iterdir()) == [path]


def test_a_key_is_short_and_of_the_whole() -> None:
    key = evidence().fingerprint.key
    assert key.startswith("0.3.36-default-")
    assert len(key) == len("0.3.36-default-") + 12

"""A model in shards is the model: the same ids, the same logits, resident and streamed."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluice.decoding.session import Session
from sluice.errors import ModelError
from sluice.telemetry.evidence import Evidence

from .comparing import same

Open = Callable[..., Session]
MTP = {"mtp": True, "draft": 3}
STREAMED = {"moe_stream": True}


@pytest.fixture(scope="module")
def whole() -> dict[str, Evidence]:
    return {}


@pytest.mark.parametrize("streamed", [{}, STREAMED, STREAMED | {"cache_mb": 2}], ids=str)
@pytest.mark.parametrize("changes", [{}, MTP], ids=str)
@pytest.mark.parametrize("named", [0, 1, 2])
def test_shards_give_the_whole_models_run(
    opened: Open,
    prompt: str,
    shards: tuple[Path, ...],
    whole: dict[str, Evidence],
    changes: dict[str, Any],
    streamed: dict[str, Any],
    named: int,
) -> None:
    if str(changes) not in whole:
        whole[str(changes)] = opened(**changes).generate(prompt).run().evidence()
    wanted = whole[str(changes)]
    assert len(wanted.ids) == 24
    session = opened(model=str(shards[named]), **streamed, **changes)
    found = session.generate(prompt).run().evidence()
    same(wanted, found)
    assert found.fingerprint.model_sha256 != wanted.fingerprint.model_sha256


@pytest.mark.parametrize("streamed", [{}, STREAMED], ids=str)
def test_a_first_shard_without_tensors_runs(
    opened: Open,
    prompt: str,
    rewrite: Callable[..., Path],
    tmp_path: Path,
    streamed: dict[str, Any],
) -> None:
    rewrite(tmp_path / "m.gguf", split=48, empty_first=True)
    path = tmp_path / "m-00002-of-00003.gguf"
    same(
        opened(n=4).generate(prompt).run().evidence(),
        opened(model=str(path), n=4, **streamed).generate(prompt).run().evidence(),
    )


@pytest.mark.parametrize("streamed", [{}, STREAMED], ids=str)
def test_a_missing_shard_is_refused_before_llama_cpp_opens_any(
    opened: Open, shards: tuple[Path, ...], tmp_path: Path, streamed: dict[str, Any]
) -> None:
    for path in shards[:2]:
        shutil.copy(path, tmp_path)
    with pytest.raises(ModelError, match=r"m-00003-of-00003\.gguf is not beside it"):
        opened(model=str(tmp_path / shards[1].name), **streamed)


HELD = """
import json, pathlib, sys
from sluice.gguf.shards import read_model
from sluice.llama import library
from sluice.llama.model import Model

def mapped_kib():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssFile:"))

library.start()
before = mapped_kib()
path = read_model(pathlib.Path(sys.argv[1])).path
model = Model(path, load_mtp=True, by_header=sys.argv[2] == "header")
print(json.dumps([model.opened_by_header, mapped_kib() - before]))
model.close()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_shards_open_by_their_headers(shards: tuple[Path, ...], child: Callable[..., Any]) -> None:
    held = {}
    for how in ("header", "whole"):
        ended = child(HELD, shards[1], how)
        assert ended.code == 0, ended.err
        by_header, held[how] = json.loads(ended.out)
        assert by_header == (how == "header")
    weights_kib = sum(path.stat().st_size for path in shards) >> 10
    assert held["header"] < held["whole"] - weights_kib // 2


ABORTING = """
import pathlib, sys
from sluice.llama.model import Model
Model(pathlib.Path(sys.argv[1]), load_mtp=False, by_header=False)
"""


def test_a_shards_number_of_another_type_would_end_the_process(
    shards: tuple[Path, ...], tmp_path: Path, child: Callable[..., Any]
) -> None:
    copies = [Path(shutil.copy(path, tmp_path)) for path in shards]
    raw = copies[1].read_bytes()
    at = raw.index(b"split.no") + len(b"split.no")
    assert raw[at] == 2  # a uint16
    copies[1].write_bytes(raw[:at] + b"\3" + raw[at + 1 :])  # an int16 of the same length
    assert child(ABORTING, copies[0]).code < 0
    ended = child(ABORTING.replace("Model(pathlib", "from sluice.gguf.shards import read_model\n"
                                   "Model(read_model(pathlib").replace("[1])", "[1])).path"),
                  copies[0])  # fmt: skip
    assert ended.code == 1
    assert "split.no is of type 3, must be 2" in ended.err

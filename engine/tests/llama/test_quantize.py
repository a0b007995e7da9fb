from __future__ import annotations

import concurrent.futures
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import ModelError, RequestError, SystemFault
from sluice.gguf.header import read_header
from sluice.llama.quantize import file_types, quantize


def test_a_quantisation_is_made(model: Path, tmp_path: Path) -> None:
    out = quantize(model, "Q4_K_M", tmp_path / "new" / "q4.gguf")
    assert out == tmp_path / "new" / "q4.gguf"
    made, master = read_header(out), read_header(model)
    assert made.tensors.keys() == master.tensors.keys()
    assert {"Q4_K", "Q6_K"} <= {t.type_name for t in made.tensors.values()}
    assert made.file_bytes < master.file_bytes
    assert list(out.parent.iterdir()) == [out]


def test_the_same_type_twice_gives_the_same_bytes(model: Path, tmp_path: Path) -> None:
    made = [quantize(model, "Q4_0", tmp_path / f"{i}.gguf").read_bytes() for i in range(2)]
    assert made[0] == made[1]


def test_an_unknown_type_is_refused_with_the_known_ones(model: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"^Q4_X: no such quantisation; .*\bQ4_K_M\b"):
        quantize(model, "Q4_X", tmp_path / "q.gguf")
    assert list(tmp_path.iterdir()) == []


def test_the_types_that_gates_need_are_there() -> None:
    assert {"F32", "F16", "BF16", "Q8_0", "Q5_0", "Q4_0", "Q4_K_M", "Q6_K", "IQ4_XS",
            "MXFP4_MOE"} <= set(file_types())  # fmt: skip


@pytest.mark.parametrize("fault", ["missing", "not a gguf", "cut short", "a folder"])
def test_an_unreadable_master_leaves_no_file_behind(
    model: Path, tmp_path: Path, fault: str
) -> None:
    master = tmp_path / "in" / "m.gguf"
    master.parent.mkdir()
    if fault == "not a gguf":
        master.write_bytes(b"ZZZZ" + bytes(1000))
    elif fault == "cut short":
        master.write_bytes(model.read_bytes()[: model.stat().st_size // 2])
    elif fault == "a folder":
        master.mkdir()
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(ModelError) as refused:
        quantize(master, "Q4_0", out / "q.gguf")
    said = str(refused.value)
    assert said.startswith(f"{master}: cannot be made Q4_0: ")
    assert "no reason given" not in said
    assert list(out.iterdir()) == []


def test_a_type_that_needs_an_importance_matrix_is_refused_on_one_line(
    model: Path, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=r"IQ1_S: .*requires an importance matrix") as refused:
        quantize(model, "IQ1_S", tmp_path / "q.gguf")
    assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_keeps_the_file_that_was_there(tmp_path: Path) -> None:
    out = tmp_path / "q.gguf"
    out.write_bytes(b"kept")
    with pytest.raises(ModelError):
        quantize(tmp_path / "missing.gguf", "Q4_0", out)
    assert out.read_bytes() == b"kept"
    assert list(tmp_path.iterdir()) == [out]


def test_an_unwritable_folder_is_a_fault(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SystemFault, match=r"q\.gguf: cannot be written: "):
        quantize(model, "Q4_0", tmp_path / "file" / "q.gguf")


CODE = """
import sys
from pathlib import Path
from sluice.llama.quantize import quantize
print(quantize(Path(sys.argv[1]), "Q4_K_M", Path(sys.argv[2])))
"""


def test_two_processes_at_once_both_have_it_whole(
    model: Path, tmp_path: Path, child: Callable[..., Any]
) -> None:
    out = tmp_path / "q.gguf"
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        ended = list(pool.map(lambda _i: child(CODE, model, out), range(3)))
    assert [(e.code, e.out.strip()) for e in ended] == [(0, str(out))] * 3
    assert list(tmp_path.iterdir()) == [out]
    alone = quantize(model, "Q4_K_M", tmp_path / "alone.gguf")
    digests = {hashlib.sha256(p.read_bytes()).hexdigest() for p in (out, alone)}
    assert len(digests) == 1

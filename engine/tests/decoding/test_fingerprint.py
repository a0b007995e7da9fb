from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.decoding.fingerprint import fingerprint
from sluice.gguf.header import Header, read_header
from sluice.gguf.shards import read_model
from sluice.llama import library


def test_a_small_file_is_hashed_whole(header: Header) -> None:
    found = fingerprint(header, "default")
    assert found.model_sha256 == hashlib.sha256(header.path.read_bytes()).hexdigest()
    assert found.llama_cpp_python == library.version()
    assert found.system_info == library.system_info()
    assert found.numerics == "default"


def test_the_key_is_of_every_part(header: Header) -> None:
    found = fingerprint(header, "default")
    keys = {found.key}
    for field in dataclasses.fields(found):
        keys.add(dataclasses.replace(found, **{field.name: "x"}).key)
    assert len(keys) == 5
    assert all(k.replace(".", "").replace("-", "").isalnum() for k in keys)


@pytest.fixture
def large(tiny_gguf: Callable[..., Path], tmp_path: Path) -> Path:
    path = tiny_gguf(tmp_path / "m.gguf", {"w": (4, 8)}, qwen35moe__block_count=1)
    os.truncate(path, 70 << 20)
    return path


def test_a_large_file_is_sampled(large: Path) -> None:
    first = fingerprint(read_header(large), "default").model_sha256
    assert first.startswith("sampled:")
    assert fingerprint(read_header(large), "default").model_sha256 == first


@pytest.mark.parametrize("place", ["header", "last block", "size"])
def test_a_change_of_a_large_file_shows(large: Path, place: str) -> None:
    before = fingerprint(read_header(large), "default").model_sha256
    with large.open("r+b") as file:
        if place == "size":
            file.truncate((70 << 20) + 1)
        elif place == "header":
            file.seek(file.read(4096).index(b"block_count"))
            file.write(b"B")
        else:
            file.seek(-1, os.SEEK_END)
            file.write(b"x")
    os.utime(large, ns=(1, 1))
    assert fingerprint(read_header(large), "default").model_sha256 != before


def test_a_changed_file_is_hashed_again(large: Path, tmp_path: Path) -> None:
    path = tmp_path / "small.gguf"
    path.write_bytes(large.read_bytes()[:2000])
    seen = set()
    for byte in (b"\1", b"\2"):
        with path.open("r+b") as file:
            file.seek(1999)
            file.write(byte)
        os.utime(path, ns=(byte[0], byte[0]))
        seen.add(fingerprint(read_header(path), "default").model_sha256)
    assert len(seen) == 2


def test_shards_have_one_fingerprint_of_every_one_in_order(
    shards: tuple[Path, ...], header: Header, tmp_path: Path
) -> None:
    found = {fingerprint(read_model(path), "default").model_sha256 for path in shards}
    assert len(found) == 1
    assert found != {fingerprint(header, "default").model_sha256}
    copies = [Path(shutil.copy(path, tmp_path)) for path in shards]
    assert {fingerprint(read_model(copies[0]), "default").model_sha256} == found
    for copy in copies:
        raw = copy.read_bytes()
        copy.write_bytes(raw[:-40] + bytes(b ^ 1 for b in raw[-40:]))
        os.utime(copy, ns=(1, 1))
        found.add(fingerprint(read_model(copies[0]), "default").model_sha256)
    assert len(found) == 4


def test_one_large_shard_makes_the_fingerprint_a_sampled_one(
    shards: tuple[Path, ...], tmp_path: Path
) -> None:
    copies = [Path(shutil.copy(path, tmp_path)) for path in shards]
    os.truncate(copies[2], 70 << 20)
    found = fingerprint(read_model(copies[0]), "default").model_sha256
    assert found.startswith("sampled:")
    assert found != fingerprint(read_header(copies[2]), "default").model_sha256

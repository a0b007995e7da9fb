from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.errors import ModelError
from sluice.gguf.header import Header
from sluice.gguf.limits import refuse_what_aborts
from sluice.gguf.shards import files_by_name, read_model

from .test_header import STRING, gguf, key, tensor, text

U16, I32 = 2, 5
NAME = "m-0000{}-of-0000{}.gguf"


def shard(
    no: int | None,
    count: int | None,
    total: int | None,
    *names: str,
    arch: str = "",
) -> bytes:
    """One file of zeros; ``no`` counts from 0."""
    keys = [key("general.architecture", STRING, text(arch))] if arch else []
    for name, kind, code, value in (
        ("split.no", U16, "<H", no),
        ("split.count", U16, "<H", count),
        ("split.tensors.count", I32, "<i", total),
    ):
        if value is not None:
            keys.append(key(name, kind, struct.pack(code, value)))
    tensors = [tensor(name, (8,), offset=i * 32) for i, name in enumerate(names)]
    return gguf(keys, tensors, body=64 + 32 * len(names))


@pytest.fixture
def three(tmp_path: Path) -> list[Path]:
    """A sound model of three shards, of one tensor each."""
    paths = [tmp_path / NAME.format(i + 1, 3) for i in range(3)]
    for i, path in enumerate(paths):
        path.write_bytes(shard(i, 3, 3, f"t{i}", arch="" if i else "a"))
    return paths


def test_a_whole_model_is_its_file(model: Path, header: Header) -> None:
    assert read_model(model) == header
    assert header.paths == (model,)
    assert header.file_bytes == model.stat().st_size


def test_any_shard_opens_the_model(shards: tuple[Path, ...], header: Header) -> None:
    found = [read_model(path) for path in shards]
    assert found[0] == found[1] == found[2]
    assert found[0].paths == shards
    assert found[0].path == shards[0]
    assert found[0].file_bytes == sum(path.stat().st_size for path in shards)
    own = {name: value for name, value in found[0].metadata.items() if name[:6] != "split."}
    assert own == header.metadata


def test_every_tensor_is_in_its_shard(shards: tuple[Path, ...], header: Header) -> None:
    found = read_model(shards[2])
    assert list(found.tensors) == list(header.tensors)
    assert {info.shard for info in found.tensors.values()} == {0, 1, 2}
    whole = header.path.read_bytes()
    files = [path.read_bytes() for path in shards]
    for name, info in found.tensors.items():
        twin = header.tensors[name]
        assert (info.type_name, info.shape) == (twin.type_name, twin.shape)
        assert found.path_of(info) == shards[info.shard]
        here = files[info.shard][info.offset : info.offset + info.size_bytes]
        assert here == whole[twin.offset : twin.offset + twin.size_bytes]


def test_the_limits_see_every_shard_and_name_the_file(three: list[Path]) -> None:
    three[1].write_bytes(shard(1, 3, 3, "output_norm.weight"))
    refuse_what_aborts(read_model(three[0]))
    wrong = shard(1, 3, 3, "w").replace(
        tensor("w", (8,)),
        tensor("w", (8,), kind=26),  # I32
    )
    three[1].write_bytes(wrong)
    with pytest.raises(ModelError, match=r"m-00002-of-00003\.gguf: w is of type I32"):
        refuse_what_aborts(read_model(three[0]))


def test_a_first_shard_without_tensors_is_one(three: list[Path]) -> None:
    three[0].write_bytes(shard(0, 3, 2, arch="a"))
    for i in (1, 2):
        three[i].write_bytes(shard(i, 3, 2, f"t{i}"))
    assert {n: t.shard for n, t in read_model(three[1]).tensors.items()} == {"t1": 1, "t2": 2}


def test_links_to_shards_are_their_names(three: list[Path], tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    linked.mkdir()
    for i, path in enumerate(three):
        blob = path.rename(tmp_path / f"blob{i}")
        (linked / path.name).symlink_to(blob)
    assert read_model(linked / three[2].name).path == linked / three[0].name


def test_one_shard_of_one_is_a_whole_model(tmp_path: Path) -> None:
    path = tmp_path / "any name"
    path.write_bytes(shard(0, 1, 1, "t", arch="a"))
    assert read_model(path).paths == (path,)


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as refused:
        read_model(path)
    said = str(refused.value)
    assert "\n" not in said
    return said


@pytest.mark.parametrize("opened", [0, 1, 2])
def test_a_missing_shard_is_named(three: list[Path], opened: int) -> None:
    gone = three[(opened + 1) % 3]
    gone.unlink()
    said = refusal(three[opened])
    assert said.startswith(f"{three[opened]}: is shard {opened + 1} of 3, and {gone.name} is not")
    assert said.endswith("get every shard")


def test_many_missing_shards_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "m-00001-of-05000.gguf"
    path.write_bytes(shard(0, 5000, 5000, "t", arch="a"))
    said = refusal(path)
    assert "m-00002-of-05000.gguf, m-00003" in said
    assert "and 4995 more are not beside it" in said


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("renamed.gguf", "m-00002-of-00003.gguf"),
        ("m-2-of-3.gguf", "m-00002-of-00003.gguf"),
        ("m-00002-of-00003.gguf.bak", "m-00002-of-00003.gguf"),
        ("m-00003-of-00003.gguf", "m-00002-of-00003.gguf"),
        ("m-00002-of-00004.gguf", "m-00002-of-00003.gguf"),
    ],
)
def test_a_renamed_shard_is_told_its_name(three: list[Path], name: str, wanted: str) -> None:
    path = three[1].replace(three[1].with_name(name))
    said = refusal(path)
    assert said.startswith(
        f"{path}: is shard 2 of 3 by its own metadata; it must be named {wanted}"
    )


@pytest.mark.parametrize("others", [(), ("x", "y")])
def test_a_renamed_shard_with_no_shards_of_one_model_beside_it(
    three: list[Path], others: tuple[str, ...]
) -> None:
    path = three[1].rename(three[1].with_name("renamed.gguf"))
    three[2].unlink()
    three[0].unlink()
    for stem in others:
        path.with_name(f"{stem}-00001-of-00003.gguf").touch()
    assert "it must be named renamed-00002-of-00003.gguf" in refusal(path)


# What stands under shard 2's name, and what is said of it.
FOREIGN = {
    "whole model": (shard(None, None, None, "t1", arch="a"), "its split.count is not there"),
    "other count": (shard(1, 4, 3, "t1"), "its split.count is 4, must be 3"),
    "other number": (shard(2, 3, 3, "t1"), "its split.no is 2, must be 1"),
    "no number": (shard(None, 3, 3, "t1"), "its split.no is not there, must be 1"),
    "other total": (shard(1, 3, 9, "t1"), "its split.tensors.count is 9, must be 3"),
    "other kind": (shard(1, 3, 3, "t1", arch="b"), "its general.architecture is b, must be a"),
}


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("opened", [0, 2])
def test_a_foreign_shard_is_named(three: list[Path], kind: str, opened: int) -> None:
    raw, words = FOREIGN[kind]
    three[1].write_bytes(raw)
    said = refusal(three[opened])
    assert said.startswith(f"{three[1]}: is not shard 2 of 3 of one model: ")
    assert words in said


def test_a_first_shard_that_does_not_count_the_tensors_is_refused(three: list[Path]) -> None:
    three[0].write_bytes(shard(0, 3, None, "t0", arch="a"))
    said = refusal(three[1])
    assert said.startswith(f"{three[0]}: is not shard 1 of 3")
    assert "split.tensors.count is not there, must be all shards' together" in said


def test_a_number_beyond_the_count_is_malformed(three: list[Path]) -> None:
    three[1].write_bytes(shard(3, 3, 3, "t1"))
    assert refusal(three[1]).startswith(f"{three[1]}: malformed: split.no is 3, and split.count 3")


def test_a_tensor_in_two_shards_names_both(three: list[Path]) -> None:
    three[2].write_bytes(shard(2, 3, 3, "t1"))
    said = refusal(three[0])
    assert said.startswith(f"{three[2]}: ")
    assert "tensor t1 is in m-00002-of-00003.gguf, too" in said


@pytest.mark.parametrize("names", [(), ("t1", "x")])
def test_tensors_too_few_or_too_many_are_refused(three: list[Path], names: tuple[str, ...]) -> None:
    three[1].write_bytes(shard(1, 3, 3, *names))
    said = refusal(three[2])
    assert f"its 3 shards have {2 + len(names)} tensors, and split.tensors.count says 3" in said


def test_a_shard_cut_short_is_named(shards: tuple[Path, ...], tmp_path: Path) -> None:
    copies = [Path(shutil.copy(path, tmp_path)) for path in shards]
    os.truncate(copies[2], copies[2].stat().st_size - 4096)
    assert refusal(copies[0]).startswith(f"{copies[2]}: cut short: tensor ")


def test_the_files_that_belong_together_by_name(
    three: list[Path], tmp_path: Path, tiny_gguf: Callable[..., Path]
) -> None:
    assert set(files_by_name(three[1])) == set(three)
    three[0].unlink()
    assert set(files_by_name(three[1])) == set(three[1:])
    other = tiny_gguf(tmp_path / "other.gguf", {"w": (4,)})
    assert files_by_name(other) == (other,)

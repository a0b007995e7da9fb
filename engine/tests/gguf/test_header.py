from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gguf import GGUFReader

from sluice.errors import ModelError
from sluice.gguf.header import ARRAY_KEPT, Header, read_header

U32, F32_VALUE, STRING, ARRAY = 4, 6, 8, 9
F32, Q8_0 = 0, 8


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def key(name: str, kind: int, raw: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + raw


def tensor(name: str, shape: tuple[int, ...], kind: int = F32, offset: int = 0) -> bytes:
    return (
        text(name)
        + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        + struct.pack("<IQ", kind, offset)
    )


def gguf(
    keys: list[bytes],
    tensors: list[bytes],
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    n_keys: int | None = None,
    n_tensors: int | None = None,
    body: int = 4096,
) -> bytes:
    return (
        magic
        + struct.pack(
            "<IQQ",
            version,
            len(tensors) if n_tensors is None else n_tensors,
            len(keys) if n_keys is None else n_keys,
        )
        + b"".join(keys)
        + b"".join(tensors)
        + bytes(body)
    )


ALIGNMENT = "general.alignment"
GOOD = [key("general.architecture", STRING, text("a"))]
ONE = [tensor("w", (32, 2))]


@pytest.fixture
def write(tmp_path: Path) -> Callable[[bytes], Path]:
    def write_(raw: bytes) -> Path:
        path = tmp_path / "m.gguf"
        path.write_bytes(raw)
        return path

    return write_


def test_the_smallest_gguf_is_read(write: Callable[[bytes], Path]) -> None:
    raw = gguf([*GOOD, key("a.block_count", U32, struct.pack("<I", 7))], ONE)
    found = read_header(write(raw))
    assert found.architecture == "a"
    assert found.number("block_count") == 7
    assert found.file_bytes == len(raw)
    assert found.files[0].header_bytes == len(raw) - 4096
    (info,) = found.tensors.values()
    assert (info.shape, info.type_name, info.size_bytes) == ((32, 2), "F32", 256)
    assert info.offset == -(-found.files[0].header_bytes // 32) * 32


def test_a_real_number(write: Callable[[bytes], Path]) -> None:
    keys = [
        key("a.epsilon", F32_VALUE, struct.pack("<f", 0.5)),
        key("a.whole", U32, struct.pack("<I", 7)),
        key("a.words", STRING, text("7")),
        key("b.other", F32_VALUE, struct.pack("<f", 3)),
    ]
    found = read_header(write(gguf([*GOOD, *keys], ONE)))
    assert found.real("epsilon", 2.0) == 0.5
    whole = found.real("whole", 2.0)
    assert (whole, type(whole)) == (7.0, float)
    assert found.real("words", 2.0) == 2.0
    assert found.real("other", 2.0) == 2.0  # of another architecture


def test_every_tensor_is_where_the_gguf_package_finds_it(header: Header) -> None:
    theirs = GGUFReader(header.path)
    assert len(header.tensors) == len(theirs.tensors) > 0
    for t in theirs.tensors:
        info = header.tensors[t.name]
        assert info.offset == t.data_offset
        assert info.size_bytes == t.n_bytes
        assert info.shape == tuple(int(n) for n in t.shape)
        assert info.type_name == t.tensor_type.name
    start = min(info.offset for info in header.tensors.values())
    assert theirs.data_offset == start
    assert 0 <= start - header.files[0].header_bytes < theirs.alignment


def test_every_value_is_what_the_gguf_package_reads(header: Header) -> None:
    kept = 0
    for name, field in GGUFReader(header.path).fields.items():
        if name.startswith("GGUF."):
            continue
        value, theirs = header.metadata[name], field.contents()
        if isinstance(theirs, list) and (len(theirs) > ARRAY_KEPT or name.endswith("ggml.tokens")):
            assert value is None  # skipped, not kept
            continue
        assert value == theirs
        kept += 1
    assert kept > 20


@pytest.mark.parametrize("alignment", [8, 32, 4096])
def test_the_data_begins_where_the_files_own_alignment_says(
    write: Callable[[bytes], Path], alignment: int
) -> None:
    raw = gguf([*GOOD, key(ALIGNMENT, U32, struct.pack("<I", alignment))], ONE, body=9000)
    found = read_header(write(raw))
    assert found.tensors["w"].offset % alignment == 0
    assert 0 <= found.tensors["w"].offset - found.files[0].header_bytes < alignment


MALFORMED = {
    "empty file": (b"", "not a gguf file"),
    "three bytes": (b"GGU", "not a gguf file"),
    "another magic": (gguf(GOOD, ONE, magic=b"GGML"), "does not start with GGUF; give a gguf"),
    "magic alone": (b"GGUF", "cut short"),
    "version 0": (gguf(GOOD, ONE, version=0), "gguf version 0"),
    "version 1": (gguf(GOOD, ONE, version=1), "gguf version 1"),
    "version 4": (gguf(GOOD, ONE, version=4), "reads versions 2 and 3"),
    "big endian": (gguf(GOOD, ONE, version=3 << 24), "gguf version 50331648"),
    "2**63 tensors": (gguf(GOOD, ONE, n_tensors=1 << 63), "malformed: 9223372036854775808 tensors"),
    "2**64-1 keys": (gguf(GOOD, ONE, n_keys=(1 << 64) - 1), "values announced"),
    "more keys than there are": (gguf(GOOD, ONE, n_keys=3), ""),
    "more tensors than there are": (gguf(GOOD, ONE, n_tensors=9), ""),
    "empty key": (gguf([key("", U32, bytes(4))], ONE), "metadata key '' is empty or there twice"),
    "key twice": (gguf([*GOOD, *GOOD], ONE), "key 'general.architecture' is empty or there twice"),
    "unknown value type": (gguf([key("k", 13, bytes(4))], ONE), "unknown value type 13"),
    "array of arrays": (
        gguf([key("k", ARRAY, struct.pack("<IQ", ARRAY, 1))], ONE),
        "array of type 9",
    ),
    "array of 2**60 numbers": (
        gguf([key("k", ARRAY, struct.pack("<IQ", U32, 1 << 60))], ONE),
        "cut short",
    ),
    "array of 2**60 strings": (
        gguf([key("k", ARRAY, struct.pack("<IQ", STRING, 1 << 60))], ONE),
        "array of 1152921504606846976 strings",
    ),
    "text of 2**64-1 bytes": (gguf([struct.pack("<Q", (1 << 64) - 1)], ONE), "malformed: a text"),
    "text beyond the end": (gguf([struct.pack("<Q", 1 << 20)], ONE), "cut short"),
    "token twice": (
        gguf(
            [
                key(
                    "tokenizer.ggml.tokens",
                    ARRAY,
                    struct.pack("<IQ", STRING, 3) + text("x") + text("y") + text("x"),
                )
            ],
            ONE,
        ),
        "token b'x' is there twice",
    ),
    "token twice up to a zero byte": (
        gguf(
            [
                key(
                    "tokenizer.ggml.tokens",
                    ARRAY,
                    struct.pack("<IQ", STRING, 2) + text("x\0y") + text("x\0z"),
                )
            ],
            ONE,
        ),
        "token b'x' is there twice",
    ),
    "alignment 0": (
        gguf([key(ALIGNMENT, U32, bytes(4))], ONE),
        "general.alignment 0 is not a power of two",
    ),
    "alignment 48": (
        gguf([key(ALIGNMENT, U32, struct.pack("<I", 48))], ONE),
        "general.alignment 48 is not a power of two",
    ),
    "alignment of text": (
        gguf([key(ALIGNMENT, STRING, text("x"))], ONE),
        "general.alignment 'x'",
    ),
    "nameless tensor": (gguf(GOOD, [tensor("", (32,))]), "tensor '' with 1 dimensions"),
    "tensor name of 64": (gguf(GOOD, [tensor("w" * 64, (32,))]), "malformed: tensor 'www"),
    "no dimensions": (gguf(GOOD, [tensor("w", ())]), "with 0 dimensions"),
    "five dimensions": (gguf(GOOD, [tensor("w", (1,) * 5)]), "with 5 dimensions"),
    "empty tensor": (gguf(GOOD, [tensor("w", (32, 0))]), "of shape [32, 0]"),
    "a row of half a block": (gguf(GOOD, [tensor("w", (48,), Q8_0)]), "of shape [48] as Q8_0"),
    "unknown tensor type": (gguf(GOOD, [tensor("w", (32,), 200)]), "type 200 is unknown"),
    "tensor twice": (gguf(GOOD, ONE + ONE), "tensor w is there twice or misaligned"),
    "misaligned tensor": (gguf(GOOD, [tensor("w", (8,), offset=4)]), "there twice or misaligned"),
    "2**120 elements": (gguf(GOOD, [tensor("w", (1 << 60, 1 << 60))]), "cut short: tensor w ends"),
    "tensor beyond the end": (
        gguf(GOOD, [tensor("w", (1024, 2))]),
        "the file has 4",
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_malformed_is_refused_in_words(name: str, write: Callable[[bytes], Path]) -> None:
    raw, words = MALFORMED[name]
    path = write(raw)
    with pytest.raises(ModelError) as refused:
        read_header(path)
    said = str(refused.value)
    assert said.startswith(f"{path}: ")
    assert words in said
    assert "\n" not in said


def test_empty_tokens_may_be_many(write: Callable[[bytes], Path]) -> None:
    many = struct.pack("<IQ", STRING, 3) + text("") + text("x") + text("")
    read_header(write(gguf([key("tokenizer.ggml.tokens", ARRAY, many)], ONE)))


def test_a_missing_and_an_unreadable_file_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.gguf", tmp_path):
        with pytest.raises(ModelError, match="cannot be read"):
            read_header(path)


def cuts(header: Header) -> Iterator[int]:
    yield from range(0, header.files[0].header_bytes, 997)
    ends = sorted(t.offset + t.size_bytes for t in header.tensors.values())
    yield header.files[0].header_bytes
    for end in (*ends[::20], ends[-1]):
        yield end - 1
        yield end - 4097


def test_a_file_cut_anywhere_is_refused(header: Header, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(header.path.read_bytes())
    for size in sorted(set(cuts(header)), reverse=True):
        os.truncate(path, size)
        with pytest.raises(ModelError) as refused:
            read_header(path)
        assert ("cut short" if size >= 4 else "not a gguf") in str(refused.value), size


def test_padding_after_the_last_tensor_is_not_needed(header: Header, tmp_path: Path) -> None:
    end = max(t.offset + t.size_bytes for t in header.tensors.values())
    path = tmp_path / "m.gguf"
    path.write_bytes(header.path.read_bytes()[:end])
    assert read_header(path).tensors.keys() == header.tensors.keys()


def test_flipped_bytes_never_raise_anything_else(header: Header, tmp_path: Path) -> None:
    chance = random.Random(20_250)
    good = header.path.read_bytes()[: header.files[0].header_bytes]
    path = tmp_path / "m.gguf"
    path.write_bytes(good)
    os.truncate(path, header.file_bytes)  # the tensors are there, as a hole
    assert read_header(path).tensors == header.tensors
    vocabulary = good.find(b"tokenizer.ggml.tokens"), good.find(b"tokenizer.ggml.merges")
    read = refused = 0
    with path.open("r+b") as file:
        for _ in range(300):
            places = {chance.randrange(4, len(good)) for _ in range(chance.choice((1, 1, 2, 8)))}
            # The vocabulary is most of the header; most flips are to hit the rest.
            if chance.random() < 0.8:
                places = {p for p in places if not vocabulary[0] + 64 < p < vocabulary[1]}
            for place in places:
                file.seek(place)
                file.write(bytes([chance.choice((0, 255, good[place] ^ 1 << chance.randrange(8)))]))
            file.flush()
            try:
                found = read_header(path)
                read += 1
                _use(found)
            except ModelError:
                refused += 1
            for place in places:
                file.seek(place)
                file.write(good[place : place + 1])
    assert read > 30
    assert refused > 30


def _use(header: Header) -> None:
    """What a header says of itself is safe to ask for, whatever its values are."""
    assert isinstance(header.architecture, str)
    for name in ("block_count", "expert_count", "rope.freq_base", "rope.dimension_sections"):
        assert isinstance(header.number(name), int)
    assert isinstance(header.n_nextn, int)
    assert header.n_shards >= 1


def test_a_number_that_is_none_is_the_default(write: Callable[[bytes], Path]) -> None:
    infinite = key("a.block_count", 6, struct.pack("<f", float("inf")))
    found = read_header(write(gguf([*GOOD, infinite], ONE)))
    assert found.number("block_count", 5) == 5
    assert found.n_shards == 1


@pytest.mark.parametrize("name", ["split.no", "split.count", "split.tensors.count"])
def test_a_number_of_a_split_is_of_the_type_that_llama_cpp_takes(
    write: Callable[[bytes], Path], name: str
) -> None:
    raw = gguf([*GOOD, key(name, U32, struct.pack("<I", 1))], ONE)
    with pytest.raises(ModelError, match=rf"malformed: {name} is of type 4, must be [25] "):
        read_header(write(raw))


def test_what_is_skipped_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    n = 12 << 30
    raw = gguf([key("k", ARRAY, struct.pack("<IQ", 0, n))], [], body=0)
    path.write_bytes(raw)
    try:
        os.truncate(path, len(raw) + n)
    except OSError as err:
        pytest.skip(f"no sparse file of that size here: {err}")
    before = _read_so_far()
    found = read_header(path)
    assert found.files[0].header_bytes == len(raw) + n
    assert found.metadata["k"] is None
    assert _read_so_far() - before < 64 << 20


def _read_so_far() -> int:
    line = Path("/proc/self/io").read_text(encoding="ascii").splitlines()[0]
    return int(line.split()[1])

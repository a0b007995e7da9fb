"""The header of a gguf file: metadata, and the place of every tensor in the file.

Parsed here and not by ggml, for two reasons: the streamer needs absolute offsets of a file
that it will never map, and ggml asserts (which ends the process) on some malformed headers.
Every array longer than a few values is skipped, so a vocabulary of 150,000 tokens costs tens
of milliseconds.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from sluice.errors import ModelError

MAGIC = b"GGUF"
ARRAY_KEPT = 512  # longer arrays (vocabulary, merges) are skipped, not kept
STRINGS_MAX = 1 << 24  # of one array; vocabularies and merges have less than a million
TEXT_BYTES_MAX = 1 << 26  # of one kept text; chat templates have a few thousand
TOKENS = "tokenizer.ggml.tokens"
SPLIT_KINDS = {"split.no": 2, "split.count": 2, "split.tensors.count": 5}  # uint16, int32
_DIMS_MAX = 4  # GGML_MAX_DIMS
_NAME_MAX = 63  # GGML_MAX_NAME less the terminator
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q",
            12: "d"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor in a file.

    ``shape`` is in ggml's order (``ne``, innermost first), ``offset`` counts from the start of
    its file, ``size_bytes`` is without padding, ``shard`` is its file's place in
    :attr:`Header.paths`.
    """

    name: str
    type_name: str
    shape: tuple[int, ...]
    offset: int
    size_bytes: int
    shard: int = 0


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A file, the bytes of its header, and all of its bytes."""

    path: Path
    header_bytes: int
    file_bytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """What a gguf says of itself; of a model in shards, what they say together.

    ``files`` are in the order of the shards, ``metadata`` is the first one's.
    """

    files: tuple[GgufFile, ...]
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]

    @property
    def path(self) -> Path:
        """The file, or the first shard: the one that llama.cpp is given."""
        return self.files[0].path

    @property
    def paths(self) -> tuple[Path, ...]:
        """Every file; :attr:`TensorInfo.shard` is an index into them."""
        return tuple(file.path for file in self.files)

    @property
    def file_bytes(self) -> int:
        """All files together."""
        return sum(file.file_bytes for file in self.files)

    def path_of(self, tensor: TensorInfo) -> Path:
        """The file that ``tensor`` lies in."""
        return self.files[tensor.shard].path

    @property
    def architecture(self) -> str:
        """``general.architecture``, or an empty string."""
        return str(self.metadata.get("general.architecture", ""))

    def number(self, key: str, default: int = 0) -> int:
        """The architecture's own integer ``key`` (``qwen35moe.<key>``)."""
        value = self.metadata.get(f"{self.architecture}.{key}", default)
        return value if isinstance(value, int) else default

    def real(self, key: str, default: float) -> float:
        """The architecture's own real number ``key``."""
        value = self.metadata.get(f"{self.architecture}.{key}", default)
        return float(value) if isinstance(value, (int, float)) else default

    @property
    def n_nextn(self) -> int:
        """MTP blocks that the file announces (``nextn_predict_layers``)."""
        return self.number("nextn_predict_layers")

    @property
    def n_shards(self) -> int:
        """Files that the model is split over (``split.count``); 1 for a whole model."""
        value = self.metadata.get("split.count", 1)
        return int(value) if isinstance(value, int) and value > 0 else 1


def read_header(path: Path) -> Header:
    """Parse the header of the one file ``path``; see :mod:`sluice.gguf.shards` for a model.

    Raises:
        ModelError: not a gguf, of an unknown version, malformed, or shorter than its tensors.
    """
    try:
        with path.open("rb") as file:
            return _Parser(path, file).parse()
    except OSError as err:
        raise ModelError(f"{path}: cannot be read: {err.strerror}") from None


class _Parser:
    """Reads little-endian values one after the other; every read is bounded by the file."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        self.file = file
        self.file_bytes = file.seek(0, 2)
        file.seek(0)
        self.buffer = b""
        self.at = 0  # position in the buffer
        self.base = 0  # file offset of the buffer's first byte

    def fail(self, what: str) -> ModelError:
        return ModelError(f"{self.path}: {what} (at byte {self.base + self.at})")

    def need(self, n: int) -> int:
        """Position in the buffer of the next ``n`` bytes, which are consumed."""
        if self.at + n > len(self.buffer):
            if self.base + self.at + n > self.file_bytes:
                raise self.fail(
                    f"cut short: the header goes on beyond the file's {self.file_bytes} bytes;"
                    " get the whole file"
                )
            self.buffer = self.buffer[self.at :] + self.file.read(max(n, 1 << 20))
            self.base += self.at
            self.at = 0
            if n > len(self.buffer):
                raise self.fail("the file shrank while it was read")
        start = self.at
        self.at += n
        return start

    def skip(self, n: int) -> None:
        """Consume ``n`` bytes without reading what is not in the buffer."""
        if self.at + n <= len(self.buffer):
            self.at += n
            return
        if self.base + self.at + n > self.file_bytes:
            self.need(n)  # says so
        self.base += self.at + n
        self.at = 0
        self.buffer = b""
        self.file.seek(self.base)

    def raw(self, n: int) -> bytes:
        start = self.need(n)
        return self.buffer[start : start + n]

    def take(self, code: str) -> Any:
        layout = struct.Struct("<" + code)
        return layout.unpack(self.raw(layout.size))[0]

    def string(self) -> str:
        n = self.take("Q")
        if n > TEXT_BYTES_MAX:
            raise self.fail(f"malformed: a text of {n} bytes")
        return self.raw(n).decode("utf-8", "replace")

    def value(self, kind: int, *, distinct: bool = False) -> Any:
        if kind in _SCALARS:
            return self.take(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self.array(distinct)
        raise self.fail(f"malformed: unknown value type {kind}")

    def array(self, distinct: bool) -> Any:
        kind, n = self.take("I"), self.take("Q")
        if kind in _SCALARS:
            code = _SCALARS[kind]
            if n <= ARRAY_KEPT:
                return [self.take(code) for _ in range(n)]
            self.skip(n * struct.calcsize("<" + code))
            return None
        if kind != _STRING:
            raise self.fail(f"malformed: array of type {kind}")
        if n > min(STRINGS_MAX, self.file_bytes):
            raise self.fail(f"malformed: array of {n} strings")
        if distinct:
            self.distinct_strings(n)
            return None
        if n <= ARRAY_KEPT:
            return [self.string() for _ in range(n)]
        self.skip_strings(n)
        return None

    def skip_strings(self, n: int) -> None:
        length = struct.Struct("<Q").unpack_from
        left = n
        while left:
            buffer, at, end = self.buffer, self.at, len(self.buffer)
            while left and at + 8 <= end:
                after = at + 8 + length(buffer, at)[0]
                if after > end:
                    break
                at = after
                left -= 1
            self.at = at
            if left:  # one that the buffer does not hold whole
                start = self.need(8)
                self.skip(length(self.buffer, start)[0])
                left -= 1

    def distinct_strings(self, n: int) -> None:
        """Consume ``n`` tokens and refuse two that llama.cpp would take for the same."""
        length = struct.Struct("<Q").unpack_from
        seen: set[bytes] = set()
        for i in range(n):
            start = self.need(8)
            size = length(self.buffer, start)[0]
            if size > TEXT_BYTES_MAX:
                raise self.fail(f"malformed: a text of {size} bytes")
            start = self.need(size)
            text = self.buffer[start : start + size]
            # llama.cpp takes a token up to its first zero byte, and names an empty one so.
            if not text or 0 in text:
                text = text.partition(b"\0")[0] or b"[EMPTY_%d]" % i
            if text in seen:
                raise self.fail(f"malformed: token {text!r} is there twice")
            seen.add(text)

    def parse(self) -> Header:
        if self.file_bytes < 4 or self.raw(4) != MAGIC:
            self.at = 0
            raise self.fail("not a gguf file: it does not start with GGUF; give a gguf")
        version = self.take("I")
        if version not in (2, 3):
            raise self.fail(f"gguf version {version}: this Sluice reads versions 2 and 3")
        n_tensors, n_values = self.take("Q"), self.take("Q")
        if max(n_tensors, n_values) > self.file_bytes:
            raise self.fail(f"malformed: {n_tensors} tensors and {n_values} values announced")
        metadata: dict[str, Any] = {}
        for _ in range(n_values):
            key = self.string()
            if not key or key in metadata:
                raise self.fail(f"malformed: metadata key {key!r} is empty or there twice")
            kind = self.take("I")
            # llama.cpp asserts that a shard's number is of its type, and that tokens differ;
            # an assertion ends the process.
            if kind != SPLIT_KINDS.get(key, kind):
                raise self.fail(f"malformed: {key} is of type {kind}, must be {SPLIT_KINDS[key]}")
            metadata[key] = self.value(kind, distinct=key == TOKENS)
        rows = [self.tensor() for _ in range(n_tensors)]
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            raise self.fail(f"malformed: general.alignment {alignment!r} is not a power of two")
        end = self.base + self.at
        data_offset = -(-end // alignment) * alignment
        tensors = self.place(rows, data_offset, alignment)
        return Header((GgufFile(self.path, end, self.file_bytes),), metadata, tensors)

    def tensor(self) -> TensorInfo:
        name, n_dims = self.string(), self.take("I")
        if not name or len(name.encode()) > _NAME_MAX or not 1 <= n_dims <= _DIMS_MAX:
            raise self.fail(f"malformed: tensor {name!r} with {n_dims} dimensions")
        shape = tuple(self.take("Q") for _ in range(n_dims))
        number, offset = self.take("I"), self.take("Q")
        try:
            kind = GGMLQuantizationType(number)
        except ValueError:
            raise self.fail(f"tensor {name}: type {number} is unknown to this Sluice") from None
        block, block_bytes = GGML_QUANT_SIZES[kind]
        elements = 1
        for n in shape:
            elements *= n
        if elements <= 0 or shape[0] % block:
            raise self.fail(f"malformed: tensor {name} of shape {list(shape)} as {kind.name}")
        return TensorInfo(name, kind.name, shape, offset, elements // block * block_bytes)

    def place(
        self, rows: list[TensorInfo], data_offset: int, alignment: int
    ) -> dict[str, TensorInfo]:
        tensors: dict[str, TensorInfo] = {}
        for t in rows:
            if t.name in tensors or t.offset % alignment:
                raise self.fail(f"malformed: tensor {t.name} is there twice or misaligned")
            start = data_offset + t.offset
            if start + t.size_bytes > self.file_bytes:
                raise ModelError(
                    f"{self.path}: cut short: tensor {t.name} ends at byte"
                    f" {start + t.size_bytes}, the file has {self.file_bytes}; get the whole file"
                )
            tensors[t.name] = TensorInfo(t.name, t.type_name, t.shape, start, t.size_bytes)
        return tensors

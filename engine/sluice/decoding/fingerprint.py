"""The fingerprint that a run's values belong to."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path

from sluice.errors import ModelError
from sluice.gguf.header import GgufFile, Header
from sluice.llama import library
from sluice.telemetry.evidence import Fingerprint

_WHOLE_BYTES = 64 << 20  # a larger file is sampled: hashing it would read it
_BLOCK_BYTES = 1 << 16
_N_BLOCKS = 64
_SAMPLED = "sampled:"


def fingerprint(header: Header, numerics: str) -> Fingerprint:
    """The fingerprint of runs of ``header``'s model on this build."""
    digests = [_file_digest(file) for file in header.files]
    digest = digests[0] if len(digests) == 1 else _digest_of_shards(digests)
    return Fingerprint(library.version(), library.system_info(), numerics, digest)


def _digest_of_shards(digests: Sequence[str]) -> str:
    digest = hashlib.sha256("\n".join(digests).encode()).hexdigest()
    sampled = any(one.startswith(_SAMPLED) for one in digests)
    return f"{_SAMPLED}{digest}" if sampled else digest


def _file_digest(file: GgufFile) -> str:
    try:
        stat = file.path.stat()
        return _digest(file.path, file.header_bytes, stat.st_size, stat.st_mtime_ns)
    except OSError as err:
        raise ModelError(f"{file.path}: cannot be read: {err.strerror}") from None


@functools.lru_cache(maxsize=64)
def _digest(path: Path, header_bytes: int, file_bytes: int, _mtime_ns: int) -> str:
    with path.open("rb") as file:
        if file_bytes <= _WHOLE_BYTES:
            return hashlib.file_digest(file, "sha256").hexdigest()
        digest = hashlib.sha256(file_bytes.to_bytes(8, "little"))
        digest.update(file.read(header_bytes))
        span = file_bytes - header_bytes - _BLOCK_BYTES
        for i in range(_N_BLOCKS):
            file.seek(header_bytes + span * i // (_N_BLOCKS - 1))
            digest.update(file.read(_BLOCK_BYTES))
        return f"{_SAMPLED}{digest.hexdigest()}"

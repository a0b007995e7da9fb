"""The bundled model, copies of it with changes, and processes that may die without harm."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader, GGUFValueType, GGUFWriter

import sluice
from sluice.bundled import model_path
from sluice.config import Config
from sluice.decoding.session import Session
from sluice.gguf.header import Header, read_header
from sluice.llama.model import Model

PROMPT = "import os\n\n\ndef main(argv):\n    for name in argv:\n        print("
BY_READER = frozenset({"general.architecture"})  # the writer adds it by itself


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a process ended; a negative code is the signal that killed it."""

    code: int
    out: str
    err: str


Child = Callable[..., Ended]


@pytest.fixture(scope="session")
def model() -> Path:
    """The bundled model's file; never written to."""
    return model_path("bundled")


@pytest.fixture(scope="module")
def loaded(model: Path) -> Iterator[Model]:
    """The bundled model, opened with its head."""
    one = Model(model, load_mtp=True, by_header=False)
    yield one
    one.close()


@pytest.fixture(scope="session")
def header(model: Path) -> Header:
    return read_header(model)


@pytest.fixture(scope="session")
def prompt() -> str:
    return PROMPT


@pytest.fixture
def config(model: Path) -> Config:
    """A small resident run; ``replace`` what a test is about."""
    return Config(model=str(model), n=24, ctx=512, ubatch=64, threads=1)


@pytest.fixture
def opened(config: Config) -> Iterator[Callable[..., Session]]:
    """Opens a session with changes to ``config``; all are closed when the test ends."""
    sessions: list[Session] = []

    def open_(*, session: dict[str, Any] | None = None, **changes: Any) -> Session:
        sessions.append(Session(config.replace(**changes), **(session or {})))
        return sessions[-1]

    yield open_
    for one in sessions:
        one.close()


@pytest.fixture(scope="session")
def rewrite(model: Path) -> Callable[..., Path]:
    """``rewrite(out, keys={}, tensors={}, last="", drop="", split=0, empty_first=False)``: a copy.

    keys: name to (value, type) or (value, ARRAY, element type), or None to leave out.
    tensors: name to (array, type), new ones too. last: a part of the names of tensors that go
    to the end. drop: a pattern of the names of tensors that are left out. split: tensors a
    shard; they are written beside ``out``, which is not. empty_first: none in the first.
    """
    reader = GGUFReader(model)

    def write(
        out: Path,
        *,
        keys: dict[str, Any] | None = None,
        tensors: dict[str, Any] | None = None,
        last: str = "",
        drop: str = "",
        split: int = 0,
        empty_first: bool = False,
    ) -> Path:
        arch = reader.fields["general.architecture"].contents()
        writer = GGUFWriter(out, arch, split_max_tensors=split, small_first_shard=empty_first)
        changes, replaced = dict(keys or {}), dict(tensors or {})
        for key, field in reader.fields.items():
            if key.startswith("GGUF.") or key in BY_READER:
                continue
            inner = (field.types[-1],) if field.types[0] == GGUFValueType.ARRAY else ()
            value = changes.pop(key, (field.contents(), field.types[0], *inner))
            if value is not None:
                writer.add_key_value(key, *value)
        for key, value in changes.items():
            writer.add_key_value(key, *value)
        for tensor in sorted(reader.tensors, key=lambda t: bool(last) and last in t.name):
            if drop and re.search(drop, tensor.name):
                continue
            data, kind = replaced.pop(tensor.name, (tensor.data, tensor.tensor_type))
            writer.add_tensor(tensor.name, data, raw_dtype=kind)
        for name, (data, kind) in replaced.items():
            writer.add_tensor(name, data, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return out

    return write


@pytest.fixture(scope="session")
def shards(
    rewrite: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, ...]:
    """The bundled model in three; layer 3's experts are in two of them. Never written to."""
    folder = tmp_path_factory.mktemp("shards")
    rewrite(folder / "m.gguf", split=34)
    return tuple(sorted(folder.iterdir()))


@pytest.fixture(scope="session")
def tiny_gguf() -> Callable[..., Path]:
    """``tiny_gguf(out, {name: shape}, **keys)``: a gguf of F32 zeros, shapes innermost last."""

    def write(out: Path, shapes: dict[str, tuple[int, ...]], **keys: Any) -> Path:
        writer = GGUFWriter(out, "qwen35moe")
        for key, value in keys.items():
            writer.add_uint32(key.replace("__", "."), value)
        for name, shape in shapes.items():
            writer.add_tensor(name, np.zeros(shape, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return out

    return write


@pytest.fixture(scope="session")
def llama_server() -> Path:
    """A real llama-server: the one that SLUICE_LLAMA_SERVER names, or ``make llama-server``'s."""
    given = os.environ.get("SLUICE_LLAMA_SERVER")
    if given:
        return Path(given)
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    version = importlib.metadata.version("llama-cpp-python")
    name = f"{version}-{platform.machine().lower()}-*/llama-server"
    folder = Path(cache, "sluice", "llama-server")
    for variant in ("portable", "native"):
        found = sorted(folder.glob(f"{variant}-{name}"), key=lambda one: one.stat().st_mtime)
        if found:
            return found[-1]
    pytest.skip(
        "no llama-server here: make llama-server builds it; or name one's path in"
        " SLUICE_LLAMA_SERVER"
    )


@pytest.fixture
def child(tmp_path: Path) -> Child:
    """``child(code, *arguments)``: Python code in a process of its own; see sys.argv[1:]."""

    def run(code: str, *arguments: object, timeout_s: float = 60) -> Ended:
        # Where llama.cpp aborts, no debugger is to be started for a backtrace.
        environment = os.environ | {
            "PYTHONPATH": str(Path(sluice.__file__).parents[1]),
            "GGML_NO_BACKTRACE": "1",
        }
        done = subprocess.run(
            [sys.executable, "-c", code, *map(str, arguments)],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    return run

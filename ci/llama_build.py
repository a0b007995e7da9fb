"""Builds of the pinned llama.cpp in the user's cache: each made once, whole or not at all.

``ci/wheel`` and ``ci/llama_server`` are the two things that are built, and share this. A build
is kept in $XDG_CACHE_HOME/sluice (or ~/.cache/sluice), so that every checkout finds it.
"""
# Python and its standard library alone: the pin is read from pyproject.toml by tomllib, and
# locking and renaming are exact.

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
PACKAGE = "llama-cpp-python"
VARIANTS = ("portable", "native")
# Nothing of the caller's may change the code that is built. SOURCE_DATE_EPOCH changes
# llama.cpp's default instruction set.
BUILD_VARIABLES = (
    "CFLAGS",
    "CMAKE_ARGS",
    "CPPFLAGS",
    "CXXFLAGS",
    "FORCE_CMAKE",
    "LDFLAGS",
    "SKBUILD_CMAKE_ARGS",
    "SKBUILD_CMAKE_DEFINE",
    "SOURCE_DATE_EPOCH",
)
X86_64_V3 = ("GGML_AVX", "GGML_AVX2", "GGML_FMA", "GGML_F16C", "GGML_BMI2")


class BuildError(Exception):
    """Nothing can be built; the message is the one line to show."""


@dataclass(frozen=True)
class Build:
    """One thing to be built: where it is kept, how it is known to be there, how it is made.

    ``finished`` gives the product in a folder, or None. ``make`` fills the folder that it is
    given, its output in the log that it is given.
    """

    folder: Path
    what: str
    finished: Callable[[Path], Path | None]
    make: Callable[[Path, Path], None]


def command(name: str, product: Callable[[str], Path], arguments: list[str]) -> int:
    """Print the path of the ``product`` of a variant; the exit status."""
    variant = arguments[0] if arguments else VARIANTS[0]
    if len(arguments) > 1 or variant not in VARIANTS:
        print(f"usage: {name} [{'|'.join(VARIANTS)}]", file=sys.stderr)
        return 2
    # A build that is stopped leaves nothing behind but its log.
    signal.signal(signal.SIGTERM, _stop)
    try:
        print(product(variant))
    except (BuildError, OSError) as err:
        print(f"{name}: {err}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def built(wanted: Build) -> Path:
    """The product of ``wanted``, built if it is not there yet."""
    folder = wanted.folder
    found = wanted.finished(folder)
    if found:
        return found
    check_tools()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(f".{folder.name}.lock"), wanted.what) as alone:
        found = wanted.finished(folder)  # another process may have built it meanwhile
        return found or _build(wanted, alone)


def pinned_version() -> str:
    """The version that pyproject.toml pins."""
    dependencies = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["dependencies"]
    for dependency in dependencies:
        pin = re.fullmatch(rf"{PACKAGE}\s*==\s*([\w.]+)", dependency.strip())
        if pin:
            return pin[1]
    raise BuildError(f"{PROJECT}: no dependency of the form {PACKAGE}==VERSION")


def instruction_sets(variant: str) -> list[str]:
    """The cmake definitions that choose what ggml is compiled for."""
    if variant == "native":
        return ["-DGGML_NATIVE=ON"]
    named = X86_64_V3 if machine() in ("x86_64", "amd64") else ()
    return ["-DGGML_NATIVE=OFF", *(f"-D{name}=ON" for name in named)]


def machine() -> str:
    return platform.machine().lower()


def cache_folder(kind: str) -> Path:
    """The folder of built things of one ``kind`` in the user's cache directory."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    # The base directory specification: a relative path is invalid and must be ignored.
    base = Path(given) if os.path.isabs(given) else Path.home() / ".cache"  # noqa: PTH117
    return base / "sluice" / kind


def check_tools() -> None:
    """Raise one line that names every build tool that is missing."""
    compilers = (os.environ.get("CXX", "").split(" ")[0], "c++", "g++", "clang++")
    missing = [
        words
        for words, names in (
            ("a C++ compiler", compilers),
            ("cmake", ("cmake",)),
            ("make or ninja", ("make", "gmake", "ninja")),
        )
        if not any(name and shutil.which(name) for name in names)
    ]
    if missing:
        how = "apt-get install g++ cmake make" if shutil.which("apt-get") else "install that first"
        raise BuildError(f"building llama.cpp needs {', '.join(missing)}: not on PATH; {how}")


@contextlib.contextmanager
def locked(path: Path, what: str) -> Iterator[bool]:
    """Hold ``path`` against other builds of the same thing; False where locks do not work."""
    with path.open("w") as handle:
        alone = True
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process is building {what}, waiting for it ...")
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:  # a file system without locks: two builds, each in a folder of its own
            alone = False
        yield alone


def run(line: Sequence[str], log: Path, *, cmake_args: str = "") -> None:
    """Run a command of a build, its whole output at the end of ``log``.

    Raises:
        BuildError: it exited with something else than 0.
    """
    environment = {k: v for k, v in os.environ.items() if k not in BUILD_VARIABLES}
    if cmake_args:
        environment["CMAKE_ARGS"] = cmake_args
    with log.open("a", encoding="utf-8") as out:
        if cmake_args:
            out.write(f"CMAKE_ARGS={cmake_args}\n")
        out.write(f"{' '.join(line)}\n")
        out.flush()
        process = subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=environment,
            process_group=0,  # so that the compilers can be stopped with it
        )
        try:
            code = process.wait()
        except BaseException:
            _stop_group(process)
            raise
    if code:
        what = "pip" if "pip" in line else Path(line[0]).name
        raise BuildError(f"building llama.cpp failed ({what} exited {code}); see {log}")


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _build(wanted: Build, alone: bool) -> Path:
    """Build in a temporary folder beside the right one, then rename it."""
    folder = wanted.folder
    if alone:
        for stale in folder.parent.glob(f".{folder.name}.build-*"):
            shutil.rmtree(stale, ignore_errors=True)
    log = folder.with_name(f"{folder.name}.log")
    log.write_bytes(b"")
    say(f"building {wanted.what} once for this machine, some minutes (log: {log}) ...")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(
        prefix=f".{folder.name}.build-", dir=folder.parent, ignore_cleanup_errors=True
    ) as temporary:
        result = Path(temporary, "result")
        result.mkdir()
        wanted.make(result, log)
        if not wanted.finished(result):
            raise BuildError(f"the build left no {wanted.what}; its log is {log}")
        try:
            result.rename(folder)
        except OSError:
            # Not a finished build of another process: a damaged one.
            if not wanted.finished(folder):
                shutil.rmtree(folder, ignore_errors=True)
                result.rename(folder)
    say(f"built in {time.monotonic() - began:.0f} s")
    made = wanted.finished(folder)
    if not made:
        raise BuildError(f"{folder}: removed while it was made; try again")
    return made


def _stop_group(leader: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started; pip clears its temporary folders on SIGINT."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader.pid, signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        leader.wait(10)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader.pid, signal.SIGKILL)
    leader.wait()


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt

"""A control group of Linux that limits the memory of what is started in it, version 1 or 2.

Page cache counts, too: a process in it that reads a file is charged for the pages that it brings
in, though not for those that another group brought in before.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sluice.errors import SystemFault

_CGROUP = Path("/proc/self/cgroup")
_MOUNTS = Path("/proc/self/mountinfo")
_SAMPLE_S = 0.05
_REMOVE_S = 5.0
_ENTER = 'echo $$ > "$0" || exit 125; exec "$@"'
_UNLIMITED_FROM = 1 << 60


@dataclass(frozen=True, slots=True)
class _Files:
    """Names of one version's control files; the optional ones are not on every kernel."""

    limit: str
    swap_limit: str
    usage: str
    peak: str
    events: str


_FILES = {
    1: _Files(
        "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.usage_in_bytes",
        "memory.max_usage_in_bytes", "memory.oom_control",
    ),
    2: _Files("memory.max", "memory.swap.max", "memory.current", "memory.peak", "memory.events"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """Where this process's own memory group is: its ``folder``, and the mount's ``top``."""

    version: int
    folder: Path
    top: Path


class MemoryCgroup:
    """A group of ``limit_bytes``, made under this process's own and removed at the end.

    Version 2 lets no group that holds processes have limited groups below it; there it is made
    beside this process's own, where that has no limit itself.

    Use it as a context manager. :attr:`peak_bytes` and :attr:`killed` stay readable afterwards.

    Args:
        limit_bytes: of memory, page cache included; swap is not used where that can be said.

    Raises:
        SystemFault: on entering; no group can be made here, in words.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.killed = False
        """Whether the kernel ended a process of the group for its memory; kept at the end."""
        self.peak_bytes = 0
        """The most that the group was charged at once; kept at the end."""
        self._folder: Path | None = None
        self._files = _FILES[1]
        self._sampling = threading.Event()
        self._sampler: threading.Thread | None = None

    def __enter__(self) -> Self:
        place = find_place(_read(_CGROUP), _read(_MOUNTS))
        if place is None:
            raise SystemFault("no memory cgroup: none is mounted where this process could see it")
        self._files = _FILES[place.version]
        refusals = []
        for parent in _parents(place):
            try:
                self._folder = self._make(parent, place.version)
                break
            except OSError as err:
                refusals.append(f"{err.filename or parent}: {err.strerror or err}")
        if self._folder is None:
            hint = "; try systemd-run --user --scope" if place.version == 2 else ""
            raise SystemFault(f"no memory cgroup can be made: {refusals[0]}{hint}")
        if not (self._folder / self._files.peak).exists():
            self._sampler = threading.Thread(target=self._sample, daemon=True)
            self._sampler.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._folder is None:
            return
        self.refresh()
        self._sampling.set()
        if self._sampler is not None:
            self._sampler.join()
        folder, self._folder = self._folder, None
        _remove(folder)

    def command(self, line: Sequence[str]) -> list[str]:
        """``line`` such that its process enters the group before it becomes ``line[0]``.

        The exit code is that of ``line``, or 125 where the group could not be entered.
        """
        assert self._folder is not None, "only within the with block"
        return ["sh", "-c", _ENTER, str(self._folder / "cgroup.procs"), *line]

    def start(self, line: Sequence[str], **rest: Any) -> subprocess.Popen[Any]:
        """Start ``line`` in the group; ``rest`` goes to :class:`subprocess.Popen`."""
        return subprocess.Popen(self.command(line), **rest)

    def refresh(self) -> None:
        """Read :attr:`peak_bytes` and :attr:`killed` from the group as they are now."""
        if self._folder is None:
            return
        names = (self._files.peak, self._files.usage)
        self.peak_bytes = max(self.peak_bytes, *(_number(self._folder / n) for n in names))
        events = re.search(r"^oom_kill (\d+)$", _read(self._folder / self._files.events), re.M)
        self.killed = self.killed or (events is not None and int(events[1]) > 0)

    def _make(self, parent: Path, version: int) -> Path:
        if version == 2:
            _enable(parent)
        folder = parent / f"sluice-{os.getpid()}-{secrets.token_hex(4)}"
        folder.mkdir()
        try:
            (folder / self._files.limit).write_text(str(self.limit_bytes), encoding="ascii")
            # Not on every kernel, and of no interest where there is no swap. Version 1 counts
            # memory and swap together, and sets the limit of both after that of memory.
            with contextlib.suppress(OSError):
                swap = "0" if version == 2 else str(self.limit_bytes)
                (folder / self._files.swap_limit).write_text(swap, encoding="ascii")
            if version == 1:
                with contextlib.suppress(OSError):
                    (folder / "memory.swappiness").write_text("0", encoding="ascii")
        except OSError:
            _remove(folder)
            raise
        return folder

    def _sample(self) -> None:
        while not self._sampling.wait(_SAMPLE_S):
            self.refresh()


def why_no_cgroup() -> str | None:
    """Why no limited group can be made here, in words; ``None`` where one can."""
    try:
        with MemoryCgroup(64 << 20):
            return None
    except SystemFault as err:
        return str(err)


def find_place(cgroup: str, mounts: str) -> Place | None:
    """Where this process's memory group is; pure.

    Args:
        cgroup: the text of ``/proc/self/cgroup``.
        mounts: the text of ``/proc/self/mountinfo``.
    """
    mine = {
        "memory" if "memory" in controllers.split(",") else controllers: path
        for _, controllers, path in (line.split(":", 2) for line in cgroup.splitlines())
    }
    # A hybrid system has both; memory is then where version 1 says that it is.
    for version, kind, controller in ((1, "cgroup", "memory"), (2, "cgroup2", "")):
        if controller not in mine or (version == 2 and "memory" in mine):
            continue
        for line in mounts.splitlines():
            mounted, _, rest = line.partition(" - ")
            fields, (mounted_kind, *_, options) = mounted.split(), rest.split()
            if mounted_kind != kind or (version == 1 and "memory" not in options.split(",")):
                continue
            # The mount shows the tree from its root on: a container sees its own part.
            root, top = fields[3], Path(_unescaped(fields[4]))
            path = mine[controller]
            if Path(path).is_relative_to(root):
                return Place(version, top / Path(path).relative_to(root), top)
    return None


def _parents(place: Place) -> Iterator[Path]:
    """Where a group may be made: never where it would escape a limit of this process's own."""
    yield place.folder
    if place.version == 2:
        own = place.folder
        while own != place.top and _number(own / _FILES[2].limit, _UNLIMITED_FROM) >= (
            _UNLIMITED_FROM
        ):
            own = own.parent
            yield own


def _enable(parent: Path) -> None:
    control = parent / "cgroup.subtree_control"
    if "memory" not in _read(control).split():
        control.write_text("+memory", encoding="ascii")


def _remove(folder: Path) -> None:
    """Remove a group, and with it whatever still runs in it."""
    until = time.monotonic() + _REMOVE_S
    while True:
        for pid in _read(folder / "cgroup.procs").split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        try:
            folder.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError as err:
            if time.monotonic() > until:
                raise SystemFault(f"{folder}: cannot be removed: {err.strerror}") from None
        time.sleep(0.02)


def _number(path: Path, otherwise: int = 0) -> int:
    text = _read(path).strip()
    return int(text) if text.isdecimal() else otherwise


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def _unescaped(path: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), path)

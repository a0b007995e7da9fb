"""``rows.jsonl``: the rows of a sweep on disk, appended one by one as requests end.

The first line holds the identity, every other line one row.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sluice.errors import RequestError, SystemFault
from sluice.sweep.row import SCHEMA, Identity, Key, Row
from sluice.sweep.workload import Workload

FILE = "rows.jsonl"
_HEAD = f'{{"schema": "{SCHEMA}", "identity": '.encode()


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a file holds; of a request that is there twice, the last row only.

    ``whole_bytes`` is the length of its whole lines: what follows was cut by the end of the
    process that wrote it.
    """

    identity: Identity
    rows: tuple[Row, ...]
    whole_bytes: int = 0


def read(path: Path) -> Recorded:
    """Read what :class:`RowFile` wrote; ``path`` is the file, or the folder that it is in.

    A last line without its end is dropped: the sweep was stopped while it was written.

    Raises:
        RequestError: no such file, not a sweep's rows, or of another schema version; names the
            line.
    """
    path = path / FILE if path.is_dir() else path
    try:
        found = _parse(path.read_bytes(), path)
    except OSError as err:
        raise RequestError(
            f"{path}: cannot be read: {err.strerror}; give the {FILE} of a sweep, or its folder"
        ) from None
    if found is None:
        raise RequestError(f"{path}: holds no row; give the {FILE} of a sweep, or its folder")
    return found


class RowFile:
    """The rows of a sweep that is going on. Enter it, or close it; one process at a time.

    Args:
        folder: exists; the file in it is made, or continued where it is of the same identity.
        identity: of the sweep that is about to run.
        workloads: of that sweep; rows of a workload of the same name must be of the same prompts
            and sampling.

    Raises:
        RequestError: the file there is of another identity, with what differs; is none of a
            sweep's; or another process is writing it.
        SystemFault: it cannot be written.
    """

    def __init__(
        self, folder: Path, identity: Identity, workloads: Iterable[Workload] = ()
    ) -> None:
        self.path = folder / FILE
        self.identity = identity
        self._rows: dict[Key, Row] = {}
        try:
            self._fd = os.open(
                self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666
            )
        except OSError as err:
            raise SystemFault(f"{self.path}: cannot be written: {err.strerror}") from None
        try:
            if not stat.S_ISREG(os.fstat(self._fd).st_mode):  # a pipe or a device has no end
                raise RequestError(f"{self.path}: is no regular file; give another --out")
            self._resume(workloads)
        except BaseException:
            os.close(self._fd)
            raise

    @property
    def rows(self) -> tuple[Row, ...]:
        """Every row so far, the last one of each request."""
        return tuple(self._rows.values())

    @property
    def done(self) -> frozenset[Key]:
        """The requests that need not be made again: measured ones, and those refused by rule."""
        return frozenset(key for key, row in self._rows.items() if row.outcome != "failed")

    def append(self, row: Row) -> None:
        """Add a row; when this returns, it is on the disk.

        Raises:
            SystemFault: it cannot be written.
            ValueError: the row is of another identity.
        """
        if row.identity != self.identity.key:
            raise ValueError(f"row of identity {row.identity} in a file of {self.identity.key}")
        self._write(row.to_line())
        self._rows.pop(row.key, None)
        self._rows[row.key] = row

    def close(self) -> None:
        """Let another process write the file."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _resume(self, workloads: Iterable[Workload]) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RequestError(
                f"{self.path}: another sweep is writing it; wait for its end, or give another --out"
            ) from None
        try:
            found = _parse(self.path.read_bytes(), self.path)
            # A torn end would join the next row's line.
            os.ftruncate(self._fd, found.whole_bytes if found is not None else 0)
        except OSError as err:
            raise SystemFault(f"{self.path}: cannot be read: {err.strerror}") from None
        if found is None:
            head = {"schema": SCHEMA, "identity": self.identity.as_dict()}
            self._write(json.dumps(head) + "\n")
            return
        if found.identity != self.identity:
            what = "; ".join(self.identity.differences(found.identity))
            raise RequestError(
                f"{self.path}: rows of another configuration ({what}); give another --out"
            )
        keys = {workload.name: workload.key for workload in workloads}
        for row in found.rows:
            if keys.get(row.workload, row.workload_key) != row.workload_key:
                raise RequestError(
                    f"{self.path}: workload {row.workload} was measured there with other prompts"
                    " or sampling; give another --out, or the workload another name"
                )
        self._rows = {row.key: row for row in found.rows}

    def _write(self, line: str) -> None:
        data = line.encode()
        try:
            while data:
                data = data[os.write(self._fd, data) :]
            os.fsync(self._fd)
        except OSError as err:
            raise SystemFault(f"{self.path}: cannot be written: {err.strerror}") from None


def _parse(data: bytes, path: Path) -> Recorded | None:
    """``None`` where not even the first line is whole."""
    whole_bytes = data.rfind(b"\n") + 1
    lines = data[:whole_bytes].split(b"\n")[:-1]
    if not lines:
        if not (_HEAD.startswith(data) or data.startswith(_HEAD)):
            raise RequestError(f"{path}: not the rows of a sweep; it is left as it is")
        return None
    raw = [_object(line, f"{path} line {i}") for i, line in enumerate(lines, 1)]
    if "identity" not in raw[0] or not isinstance(raw[0]["identity"], dict):
        raise RequestError(f"{path}: not the rows of a sweep: no identity in its first line")
    if raw[0].get("schema") != SCHEMA:
        raise RequestError(
            f"{path}: schema {raw[0].get('schema')}, this Sluice reads {SCHEMA}; sweep again"
        )
    identity = Identity.from_dict(raw[0]["identity"], f"{path} line 1")
    rows: dict[Key, Row] = {}
    for i, values in enumerate(raw[1:], 2):
        row = Row.from_dict(values, f"{path} line {i}")
        if row.identity != identity.key:
            raise RequestError(
                f"{path} line {i}: a row of another configuration ({row.identity}, the file's is"
                f" {identity.key}); take it out, or sweep into another folder"
            )
        rows.pop(row.key, None)  # its place in the order is the later one's
        rows[row.key] = row
    return Recorded(identity, tuple(rows.values()), whole_bytes)


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError) as err:  # not UTF-8 is one, too
        raise RequestError(f"{where}: not JSON ({err}); take the line out") from None
    if not isinstance(raw, dict):
        raise RequestError(f"{where}: not a JSON object; take the line out")
    return raw

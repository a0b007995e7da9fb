"""How much memory this process may still take: the machine's, or its cgroup's if less."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/proc/self/cgroup")
_V1_ROOT = Path("/sys/fs/cgroup/memory")
_V2_ROOTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
# Limit, use, and in memory.stat the part of the use that can be had back: clean file pages.
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = ("memory.max", "memory.current", "inactive_file")


def available_bytes() -> int | None:
    """Memory that can be taken without swapping; ``None`` where the system does not say."""
    found = [meminfo_bytes("MemAvailable"), *_cgroups_bytes()]
    return min((n for n in found if n is not None), default=None)


def total_bytes() -> int | None:
    """The memory of the machine."""
    return meminfo_bytes("MemTotal")


def meminfo_bytes(key: str) -> int | None:
    """One line of /proc/meminfo; ``None`` where there is none."""
    if not _MEMINFO.exists():
        return None
    for line in _MEMINFO.read_text(encoding="ascii").splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) << 10
    return None


def _cgroups_bytes() -> Iterator[int]:
    """What the memory limits of this process's cgroup and of those above it leave."""
    try:
        lines = _CGROUP.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            yield from _branch_bytes(_V1_ROOT, path, _V1)
        elif number == "0":
            for root in _V2_ROOTS:
                yield from _branch_bytes(root, path, _V2)


def _branch_bytes(root: Path, path: str, names: tuple[str, str, str]) -> Iterator[int]:
    folder = root / path.strip("/")
    if not folder.is_dir():  # seen from inside a container: its own cgroup is the root
        folder = root
    while True:
        left = _left_bytes(folder, *names)
        if left is not None:
            yield left
        if folder == root:
            return
        folder = folder.parent


def _left_bytes(folder: Path, limit_name: str, use_name: str, cache_name: str) -> int | None:
    try:
        text = (folder / limit_name).read_text(encoding="ascii").strip()
        if text == "max":
            return None
        limit = int(text)
        used = int((folder / use_name).read_text(encoding="ascii"))
        stat = (folder / "memory.stat").read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return None
    cache = sum(int(line.split()[1]) for line in stat if line.split()[0] == cache_name)
    return max(limit - max(used - cache, 0), 0)

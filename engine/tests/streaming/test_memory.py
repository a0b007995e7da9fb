"""The machine's memory and the limits of cgroups, on a tree of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.streaming import memory

GIB = 1 << 30


class Tree:
    """What memory.py reads, under ``root``."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.v1, self.v2 = root / "memory", root / "unified"
        monkeypatch.setattr(memory, "_MEMINFO", root / "meminfo")
        monkeypatch.setattr(memory, "_CGROUP", root / "cgroup")
        monkeypatch.setattr(memory, "_V1_ROOT", self.v1)
        monkeypatch.setattr(memory, "_V2_ROOTS", (self.v2,))

    def machine(self, available: int, total: int = 64 * GIB) -> None:
        lines = f"MemTotal: {total >> 10} kB\nMemFree: 1 kB\nMemAvailable: {available >> 10} kB\n"
        (self.root / "meminfo").write_text(lines)

    def of(self, *lines: str) -> None:
        (self.root / "cgroup").write_text("".join(f"{line}\n" for line in lines))

    def v1_group(self, path: str, limit: int, used: int, cache: int = 0) -> None:
        stat = f"cache {cache * 2}\ninactive_file 7\ntotal_inactive_file {cache}\n"
        _group(
            self.v1 / path, ("memory.limit_in_bytes", "memory.usage_in_bytes"), limit, used, stat
        )

    def v2_group(self, path: str, limit: int | str, used: int, cache: int = 0) -> None:
        stat = f"anon 5\ninactive_file {cache}\nactive_file 9\n"
        _group(self.v2 / path, ("memory.max", "memory.current"), limit, used, stat)


def _group(folder: Path, names: tuple[str, str], limit: int | str, used: int, stat: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in zip((*names, "memory.stat"), (limit, used, stat), strict=True):
        (folder / name).write_text(f"{text}".rstrip() + "\n")


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    return Tree(tmp_path, monkeypatch)


def test_a_system_that_does_not_say(tree: Tree) -> None:
    assert memory.available_bytes() is None
    assert memory.total_bytes() is None


def test_without_a_group_it_is_the_machines(tree: Tree) -> None:
    tree.machine(10 * GIB)
    assert memory.available_bytes() == 10 * GIB
    assert memory.total_bytes() == 64 * GIB
    assert memory.meminfo_bytes("MemNone") is None
    tree.of("0::/user.slice")  # no such folder, no limits
    assert memory.available_bytes() == 10 * GIB


def test_the_limit_of_version_2_counts_cache_as_free(tree: Tree) -> None:
    tree.machine(10 * GIB)
    tree.of("0::/user/me")
    tree.v2_group("user/me", limit=4 * GIB, used=3 * GIB, cache=2 * GIB)
    assert memory.available_bytes() == 3 * GIB


def test_the_limit_of_version_1(tree: Tree) -> None:
    tree.machine(10 * GIB)
    tree.of("9:name=systemd:/", "4:cpu,memory:/user/me", "0::/")
    tree.v1_group("user/me", limit=4 * GIB, used=3 * GIB, cache=GIB)
    assert memory.available_bytes() == 2 * GIB


def test_a_group_above_may_leave_less(tree: Tree) -> None:
    tree.machine(10 * GIB)
    tree.of("0::/user/me")
    tree.v2_group("user/me", limit="max", used=GIB)
    assert memory.available_bytes() == 10 * GIB
    tree.v2_group("user", limit=6 * GIB, used=5 * GIB)
    assert memory.available_bytes() == GIB
    tree.v2_group("", limit=GIB, used=GIB - 5)
    assert memory.available_bytes() == 5


def test_a_machine_with_less_than_the_limit(tree: Tree) -> None:
    tree.machine(GIB)
    tree.of("4:memory:/")
    tree.v1_group("", limit=9223372036854771712, used=GIB)
    assert memory.available_bytes() == GIB


def test_a_group_that_has_used_more_than_it_may_leaves_nothing(tree: Tree) -> None:
    tree.machine(GIB)
    tree.of("0::/")
    tree.v2_group("", limit=GIB, used=2 * GIB)
    assert memory.available_bytes() == 0


def test_a_container_sees_its_own_group_as_the_root(tree: Tree) -> None:
    tree.machine(10 * GIB)
    tree.of("0::/docker/0123abc")
    tree.v2_group("", limit=2 * GIB, used=GIB)
    assert memory.available_bytes() == GIB


def test_files_that_make_no_sense_are_passed_over(tree: Tree) -> None:
    tree.machine(10 * GIB)
    tree.of("0::/")
    tree.v2_group("", limit="lots", used=GIB)
    assert memory.available_bytes() == 10 * GIB


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="reads /proc")
def test_this_machine_says() -> None:
    available, total = memory.available_bytes(), memory.total_bytes()
    assert available is not None
    assert total is not None
    assert 0 <= available <= total

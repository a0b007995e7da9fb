from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sluice.errors import SystemFault
from sluice.targets import cgroup
from sluice.targets.cgroup import MemoryCgroup, Place, find_place, why_no_cgroup

MIB = 1 << 20
LIMIT = 64 * MIB
WHY = why_no_cgroup()
needs_cgroup = pytest.mark.skipif(WHY is not None, reason=WHY or "")

V1 = "9:name=systemd:/\n4:cpu,memory:/user/me\n0::/\n"
V1_MOUNTS = (
    "31 23 0:28 / /sys/fs/cgroup rw shared:1 - tmpfs tmpfs rw\n"
    "34 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
    "35 31 0:32 {root} /sys/fs/cgroup/memory rw shared:2 master:3 - cgroup cgroup rw,cpu,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
)
V2 = "0::/user.slice/app.scope\n"
V2_MOUNTS = "30 23 0:26 / /sys/fs/c\\040g rw - cgroup2 cgroup2 rw,nsdelegate\n"


def allocating(mib: int) -> list[str]:
    return [sys.executable, "-c", f"b = bytearray({mib} << 20); print(len(b))"]


def test_version_1_is_found_by_its_controller() -> None:
    top = Path("/sys/fs/cgroup/memory")
    assert find_place(V1, V1_MOUNTS.format(root="/")) == Place(1, top / "user/me", top)


def test_a_container_sees_its_own_part_of_the_tree() -> None:
    top = Path("/sys/fs/cgroup/memory")
    assert find_place(V1, V1_MOUNTS.format(root="/user")) == Place(1, top / "me", top)
    assert find_place(V1, V1_MOUNTS.format(root="/other")) is None


def test_version_2_is_found_where_version_1_has_no_memory() -> None:
    top = Path("/sys/fs/c g")
    assert find_place(V2, V2_MOUNTS) == Place(2, top / "user.slice/app.scope", top)
    # Memory stands under version 1, which is not mounted here.
    assert find_place("4:memory:/\n" + V2, V2_MOUNTS) is None


def test_a_system_without_cgroups_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cgroup, "_MOUNTS", tmp_path / "none")
    assert (why_no_cgroup() or "").startswith("no memory cgroup: ")


def test_a_folder_that_takes_no_group_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "cgroup").write_text("4:memory:/gone\n")
    (tmp_path / "mounts").write_text(f"35 31 0:32 / {tmp_path} rw - cgroup cgroup rw,memory\n")
    monkeypatch.setattr(cgroup, "_CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(cgroup, "_MOUNTS", tmp_path / "mounts")
    with pytest.raises(SystemFault, match=rf"can be made: {tmp_path}/gone/.*: No such file"):
        MemoryCgroup(LIMIT).__enter__()


@needs_cgroup
def test_what_fits_runs_and_its_peak_is_read() -> None:
    with MemoryCgroup(LIMIT) as group:
        process = group.start(allocating(24), stdout=subprocess.PIPE, text=True)
        out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert out == f"{24 * MIB}\n"
    assert 24 * MIB < group.peak_bytes <= LIMIT
    assert not group.killed


@needs_cgroup
def test_what_does_not_fit_is_killed_and_that_is_seen() -> None:
    with MemoryCgroup(LIMIT) as group:
        process = group.start(allocating(256), stdout=subprocess.PIPE)
        process.communicate(timeout=30)
    assert process.returncode == -9
    assert group.killed
    assert LIMIT - MIB < group.peak_bytes <= LIMIT


@needs_cgroup
def test_an_exit_code_is_passed_on_and_the_group_is_removed() -> None:
    with MemoryCgroup(LIMIT) as group:
        line = group.command([sys.executable, "-c", "raise SystemExit(7)"])
        folder = Path(line[3]).parent
        assert folder.is_dir()
        assert subprocess.run(line, check=False).returncode == 7
    assert not folder.exists()


@needs_cgroup
def test_the_end_takes_along_what_still_runs() -> None:
    with MemoryCgroup(LIMIT) as group:
        process = group.start(["sleep", "60"])
        procs = Path(group.command([])[3])
        while procs.read_text().split() != [str(process.pid)]:
            assert process.poll() is None
            time.sleep(0.01)
    assert process.wait(5) == -9
    assert not procs.exists()


@needs_cgroup
def test_a_kernel_that_keeps_no_peak_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    for version, files in cgroup._FILES.items():
        without = {n: getattr(files, n) for n in files.__slots__} | {"peak": "memory.none"}
        monkeypatch.setitem(cgroup._FILES, version, type(files)(**without))
    code = f"b = bytearray({24 * MIB}); input()"
    with MemoryCgroup(LIMIT) as group:
        process = group.start([sys.executable, "-c", code], stdin=subprocess.PIPE)
        until = time.monotonic() + 20
        while group.peak_bytes < 24 * MIB and time.monotonic() < until:
            time.sleep(0.01)
        process.communicate(os.linesep.encode())
    assert 24 * MIB < group.peak_bytes <= LIMIT

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.errors import RequestError, SystemFault
from sluice.sweep.row import Key
from sluice.sweep.rows import FILE, RowFile, read
from sluice.sweep.workload import Prompt, Workload

from .making import IDENTITY, row


def test_rows_are_on_disk_as_they_come(tmp_path: Path) -> None:
    with RowFile(tmp_path, IDENTITY) as file:
        file.append(row(prompt="a"))
        assert [r.prompt for r in read(tmp_path).rows] == ["a"]
        file.append(row(prompt="b"))
        assert [r.prompt for r in read(tmp_path / FILE).rows] == ["a", "b"]
    assert read(tmp_path).identity == IDENTITY


def test_a_row_is_on_the_disk_when_append_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = []
    monkeypatch.setattr(os, "fsync", lambda fd: lengths.append(os.fstat(fd).st_size))
    with RowFile(tmp_path, IDENTITY) as file:
        file.append(row())
        assert lengths[-1] == (tmp_path / FILE).stat().st_size
    assert len(lengths) == 2


def test_a_sweep_is_resumed_where_it_stopped(tmp_path: Path) -> None:
    with RowFile(tmp_path, IDENTITY) as file:
        file.append(row(prompt="a"))
        file.append(row(prompt="b", outcome="failed", error="the server died"))
        file.append(row(prompt="c", outcome="refused", error="a rule"))
    with RowFile(tmp_path, IDENTITY) as file:
        assert file.done == {Key("off", "code", prompt, 0) for prompt in "ac"}
        assert len(file.rows) == 3
        file.append(row(prompt="b"))
        assert len(file.rows) == 3
    again = read(tmp_path)
    assert [(r.prompt, r.outcome) for r in again.rows] == [
        ("a", "ok"), ("c", "refused"), ("b", "ok"),
    ]  # fmt: skip


@pytest.mark.parametrize("cut", [1, 20, 300])
def test_a_torn_last_line_is_dropped_and_written_over(tmp_path: Path, cut: int) -> None:
    with RowFile(tmp_path, IDENTITY) as file:
        file.append(row(prompt="a"))
        file.append(row(prompt="b"))
    data = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(data[:-cut])
    assert [r.prompt for r in read(tmp_path).rows] == ["a"]
    with RowFile(tmp_path, IDENTITY) as file:
        assert [r.prompt for r in file.rows] == ["a"]
        file.append(row(prompt="b"))
    assert (tmp_path / FILE).read_bytes() == data


def test_a_torn_first_line_begins_again(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b'{"schema": "sluice-sweep/1", "ident')
    with pytest.raises(RequestError, match="holds no row"):
        read(tmp_path)
    with RowFile(tmp_path, IDENTITY) as file:
        file.append(row())
    assert len(read(tmp_path).rows) == 1


@pytest.mark.parametrize(
    "data", [b"a note", b'{"mine": 1}', b"a note\n", b'{"mine": 1}\n', b"[]\n"]
)
def test_a_file_that_is_no_sweeps_is_left_as_it_is(tmp_path: Path, data: bytes) -> None:
    (tmp_path / FILE).write_bytes(data)
    with pytest.raises(RequestError):
        RowFile(tmp_path, IDENTITY)
    assert (tmp_path / FILE).read_bytes() == data


def test_rows_of_another_configuration_are_refused_with_what_differs(tmp_path: Path) -> None:
    RowFile(tmp_path, IDENTITY).close()
    other = dataclasses.replace(IDENTITY, threads=8)
    with pytest.raises(RequestError, match=r"another configuration \(threads: 8 here, 2 there\)"):
        RowFile(tmp_path, other)


def test_a_row_of_another_configuration_within_a_file_is_refused(tmp_path: Path) -> None:
    other = dataclasses.replace(IDENTITY, threads=8)
    with RowFile(tmp_path, IDENTITY) as file:
        with pytest.raises(ValueError, match="row of identity"):
            file.append(row(identity=other.key))
        file.append(row())
    with (tmp_path / FILE).open("a") as mixed:
        mixed.write(row(prompt="b", identity=other.key).to_line())
    with pytest.raises(RequestError, match="line 3: a row of another configuration"):
        read(tmp_path)


def test_a_workload_whose_prompts_changed_is_refused(tmp_path: Path) -> None:
    workload = Workload("code", (Prompt("a", "x"),))
    with RowFile(tmp_path, IDENTITY, [workload]) as file:
        file.append(row(workload_key=workload.key))
    RowFile(tmp_path, IDENTITY, [workload]).close()
    changed = dataclasses.replace(workload, temp=1.0)
    with pytest.raises(RequestError, match="workload code was measured there with other prompts"):
        RowFile(tmp_path, IDENTITY, [changed])


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    with RowFile(tmp_path, IDENTITY) as file:
        file.append(row())
    with (tmp_path / FILE).open("ab") as broken:
        broken.write(b"\xff\n" + row(prompt="b").to_line().encode())
    with pytest.raises(RequestError, match="line 3: not JSON"):
        read(tmp_path)


def test_another_schema_is_refused(tmp_path: Path) -> None:
    RowFile(tmp_path, IDENTITY).close()
    text = (tmp_path / FILE).read_text()
    (tmp_path / FILE).write_text(text.replace("sweep/1", "sweep/2"))
    with pytest.raises(RequestError, match="schema sluice-sweep/2"):
        read(tmp_path)


def test_nothing_to_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"rows.jsonl: cannot be read: No such file"):
        read(tmp_path)


def test_two_sweeps_do_not_write_one_file(tmp_path: Path) -> None:
    with RowFile(tmp_path, IDENTITY), pytest.raises(RequestError, match="another sweep is writing"):
        RowFile(tmp_path, IDENTITY)
    RowFile(tmp_path, IDENTITY).close()


def test_a_folder_that_is_not_there_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(SystemFault, match="cannot be written"):
        RowFile(tmp_path / "none", IDENTITY)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_is_a_fault(tmp_path: Path) -> None:
    with RowFile(tmp_path, IDENTITY) as file:
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, file._fd)
        os.close(full)
        with pytest.raises(SystemFault, match="No space left"):
            file.append(row())
        assert file.rows == ()


def test_a_killed_sweep_keeps_its_rows(tmp_path: Path) -> None:
    source = (
        "import os, sys, pathlib\n"
        "from sluice.sweep.row import Identity, Row\n"
        "from sluice.sweep.rows import RowFile\n"
        "identity = Identity('engine', 'm', 'b')\n"
        "file = RowFile(pathlib.Path(sys.argv[1]), identity)\n"
        "for n in range(3):\n"
        "    file.append(Row(identity=identity.key, arm='off', workload='w', workload_key='k',"
        " prompt='p', repeat=n))\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", source, str(tmp_path)], check=False)
    assert done.returncode == -9
    assert [r.repeat for r in read(tmp_path).rows] == [0, 1, 2]


def test_a_line_too_deep_to_read_is_named(tmp_path: Path) -> None:
    with RowFile(tmp_path, IDENTITY) as file:
        file.append(row())
    with (tmp_path / FILE).open("a") as file_:
        file_.write("[" * 100_000 + "\n")
    with pytest.raises(RequestError, match="line 3: not JSON"):
        read(tmp_path)


def test_a_pipe_in_the_place_of_the_rows_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / FILE)
    with pytest.raises(RequestError, match="is no regular file; give another --out"):
        RowFile(tmp_path, IDENTITY)

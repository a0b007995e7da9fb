from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from sluice.llama.libc import direct_alignment


def test_what_the_file_system_says_is_what_it_takes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(3 << 20))
    said = direct_alignment(path)
    if said is None:
        pytest.skip("this system does not say")
    if said == 0:
        with pytest.raises(OSError, match="Invalid argument"):
            os.open(path, os.O_RDONLY | os.O_DIRECT)
        return
    assert said & (said - 1) == 0
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        window = memoryview(mmap.mmap(-1, 1 << 21))[said : 2 * said]
        assert os.preadv(fd, [window], said) == said
    finally:
        os.close(fd)


@pytest.mark.parametrize("path", ["/proc/version", "/nonexistent/m.gguf"])
def test_where_nothing_is_said_nothing_is_made_up(path: str) -> None:
    assert not direct_alignment(Path(path))


def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    plain, path = tmp_path / "plain.gguf", tmp_path / os.fsdecode(b"caf\xe9.gguf")
    for one in (plain, path):
        one.write_bytes(bytes(100))
    assert direct_alignment(path) == direct_alignment(plain)

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluice.config import INT32_MAX, Config
from sluice.decoding.footprint import attention_cache_bytes, check_footprint
from sluice.decoding.session import Session
from sluice.errors import RequestError
from sluice.gguf.header import Header
from sluice.streaming import memory

linux = pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="memory is read in /proc")


def test_the_cache_is_that_of_the_full_attention_layers(header: Header) -> None:
    width = sum(
        info.shape[1]
        for name, info in header.tensors.items()
        if name in ("blk.3.attn_k.weight", "blk.3.attn_v.weight")
    )
    assert width > 0
    assert attention_cache_bytes(header, 1000, with_head=False) == width * 2 * 1000
    assert attention_cache_bytes(header, 1000, with_head=True) == 2 * width * 2 * 1000


@linux
def test_a_context_that_cannot_fit_is_refused(header: Header) -> None:
    with pytest.raises(RequestError) as refused:
        check_footprint(Config(model="m", ctx=INT32_MAX), header)
    said = str(refused.value)
    assert said.startswith(f"-c {INT32_MAX}: its attention cache needs ")
    remedy = int(said.rpartition("set -c to ")[2].split()[0])
    check_footprint(Config(model="m", ctx=remedy), header)


@linux
def test_a_pass_whose_scheduler_cannot_fit_is_refused(
    config: Config, opened: Callable[..., Session], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       2097152 kB\nMemAvailable:   2097152 kB\n")
    monkeypatch.setattr(memory, "_MEMINFO", meminfo)
    with pytest.raises(RequestError) as refused:
        opened(ubatch=4096, ctx=4096)
    said = str(refused.value)
    assert said.startswith("--ubatch 4096: llama.cpp's scheduler asks for 3.2 GiB")
    remedy = int(said.rpartition("set --ubatch to ")[2].split()[0])
    assert opened(ubatch=remedy, ctx=4096).generate([1], n=1).run().ids
    # A pass is no wider than the context.
    opened(ubatch=4096, ctx=512)


def test_a_system_that_does_not_tell_refuses_nothing(
    header: Header, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("_MEMINFO", "_CGROUP"):
        monkeypatch.setattr(memory, name, tmp_path / "none")
    check_footprint(Config(model="m", ctx=INT32_MAX, ubatch=65536), header)


@linux
def test_a_limit_on_the_address_space_is_heard(child: Callable[..., Any], model: Path) -> None:
    """llama.cpp asserts, and the process ends, where its scheduler gets no memory."""
    code = f"""
import resource
from sluice import Config, RequestError, Session
import sluice.decoding.session
with open("/proc/self/status") as status:
    used = next(int(l.split()[1]) << 10 for l in status if l.startswith("VmSize:"))
resource.setrlimit(resource.RLIMIT_AS, (used + (300 << 20), resource.RLIM_INFINITY))
try:
    Session(Config(model={str(model)!r}, threads=1))
except RequestError as err:
    print(err)
"""
    assert "--ubatch 512: llama.cpp's scheduler asks" in child(code).out

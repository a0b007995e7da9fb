from __future__ import annotations

import sys
from pathlib import Path

import pytest

from peer import check_template, peer_command, run_peer
from sluice.errors import RequestError, SystemFault


def test_fields_are_filled_in_and_words_stay_words() -> None:
    template = "'/opt/a b/run' -m {model} -n={n} --cache {cache_mb}M -p 'two words {x}'"
    assert peer_command(template, model=Path("/m o/d.gguf"), n=8, cache_mb=3) == [
        "/opt/a b/run", "-m", "/m o/d.gguf", "-n=8", "--cache", "3M", "-p", "two words {x}",
    ]  # fmt: skip


@pytest.mark.parametrize("template", ["run -n {n}", "run {model}"])
def test_a_template_without_model_or_tokens_is_refused(template: str) -> None:
    with pytest.raises(RequestError, match=r"has no \{(n|model)\}; it is a command with"):
        check_template(template)


def test_time_and_memory_are_the_commands_own() -> None:
    code = "import time; b = bytearray(96 << 20); time.sleep(0.2)"
    run = run_peer([sys.executable, "-c", code], timeout_s=30)
    assert run.wall_s > 0.2
    assert run.peak_rss_bytes > 96 << 20


def test_a_command_that_fails_is_late_or_is_not_there_is_a_fault() -> None:
    with pytest.raises(SystemFault, match=r"ended with 3$"):
        run_peer([sys.executable, "-c", "raise SystemExit(3)"], timeout_s=30)
    with pytest.raises(SystemFault, match=r"ended with -9 after 0\.3 s"):
        run_peer(["sleep", "60"], timeout_s=0.3)
    with pytest.raises(SystemFault, match="/none/peer: No such file"):
        run_peer(["/none/peer"], timeout_s=1)

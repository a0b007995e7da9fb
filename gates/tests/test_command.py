"""The command as gates drive it."""

from __future__ import annotations

import pytest

from sluice.config import Config
from sluice.errors import SystemFault
from sluice.targets import CommandTarget
from sluice.targets.command import flags


def test_only_what_is_not_default_is_spelled() -> None:
    assert flags(Config(model="m.gguf")) == ["m.gguf"]
    config = Config(model="m.gguf", mtp=True, odirect=False, temp=0.5, n=-1, flash_attn="off")
    assert flags(config) == [
        "m.gguf", "-n", "-1", "--flash-attn", "off", "--temp", "0.5", "--no-odirect", "--mtp"
    ]  # fmt: skip


def test_the_outcome_is_exit_code_and_words() -> None:
    done = CommandTarget().call("--version")
    assert done.exit_code == 0
    assert done.stdout.startswith("sluice ")
    assert done.stderr == ""


def test_a_command_that_hangs_is_a_fault_in_words() -> None:
    with pytest.raises(SystemFault, match=r"sluice run m\.gguf: still running after 0\.01 s"):
        CommandTarget(timeout_s=0.01).call("run", "m.gguf")

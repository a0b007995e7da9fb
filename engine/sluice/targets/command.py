"""The command in another process, as gates drive it: arguments in, exit code and words out."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

from sluice.config import Config, knobs
from sluice.errors import SystemFault

_BY_DEFAULT = Config(model="-")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended; a negative ``exit_code`` is the signal that killed it."""

    exit_code: int
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True)
class CommandTarget:
    """Runs ``sluice`` of this interpreter in a subprocess that ends within ``timeout_s``."""

    timeout_s: float = 120.0

    def run(self, config: Config, prompt: str) -> Outcome:
        """``sluice run`` with ``config`` spelled as flags."""
        return self.call("run", *flags(config), "-p", prompt)

    def call(self, *arguments: str) -> Outcome:
        """The command with these arguments, standard input closed.

        Raises:
            SystemFault: it did not end in time.
        """
        line = [sys.executable, "-m", "sluice.cli.main", *arguments]
        try:
            done = subprocess.run(
                line,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self.timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise SystemFault(
                f"sluice {' '.join(arguments)}: still running after {self.timeout_s:g} s"
            ) from None
        return Outcome(done.returncode, _text(done.stdout), _text(done.stderr))


def flags(config: Config) -> list[str]:
    """The arguments that spell ``config``: its model, and every knob that is not at its default."""
    spelled = [config.model]
    for name, knob in knobs().items():
        value = getattr(config, name)
        if value == getattr(_BY_DEFAULT, name):
            continue
        on, _, off = knob.flag.partition("/")
        if isinstance(value, bool):
            spelled.append(on if value else off)
        else:
            spelled += [on, str(value)]
    return spelled


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")

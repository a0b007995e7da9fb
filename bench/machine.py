"""What the machine is that a benchmark ran on."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

QUIET = 0.5
"""A load average above this has other work in it."""


def machine(threads: int) -> dict[str, Any]:
    """For a benchmark's JSON; ``load`` is the average over the last minute, at the start."""
    return {
        "processor": processor(),
        "threads": threads,
        "system": platform.platform(),
        "load": os.getloadavg()[0],
    }


def processor() -> str:
    """The processor's name."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.processor()

"""What the machine is that a sweep runs on."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def machine() -> str:
    """Processor, cores and memory, in one string that stays the same between runs."""
    n_cores = os.cpu_count() or 1
    parts = [_processor(), f"{n_cores} {'core' if n_cores == 1 else 'cores'}"]
    try:
        memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        parts.append(f"{memory_bytes / (1 << 30):.0f} GiB")
    except (OSError, ValueError, AttributeError):
        pass
    return ", ".join(parts)


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.processor() or platform.machine()

"""Where models that the benchmarks make are kept."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """A folder in the user's cache directory; it need not exist yet."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "sluice" / "bench"

"""Where models that the benchmarks make are kept."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """A folder in the user's cache directory; it need not exist yet."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # As for the builds of llama.cpp: a relative path is invalid and must be ignored.
    root = given if given.is_absolute() else Path.home() / ".cache"
    return root / "sluice" / "bench"

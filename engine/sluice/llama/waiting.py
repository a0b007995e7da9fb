"""How compute threads wait: not for long where cores are few, or a wait starves the reads.

libgomp's threads spin for milliseconds at every wait. Where every core computes, a lane that
has to run meanwhile waits for a core, and so does any other process. Threads that always sleep
are no better: a token has thousands of short waits. So they spin for as long
as a layer's experts are usually put in place (the eval hook), and then sleep. libgomp reads its
settings once, when it is loaded: this has to run before llama_cpp is imported.
"""

from __future__ import annotations

import os

FEW_CORES = 4
"""Up to here. On more cores the lanes have room beside threads that spin."""

SPIN_COUNT = "60000"
"""About a millisecond: most hooks are shorter, and a thread that has gone to sleep wakes late.

libgomp's own value is five times that.
"""

SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
"""Whoever sets one of these knows better."""


def shorten_where_cores_are_few() -> bool:
    """Set ``GOMP_SPINCOUNT`` for this process and its children; whether it was set here."""
    if any(name in os.environ for name in SETTINGS) or not hasattr(os, "sched_getaffinity"):
        return False
    if len(os.sched_getaffinity(0)) > FEW_CORES:
        return False
    os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT
    return True

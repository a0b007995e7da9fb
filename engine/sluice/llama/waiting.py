"""How compute threads wait: asleep where cores are few, so that a wait does not starve the reads.

libgomp's threads spin for milliseconds at every wait. Where every core computes, a lane that
has to run meanwhile waits for a core, and so does any other process. libgomp reads its settings
once, when it is loaded: this has to run before llama_cpp is imported.
"""

from __future__ import annotations

import os

FEW_CORES = 4
"""Up to here threads sleep. On more cores the lanes have room beside threads that spin."""

SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
"""Whoever sets one of these knows better."""


def sleep_where_cores_are_few() -> bool:
    """Set ``OMP_WAIT_POLICY`` for this process and its children; whether it was set here."""
    if any(name in os.environ for name in SETTINGS) or not hasattr(os, "sched_getaffinity"):
        return False
    if len(os.sched_getaffinity(0)) > FEW_CORES:
        return False
    os.environ[SETTINGS[0]] = "PASSIVE"
    return True

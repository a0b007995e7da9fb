"""Rows and figures for the tests of the sweep."""

from __future__ import annotations

from typing import Any

from sluice.sweep.arm import parse
from sluice.sweep.row import Identity, Row

IDENTITY = Identity("engine", "sha256:abc", "0.3.36 AVX2", 2, "a machine", {"ctx": "4096"})


def row(
    arm: str = "off",
    prompt: str = "a",
    repeat: int = 0,
    *,
    rate: float = 10.0,
    step_tokens: float = 1.0,
    n_steps: int = 100,
    workload: str = "code",
    **changes: Any,
) -> Row:
    """A request of ``n_steps`` steps of ``step_tokens`` tokens at an effective ``rate``.

    An arm that drafts drafts its whole length at every step.
    """
    n_decoded = round(step_tokens * n_steps)
    n_max = parse(arm).n_max
    values: dict[str, Any] = {
        "identity": IDENTITY.key, "arm": arm, "workload": workload, "workload_key": "k",
        "prompt": prompt, "repeat": repeat, "n_prompt": 10, "prompt_s": 0.5,
        "n_decoded": n_decoded, "n_drafted": n_max * n_steps,
        "n_accepted": n_decoded - n_steps if n_max else 0,
        "n_verify": n_steps if n_max else 0, "n_undrafted": 0 if n_max else n_steps,
        "effective_s": n_decoded / rate, "text_sha256": "t",
    }  # fmt: skip
    return Row(**values | changes)

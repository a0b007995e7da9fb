"""When two runs are the same run."""

from __future__ import annotations

from sluice.telemetry.evidence import Evidence


def same(a: Evidence, b: Evidence) -> None:
    """The same run to the logits, whatever the settings were."""
    assert a.prompt_ids == b.prompt_ids
    assert a.ids == b.ids
    assert a.logits_sha256 == b.logits_sha256
    assert a.top2 == b.top2
    assert a.text == b.text
    assert a.groups == b.groups
    assert a.stop == b.stop

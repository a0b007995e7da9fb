"""Every fault is a fault: it has a name, says what it does, and replaces something."""

from __future__ import annotations

import numpy as np
import pytest

from sluice.targets import Seams
from sluice_gates.fault import Fault, Probe, hooks, planted
from sluice_gates.faults import FAULTS

REQUIRED = {
    "slice-neighbour",
    "slice-missing",
    "routing-flat",
    "slice-bit-flip",
    "accept-one-more",
    "accept-one-less",
    "rollback-skipped",
    "catch-up-tail-kept",
    "hidden-shifted",
    "logits-stale-row",
    "evicted-slot-read",
    "slot-in-flight-dropped",
    "read-ahead-ready-early",
    "second-shard-on-first",
    "shared-page-dropped",
    "overlap-wait-forgotten",
    "late-rows-forgotten",
    "read-handed-over-lost",
    "layer-whole-early",
}


def test_the_required_faults_are_there() -> None:
    assert set(FAULTS) >= REQUIRED


@pytest.mark.parametrize("fault", FAULTS.values(), ids=list(FAULTS))
def test_a_fault_says_what_it_does(fault: type[Fault]) -> None:
    assert fault.__doc__ is not None
    assert fault.__doc__.endswith(".")
    assert "\n" not in fault.__doc__


@pytest.mark.parametrize("fault", FAULTS.values(), ids=list(FAULTS))
def test_a_fault_replaces_something(fault: type[Fault]) -> None:
    changed = [name for name in ("config", "sessions", "finish") if name in vars(fault)]
    assert planted(fault()) or changed


def test_the_probe_sees_every_hook_and_changes_nothing() -> None:
    probe, plain = Probe(), Seams()
    rows = np.zeros((1, 2), np.int32)
    data = memoryview(bytearray(4))
    calls: dict[str, tuple[object, ...]] = {
        "slice_source": (1, "up", 2, 8),
        "slice_read": (1, "up", 2, data),
        "slice_shard": (1, 2),
        "lane_reads": ("a", True),
        "lane_has_read": ("a", False),
        "hands_over": ("a", True),
        "waits": (1, "up"),
        "waits_for_ahead": (1, 2),
        "forgets": (1, 2),
        "spares_in_flight": (),
        "spares_shared_page": (),
        "takes_for_whole": (1, True),
        "computes_late": (1,),
        "routing": (rows, rows + 1),
        "accepted": (1, 3),
        "rolls_back": (2,),
        "catch_up_rows": (2, 4),
        "drops_surplus": (),
        "hidden_row": (1,),
        "logits_row": (1, 4),
    }
    assert set(calls) == hooks() - {"nodes"}
    for name, given in calls.items():
        assert getattr(probe, name)(*given) is getattr(plain, name)(*given) or (
            getattr(probe, name)(*given) == getattr(plain, name)(*given)
        )
    assert probe.called == hooks() - {"nodes"}

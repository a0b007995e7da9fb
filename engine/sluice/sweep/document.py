"""``figures.json``: the figures of a sweep for other programs. Pure."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Final

from sluice.sweep.conclusions import BAND
from sluice.sweep.figures import ArmFigures
from sluice.sweep.report import Report

SCHEMA: Final = "sluice-sweep-figures/1"


def document(report: Report) -> dict[str, Any]:
    """Plain values, in the order of the table."""
    return {
        "schema": SCHEMA,
        "identity": report.identity.as_dict(),
        "requests": {"ok": report.n_ok, "refused": report.n_refused, "failed": report.n_failed},
        "advised_band": list(BAND),
        "workloads": [
            {
                "workload": workload,
                "arms": [_arm(one) for one in report.figures_of(workload)],
                "ranking": next(
                    (dataclasses.asdict(one) for one in report.rankings
                     if one.workload == workload), None,
                ),
                "texts": [dataclasses.asdict(one) for one in report.texts
                          if one.workload == workload],
                "conclusion": next(dataclasses.asdict(one) for one in report.conclusions
                                   if one.workload == workload),
            }
            for workload in report.workloads
        ],
        "triage": list(report.triage),
    }  # fmt: skip


def to_json(values: dict[str, Any]) -> str:
    """One JSON object, LF line ends."""
    return json.dumps(values, indent=1) + "\n"


def _arm(one: ArmFigures) -> dict[str, Any]:
    values = dataclasses.asdict(one)
    arm = values.pop("arm")
    del values["workload"]
    return {
        **{key: arm[key] for key in ("name", "mtp", "n_max", "n_min", "p_min")},
        "streaming": dict(arm["streaming"]),
        **values,
    }

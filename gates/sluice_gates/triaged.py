"""Triage of the two runs that a gate failed over, so that a failure comes with its cause."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.errors import SluiceError
from sluice.telemetry.evidence import Evidence


@dataclass(frozen=True, slots=True)
class Triaged:
    """What the triage found: in one line, and as a screen of text."""

    summary: str
    text: str


def triaged(pair: tuple[Evidence, Evidence], *, whole: bool) -> Triaged:
    """Triage two runs; whatever goes wrong with that is told and never raised.

    Args:
        pair: the runs, the reference first.
        whole: also run both again and look at every node, and what lies between them; else
            only what is in the evidence is compared, as suits a large model.
    """
    from sluice.triage.report import lines, summary  # not before something has failed
    from sluice.triage.triage import triage

    try:
        finding = triage(*pair, localise=whole, attribution=whole)
        return Triaged(summary(finding), "\n".join(lines(finding)))
    except SluiceError as err:
        words = f"could not be done: {' '.join(str(err).split())}"
    except Exception as err:  # a defect here must not hide the failure that led here
        words = f"could not be done: {type(err).__name__}: {' '.join(str(err).split())}"
    return Triaged(words, words)

"""How long the rest of a sweep will take, from what the requests so far took. Pure."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable

from sluice.sweep.schedule import Request


class Pace:
    """Told of every request that was made, with the seconds that it took."""

    def __init__(self) -> None:
        self._by_workload: dict[str, list[float]] = defaultdict(list)
        self._per_token: list[float] = []

    def note(self, request: Request, seconds: float) -> None:
        """``request`` took ``seconds``, opening its arm included."""
        self._by_workload[request.workload.name].append(seconds)
        self._per_token.append(seconds / request.workload.n)

    def left_s(self, todo: Iterable[Request]) -> float | None:
        """Seconds that ``todo`` will take; ``None`` before anything was noted.

        A request takes the mean of its workload's; where none of those was made yet, the mean
        time of a token times the tokens that it may have.
        """
        if not self._per_token:
            return None
        means = {name: statistics.fmean(of) for name, of in self._by_workload.items()}
        token_s = statistics.fmean(self._per_token)
        return sum(means.get(r.workload.name, token_s * r.workload.n) for r in todo)

"""Which switches turn side A's answer into side B's, found by running what lies between."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import Literal

from sluice.config import validate
from sluice.errors import SluiceError
from sluice.llama import kernels
from sluice.telemetry.evidence import Evidence
from sluice.triage import switches
from sluice.triage.finding import Arm, Attribution
from sluice.triage.side import Outcome, Side
from sluice.triage.switches import KERNELS, Setup

Level = Literal["ids", "logits"]
Runner = Callable[[Side], Outcome]

MOST_ARMS = 40
"""Of switches and of kernels together."""


class Attributor:
    """Runs arms between two sides.

    Args:
        side: whose prompt (and fault) every arm takes.
        a, b: what both sides were run with.
        evidence_a, evidence_b: what they answered.
        step: the step that is looked at; an answer is everything up to it.
        level: whether an answer is the tokens or the logits.
        runner: runs a side, in a process of its own or in this one.
    """

    def __init__(
        self,
        side: Side,
        a: Setup,
        b: Setup,
        evidence_a: Evidence,
        evidence_b: Evidence,
        *,
        step: int,
        level: Level,
        runner: Runner,
    ) -> None:
        self._side = side
        self._a, self._b = a, b
        self._step = step
        self._level: Level = level
        self._answers = _answer(evidence_a, step, level), _answer(evidence_b, step, level)
        self._runner = runner
        self._arms: dict[frozenset[str], Arm] = {}
        self._kernel_arms: list[Arm] = []
        self._notes: list[str] = []
        self._stopped = False

    def attribute(self) -> Attribution:
        """The smallest set of switches, and the kernels that it acts through."""
        tried = switches.differing(self._a, self._b)
        flips = self._smallest([one.name for one in tried])
        candidates = self._switchable() if flips else []
        acting = self._acting_kernels(candidates) if candidates else ()
        if self._stopped:
            acting = ()  # whatever is left of the candidates was not tried, or not all of it
            self._notes.append(f"stopped after {MOST_ARMS} arms")
        return Attribution(
            tried=tried,
            arms=(*self._arms.values(), *self._kernel_arms),
            flips=flips,
            kernels=acting,
            kernels_tried=bool(candidates) and not self._stopped,
            level=self._level,
            note="; ".join(self._notes) or None,
        )

    def _smallest(self, names: Sequence[str]) -> tuple[str, ...]:
        """Side B's answer from as few switches as can be found: halves, then one at a time."""
        if not names:
            return ()
        if not self._flips(names):
            self._notes.append("side B's settings did not give side B's answer again")
            return ()
        kept = list(names)
        while len(kept) > 1:
            half = len(kept) // 2
            smaller = next((part for part in (kept[:half], kept[half:]) if self._flips(part)), None)
            if smaller is None:
                break
            kept = smaller
        for name in list(kept):
            rest = [other for other in kept if other != name]
            if rest and self._flips(rest):
                kept = rest
        return tuple(kept)

    def _flips(self, names: Iterable[str]) -> bool:
        turned = frozenset(names)
        if turned not in self._arms:
            if not self._may_run():
                return False
            self._arms[turned] = self._run(turned)
        return self._arms[turned].outcome == "b"

    def _may_run(self) -> bool:
        """Whether there may be one more arm, of either kind; remembers that one was refused."""
        if len(self._arms) + len(self._kernel_arms) < MOST_ARMS:
            return True
        self._stopped = True
        return False

    def _run(self, turned: frozenset[str]) -> Arm:
        order = tuple(name for name in switches.names() if name in turned)
        found = self._answer_of(switches.turned(self._a, self._b, order))
        if isinstance(found, str):
            return Arm(order, "failed", found)
        answer_a, answer_b = self._answers
        if found == answer_a:
            return Arm(order, "a")
        if found == answer_b:
            return Arm(order, "b")
        at = next((i for i, (x, y) in enumerate(zip(found, answer_a, strict=False)) if x != y),
                  min(len(found), len(answer_a)))  # fmt: skip
        return Arm(order, "other", f"leaves side A at step {at}")

    def _switchable(self) -> list[str]:
        """Kernels that are on somewhere, and that this build can do without."""
        able = [name for name in KERNELS if kernels.present(name) and kernels.switchable(name)]
        return [
            name
            for name in (*able, switches.FLASH_ATTENTION)
            if self._is_on(name, self._a) or self._is_on(name, self._b)
        ]

    def _acting_kernels(self, candidates: Sequence[str]) -> tuple[str, ...]:
        """The smallest set of kernels without which both sides answer alike."""
        if not self._alike(candidates):
            return ()
        for n in range(1, len(candidates)):
            for some in combinations(candidates, n):
                if self._alike(some):
                    return some
        return tuple(candidates)

    def _is_on(self, name: str, of: Setup) -> bool:
        if name == switches.FLASH_ATTENTION:
            return of.config.flash_attn == "on"
        return name not in of.off

    def _alike(self, off: Sequence[str]) -> bool:
        if not self._may_run():
            return False
        found = [self._answer_of(switches.without(one, off)) for one in (self._a, self._b)]
        failed = next((one for one in found if isinstance(one, str)), None)
        alike = failed is None and found[0] == found[1]
        words = f"off on both sides: they {'answer alike' if alike else 'differ'}"
        self._kernel_arms.append(
            Arm(tuple(off), "failed" if failed else "a" if alike else "other", failed or words)
        )
        return alike

    def _answer_of(self, setup: Setup) -> tuple[object, ...] | str:
        config = setup.config.replace(n=max(self._step + 1, 1))
        try:
            outcome = self._runner(self._side.with_config(validate(config), setup.off))
        except SluiceError as err:
            return str(err)
        return outcome.failed or _answer(outcome.evidence, self._step, self._level)


def _answer(evidence: Evidence, step: int, level: Level) -> tuple[object, ...]:
    if level == "ids":
        return tuple(evidence.ids[: step + 1])
    return tuple(evidence.logits_sha256[: step + 1])

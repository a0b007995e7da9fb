"""One side of a triage, and how it is run again: in this process, observed or not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sluice.bundled import model_path
from sluice.config import Config
from sluice.decoding.fingerprint import fingerprint
from sluice.decoding.session import Session
from sluice.errors import SluiceError
from sluice.gguf.shards import read_model
from sluice.llama import kernels
from sluice.seams import Seams
from sluice.targets import Run
from sluice.telemetry.evidence import Evidence
from sluice.telemetry.metrics import Metrics
from sluice.triage.observe import Observer

Fault = Callable[[], Seams]
"""Makes a fault, anew for every run. Its object may also have ``config(config) -> Config``, what
the engine gets in the place of what was asked, and ``finish(config, run) -> Run``."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run left: its evidence, up to where ``failed`` (a message) ended it."""

    evidence: Evidence
    failed: str | None = None


@dataclass(frozen=True, slots=True)
class Side:
    """What can be run: settings, a prompt, and what is planted in the engine.

    Args:
        config: as asked for.
        prompt: text or ids.
        fault: see :data:`Fault`; the plain engine by default.
        off: kernels (see :mod:`sluice.llama.kernels`) that decline for the whole run, on top
            of what the numerics profile switches off.
    """

    config: Config
    prompt: str | tuple[int, ...]
    fault: Fault = Seams
    off: frozenset[str] = field(default_factory=frozenset)

    @property
    def planted(self) -> bool:
        """Whether only this process can run it."""
        return self.fault is not Seams

    def with_config(self, config: Config, off: Iterable[str] = ()) -> Side:
        """The same side under other settings."""
        return replace(self, config=config, off=frozenset(off))

    def run(self, observer: Observer | None = None, *, n: int | None = None) -> Outcome:
        """Generate, ``n`` tokens at most where it is given.

        Raises:
            SluiceError: the run did not even begin.
        """
        asked = self.config if n is None else self.config.replace(n=n)
        fault = self.fault()
        given = getattr(fault, "config", lambda config: config)(asked)
        with contextlib.ExitStack() as closing:
            if self.off:
                closing.enter_context(kernels.switched_off(sorted(self.off)))
            session = closing.enter_context(Session(given, seams=fault, nodes=observer))
            if observer is not None:
                observer.opened(session.streamer)
            generation = session.generate(self.prompt)
            failed = None
            try:
                generation.run()
            except SluiceError as err:
                failed = str(err)
            evidence = generation.evidence(unfinished=True)
            if failed is not None:
                return Outcome(evidence, failed)
        finish = getattr(fault, "finish", None)
        if finish is not None:
            evidence = finish(asked, Run(evidence, Metrics())).evidence
        return Outcome(evidence)

    def pieces(self, ids: Iterable[int]) -> dict[int, str]:
        """What each of ``ids`` stands for; bytes that are not a character show as U+FFFD."""
        wanted = sorted(set(ids))
        # Streamed, a model opens by its header: nothing of it is read for this.
        with Session(self.config.replace(mtp=False, ctx=16)) as session:
            return {i: session.detokenize([i]).decode("utf-8", "replace") for i in wanted}


def from_evidence(evidence: Evidence) -> Side | str:
    """The side that would give ``evidence`` again, or why it cannot be run here."""
    try:
        config = Config(**evidence.config)
        path = model_path(config.model)
        found = fingerprint(read_model(path), config.numerics)
    except (SluiceError, TypeError) as err:
        return f"cannot be run again: {err}"
    if found != evidence.fingerprint:
        changed = "model file" if found.model_sha256 != evidence.fingerprint.model_sha256 else (
            "build of llama.cpp")  # fmt: skip
        return f"cannot be run again: {config.model} or this build is another one ({changed})"
    return Side(config, tuple(evidence.prompt_ids))


def same_shape(a: Path, b: Path) -> bool:
    """Whether two models have the same tensors, of the same types and shapes."""
    left, right = read_model(a).tensors, read_model(b).tensors
    return left.keys() == right.keys() and all(
        (t.type_name, t.shape) == (right[name].type_name, right[name].shape)
        for name, t in left.items()
    )


def ids_of(prompt: str | Sequence[int]) -> str | tuple[int, ...]:
    """A prompt as :class:`Side` keeps it."""
    return prompt if isinstance(prompt, str) else tuple(prompt)

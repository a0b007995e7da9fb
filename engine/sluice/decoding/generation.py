"""One generation: an iterator of tokens that keeps the run's evidence and cost."""

from __future__ import annotations

import codecs
import hashlib
import inspect
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Self

from sluice.config import Config
from sluice.decoding.step import Step, row_sha256, top2
from sluice.errors import RequestError
from sluice.llama.model import Model
from sluice.telemetry.evidence import Evidence, Fingerprint, Group, Stop, Top2
from sluice.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Token:
    """A generated token.

    ``text`` is what became certain with it: whole characters only, so it is empty while a
    character spans into the next token. The texts of a run and :attr:`Generation.tail` join to
    its whole text.
    """

    id: int
    text: str
    step: int


class Generation:
    """Iterate it once; then :meth:`evidence`, :attr:`metrics` and :attr:`text` are complete.

    Made by ``Session.generate``. It ends after ``config.n`` tokens or at an
    end-of-generation token, which is not yielded.
    """

    def __init__(
        self,
        steps: Callable[[Metrics], Iterator[Step]],
        *,
        model: Model,
        config: Config,
        fingerprint: Fingerprint,
        prompt_ids: list[int],
        metrics: Metrics,
        record: bool,
    ) -> None:
        self.config = config
        self.metrics = metrics
        self.prompt_ids = prompt_ids
        self.ids: list[int] = []
        self.stop: Stop | None = None
        self.tail = ""
        """U+FFFD where an end of generation cut a character short, else empty."""
        self._model = model
        self._fingerprint = fingerprint
        self._record = record
        self._bytes = bytearray()
        self._texts: list[str] = []
        self._hashes: list[str] = []
        self._top2: list[Top2] = []
        self._groups: list[Group] = []
        self._ended_by: str | None = None
        self._tokens = self._run(steps)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Token:
        self._refuse_within()
        if self._ended_by is not None:
            raise RequestError(
                f"the generation was ended by {self._ended_by} before its last token; start it"
                " again, or run it in a session of its own"
            )
        return next(self._tokens)

    def run(self) -> Self:
        """Generate to the end."""
        for _ in self:
            pass
        return self

    @property
    def text(self) -> str:
        """The text so far, whole characters: what the texts of the tokens join to.

        A last character that the end cuts short shows as U+FFFD.
        """
        return "".join(self._texts)

    def evidence(self, *, unfinished: bool = False) -> Evidence:
        """The evidence of the finished run.

        Args:
            unfinished: also give what there is of a run that is not at its end, with the stop
                reason ``unfinished``.

        Raises:
            RequestError: the generation is not at its end, or was not recorded.
        """
        if self.stop is None and not unfinished:
            raise RequestError("evidence: the generation has not ended; iterate it first")
        if not self._record:
            raise RequestError("evidence: not recorded; generate with record=True")
        return Evidence(
            config=self.config.as_dict(),
            fingerprint=self._fingerprint,
            prompt_ids=list(self.prompt_ids),
            ids=list(self.ids),
            text=self.text,
            text_sha256=hashlib.sha256(self._bytes).hexdigest(),
            logits_sha256=list(self._hashes),
            top2=list(self._top2),
            groups=list(self._groups),
            stop=self.stop or Stop("unfinished"),
        )

    def close(self) -> None:
        """End the generation where it is.

        Raises:
            RequestError: called from within it, as from a progress callback.
        """
        self._refuse_within()
        self._tokens.close()

    def end_by(self, what: str) -> None:
        """End the generation for its session's sake: whoever asks it for more is told of ``what``.

        Raises:
            RequestError: called from within it, as from a progress callback.
        """
        self.close()
        if self.stop is None:
            self._ended_by = what

    def _refuse_within(self) -> None:
        if inspect.getgeneratorstate(self._tokens) == inspect.GEN_RUNNING:
            raise RequestError(
                "the generation is computing a token: from within it (a progress callback, another"
                " thread) it can be neither continued, closed nor replaced; wait for the token"
            )

    def _run(self, steps: Callable[[Metrics], Iterator[Step]]) -> Generator[Token]:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for step in steps(self.metrics):
            if step.group is not None:
                self._groups.append(step.group)
            if self._model.is_eog(step.id):
                sha256 = row_sha256(step.logits) if self._record else None
                self.stop = Stop("eog", step.id, sha256)
                self.tail = decoder.decode(b"", final=True)
                self._texts.append(self.tail)
                return
            if self._record:
                self._hashes.append(row_sha256(step.logits))
                self._top2.append(top2(step.logits))
            self.ids.append(step.id)
            self.metrics.n_generated += 1
            piece = self._model.piece(step.id)
            self._bytes += piece
            last = len(self.ids) == self.config.n
            if last:
                self.stop = Stop("n")
            text = decoder.decode(piece, final=last)
            self._texts.append(text)
            yield Token(step.id, text, len(self.ids) - 1)
            if last:
                return

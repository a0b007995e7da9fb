"""A session: one opened model, its contexts, and any number of generations over them."""

from __future__ import annotations

import contextlib
import operator
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sluice.bundled import model_path
from sluice.config import Config, apply_overrides, validate
from sluice.decoding.fingerprint import fingerprint
from sluice.decoding.footprint import check_footprint
from sluice.decoding.generation import Generation, Token
from sluice.decoding.head import Head
from sluice.decoding.looking import Looking
from sluice.decoding.numerics import Numerics
from sluice.decoding.plain import plain_steps
from sluice.decoding.speculative import Propose, speculative_steps
from sluice.decoding.step import Step, greedy
from sluice.errors import RequestError
from sluice.gguf.header import Header
from sluice.gguf.limits import refuse_what_aborts
from sluice.gguf.shards import read_model
from sluice.llama.context import Context, ContextShape, Guard
from sluice.llama.model import Model
from sluice.llama.sampler import Sampler
from sluice.seams import NO_SEAMS, Drafter, Nodes, Seams
from sluice.streaming.layout import ExpertLayout, expert_layout
from sluice.streaming.reader import SliceReader
from sluice.streaming.streamer import Streamer
from sluice.telemetry.metrics import Metrics

__all__ = ["Generation", "Session", "Token"]

Progress = Callable[[str, int, int], None]
Warn = Callable[[str], None]

HEAD_ROWS = 32
"""Widest pass of the head: its buffers are reserved for this, not for the target's ubatch."""

HEAD_ARCHITECTURES = ("qwen35moe",)
"""Architectures whose single MTP block has been run here; others could abort in llama.cpp."""


class Session:
    """Open a model as ``config`` says; use it as a context manager.

    Args:
        config: validated here.
        seams: test doors, see :mod:`sluice.seams`.
        drafter: replaces the head as the source of drafts (tests).
        nodes: looks at every graph node (triage).
        progress: called with (stage, done, total); stages are ``load``, ``dense`` (the dense
            weights of a streamed model come into memory, in MiB), ``experts`` (the cache is
            filled) and ``prefill``.
        warn: receives one-line warnings; by default they are dropped.

    Raises:
        RequestError: the request is wrong, or wrong for this model.
        ModelError: the file cannot be used.
        SystemFault: the machine or llama.cpp failed.
    """

    def __init__(
        self,
        config: Config,
        *,
        seams: Seams = NO_SEAMS,
        drafter: Drafter | None = None,
        nodes: Nodes | None = None,
        progress: Progress | None = None,
        warn: Warn | None = None,
    ) -> None:
        self.config = validate(config).resolved()
        self._seams = seams
        self._drafter = drafter
        self._nodes = [n for n in (seams.nodes(), nodes) if n is not None]
        self._progress = progress or (lambda _stage, _done, _total: None)
        self._generation: Generation | None = None
        self._streamer: Streamer | None = None
        self._is_open = True
        self._closing = contextlib.ExitStack()
        with contextlib.ExitStack() as opening:
            opening.callback(self._closing.close)
            began = time.perf_counter()
            self._open(model_path(config.model), warn or (lambda _text: None))
            self.load_s = time.perf_counter() - began
            opening.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free everything; a second call does nothing.

        Raises:
            RequestError: called from within a generation, as from a progress callback.
        """
        if self._generation is not None:
            self._generation.end_by("the close of its session")
        self._closing.close()
        self._is_open = False
        # The model is gone, and with it the tensors that point into the streamer's buffers.
        self._streamer = None

    @property
    def streamer(self) -> Streamer | None:
        """What streams the experts, where ``--moe-stream`` is on."""
        return self._streamer

    def tokenize(self, text: str) -> list[int]:
        """Token ids of ``text``, with the start tokens that the model asks for."""
        self._check_open()
        return self._model.tokenize(text)

    def detokenize(self, ids: Sequence[int]) -> bytes:
        """The bytes that ``ids`` stand for; they need not be whole characters."""
        self._check_open()
        self._model.check_ids(ids)
        return b"".join(self._model.piece(token) for token in ids)

    def generate(
        self, prompt: str | Sequence[int], *, record: bool = True, **overrides: Any
    ) -> Generation:
        """Start a generation; the prompt is computed when the first token is asked for.

        Args:
            prompt: text, or token ids.
            record: keep the evidence (a hash a step).
            overrides: settings for this call only (``n``, ``temp``, ``draft``, …), but for
                ``cache_mb``: the cache keeps its new size.

        Raises:
            RequestError: the prompt is empty, does not fit, or an override is wrong; or the
                session is closed, or is computing a token of another generation.
        """
        self._check_open()
        config = apply_overrides(self.config, overrides)
        ids = self.tokenize(prompt) if isinstance(prompt, str) else _ids(prompt)
        self._check_prompt(ids, config)
        if self._generation is not None:
            self._generation.end_by("a later generate() of its session")
        # Asked for, not changed: what auto came to is no whole number of MiB.
        if self._streamer is not None and config.cache_mb and "cache_mb" in overrides:
            self._streamer.resize(config)
            config = config.replace(cache_mb=self._streamer.cache_mb)
            self.config = self.config.replace(cache_mb=config.cache_mb)
        self._generation = Generation(
            partial(self._steps, ids, config),
            model=self._model,
            config=config,
            fingerprint=self.fingerprint,
            prompt_ids=ids,
            metrics=Metrics(load_s=self.load_s, n_prompt=len(ids)),
            record=record,
        )
        return self._generation

    def _open(self, path: Path, warn: Warn) -> None:
        config = self.config
        header = read_model(path)
        path = header.path  # llama.cpp takes the first shard, whichever was named
        refuse_what_aborts(header)
        layout = _check_against_header(config, header)
        check_footprint(config, header)
        # The files are noted before llama.cpp opens them: what changes from here on is refused.
        reader = SliceReader(header.paths, direct=config.odirect, warn=warn) if layout else None
        self._numerics = Numerics(config.numerics, header)
        self._closing.callback(self._numerics.close)
        self.fingerprint = fingerprint(header, config.numerics)
        self._model = Model(
            path,
            load_mtp=config.mtp,
            by_header=config.moe_stream,
            progress=lambda done: self._progress("load", round(done * 100), 100),
        )
        self._closing.callback(self._model.close)
        if config.moe_stream and not self._model.opened_by_header:
            warn(f"{path}: this build has no call slots to redirect; opening read the whole file")
        if layout is not None and reader is not None:
            self._streamer = Streamer(
                config,
                header,
                layout,
                reader=reader,
                seams=self._seams,
                progress=self._progress,
                is_looked_at=bool(self._nodes),
            )
            self._closing.callback(self._streamer.close)
        self._target = self._context(
            rows_max=min(config.ubatch, config.ctx),
            outputs_max=config.rollback_width + 1,
            rollback=config.rollback_width,
            hidden_states=config.mtp,
        )
        self._head: Head | None = None
        if config.mtp:
            self._head = Head(
                self._context(
                    rows_max=max(min(config.ubatch, config.ctx, HEAD_ROWS), config.draft + 1),
                    outputs_max=1,
                    is_head=True,
                )
            )
        if self._streamer is not None and layout is not None:
            trunk = [n for n in layout.layers if n < layout.n_trunk]
            self._streamer.capture(lambda: self._target.build_only(0), trunk)
            if self._head is not None:
                head = self._head
                rest = [n for n in layout.layers if n >= layout.n_trunk]
                self._streamer.capture(lambda: head.context.build_only(0, head.hidden[None]), rest)
            self._streamer.settle()
            self.config = config.replace(cache_mb=self._streamer.cache_mb)

    def _context(self, *, is_head: bool = False, **shape: Any) -> Context:
        streamer = self._streamer
        hook = streamer.hook(is_head=is_head) if streamer is not None else None
        looking = Looking(self._nodes, is_head, hook) if self._nodes else None
        context = Context(
            self._model,
            ContextShape(
                n_ctx=self.config.ctx,
                threads=self.config.threads,
                flash_attn=self.config.flash_attn == "on",
                is_head=is_head,
                **shape,
            ),
            hook=looking.hook if looking is not None else hook,
            # Those who look want to see every node.
            shows=streamer.shown if streamer is not None and looking is None else None,
        )
        self._closing.callback(context.close)
        if streamer is not None and not is_head:
            context.begins.append(streamer.begins)
            context.ends.append(streamer.ends)
        if looking is not None:
            context.begins.append(looking.begins)
        return context

    def _guard(self, guard: Guard) -> None:
        self._target.guard = guard
        if self._head is not None:
            self._head.context.guard = guard

    def _check_open(self) -> None:
        # llama.cpp would read freed memory.
        if not self._is_open:
            raise RequestError("the session is closed; open another Session")

    def _check_prompt(self, ids: list[int], config: Config) -> None:
        if not ids:
            raise RequestError("the prompt is empty: give at least one token (-p or -f)")
        self._model.check_ids(ids)
        # The last group may draft beyond the last token that is wanted.
        needed = len(ids) + config.n + config.rollback_width
        if needed > config.ctx:
            drafts = f" + {config.draft} drafted" if config.mtp else ""
            raise RequestError(
                f"-c {config.ctx}: a prompt of {len(ids)} + -n {config.n}{drafts} need {needed};"
                f" set -c to {needed} or more, or shorten the prompt or -n"
            )

    def _steps(self, ids: list[int], config: Config, metrics: Metrics) -> Iterator[Step]:
        self._target.clear()
        if self._head is not None:
            self._head.reset()
        if self._streamer is not None:
            self._streamer.begin(metrics)
        last_row = self._prefill(ids, metrics)
        if not config.mtp:
            yield from self._plain(len(ids), last_row, config, metrics)
            return
        yield from speculative_steps(
            self._target,
            self._head if self._drafter is None else None,
            last_row=last_row,
            position=len(ids),
            propose=self._propose(config),
            draft_min=config.draft_min,
            catch_up_batch=config.catch_up == "batch",
            seams=self._seams,
            metrics=metrics,
        )

    def _prefill(self, ids: list[int], metrics: Metrics) -> int:
        """Compute the prompt in passes of at most ``--ubatch``; the batch row of its logits."""
        began = time.perf_counter()
        self._guard(self._numerics.prefilling)
        width = self._target.shape.rows_max
        n_rows = 0
        for start in range(0, len(ids), width):
            piece = ids[start : start + width]
            n_rows = len(piece)
            is_last = start + n_rows == len(ids)
            # Logits of the last row only: the LM head counts its rows, and picks a kernel by it.
            self._target.decode(piece, start, outputs="last" if is_last else "none")
            if self._head is not None and self._drafter is None:
                self._head.follow(piece, start, self._target.hidden_rows(n_rows))
            self._progress("prefill", start + n_rows, len(ids))
        metrics.prefill_s = time.perf_counter() - began
        self._guard(self._numerics.decoding)
        if self._streamer is not None:
            self._streamer.target_counter = metrics.decode
            self._streamer.head_counter = metrics.head
        return n_rows - 1

    def _plain(
        self, position: int, last_row: int, config: Config, metrics: Metrics
    ) -> Iterator[Step]:
        with contextlib.ExitStack() as closing:
            choose = self._greedy
            if config.temp > 0:
                sampler = Sampler(
                    top_k=config.top_k, top_p=config.top_p, temp=config.temp, seed=config.seed
                )
                closing.callback(sampler.close)
                choose = partial(self._sampled, sampler)
            yield from plain_steps(
                self._target, last_row=last_row, position=position, choose=choose, metrics=metrics
            )

    def _greedy(self, row: int) -> int:
        return greedy(self._target.logits(row))

    def _sampled(self, sampler: Sampler, row: int) -> int:
        self._greedy(row)  # refuses a NaN, which the sampler would draw from without a word
        return sampler.choose(self._target, row)

    def _propose(self, config: Config) -> Propose:
        head, drafter = self._head, self._drafter
        if drafter is not None:
            return lambda _token, _position: drafter.draft(
                self._confirmed(), config.draft, self._model.n_vocab
            )[: config.draft]
        assert head is not None  # _open makes one whenever config.mtp is set
        return partial(head.draft, width=config.draft, p_min=config.mtp_p_min)

    def _confirmed(self) -> list[int]:
        assert self._generation is not None
        return self._generation.prompt_ids + self._generation.ids


def _ids(prompt: Sequence[int]) -> list[int]:
    try:
        return [operator.index(i) for i in prompt]
    except TypeError:
        raise RequestError("the prompt is neither text nor a sequence of token ids") from None


def _check_against_header(config: Config, header: Header) -> ExpertLayout | None:
    """Refuse what this file cannot do, before llama.cpp opens it; the layout when streaming."""
    if config.mtp:
        if header.n_nextn == 0:
            raise RequestError(
                f"--mtp: {header.path} has no MTP head (no nextn_predict_layers); drop --mtp, or"
                " give a gguf that kept its nextn block"
            )
        if header.architecture not in HEAD_ARCHITECTURES or header.n_nextn != 1:
            raise RequestError(
                f"--mtp: {header.path} is {header.architecture} with {header.n_nextn} MTP blocks;"
                f" Sluice drafts with one block of {', '.join(HEAD_ARCHITECTURES)}; drop --mtp"
            )
    return expert_layout(header, with_head=config.mtp) if config.moe_stream else None

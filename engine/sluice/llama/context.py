"""A context over a model: decode rows, read logits and hidden states, remove positions."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from llama_cpp import llama_cpp as api
from llama_cpp import llama_cpp_ext as ext

from sluice.errors import SystemFault
from sluice.interrupts import held_back
from sluice.llama import library
from sluice.llama.batch import Batch
from sluice.llama.model import Model
from sluice.llama.node_filter import Entry, NodeFilter

EvalHook = Callable[[int, bool], bool]
"""Called with a node's address and whether llama.cpp asks (True) or has computed it (False)."""

Guard = Callable[[], AbstractContextManager[None]]
"""Entered around every ``llama_decode``: a numerics profile switches kernels there."""

Begins = Callable[[Sequence[int], int, str, "F32 | None"], None]
"""Called with the arguments of every :meth:`Context.decode` before it starts."""

F32 = npt.NDArray[np.float32]
_ABORTED = 2
_NO_SLOT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextShape:
    """How wide a context is made.

    ``rollback`` is the number of positions that :meth:`Context.remove_from` can take back
    (``n_rs_seq``); ``rows_max`` the widest decode; ``outputs_max`` the most rows with logits.
    """

    n_ctx: int
    rows_max: int
    outputs_max: int
    rollback: int = 0
    threads: int = 1
    flash_attn: bool = True
    is_head: bool = False
    hidden_states: bool = False


class Context:
    """One sequence's state. ``hook`` sees the graph nodes that ``shows`` lets pass, or all.

    The hook may raise: llama.cpp's C code cannot carry an exception, so it is kept, the
    computation is stopped, and :meth:`decode` raises it.
    """

    def __init__(
        self,
        model: Model,
        shape: ContextShape,
        hook: EvalHook | None = None,
        shows: NodeFilter | None = None,
    ) -> None:
        self.model = model
        self.shape = shape
        self._handle = 0
        self._raised: BaseException | None = None
        self._hook = hook
        self.guard: Guard = nullcontext
        self.begins: list[Begins] = []
        self.ends: list[Callable[[], None]] = []
        self._shows = shows
        self._was_open = False  # when the hook raised
        # It must outlive the context: llama.cpp keeps its address.
        self._entry: Entry | None = None
        if hook is not None:
            callback = api.ggml_backend_sched_eval_callback(self._evaluate)
            self._entry = Entry(callback) if shows is None else shows.entry(callback)
        params = api.llama_context_default_params()
        params.n_ctx = shape.n_ctx
        params.n_batch = params.n_ubatch = shape.rows_max
        params.n_outputs_max = shape.outputs_max
        params.n_seq_max = 1
        params.n_rs_seq = shape.rollback
        params.n_threads = params.n_threads_batch = shape.threads
        params.flash_attn_type = (
            api.LLAMA_FLASH_ATTN_TYPE_ENABLED
            if shape.flash_attn
            else api.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        params.ctx_type = (
            api.LLAMA_CONTEXT_TYPE_MTP if shape.is_head else api.LLAMA_CONTEXT_TYPE_DEFAULT
        )
        params.offload_kqv = params.op_offload = False
        params.no_perf = True
        if self._entry is not None:
            params.cb_eval = self._entry.function
        library.forget_errors()
        handle = api.llama_init_from_model(model.handle, params)
        if not handle:
            said = library.last_error("llama.cpp gave no reason")
            raise SystemFault(f"{model.path}: no context could be made: {said}")
        self._handle = handle
        self._memory = api.llama_get_memory(handle)
        if shape.hidden_states or shape.is_head:
            # The head returns the hidden state of output rows only; the target of every row.
            ext.llama_set_embeddings_nextn(handle, True, shape.is_head)
        self._batch = Batch(shape.rows_max, model.n_embd if shape.is_head else 0)

    def decode(
        self,
        tokens: Sequence[int],
        position: int,
        *,
        outputs: str,
        hidden: F32 | None = None,
    ) -> None:
        """Compute ``tokens`` at ``position`` onward (see :meth:`Batch.fill`).

        Raises:
            SystemFault: llama.cpp reports a failure; whatever the hook raised comes first.
            KeyboardInterrupt: of Ctrl-C meanwhile, when nothing is half done.
        """
        with held_back():
            for begins in self.begins:
                begins(tokens, position, outputs, hidden)
            status = self._decode(tokens, position, outputs=outputs, hidden=hidden)
            for ends in self.ends if status == 0 else ():
                ends()
        if status != 0:
            said = library.last_error("no reason given")
            reason = "no free cells in the context" if status == _NO_SLOT else said
            raise SystemFault(
                f"llama_decode returned {status} for {len(tokens)} rows at position {position}:"
                f" {reason}"
            )

    def build_only(self, token: int, hidden: F32 | None = None) -> None:
        """Show the hook every node of a one-row graph, and compute next to nothing.

        Every node of a graph is announced before the first is computed when the hook declines
        them all; llama.cpp's abort callback then ends the computation at its first node. The
        state is cleared afterwards.
        """
        stop = api.ggml_abort_callback(lambda _data: True)
        api.llama_set_abort_callback(self._handle, stop, None)
        try:
            status = self._decode([token], 0, outputs="last", hidden=hidden)
        finally:
            api.llama_set_abort_callback(self._handle, api.ggml_abort_callback(0), None)
        self.clear()
        if status not in (0, _ABORTED):
            said = library.last_error("no reason given")
            raise SystemFault(f"llama_decode returned {status} in the capture pass: {said}")

    def logits(self, row: int) -> F32:
        """float32[n_vocab] of batch row ``row``: a view that the next decode overwrites."""
        return self._row(api.llama_get_logits_ith(self._handle, row), self.model.n_vocab, row)

    def hidden(self, row: int) -> F32:
        """float32[n_embd], the hidden state of batch row ``row`` that the head takes; a copy."""
        pointer = ext.llama_get_embeddings_nextn_ith(self._handle, row)
        return self._row(pointer, self.model.n_embd, row).copy()

    def hidden_rows(self, n: int) -> F32:
        """float32[n, n_embd], those of the first ``n`` batch rows; a copy."""
        return np.stack([self.hidden(row) for row in range(n)])

    def remove_from(self, position: int) -> None:
        """Remove every cell at ``position`` and beyond.

        Raises:
            SystemFault: llama.cpp could not (deeper than the rollback width, or twice).
        """
        if not api.llama_memory_seq_rm(self._memory, 0, position, -1):
            raise SystemFault(
                f"llama.cpp could not roll back to position {position}"
                f" (rollback width {self.shape.rollback})"
            )

    def clear(self) -> None:
        """Forget the whole sequence, recurrent state included."""
        api.llama_memory_clear(self._memory, True)

    def close(self) -> None:
        """Free the context."""
        if self._handle:
            api.llama_free(self._handle)
            self._handle = 0
            # The callback holds this object, and the hook the streamer's buffers: a cycle would
            # keep them until a collection.
            self._entry = self._hook = None
            self.begins.clear()
            self.ends.clear()

    @property
    def handle(self) -> int:
        """llama.cpp's pointer, for the sampler."""
        return self._handle

    def _decode(
        self, tokens: Sequence[int], position: int, *, outputs: str, hidden: F32 | None
    ) -> int:
        n = len(tokens)
        n_outputs = {"all": n, "last": 1, "none": 0}[outputs]
        # Each of these would end the process inside llama.cpp.
        if not 0 < n <= self.shape.rows_max or n_outputs > self.shape.outputs_max:
            raise SystemFault(
                f"a decode of {n} rows with {n_outputs} outputs in a context of"
                f" {self.shape.rows_max} rows and {self.shape.outputs_max} outputs"
            )
        library.forget_errors()
        batch = self._batch.fill(tokens, position, outputs=outputs, hidden=hidden)
        with self.guard():
            status = int(api.llama_decode(self._handle, batch))
        if self._raised is not None:
            raised, self._raised = self._raised, None
            if self._shows is not None:
                self._shows.is_open = self._was_open
            raise raised
        return status

    def _evaluate(self, address: int, ask: bool, _data: ctypes.c_void_p) -> bool:
        # After an error: yes to "stop here?", and then no to "go on?".
        if self._raised is not None:
            return ask
        try:
            return self._hook(address, ask) if self._hook is not None else False
        except BaseException as err:  # ctypes would print and drop it: keep it for decode()
            self._raised = err
            if self._shows is not None:
                # Our answers end one split of the graph: be asked at the next one's first.
                self._was_open, self._shows.is_open = self._shows.is_open, True
            return ask

    @staticmethod
    def _row(pointer: ctypes._Pointer[ctypes.c_float], width: int, row: int) -> F32:
        address = ctypes.cast(pointer, ctypes.c_void_p).value
        if address is None:
            raise SystemFault(f"llama.cpp has no output for batch row {row}")
        memory = memoryview((ctypes.c_float * width).from_address(address)).cast("B")
        return np.frombuffer(memory, np.float32)

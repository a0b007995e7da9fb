"""Rows of one sequence, in the memory layout that ``llama_decode`` reads."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from llama_cpp import llama_cpp as api


class Batch:
    """Room for up to ``n_rows`` tokens of sequence 0, reused by every decode of a context.

    Args:
        n_rows: the widest decode.
        n_embd: width of the hidden state that travels with each token (the MTP head's input);
            0 for tokens alone.
    """

    def __init__(self, n_rows: int, n_embd: int = 0) -> None:
        self.n_rows = n_rows
        self._tokens = np.zeros(n_rows, np.int32)
        self._positions = np.zeros(n_rows, np.int32)
        self._outputs = np.zeros(n_rows, np.int8)
        self._hidden = np.zeros((n_rows, n_embd), np.float32) if n_embd else None
        self._n_seq = np.ones(n_rows, np.int32)
        self._seq_zero = np.zeros(1, np.int32)
        self._seq_ids = np.full(n_rows, self._seq_zero.ctypes.data, np.uintp)
        self._struct = api.llama_batch(
            n_tokens=0,
            token=self._pointer(self._tokens, api.llama_token),
            embd=None if self._hidden is None else self._pointer(self._hidden, ctypes.c_float),
            pos=self._pointer(self._positions, api.llama_pos),
            n_seq_id=self._pointer(self._n_seq, ctypes.c_int32),
            seq_id=self._pointer(self._seq_ids, ctypes.POINTER(api.llama_seq_id)),
            logits=self._pointer(self._outputs, ctypes.c_int8),
        )

    def fill(
        self,
        tokens: Sequence[int],
        position: int,
        *,
        outputs: str,
        hidden: npt.NDArray[np.float32] | None = None,
    ) -> api.llama_batch:
        """The struct for ``tokens`` at ``position`` onward.

        Args:
            tokens: at most ``n_rows`` ids.
            position: of the first.
            outputs: rows to compute logits for: ``all``, ``last`` or ``none``.
            hidden: float32[len(tokens), n_embd], where the batch carries hidden states.
        """
        n = len(tokens)
        self._tokens[:n] = tokens
        self._positions[:n] = np.arange(position, position + n, dtype=np.int32)
        self._outputs[:n] = outputs == "all"
        if outputs == "last":
            self._outputs[n - 1] = 1
        if self._hidden is not None and hidden is not None:
            self._hidden[:n] = hidden
        self._struct.n_tokens = n
        return self._struct

    @staticmethod
    def _pointer(array: npt.NDArray[np.generic], kind: type) -> ctypes._Pointer[ctypes.c_int]:
        return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))

"""Prove an export: PyTorch's logits and llama.cpp's agree, for the trunk and for the head."""

from __future__ import annotations

import argparse
import ctypes
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt
import torch
from llama_cpp import llama_cpp_ext
from network import CHUNK, Balance, Network
from tokenizer import Vocabulary
from torch import Tensor
from train import restore

TOLERANCE = 1e-2
LOG_LEVEL_ERROR = 4
GGML_TYPE_F32 = 0
# Characters of two and three bytes, so that tokens cut them.
PROMPT = "import os\n\n\ndef read_lines(path, encoding='utf-8'):\n    # Löwe, 中\n"
Array = npt.NDArray[np.float32]


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def _errors_only(level: int, text: bytes, _: Any) -> None:
    if level == LOG_LEVEL_ERROR:
        sys.stderr.write(text.decode(errors="replace"))


@dataclass(frozen=True)
class Rows:
    """What one side computed for one text of T tokens: float32 [T, V], [T, D] and [T, V]."""

    trunk: Array
    hidden: Array
    head: Array


class Engine:
    """A model in llama.cpp with a context for the trunk and one for the head."""

    def __init__(self, path: Path, length: int, flash: bool = False, threads: int = 1) -> None:
        llama_cpp.llama_log_set(_errors_only, None)
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        params.use_extra_bufts = False
        params.load_mtp = True
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if not self.model:
            raise SystemExit(f"llama.cpp does not open {path}")
        if llama_cpp.llama_model_n_layer_nextn(self.model) != 1:
            raise SystemExit(f"{path} has no draft head")
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(self.vocab)
        self.n_embd = llama_cpp.llama_model_n_embd(self.model)
        self.length = length
        kinds = llama_cpp.LLAMA_CONTEXT_TYPE_DEFAULT, llama_cpp.LLAMA_CONTEXT_TYPE_MTP
        self.trunk, self.head = (self._context(kind, flash, threads) for kind in kinds)
        llama_cpp_ext.llama_set_embeddings_nextn(self.trunk, True, False)
        llama_cpp_ext.llama_set_embeddings_nextn(self.head, True, True)

    def _context(self, kind: int, flash: bool, threads: int) -> Any:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = self.length
        params.n_threads = params.n_threads_batch = threads
        params.ctx_type = kind
        params.flash_attn_type = int(flash)
        # The default cache is F16, which alone moves logits by 5e-3.
        params.type_k = params.type_v = GGML_TYPE_F32
        context = llama_cpp.llama_init_from_model(self.model, params)
        if not context:
            raise SystemExit("llama.cpp makes no context")
        return context

    def tokenize(self, text: str) -> list[int]:
        """llama.cpp's own token ids of `text`."""
        raw = text.encode()
        room = (llama_cpp.llama_token * (len(raw) + 8))()
        count = llama_cpp.llama_tokenize(self.vocab, raw, len(raw), room, len(room), False, False)
        return list(room[:count])

    def piece(self, token: int) -> bytes:
        """The bytes of one token, special ones by name."""
        room = ctypes.create_string_buffer(64)
        count = llama_cpp.llama_token_to_piece(self.vocab, token, room, len(room), 0, True)
        return room.raw[:count]

    def decode(
        self, context: Any, tokens: list[int], start: int = 0, hidden: Array | None = None
    ) -> tuple[Array, Array]:
        """Logits [T, V] and nextn hidden rows [T, D] of tokens at `start` onwards."""
        batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, start + i, 1
            batch.seq_id[i][0], batch.logits[i] = 0, 1
        if hidden is not None:
            rows = np.ascontiguousarray(hidden, dtype=np.float32)
            batch.embd = rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        failed = llama_cpp.llama_decode(context, batch)
        # The array above is ours: llama_batch_free must not see it.
        batch.embd = ctypes.POINTER(ctypes.c_float)()
        llama_cpp.llama_batch_free(batch)
        if failed:
            raise SystemExit(f"llama_decode returned {failed}")
        count = range(len(tokens))
        logits = [llama_cpp.llama_get_logits_ith(context, i) for i in count]
        states = [llama_cpp_ext.llama_get_embeddings_nextn_ith(context, i) for i in count]
        return _stack(logits, self.n_vocab), _stack(states, self.n_embd)

    def run(self, tokens: list[int]) -> Rows:
        """One batch through the trunk, then one through the head."""
        for context in (self.trunk, self.head):
            llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        trunk, hidden = self.decode(self.trunk, tokens)
        before = np.concatenate([np.zeros_like(hidden[:1]), hidden[:-1]])
        head, _ = self.decode(self.head, tokens, hidden=before)
        return Rows(trunk, hidden, head)

    def greedy(self, tokens: list[int], count: int) -> list[int]:
        """Up to `count` greedy tokens after `tokens`, the end-of-text token included."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.trunk), True)
        made: list[int] = []
        logits, _ = self.decode(self.trunk, tokens)
        while len(made) < count:
            made.append(int(logits[-1].argmax()))
            if llama_cpp.llama_vocab_is_eog(self.vocab, made[-1]):
                break
            logits, _ = self.decode(self.trunk, made[-1:], len(tokens) + len(made) - 1)
        return made


def _stack(rows: list[Any], width: int) -> Array:
    return np.stack([np.ctypeslib.as_array(row, (width,)).copy() for row in rows])


@torch.no_grad()
def reference(network: Network, tokens: list[int]) -> Rows:
    """The same rows from PyTorch."""
    padding = -len(tokens) % CHUNK
    padded = torch.tensor([tokens + [0] * padding])
    balance = Balance(torch.zeros(()))
    hidden = network.trunk(padded, balance)
    (drafted,) = network.draft(padded, hidden, 1, balance)
    length = len(tokens)

    def rows(values: Tensor) -> Array:
        found: Array = values[0, :length].numpy()
        return found

    return Rows(rows(network.logits(hidden)), rows(hidden), rows(network.logits(drafted)))


def main() -> None:
    """Command line; exits 1 on a mismatch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="folder that train.py wrote")
    parser.add_argument("--model", type=Path, required=True, help="the F32 export of that run")
    parser.add_argument("--tokens", type=int, default=160)
    chosen = parser.parse_args()
    network = restore(chosen.run / "checkpoint.pt")
    tokenizer = Vocabulary.load(chosen.run / "vocabulary.json").tokenizer()
    held = np.load(chosen.run / "held_out.npy")
    text = PROMPT + tokenizer.decode(held[1000 : 1000 + chosen.tokens].tolist())
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    expected = reference(network, ids)
    wrong = []
    for flash in (False, True):
        engine = Engine(chosen.model, len(ids), flash)
        if engine.tokenize(text) != ids:
            wrong.append("token ids")
        found = engine.run(ids)
        for name in ("trunk", "hidden", "head"):
            left, right = getattr(expected, name), getattr(found, name)
            apart = float(np.abs(left - right).max())
            print(f"flash {int(flash)} {name}: {len(ids)} rows, largest difference {apart:.2e}")
            if not apart <= TOLERANCE:
                wrong.append(name)
    if wrong:
        print(f"differs: {', '.join(wrong)}")
        sys.exit(1)


if __name__ == "__main__":
    main()

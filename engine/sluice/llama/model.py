"""A loaded model and its vocabulary."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from llama_cpp import llama_cpp as api
from llama_cpp import llama_cpp_ext as ext  # noqa: F401  (fails here, in words, on a foreign build)

from sluice.errors import ModelError, RequestError
from sluice.llama import library, opening

Progress = Callable[[float], None]
_VOCAB_NONE = 0


class Model:
    """One model in memory (or mapped), as llama.cpp loaded it.

    Args:
        path: the gguf file.
        load_mtp: load the MTP block's tensors; without it a head context must not be made.
        by_header: map the file without reading it (see :mod:`sluice.llama.opening`).
        progress: called with 0.0 to 1.0 during the load.

    Raises:
        ModelError: llama.cpp refused the file, in its own words.
        RequestError: a model that cannot generate text token by token.
    """

    def __init__(
        self,
        path: Path,
        *,
        load_mtp: bool,
        by_header: bool,
        progress: Progress | None = None,
    ) -> None:
        library.start()
        self.path = path
        self._handle = 0
        params = api.llama_model_default_params()
        params.n_gpu_layers = 0
        params.load_mode = api.LLAMA_LOAD_MODE_MMAP
        params.use_extra_bufts = False  # a repacked buffer could not be rebound
        params.load_mtp = load_mtp

        def report(fraction: float, _data: ctypes.c_void_p) -> bool:
            if progress is not None:
                with contextlib.suppress(Exception):  # nothing may be raised into llama.cpp
                    progress(fraction)
            return True

        callback = api.llama_progress_callback(report)
        params.progress_callback = callback
        with opening.by_header_only() if by_header else opening.whole() as header:
            library.forget_errors()
            handle = api.llama_model_load_from_file(os.fsencode(path), params)
            said = "" if handle else library.last_error("llama.cpp gave no reason")
        self.opened_by_header = header
        if not handle:
            raise ModelError(
                f"{path}: llama.cpp cannot open it: {said}; get the file again, or convert the"
                " model with this llama.cpp's own tools"
            )
        self._handle = handle
        self._vocab = api.llama_model_get_vocab(handle)
        try:
            self._refuse_what_cannot_generate()
        except RequestError:
            self.close()
            raise
        self.n_vocab = int(api.llama_vocab_n_tokens(self._vocab))
        self.n_embd = int(api.llama_model_n_embd_out(handle))
        self.n_nextn = int(api.llama_model_n_layer_nextn(handle))

    @property
    def handle(self) -> int:
        """llama.cpp's pointer, for the contexts over this model."""
        return self._handle

    def tokenize(self, text: str) -> list[int]:
        """Token ids of ``text`` with the model's own start tokens; special tokens are parsed.

        Raises:
            RequestError: the text has lone surrogates (it was not UTF-8).
        """
        try:
            raw = text.encode("utf-8")
        except UnicodeEncodeError as err:
            raise RequestError(
                f"the prompt is not text: U+{ord(text[err.start]):04X} at position {err.start}"
                " is half of a character; give valid UTF-8"
            ) from None
        room = len(raw) + 16
        while True:
            ids = (api.llama_token * room)()
            n = int(api.llama_tokenize(self._vocab, raw, len(raw), ids, room, True, True))
            if n >= 0:
                return list(ids[:n])
            room = -n

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for; control tokens stand for none."""
        room = 64
        while True:
            text = ctypes.create_string_buffer(room)
            n = int(api.llama_token_to_piece(self._vocab, token, text, room, 0, False))
            if n >= 0:
                return text.raw[:n]
            room = -n

    def is_eog(self, token: int) -> bool:
        """Whether the token ends generation."""
        return bool(api.llama_vocab_is_eog(self._vocab, token))

    def check_ids(self, ids: Sequence[int]) -> None:
        """Refuse ids that are not in the vocabulary: some calls of llama.cpp would abort."""
        for i, token in enumerate(ids):
            if not 0 <= token < self.n_vocab:
                raise RequestError(
                    f"token id {token} at position {i}: the vocabulary has ids 0 to"
                    f" {self.n_vocab - 1}"
                )

    def close(self) -> None:
        """Free the model; its contexts must be closed before."""
        if self._handle:
            api.llama_model_free(self._handle)
            self._handle = 0

    def _refuse_what_cannot_generate(self) -> None:
        handle = self._handle
        if api.llama_model_has_encoder(handle) or not api.llama_model_has_decoder(handle):
            raise RequestError(f"{self.path}: an encoder model; Sluice runs decoder models only")
        if api.llama_model_is_diffusion(handle):
            raise RequestError(f"{self.path}: a diffusion model; Sluice decodes token by token")
        if int(api.llama_vocab_type(self._vocab)) == _VOCAB_NONE:
            raise ModelError(f"{self.path}: has no vocabulary; convert it with its tokenizer")

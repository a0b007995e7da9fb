"""The byte-level BPE tokenizer, in the form that a gguf file stores it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT = "<|endoftext|>"
# llama.cpp's pre-tokenizer "qwen35" splits with exactly this.
SPLIT = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
    r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by id, the end-of-text token last, and the merges in order of rank."""

    tokens: list[str]
    merges: list[str]

    @property
    def end_of_text(self) -> int:
        """The id of the token that ends a document."""
        return len(self.tokens) - 1

    def save(self, path: Path) -> None:
        """Write the vocabulary as JSON."""
        path.write_text(json.dumps({"tokens": self.tokens, "merges": self.merges}))

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """Read a vocabulary that `save` wrote."""
        stored = json.loads(path.read_text())
        return cls(tokens=stored["tokens"], merges=stored["merges"])

    def tokenizer(self) -> Tokenizer:
        """A tokenizer that encodes and decodes with this vocabulary."""
        ids = {token: index for index, token in enumerate(self.tokens[:-1])}
        pairs = [(left, right) for left, right in (merge.split(" ") for merge in self.merges)]
        made = _bare(models.BPE(vocab=ids, merges=pairs))
        made.add_special_tokens([END_OF_TEXT])
        return made


def _bare(model: models.BPE) -> Tokenizer:
    made = Tokenizer(model)
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    return made


def train_vocabulary(documents: Iterable[str], size: int) -> Vocabulary:
    """Train a vocabulary of `size` tokens, the end-of-text token included."""
    made = _bare(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=size - 1,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(documents, trainer)
    model = json.loads(made.to_str())["model"]
    tokens = sorted(model["vocab"], key=lambda token: int(model["vocab"][token]))
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    return Vocabulary(tokens=[*tokens, END_OF_TEXT], merges=merges)


def encode_documents(vocabulary: Vocabulary, documents: Sequence[str]) -> npt.NDArray[np.int32]:
    """All documents as one stream of token ids [n_tokens], an end of text after each."""
    ends = [vocabulary.end_of_text]
    rows = vocabulary.tokenizer().encode_batch(list(documents), add_special_tokens=False)
    return np.concatenate([np.array(row.ids + ends, dtype=np.int32) for row in rows])

"""A byte-level tokenizer of 302 tokens: an end token, the 256 bytes, and some pairs."""

from __future__ import annotations

import gguf

END = "<|endoftext|>"
PAIRS = tuple(consonant + vowel for consonant in "nrstlhdcm" for vowel in "aeiou")


def _byte_characters() -> list[str]:
    """The character that stands for each byte in a byte-level vocabulary."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in shown]
    stands = {b: chr(b) for b in shown} | {b: chr(256 + i) for i, b in enumerate(hidden)}
    return [stands[b] for b in range(256)]


TOKENS = (END, *_byte_characters(), *PAIRS)
N_VOCAB = len(TOKENS)


def write_tokenizer(writer: gguf.GGUFWriter) -> None:
    """Add the vocabulary's metadata; token 0 ends a generation."""
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(list(TOKENS))
    writer.add_token_types([control, *[normal] * (len(TOKENS) - 1)])
    writer.add_token_merges([" ".join(pair) for pair in PAIRS])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)

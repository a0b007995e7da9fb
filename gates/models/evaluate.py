"""Losses and draft acceptance of a checkpoint, in PyTorch.

Acceptance is exact for a greedy engine: the text is the trunk's own greedy text, and the
head's step j sees what a draft context holds at that step, so a group of drafts can be
replayed from one forward pass.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from network import CHUNK, Balance, Network
from torch import Tensor
from torch.nn import functional
from train import DRAFT_STEPS, held_out_losses, restore

PROMPT_TOKENS = 48


def padded(tokens: Tensor) -> Tensor:
    """[B, T] with zeros up to a multiple of the chunk; causal, so they change nothing."""
    return functional.pad(tokens, (0, -tokens.shape[1] % CHUNK))


@torch.no_grad()
def greedy(network: Network, prompts: Tensor, count: int) -> Tensor:
    """Prompts [B, P] to [B, P + count], no cache, end-of-text tokens kept and passed."""
    tokens = prompts
    for _ in range(count):
        hidden = network.trunk(padded(tokens), Balance(torch.zeros(())))
        logits = network.logits(hidden[:, tokens.shape[1] - 1])
        tokens = torch.cat([tokens, logits.argmax(-1, keepdim=True)], dim=1)
    return tokens


@torch.no_grad()
def drafts(network: Network, tokens: Tensor) -> Tensor:
    """What each step drafts from each row: token ids [steps, B, T]."""
    balance = Balance(torch.zeros(()))
    rows = padded(tokens)
    hidden = network.trunk(rows, balance)
    passes = network.draft(rows, hidden, DRAFT_STEPS, balance)
    return torch.stack([network.logits(p)[:, : tokens.shape[1]].argmax(-1) for p in passes])


def accepted(guesses: Tensor, tokens: Tensor, start: int, width: int, end: int) -> Counter[int]:
    """How many groups of `width` drafts had 0, 1, .. accepted; one sequence, from `start`.

    guesses [steps, T], tokens [T]; a group begins with the first token not drafted yet.
    """
    groups: Counter[int] = Counter()
    row = start
    while row + width < len(tokens) and int(tokens[row]) != end:
        good = 0
        while good < width and guesses[good, row + good] == tokens[row + good + 1]:
            good += 1
        groups[good] += 1
        row += good + 1
    return groups


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="folder that train.py wrote")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--count", type=int, default=128, help="greedy tokens a prompt")
    chosen = parser.parse_args()
    network = restore(chosen.run / "checkpoint.pt")
    for part in ("train", "held_out"):
        stream = np.load(chosen.run / f"{part}.npy")
        found = " ".join(f"{x:.3f}" for x in held_out_losses(network, stream))
        print(f"{part}: loss of trunk and draft steps 1 to {DRAFT_STEPS}: {found}", flush=True)
        starts = np.linspace(0, len(stream) - PROMPT_TOKENS - 1, chosen.prompts).astype(int)
        prompts = np.stack([stream[s : s + PROMPT_TOKENS] for s in starts]).astype(np.int64)
        tokens = greedy(network, torch.from_numpy(prompts), chosen.count)
        guesses = drafts(network, tokens)
        end = network.shape.n_vocab - 1
        for width in (1, 2, 3):
            groups: Counter[int] = Counter()
            for i in range(len(tokens)):
                # The first generated token comes from the prompt's last row, undrafted.
                groups += accepted(guesses[:, i], tokens[i], PROMPT_TOKENS, width, end)
            total = sum(groups.values())
            rate = sum(n * times for n, times in groups.items()) / (width * total)
            shares = ", ".join(f"{n}: {groups[n] / total:.2f}" for n in range(width + 1))
            print(f"{part}: draft {width}: accepted {rate:.3f}; groups by accepted: {shares}")


if __name__ == "__main__":
    main()

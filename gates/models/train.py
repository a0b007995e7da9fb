"""Train the bundled model: trunk and draft head together, from a seed and a budget.

A token budget gives the same run on the same machine and thread count; a budget in minutes
ties the learning rate to the clock, so that it ends where the time ends.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from corpus import load_corpus
from network import Balance, Network, Shape
from tokenizer import Vocabulary, encode_documents, train_vocabulary
from torch import Tensor
from torch.nn import functional

# Sequences by tokens of one step; the long one, every eighth step, teaches far positions.
SHORT, LONG = (4, 256), (1, 1024)
LONG_EVERY = 8
DRAFT_STEPS = 3
DRAFT_WEIGHTS = (0.3, 0.15, 0.15)
# The later draft steps run on a part of the sequences: they cost a head pass each.
UNROLLED_SHARE = 2
BALANCE_WEIGHT = 0.01
PEAK_RATE, FINAL_SHARE, WARMUP_STEPS = 2e-3, 0.03, 80
CHECKPOINT_SECONDS = 240.0
LOG_EVERY = 40


@dataclass
class Losses:
    """Mean nats a token: the trunk, each draft step, and the routers' balance."""

    trunk: Tensor
    draft: list[Tensor]
    balance: Tensor

    def total(self) -> Tensor:
        """What is minimised."""
        weighted = [w * loss for w, loss in zip(DRAFT_WEIGHTS, self.draft, strict=False)]
        return self.trunk + torch.stack(weighted).sum() + BALANCE_WEIGHT * self.balance


def losses(network: Network, windows: Tensor, distil: bool) -> tuple[Losses, list[float]]:
    """Losses of token windows [B, T+1], and each draft step's plain cross-entropy.

    With `distil` half of a draft step's target is the trunk's own distribution: a draft is
    accepted when it is the trunk's choice, not when it is the text's.
    """
    inputs, labels = windows[:, :-1], windows[:, 1:]
    balance = Balance(torch.zeros(()))
    hidden = network.trunk(inputs, balance)
    logits = network.logits(hidden)
    trunk = functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    teacher = logits.detach().softmax(-1)
    some = max(1, len(windows) // UNROLLED_SHARE) if distil else len(windows)
    passes = network.draft(inputs, hidden, 1, balance) if some < len(windows) else []
    unrolled = network.draft(inputs[:some], hidden[:some], DRAFT_STEPS, balance)
    passes = passes + unrolled[len(passes) :]
    draft, plain = [], []
    for step, state in enumerate(passes):
        guess = network.logits(state[:, step:]).log_softmax(-1)
        rows = len(state)
        hard = functional.nll_loss(guess.flatten(0, 1), labels[:rows, step:].flatten())
        plain.append(float(hard.detach()))
        if distil:
            soft = -(teacher[:rows, step:] * guess).sum(-1).mean()
            hard = 0.5 * hard + 0.5 * soft
        draft.append(hard)
    return Losses(trunk, draft, balance.total), plain


@dataclass(frozen=True)
class Budget:
    """How long to train: in minutes or in tokens, whichever is given."""

    minutes: float | None
    tokens: int | None

    def used(self, seconds: float, tokens: int) -> float:
        """The share of the budget that `seconds` or `tokens` have used up, 0 to 1."""
        if self.tokens is not None:
            return tokens / self.tokens
        return seconds / (60.0 * (self.minutes or 1.0))


class Windows:
    """Draws windows of a token stream: short ones pass by pass, long ones at random offsets."""

    def __init__(self, stream: npt.NDArray[np.int32], seed: int) -> None:
        self.stream = stream
        self.chooser = np.random.default_rng(seed)
        self.starts: list[int] = []

    def _start(self, length: int) -> int:
        if length != SHORT[1]:
            return int(self.chooser.integers(0, len(self.stream) - length - 1))
        if not self.starts:
            # Every token once a pass, cut at another phase each time.
            first = int(self.chooser.integers(0, length))
            grid = np.arange(first, len(self.stream) - length - 1, length)
            self.starts = [int(x) for x in self.chooser.permutation(grid)]
        return self.starts.pop()

    def draw(self, count: int, length: int) -> Tensor:
        """Token ids [count, length + 1]."""
        starts = [self._start(length) for _ in range(count)]
        rows = [self.stream[start : start + length + 1] for start in starts]
        return torch.from_numpy(np.stack(rows).astype(np.int64))


def prepare(out: Path, size: int, seed: int) -> tuple[Vocabulary, Path, Path]:
    """Train the vocabulary and encode both parts of the corpus, once a folder."""
    paths = out / "vocabulary.json", out / "train.npy", out / "held_out.npy"
    if not all(path.exists() for path in paths):
        corpus = load_corpus(seed=seed)
        vocabulary = train_vocabulary(corpus.train, size)
        np.save(paths[1], encode_documents(vocabulary, corpus.train))
        np.save(paths[2], encode_documents(vocabulary, corpus.held_out))
        vocabulary.save(paths[0])
    return Vocabulary.load(paths[0]), paths[1], paths[2]


def optimiser(network: Network) -> torch.optim.AdamW:
    """AdamW; matrices decay, norms, biases and the convolution do not."""
    matrices: list[Tensor] = []
    others: list[Tensor] = []
    for name, parameter in network.named_parameters():
        small = parameter.ndim < 2 or "conv1d" in name or "token_embd" in name
        (others if small else matrices).append(parameter)
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": 0.1},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=PEAK_RATE, betas=(0.9, 0.95), fused=True)


def rate(step: int, done: float) -> float:
    """The learning rate at `step` when a share `done` (0 to 1) of the budget is used."""
    warm = min(1.0, (step + 1) / WARMUP_STEPS)
    cosine = 0.5 * (1.0 + float(np.cos(np.pi * min(1.0, done))))
    return PEAK_RATE * warm * (FINAL_SHARE + (1.0 - FINAL_SHARE) * cosine)


def save(network: Network, path: Path, seen: int) -> None:
    """Write shape and weights, atomically; `seen` counts trained tokens."""
    part = path.with_suffix(".part")
    shape = dataclasses.asdict(network.shape)
    torch.save({"shape": shape, "weights": network.state_dict(), "tokens": seen}, part)
    part.replace(path)


def restore(path: Path) -> Network:
    """The network of a checkpoint, in evaluation mode."""
    stored = torch.load(path, weights_only=True)
    network = Network(Shape(**stored["shape"]))
    network.load_state_dict(stored["weights"])
    return network.eval()


@torch.no_grad()
def held_out_losses(network: Network, stream: npt.NDArray[np.int32]) -> list[float]:
    """Plain cross-entropy of the trunk and of each draft step on up to 48 fixed windows."""
    length = 512
    count = min(48, (len(stream) - 1) // length)
    starts = np.linspace(0, len(stream) - length - 1, count).astype(int)
    sums = np.zeros(1 + DRAFT_STEPS)
    for start in starts:
        window = torch.from_numpy(stream[None, start : start + length + 1].astype(np.int64))
        found, plain = losses(network, window, distil=False)
        sums += np.array([float(found.trunk), *plain])
    return [float(x) for x in sums / count]


def train(out: Path, budget: Budget, seed: int, bf16: bool, resume: bool) -> None:
    """Train until the budget is used; leaves checkpoint.pt and a log on standard output.

    With `resume` the weights are those of the last checkpoint, and the budget and the learning
    rate begin anew.
    """
    out.mkdir(parents=True, exist_ok=True)
    vocabulary, train_path, held_path = prepare(out, Shape().n_vocab, seed)
    stream, held = np.load(train_path), np.load(held_path)
    print(f"tokens: {len(stream)} to train on, {len(held)} held out", flush=True)
    torch.manual_seed(seed)
    network = Network(Shape(n_vocab=len(vocabulary.tokens)))
    before = 0
    if resume:
        stored = torch.load(out / "checkpoint.pt", weights_only=True)
        network.load_state_dict(stored["weights"])
        before = stored["tokens"]
        print(f"resumed after {before} tokens", flush=True)
    print(f"weights: {sum(p.numel() for p in network.parameters())}", flush=True)
    updater = optimiser(network)
    windows = Windows(stream, seed + before)
    begun = saved = time.monotonic()
    step = seen = 0
    recent: list[list[float]] = []
    while True:
        spent = time.monotonic() - begun
        done = budget.used(spent, seen)
        if done >= 1.0:
            break
        for group in updater.param_groups:
            group["lr"] = rate(step, done)
        batch = windows.draw(*(LONG if step % LONG_EVERY == LONG_EVERY - 1 else SHORT))
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            found, plain = losses(network, batch, distil=True)
        found.total().backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        updater.step()
        updater.zero_grad(set_to_none=True)
        step += 1
        seen += batch.shape[0] * (batch.shape[1] - 1)
        recent.append([float(found.trunk.detach()), *plain, float(found.balance.detach())])
        if step % LOG_EVERY == 0:
            means = " ".join(f"{x:.3f}" for x in np.mean(recent, axis=0))
            print(f"{spent / 60:6.2f} min {seen:9d} tokens, {means}", flush=True)
            recent.clear()
        if time.monotonic() - saved > CHECKPOINT_SECONDS:
            save(network, out / "checkpoint.pt", before + seen)
            parts = " ".join(f"{x:.3f}" for x in held_out_losses(network, held))
            print(f"{spent / 60:6.2f} min held out: {parts}", flush=True)
            saved = time.monotonic()
    save(network, out / "checkpoint.pt", before + seen)
    parts = " ".join(f"{x:.4f}" for x in held_out_losses(network, held))
    print(f"end: {step} steps, {before + seen} tokens, held out: {parts}", flush=True)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for every output")
    budget = parser.add_mutually_exclusive_group(required=True)
    budget.add_argument("--minutes", type=float)
    budget.add_argument("--tokens", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bf16", action="store_true", help="matrix products in bfloat16")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    spending = Budget(chosen.minutes, chosen.tokens)
    train(chosen.out, spending, chosen.seed, chosen.bf16, chosen.resume)


if __name__ == "__main__":
    main()

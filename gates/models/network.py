"""The network in PyTorch, operation for operation what llama.cpp builds for qwen35moe.

Shapes in docstrings: B sequences, T tokens, D = n_embd, V = n_vocab.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

CHUNK = 64


@dataclass(frozen=True)
class Shape:
    """Every size of the model; the names follow llama.cpp's."""

    n_vocab: int = 1280
    n_embd: int = 256
    n_layer: int = 4
    full_attention_interval: int = 4
    n_head: int = 4
    n_head_kv: int = 2
    head_dim: int = 64
    rope_dim: int = 32
    rope_base: float = 10_000.0
    n_expert: int = 8
    n_expert_used: int = 2
    n_ff: int = 256
    n_ff_shared: int = 256
    key_heads: int = 2
    value_heads: int = 4
    state_dim: int = 64
    conv_kernel: int = 4
    eps: float = 1e-6
    n_ctx: int = 1024

    @property
    def key_width(self) -> int:
        """Columns of all key heads of a linear layer."""
        return self.key_heads * self.state_dim

    @property
    def value_width(self) -> int:
        """Columns of all value heads of a linear layer (llama.cpp's ssm inner size)."""
        return self.value_heads * self.state_dim

    def is_recurrent(self, layer: int) -> bool:
        """Whether trunk layer `layer` is a gated delta net."""
        return (layer + 1) % self.full_attention_interval != 0


@dataclass
class Balance:
    """Collects the load-balancing loss of every router that runs in one forward pass."""

    total: Tensor


class Norm(nn.Module):
    """RMS norm over the last axis with a plain weight (no +1)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] to the same shape."""
        return functional.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def linear(inputs: int, outputs: int, gain: float = 1.0) -> nn.Linear:
    """A projection without bias, its weights at 1/sqrt(inputs) times `gain`."""
    made = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(made.weight, std=gain / math.sqrt(inputs))
    return made


def rotate(x: Tensor, shape: Shape) -> Tensor:
    """NeoX rope on the first rope_dim columns of [B, heads, T, head_dim], positions 0..T-1."""
    half = shape.rope_dim // 2
    steps = torch.arange(half, dtype=torch.float32) * (-2.0 / shape.rope_dim)
    angles = torch.arange(x.shape[2], dtype=torch.float32)[:, None] * shape.rope_base**steps
    cos, sin = angles.cos(), angles.sin()
    low, high, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([low * cos - high * sin, low * sin + high * cos, rest], dim=-1)


@dataclass
class Heads:
    """Rotated query, keys and values of one attention pass, each [B, n_head, T, head_dim]."""

    query: Tensor
    key: Tensor
    value: Tensor
    gate: Tensor


class Attention(nn.Module):
    """Full attention whose output is gated; `attn_q` rows hold query then gate per head."""

    def __init__(self, shape: Shape, gain: float) -> None:
        super().__init__()
        self.shape = shape
        width = shape.n_head * shape.head_dim
        kv_width = shape.n_head_kv * shape.head_dim
        self.attn_q = linear(shape.n_embd, 2 * width)
        self.attn_k = linear(shape.n_embd, kv_width)
        self.attn_v = linear(shape.n_embd, kv_width)
        self.attn_output = linear(width, shape.n_embd, gain)
        self.attn_q_norm = Norm(shape.head_dim, shape.eps)
        self.attn_k_norm = Norm(shape.head_dim, shape.eps)

    def project(self, x: Tensor) -> Heads:
        """[B, T, D] to the pass's heads; key and value heads repeated to n_head."""
        s = self.shape
        batch, length, _ = x.shape
        both = self.attn_q(x).view(batch, length, s.n_head, 2 * s.head_dim).float()
        query, gate = both.split(s.head_dim, dim=-1)
        key = self.attn_k(x).view(batch, length, s.n_head_kv, s.head_dim).float()
        value = self.attn_v(x).view(batch, length, s.n_head_kv, s.head_dim).float()
        times = s.n_head // s.n_head_kv
        return Heads(
            query=rotate(self.attn_q_norm(query).transpose(1, 2), s),
            key=rotate(self.attn_k_norm(key).transpose(1, 2), s).repeat_interleave(times, 1),
            value=value.transpose(1, 2).repeat_interleave(times, 1),
            gate=gate.reshape(batch, length, -1),
        )

    def finish(self, attended: Tensor, gate: Tensor) -> Tensor:
        """[B, n_head, T, head_dim] and its gate to [B, T, D]."""
        flat = attended.transpose(1, 2).flatten(2)
        out: Tensor = self.attn_output(flat * torch.sigmoid(gate))
        return out

    def forward(self, x: Tensor) -> Tensor:
        """Causal self-attention over [B, T, D]."""
        heads = self.project(x)
        attended = functional.scaled_dot_product_attention(
            heads.query, heads.key, heads.value, is_causal=True
        )
        return self.finish(attended, heads.gate)


def unit(x: Tensor, eps: float) -> Tensor:
    """L2-normalise the last axis, as llama.cpp does it: eps inside the root."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps)


def delta_rule(query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
    """The gated delta rule from a zero state, in chunks.

    query, key, value [B, H, T, d]; decay (log) and beta [B, H, T]; T a multiple of CHUNK.
    Returns [B, H, T, d].
    """
    batch, heads, length, width = query.shape
    chunks = length // CHUNK
    query, key, value = (x.reshape(batch, heads, chunks, CHUNK, width) for x in (query, key, value))
    beta = beta.reshape(batch, heads, chunks, CHUNK, 1)
    total = decay.reshape(batch, heads, chunks, CHUNK).cumsum(-1)
    fade = total.exp()[..., None]
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool).tril()
    # Masked before exp: above the diagonal the difference is positive and would overflow.
    between = (total[..., :, None] - total[..., None, :]).masked_fill(~lower, -torch.inf).exp()
    scaled = key * beta
    system = (scaled @ key.transpose(-1, -2)) * between
    right = torch.cat([value * beta, scaled * fade], dim=-1)
    # unitriangular: the solver takes the diagonal as ones and never reads it.
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    fresh, carried = solved.split(width, dim=-1)
    inside = (query @ key.transpose(-1, -2)) * between
    faded_query = query * fade
    last = total[..., -1:]
    faded_key = (key * (last - total).exp()[..., None]).transpose(-1, -2)
    keep = last.exp()[..., None]
    state = query.new_zeros(batch, heads, width, width)
    outputs = []
    for c in range(chunks):
        new = fresh[:, :, c] - carried[:, :, c] @ state
        outputs.append(faded_query[:, :, c] @ state + inside[:, :, c] @ new)
        state = state * keep[:, :, c] + faded_key[:, :, c] @ new
    return torch.stack(outputs, dim=2).reshape(batch, heads, length, width)


class DeltaNet(nn.Module):
    """A gated-delta-net layer: convolution, delta rule, gated norm, projection."""

    def __init__(self, shape: Shape, gain: float) -> None:
        super().__init__()
        self.shape = shape
        channels = 2 * shape.key_width + shape.value_width
        self.attn_qkv = linear(shape.n_embd, channels)
        self.attn_gate = linear(shape.n_embd, shape.value_width)
        self.ssm_alpha = linear(shape.n_embd, shape.value_heads)
        self.ssm_beta = linear(shape.n_embd, shape.value_heads)
        self.ssm_conv1d = nn.Parameter(torch.randn(channels, shape.conv_kernel) * 0.5)
        step = torch.exp(torch.empty(shape.value_heads).uniform_(math.log(1e-3), math.log(0.1)))
        self.ssm_dt = nn.Parameter(step + torch.log(-torch.expm1(-step)))
        self.a_log = nn.Parameter(torch.empty(shape.value_heads).uniform_(1, 16).log())
        self.ssm_norm = Norm(shape.state_dim, shape.eps)
        self.ssm_out = linear(shape.value_width, shape.n_embd, gain)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] to [B, T, D]; T a multiple of CHUNK."""
        s = self.shape
        batch, length, _ = x.shape
        mixed = self.attn_qkv(x).float().transpose(1, 2)
        mixed = functional.conv1d(
            functional.pad(mixed, (s.conv_kernel - 1, 0)),
            self.ssm_conv1d[:, None],
            groups=mixed.shape[1],
        )
        mixed = functional.silu(mixed).transpose(1, 2)
        widths = [s.key_width, s.key_width, s.value_width]
        query, key, value = torch.split(mixed, widths, dim=-1)
        # Value head h reads key head h mod key_heads: tiled, not interleaved.
        tiles = s.value_heads // s.key_heads
        query = self._split(query, s.key_heads).repeat(1, tiles, 1, 1)
        key = self._split(key, s.key_heads).repeat(1, tiles, 1, 1)
        decay = functional.softplus(self.ssm_alpha(x).float() + self.ssm_dt) * -self.a_log.exp()
        beta = torch.sigmoid(self.ssm_beta(x).float())
        out = delta_rule(
            unit(query, s.eps) / math.sqrt(s.state_dim),
            unit(key, s.eps),
            self._split(value, s.value_heads),
            decay.transpose(1, 2),
            beta.transpose(1, 2),
        )
        gate = self.attn_gate(x).float().view(batch, length, s.value_heads, s.state_dim)
        out = self.ssm_norm(out.transpose(1, 2)) * functional.silu(gate)
        projected: Tensor = self.ssm_out(out.flatten(2))
        return projected

    def _split(self, x: Tensor, heads: int) -> Tensor:
        return x.reshape(*x.shape[:2], heads, self.shape.state_dim).transpose(1, 2)


class Experts(nn.Module):
    """Routed experts (softmax, top-k, renormalised) plus a gated shared expert."""

    def __init__(self, shape: Shape, gain: float) -> None:
        super().__init__()
        self.shape = shape
        wide, narrow = shape.n_ff, shape.n_embd
        self.ffn_gate_inp = linear(narrow, shape.n_expert)
        self.ffn_gate_exps = nn.Parameter(torch.randn(shape.n_expert, wide, narrow) * narrow**-0.5)
        self.ffn_up_exps = nn.Parameter(torch.randn(shape.n_expert, wide, narrow) * narrow**-0.5)
        self.ffn_down_exps = nn.Parameter(
            torch.randn(shape.n_expert, narrow, wide) * (gain * wide**-0.5)
        )
        self.ffn_gate_inp_shexp = linear(narrow, 1)
        self.ffn_gate_shexp = linear(narrow, shape.n_ff_shared)
        self.ffn_up_shexp = linear(narrow, shape.n_ff_shared)
        self.ffn_down_shexp = linear(shape.n_ff_shared, narrow, gain)

    def forward(self, x: Tensor, balance: Balance) -> Tensor:
        """[B, T, D] to [B, T, D]; adds this router's balance loss to `balance`."""
        s = self.shape
        flat = x.flatten(0, 1)
        probs = functional.linear(flat.float(), self.ffn_gate_inp.weight).float().softmax(-1)
        weights, chosen = probs.topk(s.n_expert_used, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        counts = torch.bincount(chosen.flatten(), minlength=s.n_expert)
        share = counts.float() / chosen.numel()
        balance.total = balance.total + s.n_expert * (share * probs.mean(0)).sum()
        order = chosen.flatten().argsort(stable=True)
        rows = flat.index_select(0, order // s.n_expert_used)
        # unbind, not indexing: its backward stacks the slices instead of padding each one.
        mats = zip(
            torch.split(rows, counts.tolist()),
            self.ffn_gate_exps.unbind(0),
            self.ffn_up_exps.unbind(0),
            self.ffn_down_exps.unbind(0),
            strict=True,
        )
        done = torch.cat(
            [
                functional.linear(
                    functional.silu(functional.linear(part, gate)) * functional.linear(part, up),
                    down,
                )
                for part, gate, up, down in mats
            ]
        )
        back = torch.empty_like(order)
        back[order] = torch.arange(order.numel())
        routed = done.index_select(0, back).view(-1, s.n_expert_used, s.n_embd)
        routed = (routed.float() * weights[..., None]).sum(1)
        shared = functional.silu(self.ffn_gate_shexp(flat)) * self.ffn_up_shexp(flat)
        shared = self.ffn_down_shexp(shared) * torch.sigmoid(self.ffn_gate_inp_shexp(flat))
        out: Tensor = routed + shared
        return out.view_as(x)


class Block(nn.Module):
    """One trunk layer: a mixer (delta net or attention) and experts, both residual."""

    def __init__(self, shape: Shape, layer: int) -> None:
        super().__init__()
        gain = 1.0 / math.sqrt(2 * shape.n_layer)
        self.attn_norm = Norm(shape.n_embd, shape.eps)
        self.mixer: nn.Module = (
            DeltaNet(shape, gain) if shape.is_recurrent(layer) else Attention(shape, gain)
        )
        self.post_attention_norm = Norm(shape.n_embd, shape.eps)
        self.experts = Experts(shape, gain)

    def forward(self, x: Tensor, balance: Balance) -> Tensor:
        """[B, T, D] to [B, T, D]."""
        x = x + self.mixer(self.attn_norm(x))
        out: Tensor = x + self.experts(self.post_attention_norm(x), balance)
        return out


class Head(nn.Module):
    """The nextn (MTP) block: token at p with the hidden state of p-1, to the token at p+1."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        gain = 1.0 / math.sqrt(2)
        self.enorm = Norm(shape.n_embd, shape.eps)
        self.hnorm = Norm(shape.n_embd, shape.eps)
        self.eh_proj = linear(2 * shape.n_embd, shape.n_embd)
        self.attn_norm = Norm(shape.n_embd, shape.eps)
        self.mixer = Attention(shape, gain)
        self.post_attention_norm = Norm(shape.n_embd, shape.eps)
        self.experts = Experts(shape, gain)
        self.shared_head_norm = Norm(shape.n_embd, shape.eps)

    def forward(
        self, embedded: Tensor, hidden: Tensor, earlier: list[Heads], balance: Balance
    ) -> Tensor:
        """One drafting pass over [B, T, D] embeddings and previous-position hidden states.

        `earlier` holds the passes before this one and receives this pass. Pass j sees what a
        draft context holds at draft step j: keys of pass 0 up to p-j, then one key of each
        later pass. Returns the normed hidden state [B, T, D].
        """
        x = self.eh_proj(torch.cat([self.enorm(embedded), self.hnorm(hidden)], dim=-1))
        heads = self.mixer.project(self.attn_norm(x))
        earlier.append(heads)
        attended = functional.scaled_dot_product_attention(
            heads.query,
            torch.cat([past.key for past in earlier], dim=2),
            torch.cat([past.value for past in earlier], dim=2),
            attn_mask=draft_mask(len(earlier) - 1, x.shape[1]),
        )
        x = x + self.mixer.finish(attended, heads.gate)
        x = x + self.experts(self.post_attention_norm(x), balance)
        out: Tensor = self.shared_head_norm(x)
        return out


def draft_mask(step: int, length: int) -> Tensor:
    """Which keys pass `step` sees: bool [T, (step + 1) * T]."""
    gap = torch.arange(length)[:, None] - torch.arange(length)[None, :]
    views = [gap >= step]
    views += [gap == step - other for other in range(1, step + 1)]
    return torch.cat(views, dim=1)


def shift(hidden: Tensor) -> Tensor:
    """[B, T, D] moved one position later, zeros first: the row of the position before."""
    return functional.pad(hidden, (0, 0, 1, 0))[:, :-1]


class Network(nn.Module):
    """Trunk, draft head, and the embedding and output matrices that both share."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.n_vocab, shape.n_embd)
        nn.init.normal_(self.token_embd.weight, std=0.5)
        self.blocks = nn.ModuleList(Block(shape, layer) for layer in range(shape.n_layer))
        self.output_norm = Norm(shape.n_embd, shape.eps)
        self.output = linear(shape.n_embd, shape.n_vocab, 0.5)
        self.head = Head(shape)

    def trunk(self, tokens: Tensor, balance: Balance) -> Tensor:
        """Token ids [B, T] to the post-norm hidden states [B, T, D]."""
        x = self.token_embd(tokens)
        for block in self.blocks:
            x = block(x, balance)
        out: Tensor = self.output_norm(x)
        return out

    def draft(self, tokens: Tensor, hidden: Tensor, steps: int, balance: Balance) -> list[Tensor]:
        """The head's hidden states [B, T, D] for each of `steps` draft steps.

        Step 0 is fed the trunk's hidden states, step j the head's own of step j-1, as in
        drafting; rows before position j of step j mean nothing.
        """
        embedded = self.token_embd(tokens)
        earlier: list[Heads] = []
        passes: list[Tensor] = []
        for _ in range(steps):
            hidden = self.head(embedded, shift(hidden), earlier, balance)
            passes.append(hidden)
        return passes

    def logits(self, hidden: Tensor) -> Tensor:
        """[B, T, D] to float32 [B, T, V]."""
        out: Tensor = self.output(hidden)
        return out.float()

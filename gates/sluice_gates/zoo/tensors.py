"""The tensors of one layer, as a few functions that the table's rows put together.

Names are within the layer (``attn_q.weight``); shapes are numpy's, outermost first, so a matrix
is (rows, columns) and experts are (experts, rows, columns).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gguf import GGMLQuantizationType as Type

N_EMBD = 256
N_HEAD, N_HEAD_KV, HEAD_DIM = 4, 2, 64
N_EXPERT, N_USED = 8, 2
N_FF = 256
"""Width of an expert, of a shared expert and of a dense layer: whole rows of K-quants."""

STATE, GROUPS, RANK, CONV = 64, 2, 4, 4
"""Of the gated delta net: key and value width of a head, key heads, value heads, kernel."""

Q_LORA, KV_LORA, ROPE_DIM, NOPE_DIM = 64, 64, 32, 32
"""Of multi-head latent attention: ranks, and the two pieces of a key."""

INDEX_HEADS, INDEX_DIM = 4, 64
"""Of the indexer that goes before latent attention in its sparse kind."""

SCAN_INNER, SCAN_STATE, SCAN_RANK = 2 * N_EMBD, 32, 8
"""Of Mamba layers; the rank is the number of heads in the second kind."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor: uniform noise around ``mean`` whose standard deviation is ``size``."""

    name: str
    shape: tuple[int, ...]
    kind: Type = Type.F32
    mean: float = 0.0
    size: float = 0.0


Tensors = tuple[Tensor, ...]


def weight(name: str, *shape: int, kind: Type = Type.Q8_0, size: float = 0.0) -> Tensor:
    """A weight of ``shape``; by default its output is as large as its input."""
    return Tensor(f"{name}.weight", shape, kind, size=size or 1 / math.sqrt(shape[-1]))


def norm(name: str, n: int = N_EMBD) -> Tensor:
    """A norm's weight: ones."""
    return Tensor(f"{name}.weight", (n,), mean=1.0)


def bias(name: str, *shape: int, size: float = 0.1) -> Tensor:
    """A bias, F32."""
    return Tensor(f"{name}.bias", shape, size=size)


def constant(name: str, *shape: int, value: float = 1.0) -> Tensor:
    """A tensor of one value, F32; ``name`` is whole."""
    return Tensor(name, shape, mean=value)


def attention(
    *,
    heads: int = N_HEAD,
    heads_kv: int = N_HEAD_KV,
    width: int = HEAD_DIM,
    norms: tuple[int, int] | None = None,
    fused: bool = False,
    gated_q: bool = False,
    biased: bool = False,
    output_biased: bool = False,
    gate: int = 0,
    sinks: bool = False,
) -> Tensors:
    """Attention with grouped heads of ``width``, its norm first.

    Args:
        norms: lengths of the query's and the key's norm, where there are any.
        fused: query, key and value are one tensor.
        gated_q: every query head carries its gate.
        biased, output_biased: of query, key and value; of the output.
        gate: rows of a gate of its own.
        sinks: an attention sink a head.
    """
    q, kv = heads * width, heads_kv * width
    made = [norm("attn_norm"), weight("attn_output", N_EMBD, q)]
    rows = {"q": q * (2 if gated_q else 1), "k": kv, "v": kv}
    if fused:
        rows = {"qkv": sum(rows.values())}
    made += [weight(f"attn_{name}", n, N_EMBD) for name, n in rows.items()]
    if biased:
        made += [bias(f"attn_{name}", n) for name, n in rows.items()]
    if output_biased:
        made.append(bias("attn_output", N_EMBD))
    if norms:
        made += [norm("attn_q_norm", norms[0]), norm("attn_k_norm", norms[1])]
    if gate:
        made.append(weight("attn_gate", gate, N_EMBD))
    if sinks:
        made.append(Tensor("attn_sinks.weight", (heads,), size=0.5))
    return tuple(made)


def latent_attention(*, q_lora: bool = True, gate: int = 0) -> Tensors:
    """Multi-head latent attention with the key's and value's up-projections split by head."""
    key = ROPE_DIM + NOPE_DIM
    if q_lora:
        made = [
            weight("attn_q_a", Q_LORA, N_EMBD),
            norm("attn_q_a_norm", Q_LORA),
            weight("attn_q_b", N_HEAD * key, Q_LORA),
        ]
    else:
        made = [weight("attn_q", N_HEAD * key, N_EMBD)]
    if gate:
        made.append(weight("attn_gate", gate, N_EMBD))
    return (
        norm("attn_norm"),
        *made,
        weight("attn_kv_a_mqa", KV_LORA + ROPE_DIM, N_EMBD),
        norm("attn_kv_a_norm", KV_LORA),
        weight("attn_k_b", N_HEAD, KV_LORA, NOPE_DIM),
        weight("attn_v_b", N_HEAD, HEAD_DIM, KV_LORA),
        weight("attn_output", N_EMBD, N_HEAD * HEAD_DIM),
    )


def indexer() -> Tensors:
    """The small attention that picks the positions which latent attention then looks at."""
    return (
        norm("indexer.k_norm", INDEX_DIM),
        bias("indexer.k_norm", INDEX_DIM),
        weight("indexer.proj", INDEX_HEADS, N_EMBD),
        weight("indexer.attn_k", INDEX_DIM, N_EMBD),
        weight("indexer.attn_q_b", INDEX_HEADS * INDEX_DIM, Q_LORA),
    )


def lightning_attention() -> Tensors:
    """Linear attention with a fixed decay a head."""
    width = N_HEAD * HEAD_DIM
    return (
        norm("attn_norm"),
        norm("attn_norm_2", width),
        weight("attn_qkv", 3 * width, N_EMBD),
        weight("attn_gate", width, N_EMBD),
        weight("attn_output", N_EMBD, width),
    )


def delta_net(*, beta_and_alpha: Tensors) -> Tensors:
    """A gated delta net; how its two gates are stored differs."""
    key, value = STATE * GROUPS, STATE * RANK
    return (
        norm("attn_norm"),
        weight("attn_qkv", 2 * key + value, N_EMBD),
        weight("attn_gate", value, N_EMBD),
        weight("ssm_conv1d", 2 * key + value, CONV, kind=Type.F32),
        constant("ssm_dt.bias", RANK),
        constant("ssm_a", RANK, value=-1.0),
        *beta_and_alpha,
        norm("ssm_norm", STATE),
        weight("ssm_out", N_EMBD, value),
    )


def delta_attention(*, low_rank: bool = False) -> Tensors:
    """Kimi's delta attention: a decay a channel, convolutions by query, key and value.

    ``low_rank``: the decay's and the gate's projections are two matrices each.
    """
    inner = N_HEAD * HEAD_DIM
    rows = HEAD_DIM if low_rank else inner
    second = (weight("ssm_f_b", inner, rows), weight("ssm_g_b", inner, rows)) if low_rank else ()
    return (
        norm("attn_norm"),
        *(weight(f"attn_{name}", inner, N_EMBD) for name in "qkv"),
        *(weight(f"ssm_conv1d_{name}", inner, 1, CONV, kind=Type.F32) for name in "qkv"),
        weight("ssm_f_a", rows, N_EMBD),
        weight("ssm_beta", N_HEAD, N_EMBD),
        constant("ssm_a", N_HEAD, 1, value=-1.0),
        constant("ssm_dt.bias", inner),
        weight("ssm_g_a", rows, N_EMBD),
        *second,
        norm("ssm_norm", HEAD_DIM),
        weight("attn_output", N_EMBD, inner),
    )


def short_convolution() -> Tensors:
    """A gated convolution of three positions."""
    return (
        norm("attn_norm"),
        weight("shortconv.conv", N_EMBD, 3, kind=Type.F32),
        weight("shortconv.in_proj", 3 * N_EMBD, N_EMBD),
        weight("shortconv.out_proj", N_EMBD, N_EMBD),
    )


def mamba() -> Tensors:
    """A selective scan, first kind, with the norms that Jamba adds."""
    return (
        norm("attn_norm"),
        weight("ssm_in", 2 * SCAN_INNER, N_EMBD),
        weight("ssm_conv1d", SCAN_INNER, CONV, kind=Type.F32),
        bias("ssm_conv1d", SCAN_INNER),
        weight("ssm_x", SCAN_RANK + 2 * SCAN_STATE, SCAN_INNER),
        norm("ssm_dt_norm", SCAN_RANK),
        weight("ssm_dt", SCAN_INNER, SCAN_RANK, kind=Type.F32),
        bias("ssm_dt", SCAN_INNER),
        norm("ssm_b_norm", SCAN_STATE),
        norm("ssm_c_norm", SCAN_STATE),
        constant("ssm_a", SCAN_INNER, SCAN_STATE, value=-1.0),
        constant("ssm_d", SCAN_INNER),
        weight("ssm_out", N_EMBD, SCAN_INNER),
    )


def mamba2() -> Tensors:
    """A selective scan, second kind, with one group."""
    channels = SCAN_INNER + 2 * SCAN_STATE
    return (
        norm("attn_norm"),
        weight("ssm_in", SCAN_INNER + channels + SCAN_RANK, N_EMBD),
        weight("ssm_conv1d", channels, CONV, kind=Type.F32),
        bias("ssm_conv1d", channels),
        bias("ssm_dt", SCAN_RANK),
        constant("ssm_a", SCAN_RANK, 1, value=-1.0),
        constant("ssm_d", SCAN_RANK, 1),
        Tensor("ssm_norm.weight", (1, SCAN_INNER), mean=1.0),
        weight("ssm_out", N_EMBD, SCAN_INNER),
    )


def dense(ff: int = N_FF) -> Tensors:
    """A gated feed-forward layer."""
    return _feed_forward("", ff)


def shared(ff: int = N_FF, *, gated: bool = False, parts: str = "gate up down") -> Tensors:
    """Shared experts of ``ff`` together; ``gated`` by a row of its own."""
    row = (Tensor("ffn_gate_inp_shexp.weight", (N_EMBD,), size=0.1),) if gated else ()
    return _feed_forward("_shexp", ff, parts) + row


def experts(
    parts: str = "gate up down",
    *,
    kind: Type = Type.Q8_0,
    biased: bool = False,
    scaled: bool = False,
    selection_bias: str = "",
    width: int = N_EMBD,
    suffix: str = "exps",
    n: int = N_EXPERT,
) -> Tensors:
    """A router and its experts.

    Args:
        parts: as the layout names them: gate, up, down, gate_up.
        biased: a bias an expert on every part, and on the router.
        scaled: a factor an expert on the down-projection.
        selection_bias: whole name of the bias that is added for the choice only.
        width: of the experts' input and output.
        suffix, n: of the tensors' names; their count.
    """
    shapes = {"gate": (N_FF, width), "up": (N_FF, width), "gate_up": (2 * N_FF, width),
              "down": (width, N_FF)}  # fmt: skip
    made = [weight(f"ffn_{part}_{suffix}", n, *shapes[part], kind=kind) for part in parts.split()]
    if suffix == "exps":
        made.insert(0, weight("ffn_gate_inp", n, N_EMBD, kind=Type.F32))
    if biased:
        made += [bias(f"ffn_{part}_{suffix}", n, shapes[part][0]) for part in parts.split()]
        made.append(bias("ffn_gate_inp", n))
    if scaled:
        made.append(Tensor("ffn_down_exps.scale", (n,), mean=1.0, size=0.2))
    if selection_bias:
        made.append(Tensor(selection_bias, (n,), size=0.05))
    return tuple(made)


def _feed_forward(suffix: str, ff: int, parts: str = "gate up down") -> Tensors:
    shapes = {"gate": (ff, N_EMBD), "up": (ff, N_EMBD), "down": (N_EMBD, ff)}
    return tuple(weight(f"ffn_{part}{suffix}", *shapes[part]) for part in parts.split())

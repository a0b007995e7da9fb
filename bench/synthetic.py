"""Models of random weights of qwen35moe's shape, written tensor by tensor.

:func:`write_model` takes a shape and what its weights are. Here is the small model of the
numerics benchmark, about 0.6 GB: its layers are small beside its embedding and its head is wired
to the embedding, so that the head's drafts are right most of the time, as a trained head's are.
It speaks no language.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Type

from sluice.telemetry.files import atomic

SEED = 36
CHUNK_VALUES = 4 << 20
"""Values of a tensor that are made at a time."""

Array = npt.NDArray[np.generic]
F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Shape:
    """What a qwen35moe's metadata says; ``n_layer`` is without the MTP head's block."""

    n_vocab: int
    n_embd: int
    n_layer: int
    n_expert: int
    n_used: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    groups: int
    rank: int
    state: int = 128
    conv: int = 4
    full_every: int = 4


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of the file: ``shape`` outermost first, ``constant`` where all values are one."""

    name: str
    shape: tuple[int, ...]
    kind: Type
    constant: float | None = None

    @property
    def part(self) -> str:
        """The name without its block: ``ffn_gate_exps.weight``."""
        return self.name.split(".", 2)[2] if self.name.startswith("blk.") else self.name

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of the innermost dimension."""
        block, block_bytes = gguf.GGML_QUANT_SIZES[self.kind]
        return self.shape[-1] // block * block_bytes

    @property
    def size_bytes(self) -> int:
        """Bytes in the file, without padding."""
        rows: int = int(np.prod(self.shape[:-1], dtype=np.int64))
        return rows * self.row_bytes


class Weights:
    """Values of every tensor that is not constant; here those of the small model.

    ``size`` of a tensor is its values' standard deviation, ``noise`` that of the head's
    projection, in the sizes of a row: what makes some drafts wrong. ``offset`` is what Q4_K
    takes away, in sizes; 7.5/250 gives values of mean 0.
    """

    noise = 0.1
    offset = 1 / 32

    def __init__(self) -> None:
        self.random = np.random.default_rng(SEED)

    def size(self, tensor: Tensor) -> float:
        """Standard deviation of ``tensor``'s values."""
        return {"token_embd.weight": 1.0, "output.weight": 1.0, "ffn_gate_inp.weight": 0.02}.get(
            tensor.part, 0.004
        )

    def rows(self, tensor: Tensor, begin: int, end: int) -> F32:
        """Rows of a matrix, float32[end - begin, width]; asked for in order, each once."""
        shape = (end - begin, tensor.shape[-1])
        if tensor.part == "nextn.eh_proj.weight":
            return self._projection(tensor, begin, end)
        values: F32 = self.random.standard_normal(shape, dtype=np.float32)
        if tensor.part == "output.weight" and begin == 0:
            values[0] = 0  # the end-of-generation token, never the largest
        values *= np.float32(self.size(tensor))
        return values

    def _projection(self, tensor: Tensor, begin: int, end: int) -> F32:
        width = tensor.shape[-1]
        values = self.noise / np.sqrt(width) * self.random.standard_normal((end - begin, width))
        # [of the embedding | of the hidden state]
        values[np.arange(end - begin), np.arange(begin, end)] += 1
        rounded: F32 = values.astype(np.float32)
        return rounded

    def blocks(self, tensor: Tensor, n_rows: int) -> Array:
        """Random Q4_K blocks: 144 bytes for 256 values, the first four two float16 scales.

        The gguf package cannot quantise to this type. Scales of 6 bits and quants of 4 are
        random; the two scales make values of about the tensor's size.
        """
        n_blocks = tensor.shape[-1] // 256
        raw = self.random.integers(0, 256, (n_rows, n_blocks, 144), dtype=np.uint8)
        size = self.size(tensor)
        # Times 6 and 4 bits of scale and value, and times 6 bits of offset.
        scales = np.array([size / 250, size * self.offset], np.float16)
        raw[..., :4] = scales.view(np.uint8)
        return raw


def synthetic_model(folder: Path) -> Path:
    """The small model's file in ``folder``, made on the first call."""
    shape = Shape(n_vocab=8192, n_embd=1024, n_layer=8, n_expert=64, n_used=8, n_ff=512,
                  n_head=8, n_head_kv=2, head_dim=128, groups=8, rank=8)  # fmt: skip
    name = f"sluice-synthetic-{shape.n_layer}x{shape.n_expert}-Q4_K-{SEED}-v2.gguf"
    return made_once(folder / name, shape, Weights())


def made_once(out: Path, shape: Shape, weights: Weights) -> Path:
    """``out``, written by :func:`write_model` if it is not there."""
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        with atomic(out) as part:
            write_model(part, shape, weights)
    return out


def write_model(path: Path, shape: Shape, weights: Weights) -> None:
    """Write the gguf; a few tens of MiB of values are in memory at a time."""
    writer = gguf.GGUFWriter(path, "qwen35moe")
    _metadata(writer, shape)
    listed = list(tensors(shape))
    for t in listed:
        byte_shape = (*t.shape[:-1], t.row_bytes) if t.kind != Type.F32 else t.shape
        dtype = np.dtype(np.uint8 if t.kind != Type.F32 else np.float32)
        writer.add_tensor_info(t.name, byte_shape, dtype, t.size_bytes, raw_dtype=t.kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    assert writer.fout is not None
    out = writer.fout[0]
    writer.write_padding(out, out.tell())
    for t in listed:
        for piece in _pieces(t, weights):
            piece.tofile(out)
        writer.write_padding(out, t.size_bytes)
    writer.close()


def tensors(shape: Shape) -> Iterator[Tensor]:
    """Every tensor of the model, in the order of the file."""
    s = shape

    def matrix(name: str, *dims: int, kind: Type = Type.Q8_0) -> Tensor:
        return Tensor(name, dims, kind)

    def constant(name: str, n: int, value: float = 1.0) -> Tensor:
        return Tensor(name, (n,), Type.F32, value)

    yield matrix("token_embd.weight", s.n_vocab, s.n_embd)
    yield constant("output_norm.weight", s.n_embd)
    yield matrix("output.weight", s.n_vocab, s.n_embd)
    for layer in range(s.n_layer + 1):
        p = f"blk.{layer}."
        is_head = layer == s.n_layer
        yield constant(p + "attn_norm.weight", s.n_embd)
        yield constant(p + "post_attention_norm.weight", s.n_embd)
        if is_head or (layer + 1) % s.full_every == 0:
            yield matrix(p + "attn_q.weight", 2 * s.n_head * s.head_dim, s.n_embd)
            yield matrix(p + "attn_k.weight", s.n_head_kv * s.head_dim, s.n_embd)
            yield matrix(p + "attn_v.weight", s.n_head_kv * s.head_dim, s.n_embd)
            yield matrix(p + "attn_output.weight", s.n_embd, s.n_head * s.head_dim)
            yield constant(p + "attn_q_norm.weight", s.head_dim)
            yield constant(p + "attn_k_norm.weight", s.head_dim)
        else:
            mixed, inner = 2 * s.state * s.groups + s.state * s.rank, s.state * s.rank
            yield matrix(p + "attn_qkv.weight", mixed, s.n_embd)
            yield matrix(p + "attn_gate.weight", inner, s.n_embd)
            yield matrix(p + "ssm_conv1d.weight", mixed, s.conv, kind=Type.F32)
            yield constant(p + "ssm_dt.bias", s.rank)
            yield constant(p + "ssm_a", s.rank, -1.0)
            yield matrix(p + "ssm_beta.weight", s.rank, s.n_embd)
            yield matrix(p + "ssm_alpha.weight", s.rank, s.n_embd)
            yield constant(p + "ssm_norm.weight", s.state)
            yield matrix(p + "ssm_out.weight", s.n_embd, inner)
        yield matrix(p + "ffn_gate_inp.weight", s.n_expert, s.n_embd, kind=Type.F32)
        for part, rows, width in (
            ("gate", s.n_ff, s.n_embd), ("up", s.n_ff, s.n_embd), ("down", s.n_embd, s.n_ff),
        ):  # fmt: skip
            yield matrix(f"{p}ffn_{part}_exps.weight", s.n_expert, rows, width, kind=Type.Q4_K)
        yield constant(p + "ffn_gate_inp_shexp.weight", s.n_embd, 0.0)
        yield matrix(p + "ffn_gate_shexp.weight", s.n_ff, s.n_embd)
        yield matrix(p + "ffn_up_shexp.weight", s.n_ff, s.n_embd)
        yield matrix(p + "ffn_down_shexp.weight", s.n_embd, s.n_ff)
        if is_head:
            yield matrix(p + "nextn.eh_proj.weight", s.n_embd, 2 * s.n_embd)
            for norm in ("enorm", "hnorm", "shared_head_norm"):
                yield constant(f"{p}nextn.{norm}.weight", s.n_embd)


def _pieces(tensor: Tensor, weights: Weights) -> Iterator[Array]:
    """The tensor's bytes in order."""
    if tensor.constant is not None:
        yield np.full(tensor.shape, tensor.constant, np.float32)
        return
    n_rows = int(np.prod(tensor.shape[:-1], dtype=np.int64))
    step = max(CHUNK_VALUES // tensor.shape[-1], 1)
    for begin in range(0, n_rows, step):
        end = min(begin + step, n_rows)
        if tensor.kind == Type.Q4_K:
            yield weights.blocks(tensor, end - begin)
        else:
            yield gguf.quants.quantize(weights.rows(tensor, begin, end), tensor.kind)


def _metadata(writer: gguf.GGUFWriter, s: Shape) -> None:
    writer.add_block_count(s.n_layer + 1)
    writer.add_uint32("qwen35moe.nextn_predict_layers", 1)
    writer.add_context_length(4096)
    writer.add_embedding_length(s.n_embd)
    writer.add_head_count(s.n_head)
    writer.add_head_count_kv(s.n_head_kv)
    writer.add_key_length(s.head_dim)
    writer.add_value_length(s.head_dim)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(64)
    writer.add_array("qwen35moe.rope.dimension_sections", [11, 11, 10, 0])
    writer.add_rope_freq_base(1e7)
    writer.add_expert_count(s.n_expert)
    writer.add_expert_used_count(s.n_used)
    writer.add_expert_feed_forward_length(s.n_ff)
    writer.add_expert_shared_feed_forward_length(s.n_ff)
    writer.add_uint32("qwen35moe.ssm.conv_kernel", s.conv)
    writer.add_uint32("qwen35moe.ssm.state_size", s.state)
    writer.add_uint32("qwen35moe.ssm.group_count", s.groups)
    writer.add_uint32("qwen35moe.ssm.time_step_rank", s.rank)
    writer.add_uint32("qwen35moe.ssm.inner_size", s.state * s.rank)
    writer.add_uint32("qwen35moe.full_attention_interval", s.full_every)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen35")
    letters = [
        *(chr(c) for c in range(0x21, 0x7F)),
        "\u0120",
        "\u010a",
    ]  # GPT-2's space and line end
    tokens = [f"t{i:05d}" for i in range(s.n_vocab)]
    tokens[1 : 1 + len(letters)] = letters  # so that a text has tokens
    writer.add_token_list(tokens)
    writer.add_token_types([1] * s.n_vocab)
    writer.add_token_merges([f"t{i:04d} {i % 10}" for i in range(s.n_vocab - 256)])
    writer.add_eos_token_id(0)

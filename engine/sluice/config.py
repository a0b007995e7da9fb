"""Every knob of a run, its range, and the rules between knobs.

One frozen :class:`Config` describes a run completely. :func:`validate` needs no model and no
llama.cpp (the platform is all it asks), so a wrong request is refused before anything is loaded.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from sluice.errors import RequestError
from sluice.knob import Knob, check_value, described

FlashAttn = Literal["auto", "on", "off"]
CatchUp = Literal["prefix", "batch"]
Numerics = Literal["default", "decode-invariant", "invariant"]
DenseWeights = Literal["anon", "warm", "mmap"]
CacheMb = int | Literal["auto"]
CacheMemory = Literal["auto", "slots", "pages"]

DRAFT_MAX = 8
THREADS_MAX = 512  # GGML_MAX_N_THREADS: ggml asserts above it
SEED_MAX = 0xFFFFFFFE  # LLAMA_DEFAULT_SEED (0xFFFFFFFF) would mean "random"
INT32_MAX = 0x7FFFFFFF


def _available_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        found = len(os.sched_getaffinity(0))
    else:
        found = os.cpu_count() or 1
    return min(found, THREADS_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A run, completely described. Build one, then :func:`validate` it (``Session`` does).

    ``model`` is a path to a gguf, or the word ``bundled``. The other fields carry their flag,
    range and meaning in their :class:`Knob` (see :func:`knobs`), which is also what
    ``sluice run --help`` prints.
    """

    model: str
    n: int = described(
        128, "-n", "Tokens to generate at most.", low=1, high=INT32_MAX, per_call=True,
        aliases=("--predict", "--n-predict"),
    )  # fmt: skip
    threads: int = described(
        0, "-t", "Compute threads; 0 takes every core this process may use.",
        low=0, high=THREADS_MAX, aliases=("--threads",),
    )  # fmt: skip
    ctx: int = described(
        4096, "-c", "Context length in tokens: prompt, generated and drafted together.",
        low=16, high=INT32_MAX, aliases=("--ctx-size",),
    )  # fmt: skip
    ubatch: int = described(
        512, "--ubatch", "Prompt tokens computed in one pass.",
        low=1, high=65536, aliases=("--ubatch-size",),
    )  # fmt: skip
    flash_attn: FlashAttn = described(
        "auto",
        "--flash-attn",
        "Fused attention kernels; auto is on, but off where --numerics is not default.",
        choices=get_args(FlashAttn),
    )
    temp: float = described(
        0.0, "--temp", "Sampling temperature; 0 is greedy.", low=0.0, high=100.0, per_call=True
    )
    top_k: int = described(
        40, "--top-k", "Sample among the N likeliest tokens; 0 is all of them.",
        low=0, high=INT32_MAX, per_call=True,
    )  # fmt: skip
    top_p: float = described(
        0.95, "--top-p", "Sample among the likeliest tokens that sum to P.",
        low=0.0, high=1.0, per_call=True,
    )  # fmt: skip
    seed: int = described(42, "--seed", "Seed of the sampler.", low=0, high=SEED_MAX, per_call=True)
    moe_stream: bool = described(
        False,
        "--moe-stream",
        "Read only the routed experts from disk, layer by layer.",
        group="streaming",
    )
    io_threads: int = described(
        4,
        "--io-threads",
        "Lanes that read slices in parallel.",
        low=1,
        high=64,
        group="streaming",
    )
    odirect: bool = described(
        True,
        "--odirect/--no-odirect",
        "Bypass the page cache (O_DIRECT) for slice reads.",
        group="streaming",
    )
    cache_mb: CacheMb = described(
        0,
        "--cache-mb",
        "Keep streamed experts in memory, least recently used out first; auto sizes it by the"
        " memory that is free at load, 0 is off.",
        low=0,
        high=1 << 24,
        words=("auto",),
        per_call=True,
        group="cache",
    )
    cache_floor_mb: int = described(
        0,
        "--cache-floor-mb",
        "The least that --cache-mb auto may come to.",
        low=0,
        high=1 << 24,
        group="cache",
    )
    cache_ceil_mb: int = described(
        0, "--cache-ceil-mb", "The most that --cache-mb auto may come to; 0 is no limit.",
        low=0, high=1 << 24, group="cache",
    )  # fmt: skip
    force_cache: bool = described(
        False,
        "--force-cache",
        "Take a --cache-mb that is too small to be of use.",
        group="cache",
    )
    cache_fill: bool = described(
        False,
        "--cache-fill",
        "Read experts into the cache at load, as many as it has room for.",
        group="cache",
    )
    cache_memory: CacheMemory = described(
        "auto",
        "--cache-memory",
        "How cached experts stand: in slots that are read over (slots), or each at an address of"
        " its own, whose pages are given back (pages); auto is slots where they are possible.",
        choices=get_args(CacheMemory),
        group="cache",
    )
    dense_weights: DenseWeights = described(
        "anon",
        "--dense-weights",
        "What is not streamed: read into memory of our own (anon), left mapped and paged in at"
        " load (warm), or left mapped (mmap).",
        choices=get_args(DenseWeights),
        group="streaming",
    )
    kernel_reads: bool = described(
        True,
        "--kernel-reads/--no-kernel-reads",
        "Hand reads that run under compute over to the kernel (Linux AIO) in the place of lanes.",
        group="streaming",
    )
    overlap: bool = described(
        False,
        "--overlap",
        "Let reads that are not needed yet run on under matmuls: of parts that come later, and of"
        " a few experts that are computed after the others.",
        group="streaming",
    )
    prefetch: int = described(
        0, "--prefetch", "Read the previous token's experts of the next N layers ahead.",
        low=0, high=64, group="cache",
    )  # fmt: skip
    predict_prefetch: bool = described(
        False, "--predict-prefetch",
        "Run the next layer's router early, and read ahead what it names.", group="cache",
    )  # fmt: skip
    predict_spec_max: int = described(
        4, "--predict-spec-max", "Experts that --predict-prefetch may read ahead for one layer.",
        low=1, high=1024, group="cache",
    )  # fmt: skip
    predict_log: bool = described(
        False, "--predict-log", "Count how often each way to predict a layer's experts is right."
    )
    prefetch_sync: bool = described(
        False, "--prefetch-sync", "Control: wait for what is read ahead, at once."
    )
    load_all: bool = described(
        False, "--load-all", "Control: read every expert of a layer, not only the routed ones."
    )
    poison: bool = described(
        False, "--poison", "Test mode: fill what was not routed with NaN before every layer."
    )
    mtp: bool = described(False, "--mtp", "Draft with the model's own multi-token-prediction head.")
    draft: int = described(
        3, "--draft", "Tokens drafted before each verify decode.",
        low=1, high=DRAFT_MAX, per_call=True, aliases=("--spec-draft-n-max",),
    )  # fmt: skip
    draft_min: int = described(
        0, "--draft-min", "A draft shorter than this is thrown away whole.",
        low=0, high=DRAFT_MAX, per_call=True, aliases=("--spec-draft-n-min",),
    )  # fmt: skip
    mtp_p_min: float = described(
        0.0, "--mtp-p-min", "Stop drafting when the head's top probability is below this.",
        low=0.0, high=1.0, per_call=True, aliases=("--spec-draft-p-min",),
    )  # fmt: skip
    catch_up: CatchUp = described(
        "prefix", "--catch-up",
        "Control: what the head catches up on after a verify decode, the accepted prefix or"
        " the whole batch.",
        choices=get_args(CatchUp),
    )  # fmt: skip
    numerics: Numerics = described(
        "default",
        "--numerics",
        "Which bits may depend on how many rows are computed together: any (default), those of"
        " the prompt (decode-invariant), none (invariant).",
        choices=get_args(Numerics),
    )

    @property
    def reads_ahead(self) -> bool:
        """Whether experts are read before a router names them."""
        return self.predict_prefetch or self.prefetch > 0

    @property
    def hides_reads(self) -> bool:
        """Whether compute goes on while lanes read."""
        return self.overlap or self.reads_ahead

    def replace(self, **changes: Any) -> Config:
        """A copy with ``changes``; an unknown name is a :class:`RequestError`."""
        unknown = sorted(set(changes) - {f.name for f in dataclasses.fields(self)})
        if unknown:
            raise RequestError(
                f"{unknown[0]}: no such setting; the settings are {', '.join(knobs())}"
            )
        return dataclasses.replace(self, **changes)

    def resolved(self) -> Config:
        """The same run with every automatic value made explicit."""
        flash_attn = self.flash_attn
        if flash_attn == "auto":
            flash_attn = "on" if self.numerics == "default" else "off"
        return self.replace(threads=self.threads or _available_cores(), flash_attn=flash_attn)

    def as_dict(self) -> dict[str, Any]:
        """Plain values in declaration order, for evidence files."""
        return dataclasses.asdict(self)

    @property
    def rollback_width(self) -> int:
        """Positions a verify decode may have to roll back: the draft width, or 0."""
        return self.draft if self.mtp else 0


def knobs() -> dict[str, Knob]:
    """Field name to :class:`Knob`, in declaration order (``model`` is not a knob)."""
    return {f.name: f.metadata["knob"] for f in dataclasses.fields(Config) if "knob" in f.metadata}


def grouped(*groups: str) -> tuple[str, ...]:
    """Names of the fields whose knobs are of these groups, in declaration order."""
    return tuple(name for name, knob in knobs().items() if knob.group in groups)


def can_stream() -> bool:
    """Whether experts can be streamed on this platform at all (O_DIRECT, call slots)."""
    return sys.platform.startswith("linux")


def validate(config: Config) -> Config:
    """Return ``config`` if it can be run as far as that shows without a model.

    Raises:
        RequestError: names the flag, the value, the reason and what to change.
    """
    if not isinstance(config.model, str):
        raise RequestError(f"MODEL {config.model!r}: must be of type str")
    if not config.model:
        raise RequestError("MODEL is empty: give the path of a gguf, or the word bundled")
    for name, knob in knobs().items():
        check_value(getattr(config, name), _DEFAULTS[name], knob)
    _check_rules(config)
    return config


def apply_overrides(config: Config, overrides: Mapping[str, Any]) -> Config:
    """``config`` with per-call overrides, validated.

    Raises:
        RequestError: an override that is unknown, fixed at load, wider than what was loaded,
            or that breaks a rule of :func:`validate`.
    """
    table = knobs()
    for name in overrides:
        if name == "model" or (name in table and not table[name].per_call):
            flag = table[name].flag if name in table else "that model"
            raise RequestError(
                f"{name}={overrides[name]!r}: fixed when the session is opened;"
                f" open another Session with {flag}"
            )
    changed = validate(config.replace(**overrides))
    if bool(changed.cache_mb) != bool(config.cache_mb):
        raise RequestError(
            f"--cache-mb {changed.cache_mb}: the session was opened with {config.cache_mb}; a"
            " cache can be resized, not added or taken away: open another Session"
        )
    if changed.mtp and changed.draft > config.draft:
        raise RequestError(
            f"--draft {changed.draft}: the session was opened for drafts of {config.draft};"
            f" open it with --draft {changed.draft}"
        )
    return changed


def _check_rules(c: Config) -> None:
    if c.numerics != "default" and c.flash_attn == "on":
        raise RequestError(
            f"--flash-attn on with --numerics {c.numerics}: its kernels depend on the number of"
            " rows; use --flash-attn auto, or --numerics default"
        )
    if c.mtp and c.temp > 0:
        raise RequestError(
            f"--mtp with --temp {c.temp:g}: a draft is accepted only where it equals the argmax,"
            " so speculation needs greedy decoding; drop --mtp or set --temp 0"
        )
    if c.mtp and c.draft_min > c.draft:
        raise RequestError(
            f"--draft-min {c.draft_min}: above --draft {c.draft}, so every draft would be thrown"
            f" away; set --draft-min to {c.draft} or less"
        )
    # llama.cpp aborts when n_ubatch < n_rs_seq + 2, after clamping the ubatch to the context.
    width = min(c.ubatch, c.ctx)
    if c.mtp and width < c.draft + 2:
        raise RequestError(
            f"--ubatch {width}: too narrow to verify --draft {c.draft} and roll it back;"
            f" set --ubatch to {c.draft + 2} or more, or narrow --draft"
        )
    if c.moe_stream and not can_stream():
        raise RequestError("--moe-stream: needs Linux (O_DIRECT, call slots); drop it to run"
                           " resident")  # fmt: skip
    _check_streaming_rules(c)


def _check_streaming_rules(c: Config) -> None:
    ahead = [flag for on, flag in ((c.prefetch, "--prefetch"),
                                   (c.predict_prefetch, "--predict-prefetch")) if on]  # fmt: skip
    if not c.moe_stream:
        needing = [
            (c.load_all, "--load-all"), (c.poison, "--poison"), (c.cache_mb, "--cache-mb"),
            (c.overlap, "--overlap"), (c.prefetch, "--prefetch"),
            (c.predict_prefetch, "--predict-prefetch"), (c.predict_log, "--predict-log"),
        ]  # fmt: skip
        for on, flag in needing:
            if on:
                raise RequestError(f"{flag}: only has a meaning when experts are streamed;"
                                   " add --moe-stream")  # fmt: skip
    if len(ahead) > 1:
        raise RequestError(
            "--prefetch with --predict-prefetch: two ways to choose what is read ahead; drop one"
        )
    if ahead and not c.cache_mb:
        raise RequestError(
            f"{ahead[0]}: what is read ahead has to be kept, and --cache-mb is 0; add --cache-mb"
            f" auto, or drop {ahead[0]}"
        )
    if c.cache_ceil_mb and c.cache_floor_mb > c.cache_ceil_mb:
        raise RequestError(
            f"--cache-floor-mb {c.cache_floor_mb}: above --cache-ceil-mb {c.cache_ceil_mb};"
            " lower it, or raise the other"
        )
    for on, flag in ((c.load_all, "--load-all"), (c.poison, "--poison")):
        if on and c.cache_mb:
            raise RequestError(
                f"{flag} with --cache-mb {c.cache_mb}: a control of streaming without a cache;"
                " drop one of them"
            )
    if c.load_all and c.poison:
        raise RequestError(
            "--load-all with --poison: every expert is read, so nothing is left to poison;"
            " drop one of them"
        )


_DEFAULTS = {f.name: f.default for f in dataclasses.fields(Config) if "knob" in f.metadata}

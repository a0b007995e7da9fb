"""How much memory a context takes at the least, so that one that cannot fit is refused.

llama.cpp clears its attention cache when it makes it. One larger than the memory would not
fail there: the kernel would end the process.
"""

from __future__ import annotations

from pathlib import Path

from sluice.config import Config
from sluice.errors import RequestError
from sluice.gguf.header import Header
from sluice.streaming.memory import available_bytes, total_bytes

_F16_BYTES = 2
# llama.cpp's scheduler asks for 60 tensor structs a graph node in one piece, and a hybrid
# model's graph has 40 nodes a row (and some); where that is refused, an assertion ends the process.
_SCHEDULER_BYTES = 41 * 60 * 336


def attention_cache_bytes(header: Header, ctx: int, *, with_head: bool) -> int:
    """A lower bound of the attention cache in bytes: F16 keys and values of ``ctx`` positions.

    Counts the layers whose key and value projections stand in the file as such; layouts that
    fuse or compress them count as nothing.
    """
    width = 0
    for layer in range(header.number("block_count") - (0 if with_head else header.n_nextn)):
        for part in ("attn_k", "attn_v"):
            info = header.tensors.get(f"blk.{layer}.{part}.weight")
            if info is not None and len(info.shape) == 2:
                width += info.shape[1]
    return width * _F16_BYTES * ctx


def check_footprint(config: Config, header: Header) -> None:
    """Refuse a context whose attention cache, or whose scheduler, cannot fit into memory.

    Raises:
        RequestError: names ``-c`` or ``--ubatch``, what it needs and what there is.
    """
    width = min(config.ubatch, config.ctx)
    limits = (total_bytes(), _address_space_bytes())
    total = min((limit for limit in limits if limit is not None), default=None)
    if total is not None and width * _SCHEDULER_BYTES > total:
        raise RequestError(
            f"--ubatch {width}: llama.cpp's scheduler asks for"
            f" {width * _SCHEDULER_BYTES / 2**30:.1f} GiB at once for it, and only"
            f" {total / 2**30:.1f} GiB can be had; set --ubatch to {total // _SCHEDULER_BYTES} or"
            " less"
        )
    needed = attention_cache_bytes(header, config.ctx, with_head=config.mtp)
    free = available_bytes()
    if free is not None and needed > free:
        fits = config.ctx * free // needed // 2
        raise RequestError(
            f"-c {config.ctx}: its attention cache needs {needed / 2**30:.1f} GiB, and"
            f" {free / 2**30:.1f} GiB of memory are available; set -c to {fits} or less"
        )


def _address_space_bytes() -> int | None:
    """What a limit on this process (ulimit -v) still leaves; ``None`` where there is none."""
    try:
        import resource
    except ImportError:  # not a Unix
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    status = Path("/proc/self/status")
    if limit == resource.RLIM_INFINITY or not status.exists():
        return None
    used = next(
        line for line in status.read_text(encoding="ascii").splitlines() if line[:7] == "VmSize:"
    )
    return max(limit - (int(used.split()[1]) << 10), 0)

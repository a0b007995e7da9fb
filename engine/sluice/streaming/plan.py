"""What streaming a model means in bytes: an expert, a token, a pass, and the caches that fit it.

Pure: made from a header and its layout; the machine plays no part. What is compared with the
cache's size is counted in whole pages: what an expert takes at an address of its own, and at the
most what a slot takes, but on a file system whose O_DIRECT asks for more than a page.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from sluice.errors import ModelError
from sluice.gguf.header import Header
from sluice.streaming.layout import ExpertLayout, ExpertTensor

PAGE_BYTES = mmap.PAGESIZE
_THIRD = 3


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """One layer that routes.

    ``expert_bytes`` are one expert's slices, ``expert_page_bytes`` the pages that they touch at
    most: a slice need not begin at a page.
    """

    layer: int
    is_head: bool
    n_expert: int
    expert_bytes: int
    expert_page_bytes: int

    @property
    def layer_bytes(self) -> int:
        """All experts."""
        return self.n_expert * self.expert_bytes


@dataclass(frozen=True, slots=True)
class CacheSize:
    """A size that makes sense, and how many tokens' routed experts it holds."""

    name: str
    cache_bytes: int
    n_tokens: float


@dataclass(frozen=True, slots=True)
class StreamingPlan:
    """The figures of one model.

    ``layers`` are those that route, the MTP block's last; ``n_used`` is how many experts a token
    uses in each. ``trunk_dense_bytes`` and ``head_dense_bytes`` are the weights that stay
    resident; the head's are 0 where the layout leaves it out.
    """

    layers: tuple[LayerPlan, ...]
    n_used: int
    trunk_dense_bytes: int
    head_dense_bytes: int

    @property
    def trunk(self) -> tuple[LayerPlan, ...]:
        """The layers that every token goes through."""
        return tuple(one for one in self.layers if not one.is_head)

    @property
    def head(self) -> tuple[LayerPlan, ...]:
        """The MTP block's."""
        return tuple(one for one in self.layers if one.is_head)

    @property
    def token_bytes(self) -> int:
        """What one token routes to in the trunk: every layer, every used expert."""
        return sum(self._used(one) * one.expert_bytes for one in self.trunk)

    @property
    def token_page_bytes(self) -> int:
        """The same in whole pages, as it is held against a cache's size."""
        return sum(self._used(one) * one.expert_page_bytes for one in self.trunk)

    @property
    def head_token_bytes(self) -> int:
        """What one token routes to in the head."""
        return sum(self._used(one) * one.expert_bytes for one in self.head)

    @property
    def layer_bytes_max(self) -> int:
        """All experts of the largest layer."""
        return max(one.layer_bytes for one in self.layers)

    @property
    def total_bytes(self) -> int:
        """Every streamed byte of the model."""
        return sum(one.layer_bytes for one in self.layers)

    @property
    def total_page_bytes(self) -> int:
        """The same in whole pages: a cache of this size never evicts."""
        return sum(one.n_expert * one.expert_page_bytes for one in self.layers)

    @property
    def dense_bytes(self) -> int:
        """The weights that stay resident."""
        return self.trunk_dense_bytes + self.head_dense_bytes

    def expert_bytes(self, layer: int) -> int:
        """One expert's slices in ``layer``."""
        return self._layer(layer).expert_bytes

    def page_bytes(self, layer: int) -> int:
        """The pages that one expert's slices in ``layer`` touch at most."""
        return self._layer(layer).expert_page_bytes

    def pass_bytes_max(self, ubatch: int) -> int:
        """The most that one layer can be asked for in one pass of ``ubatch`` rows."""
        return max(self._asked(one, ubatch) * one.expert_bytes for one in self.layers)

    def pass_page_bytes_max(self, ubatch: int) -> int:
        """The same in whole pages."""
        return max(self._asked(one, ubatch) * one.expert_page_bytes for one in self.layers)

    def smallest_cache_bytes(self, ubatch: int) -> int:
        """The smallest cache that can hold one token's experts, and one pass's of any layer."""
        return max(self.token_page_bytes, self.pass_page_bytes_max(ubatch))

    def cache_sizes(self, ubatch: int) -> tuple[CacheSize, ...]:
        """The smallest cache, a third of all experts (where that is larger), and all of them."""
        smallest, whole = self.smallest_cache_bytes(ubatch), self.total_page_bytes
        sizes = [("smallest", smallest)]
        if smallest < whole // _THIRD:
            sizes.append(("a third", whole // _THIRD))
        if smallest < whole:
            sizes.append(("all", whole))
        else:
            sizes = [("all", whole)]
        return tuple(CacheSize(name, n, n / self.token_page_bytes) for name, n in sizes)

    def without_head(self) -> StreamingPlan:
        """The plan of a run that does not draft with the head."""
        return replace(self, layers=self.trunk, head_dense_bytes=0)

    def as_dict(self, ubatch: int) -> dict[str, Any]:
        """Plain values in bytes; what is the head's is in the keys that say so, and only there."""
        plain = self.without_head()
        return {
            "layers": [asdict(one) | {"layer_bytes": one.layer_bytes} for one in self.layers],
            "n_used": self.n_used,
            "token_bytes": self.token_bytes,
            "total_bytes": plain.total_bytes,
            "dense_bytes": plain.dense_bytes,
            "head_token_bytes": self.head_token_bytes,
            "head_total_bytes": self.total_bytes - plain.total_bytes,
            "head_dense_bytes": self.head_dense_bytes,
            "ubatch": ubatch,
            "pass_bytes_max": plain.pass_bytes_max(ubatch),
            "cache_sizes": [asdict(one) for one in plain.cache_sizes(ubatch)],
        }

    def _layer(self, layer: int) -> LayerPlan:
        return next(one for one in self.layers if one.layer == layer)

    def _used(self, one: LayerPlan) -> int:
        return min(self.n_used, one.n_expert)

    def _asked(self, one: LayerPlan, ubatch: int) -> int:
        return min(ubatch * self.n_used, one.n_expert)


def streaming_plan(header: Header, layout: ExpertLayout) -> StreamingPlan:
    """The plan of streaming ``layout``, which is that of ``header``'s model.

    Raises:
        ModelError: the header does not say how many experts a token uses.
    """
    n_used = _used(header)
    if n_used < 1:
        raise ModelError(
            f"{header.path}: malformed: {header.architecture}.expert_used_count is {n_used}, must"
            " be 1 or more; convert the model again"
        )
    layers = tuple(
        LayerPlan(
            layer=layer,
            is_head=layer >= layout.n_trunk,
            n_expert=tensors[0].n_expert,
            expert_bytes=sum(t.slice_bytes for t in tensors),
            expert_page_bytes=_page_bytes(tensors),
        )
        for layer, tensors in sorted(layout.layers.items())
    )
    streamed = layout.by_name
    dense = {n: t.size_bytes for n, t in header.tensors.items() if n not in streamed}
    in_head = tuple(f"blk.{layout.n_trunk + i}." for i in range(header.n_nextn))
    head = sum(size for name, size in dense.items() if in_head and name.startswith(in_head))
    return StreamingPlan(
        layers=layers,
        n_used=n_used,
        trunk_dense_bytes=sum(dense.values()) - head,
        head_dense_bytes=head if any(one.is_head for one in layers) else 0,
    )


def _page_bytes(tensors: Iterable[ExpertTensor]) -> int:
    return sum(-(-(t.slice_bytes - 1) // PAGE_BYTES) + 1 for t in tensors) * PAGE_BYTES


def _used(header: Header) -> int:
    value = header.metadata.get(f"{header.architecture}.expert_used_count")
    if isinstance(value, list):  # a count a layer
        return max((n for n in value if isinstance(n, int)), default=0)
    return header.number("expert_used_count")

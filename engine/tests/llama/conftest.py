"""Contexts over the bundled model, with any hook and any filter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sluice.llama.context import Context, ContextShape
from sluice.llama.model import Model
from sluice.llama.node_filter import NodeFilter

from .filtering import Make


@pytest.fixture
def make(loaded: Model) -> Iterator[Make]:
    made: list[Context] = []

    def make_(hook: Any = None, shows: NodeFilter | None = None, **shape: Any) -> Context:
        wanted = {"n_ctx": 256, "rows_max": 64, "outputs_max": 4} | shape
        made.append(Context(loaded, ContextShape(**wanted), hook, shows))
        return made[-1]

    yield make_
    for one in made:
        one.close()

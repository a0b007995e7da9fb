"""Ctrl-C in the middle of a pass: the session is what it was."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sluice.decoding.session import Session
from sluice.llama import tensor as node
from sluice.seams import Nodes, Seams
from sluice.streaming.lanes import Job

BUSY: dict[str, Any] = {"moe_stream": True, "cache_mb": 8, "overlap": True}
AHEAD = BUSY | {"cache_mb": 4, "predict_prefetch": True}


class Interrupting(Nodes):
    """Ctrl-C at the ``n``-th of the nodes of a name, while it is asked for or once computed."""

    def __init__(self, name: str, n: int, *, asked: bool) -> None:
        self._name, self._left, self._asked = name.encode(), n, asked
        self.has_fired = False

    def wants(self, is_head: bool, address: int) -> bool:
        if not node.raw_name(address).startswith(self._name):
            return False
        if self._asked:
            self._count()
            return False
        return True

    def computed(self, is_head: bool, address: int) -> None:
        self._count()

    def _count(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.has_fired = True
            self.fire()

    def fire(self) -> None:
        signal.raise_signal(signal.SIGINT)


class Raising(Interrupting):
    """Not held back: as from a handler that raises by itself."""

    def fire(self) -> None:
        raise KeyboardInterrupt


class Looked(Seams):
    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    def nodes(self) -> Nodes:
        return self._nodes


@pytest.fixture
def interruptible() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("name", ["ffn_moe_topk", "ffn_moe_weights", "ffn_moe_up", "l_out"])
@pytest.mark.parametrize("n", [2, 14])
@pytest.mark.parametrize(
    "changes",
    [AHEAD, AHEAD | {"cache_memory": "pages"}, BUSY | {"cache_mb": 0}, AHEAD | {"mtp": True}],
    ids=str,
)
@pytest.mark.parametrize("kind", [Interrupting, Raising])
def test_after_ctrl_c_a_session_is_what_it_was(
    opened: Callable[..., Session],
    prompt: str,
    changes: dict[str, Any],
    name: str,
    asked: bool,
    n: int,
    kind: type[Interrupting],
) -> None:
    sound = opened(mtp=changes.get("mtp", False)).generate(prompt, n=8).run().evidence()
    nodes = kind(name, n, asked=asked)
    session = opened(**changes, session={"seams": Looked(nodes)})
    with pytest.raises(KeyboardInterrupt):
        session.generate(prompt, n=8).run()
    assert nodes.has_fired
    for _ in range(2):
        found = session.generate(prompt, n=8).run().evidence()
        assert (found.ids, found.logits_sha256) == (sound.ids, sound.logits_sha256)


class Slow(Looked):
    """Layer 2's last part takes its time; keeps what was left of ``old`` when layer 0 is read."""

    def __init__(self, nodes: Nodes) -> None:
        super().__init__(nodes)
        self.old: list[Job] = []
        self.seen: list[int] = []

    def lane_reads(self, tensor: str, is_ahead: bool) -> None:
        if tensor.startswith("blk.2.ffn_down"):
            threading.Event().wait(0.2)
        elif tensor.startswith("blk.0.") and self.old:
            self.seen.append(sum(not job.is_done for job in self.old))


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_leaves_no_read_of_the_last_generation(
    opened: Callable[..., Session], prompt: str
) -> None:
    """Layers share their memory without a cache: a late read would be another layer's bytes."""
    seams = Slow(Raising("ffn_moe_topk-2", 1, asked=False))
    session = opened(**BUSY | {"cache_mb": 0, "io_threads": 8}, session={"seams": seams})
    with pytest.raises(KeyboardInterrupt):
        session.generate([5, 6], n=1).run()
    assert session.streamer is not None
    seams.old = [job for jobs in session.streamer._pending._jobs.values() for job in jobs]
    assert not all(job.is_done for job in seams.old)
    session.generate([5, 6], n=1).run()
    assert seams.seen
    assert set(seams.seen) == {0}

"""What a model file says of itself, as far as gates must know it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sluice.decoding.fingerprint import fingerprint
from sluice.decoding.session import HEAD_ARCHITECTURES
from sluice.gguf.shards import read_model
from sluice.telemetry.evidence import Fingerprint


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Read from the header alone; ``fingerprint`` is that of runs with default numerics.

    ``has_head`` says that ``--mtp`` can draft with the file, ``n_nextn`` what it announces;
    ``file_bytes`` are those of all shards.
    """

    architecture: str
    n_expert: int
    n_nextn: int
    fingerprint: Fingerprint
    file_bytes: int = 0

    @property
    def has_head(self) -> bool:
        """Whether the file announces one MTP block of a kind that Sluice drafts with."""
        return self.n_nextn == 1 and self.architecture in HEAD_ARCHITECTURES

    @property
    def has_experts(self) -> bool:
        """Whether there is something to stream."""
        return self.n_expert > 0


def model_facts(path: Path) -> ModelFacts:
    """The facts of the model at ``path``, a gguf or any shard of one.

    Raises:
        ModelError: it cannot be read.
    """
    header = read_model(path)
    return ModelFacts(
        architecture=header.architecture,
        n_expert=header.number("expert_count"),
        n_nextn=header.n_nextn,
        fingerprint=fingerprint(header, "default"),
        file_bytes=header.file_bytes,
    )

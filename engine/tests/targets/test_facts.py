from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from gguf import GGUFValueType

from sluice.errors import ModelError
from sluice.gguf.header import Header
from sluice.targets.facts import model_facts


def test_the_bundled_model_has_experts_and_a_head(model: Path) -> None:
    facts = model_facts(model)
    assert (facts.architecture, facts.n_expert, facts.n_nextn) == ("qwen35moe", 8, 1)
    assert facts.has_head
    assert facts.has_experts
    assert facts.fingerprint.numerics == "default"
    assert facts.file_bytes == model.stat().st_size


def test_a_shards_facts_are_the_models(model: Path, shards: tuple[Path, ...]) -> None:
    whole, facts = model_facts(model), model_facts(shards[2])
    assert facts.has_head
    assert (facts.architecture, facts.n_expert) == (whole.architecture, whole.n_expert)
    assert facts.file_bytes == sum(path.stat().st_size for path in shards)


@pytest.mark.parametrize(
    ("key", "value", "has_head", "has_experts"),
    [
        ("nextn_predict_layers", None, False, True),
        ("nextn_predict_layers", (2, GGUFValueType.UINT32), False, True),
        ("expert_count", None, True, False),
    ],
)
def test_what_a_file_announces(
    rewrite: Callable[..., Path],
    tmp_path: Path,
    key: str,
    value: object,
    has_head: bool,
    has_experts: bool,
) -> None:
    facts = model_facts(rewrite(tmp_path / "m.gguf", keys={f"qwen35moe.{key}": value}))
    assert (facts.has_head, facts.has_experts) == (has_head, has_experts)


def test_another_architecture_has_no_head_that_we_draft_with(
    header: Header, tmp_path: Path
) -> None:
    path = tmp_path / "m.gguf"
    # The same length, so that the rest of the header stays where it is.
    path.write_bytes(header.path.read_bytes().replace(b"qwen35moe", b"qwen35xyz"))
    facts = model_facts(path)
    assert (facts.architecture, facts.n_nextn, facts.has_head) == ("qwen35xyz", 1, False)


def test_what_cannot_be_read_is_a_model_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        model_facts(tmp_path / "none.gguf")

"""What can be driven: the engine in this process, the command in another, or a llama-server."""

from sluice.config import can_stream
from sluice.targets.budgets import CacheBudgets, cache_budgets
from sluice.targets.command import CommandTarget, Outcome
from sluice.targets.engine import Drafter, EngineTarget, Held, Run, Seams
from sluice.targets.facts import ModelFacts, model_facts
from sluice.targets.quantisation import quantize
from sluice.targets.widths import draft_groups

__all__ = [
    "CacheBudgets",
    "CommandTarget",
    "Drafter",
    "EngineTarget",
    "Held",
    "ModelFacts",
    "Outcome",
    "Run",
    "Seams",
    "cache_budgets",
    "can_stream",
    "draft_groups",
    "model_facts",
    "quantize",
]

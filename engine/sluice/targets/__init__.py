"""What a gate can drive: the engine in this process, or the command in another."""

from sluice.llama.quantize import quantize
from sluice.targets.command import CommandTarget, Outcome
from sluice.targets.engine import Drafter, EngineTarget, Run, Seams
from sluice.targets.facts import ModelFacts, model_facts
from sluice.targets.widths import draft_groups

__all__ = [
    "CommandTarget",
    "Drafter",
    "EngineTarget",
    "ModelFacts",
    "Outcome",
    "Run",
    "Seams",
    "draft_groups",
    "model_facts",
    "quantize",
]

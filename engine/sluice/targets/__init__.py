"""What a gate can drive: the engine in this process, or the command in another."""

from sluice.llama.quantize import quantize

__all__ = ["quantize"]

"""The pure analysis: `advance(memory, observation, settings) -> (memory, Analysis)`.

Knows no clock, network, thread or framework; time is the observation's.
"""

from .advance import advance
from .learned import seed
from .memory import MEMORY_VERSION, Memory, UnreadableMemory
from .settings import AnalysisSettings

__all__ = ["MEMORY_VERSION", "AnalysisSettings", "Memory", "UnreadableMemory", "advance", "seed"]

"""The pure analysis: `advance(state, observation, settings) -> (state, Analysis)`.

Knows no clock, network, thread or framework; time is the observation's.
"""

from .advance import advance
from .state import STATE_VERSION, AnalyzerState, UnreadableState, check_learned, learned_state, seed
from .window import AnalysisSettings

__all__ = [
    "STATE_VERSION",
    "AnalysisSettings",
    "AnalyzerState",
    "UnreadableState",
    "advance",
    "check_learned",
    "learned_state",
    "seed",
]

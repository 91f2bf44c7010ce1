"""The Flink autoscaler's decision. Start with `planner.py`: the loop's cycle; the formulas stand in `evaluation.py` and
`decision.py`."""

from .parameters import FlinkAutoscalerParameters
from .planner import plan_flink_autoscaler

__all__ = ["FlinkAutoscalerParameters", "plan_flink_autoscaler"]

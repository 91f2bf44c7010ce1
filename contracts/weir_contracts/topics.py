"""Topics of the loop. Keys are application ids (of planners: names); all topics have the same number of partitions."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from .analysis import Analysis
from .base import VERSION, Message
from .dead_letter import DeadLetter
from .observation import Observation
from .outcome import Outcome
from .planning import Plan
from .plugins import PlannerRegistration
from .policy import ScalingPolicy
from .shadows import Shadows

_HOUR_MS = 3_600_000

# Without small segments a compacted topic keeps everything for a week: the active segment is never compacted.
_COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "60000",
    "segment.bytes": "16777216",
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": str(24 * _HOUR_MS),
}
_COMPACTED_AND_TIMED = {
    **_COMPACTED,
    "cleanup.policy": "compact,delete",
    "retention.ms": str(7 * 24 * _HOUR_MS),
}


@dataclass(frozen=True)
class Topic:
    """Topic: its name, the contract of its values, and its settings at the broker."""

    name: str
    contract: type[Message] | type[ScalingPolicy]
    type: str
    """CloudEvents type in the headers of each message."""
    configs: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_compacted(self) -> bool:
        """Whether a record without a value (a tombstone) deletes its key."""
        return "compact" in self.configs.get("cleanup.policy", "")


def _topic(plural: str, contract: type[Message] | type[ScalingPolicy], configs: Mapping[str, str]) -> Topic:
    return Topic(f"weir.{plural}.{VERSION}", contract, f"dev.weir.{plural}.{VERSION}", configs)


POLICIES = _topic("policies", ScalingPolicy, _COMPACTED)
OBSERVATIONS = _topic(
    "observations",
    Observation,
    {"cleanup.policy": "delete", "retention.ms": str(2 * _HOUR_MS), "segment.bytes": "67108864"},
)
ANALYSES = _topic("analyses", Analysis, _COMPACTED_AND_TIMED)
PLANS = _topic("plans", Plan, _COMPACTED_AND_TIMED)
OUTCOMES = _topic("outcomes", Outcome, _COMPACTED_AND_TIMED)
DEAD_LETTERS = _topic("dead-letters", DeadLetter, {"cleanup.policy": "delete", "retention.ms": str(7 * 24 * _HOUR_MS)})
PLANNERS = _topic("planners", PlannerRegistration, _COMPACTED)
"""Registered planners; a tombstone removes one. Every replica of the planner service reads all records."""
SHADOWS = _topic("shadows", Shadows, _COMPACTED_AND_TIMED)
"""Simulated applications and the scores of the last hours; a tombstone ends the simulation."""

TOPICS: tuple[Topic, ...] = (POLICIES, OBSERVATIONS, ANALYSES, PLANS, OUTCOMES, DEAD_LETTERS, PLANNERS, SHADOWS)

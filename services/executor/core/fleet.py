"""What the other applications are doing: limits that no single plan can see."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from weir_contracts import Parallelism, Plan

from .refusal import Refusal
from .rules import Rules


def shrinks(plan: Plan) -> bool:
    """Whether a plan takes subtasks away on balance."""
    approved = plan.approved
    return approved is not None and _size(approved) < _size(plan.current)


def _size(parallelism: Parallelism) -> int:
    return sum(parallelism.values())


@dataclass(frozen=True)
class Fleet:
    """In-flight actions by application with their cluster (None: another executor's, cluster unknown), and when each
    application last wanted something and whether to shrink."""

    in_flight: Mapping[str, str | None] = field(default_factory=dict)
    wishes: Mapping[str, tuple[datetime, bool]] = field(default_factory=dict)

    def room(self, application: str, cluster: str, rules: Rules) -> Refusal | None:
        """Refuses when enough is going on already, in all or on this cluster."""
        others = [where for who, where in self.in_flight.items() if who != application]
        if len(others) >= rules.max_actions:
            return Refusal("too-many-actions", f"{len(others)} actions are in flight, of {rules.max_actions} allowed")
        here = sum(1 for where in others if where == cluster)
        if here >= rules.max_actions_per_cluster:
            return Refusal(
                "too-many-actions",
                f"{here} actions are in flight on {cluster}, of {rules.max_actions_per_cluster} allowed",
            )
        return None

    def collapse(self, plan: Plan, now: datetime, rules: Rules) -> Refusal | None:
        """Refuses to shrink when a large share of all applications would shrink within a minute: that is rather a fault
        of what they are measured by than of their load."""
        if not shrinks(plan):
            return None
        recent = {
            who: shrinking
            for who, (at, shrinking) in self.wishes.items()
            if (now - at).total_seconds() <= rules.fleet_window_seconds
        }
        recent[plan.application] = True
        shrinking_count = sum(recent.values())
        if shrinking_count < rules.fleet_least or shrinking_count < rules.fleet_share * len(recent):
            return None
        return Refusal(
            "fleet-shrinking",
            f"{shrinking_count} of {len(recent)} applications would shrink within "
            f"{rules.fleet_window_seconds:.0f} s: held, in case what they are measured by is at fault",
        )

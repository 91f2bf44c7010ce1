"""What the other applications are doing: limits that no single plan can see."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from weir_contracts import Parallelism, Plan

from .observed import Refusal
from .rules import Rules


def shrinks(plan: Plan) -> bool:
    """Whether a plan takes subtasks away on balance."""
    approved = plan.approved
    return approved is not None and _size(approved) < _size(plan.current)


def _wants_less(plan: Plan) -> bool | None:
    """Whether the planner would take subtasks away: its guards may still hold that back, as stabilisation does for minutes. None:
    it wants nothing."""
    wanted = plan.proposed or plan.approved
    return None if wanted is None else _size(wanted) < _size(plan.current)


def _size(parallelism: Parallelism) -> int:
    return sum(parallelism.values())


@dataclass(frozen=True)
class Recommendation:
    """What is known of an application's plans: when the newest was seen, and since when and until when they wanted less."""

    at: datetime
    less_since: datetime | None = None
    less_until: datetime | None = None
    """A wish that is not repeated by then has ended."""


def recommendation_after(before: Recommendation | None, plan: Plan, now: datetime, rules: Rules) -> Recommendation:
    """The wish after one more plan. A wish goes on over a gap of a window or of the plan's own life (a restart, a reading that was
    lost), whichever is longer."""
    if before is None or before.less_until is None or now > before.less_until:
        before = Recommendation(now)
    less = _wants_less(plan)
    if less:
        gap = max(timedelta(seconds=rules.fleet_window_seconds), plan.expires_at - plan.created_at)
        return Recommendation(now, before.less_since or now, now + gap)
    return replace(before, at=now) if less is None else Recommendation(now)


@dataclass(frozen=True)
class Fleet:
    """In-flight actions of all replicas by application with their cluster (None: unknown), and each application's wish.

    An executor knows the wishes of its own partitions, and reads the other replicas' actions from the topic of outcomes. It
    counts at the gate, and again when its intent is published and not yet claimed. If not all intents fit, the later one is
    refused; the earlier one waits for that, and is refused if the later one was claimed before. An executor counts after it
    has read its own intent, and with it those that others published before.

    What remains: partitions are not ordered against each other. If two brokers deliver with different delays, two replicas
    may claim within that difference and exceed the limit.
    """

    in_flight: Mapping[str, str | None] = field(default_factory=dict)
    recommendations: Mapping[str, Recommendation] = field(default_factory=dict)

    def room(self, application: str, cluster: str | None, rules: Rules) -> Refusal | None:
        """Refuses when enough is going on already, in all or on this cluster."""
        others = [where for who, where in self.in_flight.items() if who != application]
        if len(others) >= rules.max_actions:
            return Refusal("too-many-actions", f"{len(others)} actions are in flight, of {rules.max_actions} allowed")
        here = sum(1 for where in others if where is not None and where == cluster)
        if here >= rules.max_actions_per_cluster:
            return Refusal(
                "too-many-actions",
                f"{here} actions are in flight on {cluster}, of {rules.max_actions_per_cluster} allowed",
            )
        return None

    def input_outage(self, plan: Plan, now: datetime, rules: Rules) -> Refusal | None:
        """Refuses to shrink for a while when a large share of all applications began to want less within the same minute: that
        has rather one cause upstream, or in what they are measured by, than that many evenings.

        Judged by when the wish began, not by who is let through first: stabilisation shows it minutes before anything may shrink.
        """
        if not shrinks(plan):
            return None
        own = self.recommendations.get(plan.application)
        since = own.less_since if own is not None and own.less_since is not None else now
        until = since + timedelta(seconds=rules.fleet_hold_seconds)
        if now >= until:
            return None
        others = [
            recommendation
            for who, recommendation in self.recommendations.items()
            if who != plan.application and (now - recommendation.at).total_seconds() <= rules.fleet_hold_seconds
        ]
        together = 1 + sum(_began_with(recommendation, since, now, rules) for recommendation in others)
        if together < rules.fleet_least or together < rules.fleet_share * (len(others) + 1):
            return None
        return Refusal(
            "fleet-shrinking",
            f"{together} of {len(others) + 1} applications began to want less within {rules.fleet_window_seconds:.0f} s of each "
            "other, which more likely has one cause upstream or in what they are measured by than that many: nothing "
            f"shrinks for it before {until:%H:%M:%S}",
        )


def _began_with(recommendation: Recommendation, since: datetime, now: datetime, rules: Rules) -> bool:
    if recommendation.less_since is None or recommendation.less_until is None or now > recommendation.less_until:
        return False
    return abs((recommendation.less_since - since).total_seconds()) <= rules.fleet_window_seconds

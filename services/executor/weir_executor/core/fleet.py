"""Limits across applications: concurrent actions, and scale-downs that begin together."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from weir_contracts import Parallelism, Plan

from . import messages
from .observed import Refusal
from .rules import Rules


def shrinks(plan: Plan) -> bool:
    """Return whether a plan removes subtasks on balance."""
    approved = plan.approved
    return approved is not None and _size(approved) < _size(plan.current)


def _recommends_less(plan: Plan) -> bool | None:
    """Return whether the planner recommends fewer subtasks, before its guards; None without a recommendation."""
    wanted = plan.proposed or plan.approved
    return None if wanted is None else _size(wanted) < _size(plan.current)


def _size(parallelism: Parallelism) -> int:
    return sum(parallelism.values())


@dataclass(frozen=True)
class Recommendation:
    """An application's latest recommendation, and the interval in which it was to shrink."""

    at: datetime
    less_since: datetime | None = None
    less_until: datetime | None = None
    """End of the interval unless a later plan repeats the recommendation."""


def recommendation_after(before: Recommendation | None, plan: Plan, now: datetime, rules: Rules) -> Recommendation:
    """Return the recommendation after one more plan.

    Its interval continues over a gap (a restart, a lost observation) of a window or the plan's lifetime, the longer of
    both.
    """
    if before is None or before.less_until is None or now > before.less_until:
        before = Recommendation(now)
    less = _recommends_less(plan)
    if less:
        gap = max(timedelta(seconds=rules.fleet_window_seconds), plan.expires_at - plan.created_at)
        return Recommendation(now, before.less_since or now, now + gap)
    return replace(before, at=now) if less is None else Recommendation(now)


@dataclass(frozen=True)
class Fleet:
    """Actions of all replicas whose application does not run again yet, by application with their cluster (None:
    unknown), and recommendations by application.

    An executor has the recommendations of the owned partitions, and reads the other replicas' actions from the topic of
    outcomes. It counts at the gate, and again when its intent is published but not yet stored in knowledge. If not all
    intents fit, the later one is refused; the earlier one waits, and is refused if the later one was stored first. An
    executor counts after it has read back its own intent, and so all intents published before.

    Limit: partitions are not ordered against each other. If two brokers deliver with different delays, two replicas may
    both store their intents within that difference and exceed the limit.
    """

    restarting: Mapping[str, str | None] = field(default_factory=dict)
    recommendations: Mapping[str, Recommendation] = field(default_factory=dict)

    def room(self, application: str, cluster: str | None, rules: Rules) -> Refusal | None:
        """Return a refusal if the limit of concurrent restarts is reached, in total or on this cluster."""
        others = [where for name, where in self.restarting.items() if name != application]
        if len(others) >= rules.max_actions:
            return Refusal("too-many-actions", messages.too_many_actions(len(others), rules.max_actions))
        here = sum(1 for where in others if where is not None and where == cluster)
        if here >= rules.max_actions_per_cluster:
            return Refusal(
                "too-many-actions",
                messages.too_many_actions(here, rules.max_actions_per_cluster, cluster),
            )
        return None

    def input_outage(self, plan: Plan, now: datetime, rules: Rules) -> Refusal | None:
        """Return a refusal to shrink if many applications began to need less at the same time.

        A common cause upstream or in the metrics is more probable than that many independent falls of the load. The
        start of the recommendation counts, since stabilisation delays each scale-down by minutes.
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
            for name, recommendation in self.recommendations.items()
            if name != plan.application and (now - recommendation.at).total_seconds() <= rules.fleet_hold_seconds
        ]
        together = 1 + sum(_began_with(recommendation, since, now, rules) for recommendation in others)
        if together < rules.fleet_min_applications or together < rules.fleet_share * (len(others) + 1):
            return None
        return Refusal(
            "fleet-shrinking",
            messages.fleet_shrinking(together, len(others) + 1, rules.fleet_window_seconds, until),
        )


def _began_with(recommendation: Recommendation, since: datetime, now: datetime, rules: Rules) -> bool:
    if recommendation.less_since is None or recommendation.less_until is None or now > recommendation.less_until:
        return False
    return abs((recommendation.less_since - since).total_seconds()) <= rules.fleet_window_seconds

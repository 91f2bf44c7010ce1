"""Limits of a plan, apart from the policy's version and mode: the policy's bounds, total and budget; the number of applications
that restart at once; scale-downs of many applications that begin together.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from weir_contracts import Deployment, Parallelism, Plan, PolicySpec, Topology, changes, counted
from weir_engines.driver import Refusal

from .parameters import Rules


def out_of_bounds(
    wanted: Parallelism, there: Deployment, spec: PolicySpec, topology: Topology | None
) -> Refusal | None:
    """Return the limit of the policy that `wanted` exceeds, or None.

    An operator that runs outside a limit, because the policy changed or the limit cannot be met, may stay there or move
    towards it. `wanted` covers exactly the operators of `there`; `topology` is None if the driver does not report it.
    """
    limits = {name: _limits(name, spec, topology) for name in wanted}
    now = {name: _now(name, there, limits[name]) for name in wanted}
    for name, p in wanted.items():
        low, high = limits[name]
        if not min(low, now[name]) <= p <= max(high, now[name]):
            changed = changes({name: now[name]}, {name: p})
            return Refusal("out-of-bounds", f"{changed} is outside the policy's bounds of {low} to {high}")
    allowed = {name: max(low, min(now[name], high)) for name, (low, high) in limits.items()}
    total, budget = spec.bounds.total, spec.budget.limit
    if budget is not None and topology is None:
        return Refusal(
            "out-of-bounds", "the policy has a budget, but the slots cannot be counted: the job's graph is unknown"
        )
    slots, min_slots = (topology.slots(wanted), topology.slots(allowed)) if topology is not None else (0, 0)
    if budget is not None and slots > max(budget[0], min_slots):
        return Refusal(
            "out-of-bounds",
            f"{counted(slots, 'slot')} {'exceeds' if slots == 1 else 'exceed'} the {budget[0]} of the budget's {budget[1]}",
        )
    if total is None:
        return None
    count, min_count = sum(wanted.values()), sum(allowed.values())
    if total.max is not None and count > max(total.max, min_count):
        return Refusal("out-of-bounds", f"{count} subtasks exceed the policy's total of {total.max}")
    # Where what runs exceeds a maximum or the budget, that comes before the total's minimum.
    fits = min_count == sum(now.values()) and (budget is None or min_slots <= budget[0])
    if fits and total.min is not None and count < min(total.min, min_count):
        return Refusal(
            "out-of-bounds",
            f"{counted(count, 'subtask')} {'is' if count == 1 else 'are'} fewer than the policy's total minimum of {total.min}",
        )
    return None


def _limits(name: str, spec: PolicySpec, topology: Topology | None) -> tuple[int, int]:
    """Return the policy's lowest and highest parallelism, the lowest as far as key groups and instances can meet it.

    A plan above the key groups is the engine's to reject.
    """
    low, high = spec.bounds.of(name)
    if topology is None:
        return low, high
    unit, key_groups = spec.target.unit, topology.operator(name).max_parallelism
    if unit is not None:  # the smallest number of instances for the minimum may bring more subtasks than the maximum
        low = unit.parallelism_of(topology, unit.instances_for(topology, low))
    low = min(low, key_groups or low)
    return low, max(low, high)


def _now(name: str, there: Deployment, limits: tuple[int, int]) -> int:
    """Return what runs or what is requested, whichever is nearer to the limits."""
    low, high = limits
    candidates = (there.observed[name], (there.requested or there.observed).get(name, there.observed[name]))
    return min(candidates, key=lambda p: max(low - p, p - high, 0))


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

    def too_many_actions(self, application: str, cluster: str | None, rules: Rules) -> Refusal | None:
        """Return a refusal if the limit of concurrent restarts is reached, in total or on this cluster."""
        others = [where for name, where in self.restarting.items() if name != application]
        if len(others) >= rules.max_actions:
            return Refusal(
                "too-many-actions",
                f"{_restarting(len(others))} at the moment; the limit is {rules.max_actions}",
            )
        here = sum(1 for where in others if where is not None and where == cluster)
        if here >= rules.max_actions_per_cluster:
            return Refusal(
                "too-many-actions",
                f"{_restarting(here)} at the moment on {cluster}; the limit is {rules.max_actions_per_cluster}",
            )
        return None

    def fleet_shrinking(self, plan: Plan, now: datetime, rules: Rules) -> Refusal | None:
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
            f"{together} of {len(others) + 1} applications began to need less within {rules.fleet_window_seconds:.0f} s, "
            f"probably an input or metric outage: no scale-down before {until:%H:%M:%S}",
        )


def _restarting(count: int) -> str:
    return f"{counted(count, 'application')} {'restarts' if count == 1 else 'restart'}"


def _began_with(recommendation: Recommendation, since: datetime, now: datetime, rules: Rules) -> bool:
    if recommendation.less_since is None or recommendation.less_until is None or now > recommendation.less_until:
        return False
    return abs((recommendation.less_since - since).total_seconds()) <= rules.fleet_window_seconds

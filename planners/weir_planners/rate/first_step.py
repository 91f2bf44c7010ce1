"""First overload of an application that no capacity is known of yet: one bounded step, by what is visible."""

import math

from weir_contracts import Parallelism, PlanReply, changes, fitted, short_name
from weir_predictor.scenario import SATURATED, SURE_GROWTH
from weir_sdk import Request

from .tuning import MAX_EARLY_SECONDS, MAX_FACTOR, MIN_RUN_SECONDS, RateParameters


def first_step(request: Request, parameters: RateParameters) -> PlanReply | None:
    """Return the step of an application that was never scaled: saturated operators grow by as much as arrives beyond
    what is taken in, and at most to double. None if not both were seen, or nothing may grow."""
    analysis, deployment, topology = request.analysis, request.deployment, request.topology
    run = analysis.run
    if deployment is None or topology is None or run is None or analysis.status != "running":
        return None
    # Without busy time a group's step shows no capacity at once: it takes another one while lag grows.
    by_commits = request.policy.shares_tasks and all(o.utilization.value is None for o in analysis.operators)
    if request.outcomes and not by_commits:
        return None
    # The cycle nearest to that age: the next one may be an interval later.
    early = min(MAX_EARLY_SECONDS, request.policy.spec.interval.total_seconds() / 2)
    if (analysis.observed_at - run.running_since).total_seconds() < MIN_RUN_SECONDS - early:
        return None
    behind = _behind(request)
    if behind is None:
        return None
    limits, now = topology.limits(request.policy.spec.bounds), dict(deployment.observed)
    utilization = request.policy.spec.objective.utilization or parameters.target_utilization
    factor = min(MAX_FACTOR, behind / utilization)
    vector: Parallelism = dict(now)
    if by_commits:
        return _group_step(request, factor)
    busiest: dict[str, float] = {}
    for each in analysis.operators:
        busy = each.utilization.value
        if each.operator in now and busy is not None and busy >= SATURATED:
            p = now[each.operator]
            vector[each.operator] = max(p, min(limits[each.operator].max, math.ceil(p * factor - 1e-9)))
            busiest[each.operator] = busy
    if vector == now:
        return None
    name = max(busiest, key=lambda operator: busiest[operator])
    growth = sum(source.lag_growth.proven or 0.0 for source in analysis.sources)
    sentence = fitted(
        f"{changes(now, vector)}: {short_name(name)} is {busiest[name]:.0%} busy while lag grows by {growth:,.0f} records/s",
        "; no capacity is known yet",
        ", so this at most doubles",
    )
    return PlanReply(
        kind="scale",
        parallelism=vector,
        code="saturated",
        sentence=sentence,
        evidence={"lag_growth_records_per_second": round(growth, 1), f"utilization[{name}]": round(busiest[name], 3)},
    )


def _group_step(request: Request, factor: float) -> PlanReply | None:
    """Return the step of a consumer group that is known by its commits: at most to double, while lag grows that is more
    than what a commit is read late."""
    (name, now), lag = next(iter(request.deployment.observed.items())), request.analysis.lag_seconds.proven
    commits, interval = request.deployment.commit_interval_seconds or 0.0, request.policy.spec.interval.total_seconds()
    wanted = min(request.limits[name].max, math.ceil(now * factor - 1e-9))
    if wanted <= now or lag is None or lag < min(commits, interval) + 1:
        return None
    growth = sum(source.lag_growth.proven or 0.0 for source in request.analysis.sources)
    vector = {name: wanted}
    sentence = fitted(
        f"{changes({name: now}, vector)}: lag of {lag:,.1f} s grows by {growth:,.0f} records/s",
        "; no capacity is known yet, so this at most doubles",
    )
    evidence = {"lag_growth_records_per_second": round(growth, 1), "lag_seconds": round(lag, 1)}
    return PlanReply(kind="scale", parallelism=vector, code="saturated", sentence=sentence, evidence=evidence)


def _behind(request: Request) -> float | None:
    """Return by how much more arrives than is taken in at the source whose lag grows most, at least 1; None: no lag is
    known to grow."""
    found = []
    for source in request.analysis.sources:
        growth, arrives = source.lag_growth, source.arrival_rate.proven
        grows = growth.proven
        if grows is None or grows <= 0 or growth.confidence < SURE_GROWTH or arrives is None:
            continue
        taken = arrives - grows
        found.append(arrives / taken if taken > 0 else MAX_FACTOR)
    return max(found, default=None)

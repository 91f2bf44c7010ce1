"""The planner `responsive`: ordered diagnosers, each of which wants more replicas, fewer or no change; the first that
wants a change wins.

The policy of Responsive (`application.responsive.dev/v1` ResponsivePolicy) for Kafka Streams. Names, parameters and
directions are as published; its controller is closed and no formula of a diagnoser is, so the formulas are Weir's, made
after what its documentation says. One number of replicas n for the application: what its widest operator has, and every
operator gets. λ arrivals, μ what n replicas can process, L lag in records, all over the sources; "node" is a replica;
the busiest one is taken to do `skew` times the mean.

    PROCESSING_RATE_SCALE_UP    mean over the window of (taken in / n) · skew > rate               n + 1
    PROCESSING_RATE_SCALE_DOWN  the same < rate: all nodes are below                               n − 1
    ARRIVAL_RATE_SCALE_UP       mean over the window of (λ / n) · skew > rate                      n + 1
    LAG_SCALE_UP                dL/dt > min_growth_share · λ                                     n + 1
    EXPECTED_LATENCY            max(0, L + (λ − μ) · projection) / μ > max                         by its strategy:
        FIXED_REPLICA           n + replicas
        RATE_BASED              ⌈n · (λ + max(0, L − max · λ) / buffer) / μ⌉: carries the arrivals and is back under
        `max` in `buffer` SCALE_TO_MAX            as many as there may be
    THREAD_SATURATION           busiest thread blocked for more than threshold of its time in each of the last windows
    n − 1

A thread is blocked when it is not busy. μ is the load at which the first operator is full, by its true processing rate.
Nothing is removed while the application restores, starts or catches up (a restoring thread looks idle), or while a
diagnoser upwards lacks a reading. Lag or latency that grows while the threads are mostly blocked is not a matter of
replicas: look at brokers and network.
"""

import math
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from weir_contracts import PlanReply, changes, fitted
from weir_contracts.planning import Number
from weir_sdk import Request, planner

from .diagnosers import DIAGNOSERS, UPWARDS, Inputs, Memory, Opinion, inputs_of
from .parameters import LagDiagnoser, LatencyDiagnoser, ResponsiveParameters, SaturationDiagnoser


@planner(
    name="responsive",
    description="ordered diagnosers of rates, lag, expected latency and thread saturation; the first that recommends a change wins",
    parameters=ResponsiveParameters,
    reads=[],
)
def plan_by_responsive(request: Request) -> PlanReply:
    """Return the reply to one request; see the module."""
    parameters = request.parameters(ResponsiveParameters)
    memory = request.remembered(Memory)
    inputs = inputs_of(request, parameters, memory)
    about: dict[str, Any] = {"memory": inputs.memory.document()}
    waits = _cooling(request, inputs)
    if waits is not None:
        return request.hold("cooldown", waits, **about)
    opinions = [(d, DIAGNOSERS[d.type](inputs, d)) for d in parameters.diagnosers]
    about |= _evidence(inputs, opinions)
    recommendation = next(
        ((d, o) for d, o in opinions if o.replicas is not None and o.replicas != request.replicas), None
    )
    unknown = next((o for d, o in opinions if o.unknown is not None and d.type in UPWARDS), None)
    if recommendation is None:
        unknown = unknown or next((o for _, o in opinions if o.unknown is not None), None)
        if unknown is not None:
            return _missing(inputs, unknown)
        return request.hold("no-diagnosis", "no diagnoser recommends a change", **about)
    diagnoser, opinion = recommendation
    if (opinion.replicas or 0) < request.replicas:
        return _fewer(inputs, opinion, unknown, about)
    return _more(inputs, diagnoser, opinion, about)


def _missing(inputs: Inputs, opinion: Opinion) -> PlanReply:
    """Return the hold that names an unknown value."""
    sentence = fitted(f"{opinion.unknown} is unknown, so nothing changes", f": {opinion.reason}")
    return inputs.request.hold("metric-missing", sentence, memory=inputs.memory.document())


def _more(inputs: Inputs, diagnoser: BaseModel, opinion: Opinion, about: dict[str, Any]) -> PlanReply:
    request, now = inputs.request, inputs.request.replicas
    if isinstance(diagnoser, LagDiagnoser | LatencyDiagnoser) and _is_blocked(inputs):
        sentence = fitted(
            opinion.reason,
            "; all threads are mostly blocked: check brokers and network",
            ", more replicas would not help",
        )
        return request.hold("blocked-but-late", sentence, **about)
    wanted = opinion.replicas or 0.0
    if inputs.parameters.max_scale_up_replicas is not None:
        wanted = min(wanted, now + inputs.parameters.max_scale_up_replicas)
    widest = max(request.limits, key=lambda name: request.limits[name].max)
    within, about["infeasible"] = request.within(widest, wanted)
    replicas = max(now, within)
    if isinstance(diagnoser, LatencyDiagnoser):
        about["memory"] = inputs.memory.model_copy(update={"recommended_at": inputs.now}).document()
    vector = request.uniform(replicas)
    # What has more than it may is for the bounds to say.
    vector = {name: max(p, request.current[name]) for name, p in vector.items()}
    if vector == request.current:
        sentence = f"{opinion.reason}, but {now} is the maximum"
        return request.hold("nothing-helps", sentence, **about)
    sentence = f"{changes(request.current, vector)}: {opinion.reason}"
    return request.scale(vector, "overloaded", sentence, **about)


def _fewer(inputs: Inputs, opinion: Opinion, unknown: Opinion | None, about: dict[str, Any]) -> PlanReply:
    request = inputs.request
    if inputs.restoring is not None:
        sentence = f"{opinion.reason}, but the application is {inputs.restoring}: a restoring thread looks idle"
        return request.hold("restoring", sentence, **about)
    if unknown is not None:
        return _missing(inputs, unknown)
    wanted = request.uniform(max(1, math.ceil(opinion.replicas or 1)))
    vector = {name: min(p, request.current[name]) for name, p in wanted.items()}
    if vector == request.current:
        sentence = f"{opinion.reason}, but {request.replicas} is the minimum"
        return request.hold("at-least", sentence, **about)
    sentence = f"{changes(request.current, vector)}: {opinion.reason}"
    return request.scale(vector, "over-provisioned", sentence, **about)


def _is_blocked(inputs: Inputs) -> bool:
    """Whether the busiest thread is blocked for more than the policy's saturation diagnoser tolerates."""
    limits = [d.threshold for d in inputs.parameters.diagnosers if isinstance(d, SaturationDiagnoser)]
    newest = inputs.memory.readings[-1].blocked if inputs.memory.readings else None
    return bool(limits) and newest is not None and newest > max(limits)


def _cooling(request: Request, inputs: Inputs) -> str | None:
    since, quiet = request.seconds_since_action, inputs.parameters.state_transition_cooldown_seconds
    if since is not None and since < quiet:
        return f"the last action was {since:.0f} s ago; nothing is diagnosed within {quiet:.0f} s of an action"
    quiet = inputs.parameters.rebalance_cooldown_seconds
    if inputs.run_seconds is not None and inputs.run_seconds < quiet:
        return f"the run began {inputs.run_seconds:.0f} s ago; nothing is diagnosed in its first {quiet:.0f} s"
    return None


def _evidence(inputs: Inputs, opinions: Sequence[tuple[Any, Opinion]]) -> dict[str, Number]:
    newest = inputs.memory.readings[-1]
    evidence: dict[str, Number] = {
        "replicas": inputs.request.replicas,
        "arrival_rate_records_per_second": inputs.arriving,
        "sustained_records_per_second": inputs.sustained,
        "lag_records": inputs.lag_records,
        "lag_growth_records_per_second": inputs.growth,
        "busiest_node_records_per_second": newest.taken,
        "blocked_share_of_busiest_thread": newest.blocked,
    }
    for i, (diagnoser, opinion) in enumerate(opinions):
        evidence[f"replicas_wanted[{i} {diagnoser.type}]"] = opinion.replicas
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in evidence.items()}

"""The planner `responsive`: ordered diagnosers, each of which wants more replicas, fewer or no change; the first that wants a change wins.

The policy of Responsive (`application.responsive.dev/v1` ResponsivePolicy) for Kafka Streams. Names, parameters and directions are as
published; its controller is closed and no formula of a diagnoser is, so the formulas are Weir's, made after what its documentation says.
One number of replicas n for the application: what its widest operator has, and every operator gets. λ arrivals, μ what n replicas can
process, L lag in records, all over the sources; "node" is a replica; the busiest one is taken to do `skew` times the mean.

    PROCESSING_RATE_SCALE_UP    mean over the window of (taken in / n) · skew > rate               n + 1
    PROCESSING_RATE_SCALE_DOWN  the same < rate: all nodes are below                               n − 1
    ARRIVAL_RATE_SCALE_UP       mean over the window of (λ / n) · skew > rate                      n + 1
    LAG_SCALE_UP                dL/dt > least_growth_share · λ                                     n + 1
    EXPECTED_LATENCY            max(0, L + (λ − μ) · projection) / μ > max                         by its strategy:
        FIXED_REPLICA           n + replicas
        RATE_BASED              ⌈n · (λ + max(0, L − max · λ) / buffer) / μ⌉: carries the arrivals and is back under `max` in `buffer`
        SCALE_TO_MAX            as many as there may be
    THREAD_SATURATION           busiest thread blocked for more than threshold of its time in each of the last windows    n − 1

A thread is blocked when it is not busy. μ is the load at which the first operator is full, by its true processing rate. Nothing is
removed while the application restores, starts or catches up (a restoring thread looks idle), or while a diagnoser upwards lacks a
reading. Lag or latency that grows while the threads are mostly blocked is not a matter of replicas: look at brokers and network.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from weir_contracts import PlanReply
from weir_contracts.planning import Number
from weir_planner import Request, planner

from planners.answer import missing, reply_of
from predictor import changes

from .case import Case, Memory, case_of
from .diagnosers import DIAGNOSERS, UPWARDS, Opinion
from .parameters import LagDiagnoser, LatencyDiagnoser, ResponsiveParameters, SaturationDiagnoser


@planner(
    name="responsive",
    description="ordered diagnosers of rates, lag, expected latency and thread saturation; the first that wants anything wins",
    parameters=ResponsiveParameters,
    reads=[],
)
def plan_by_responsive(request: Request) -> PlanReply:
    """Return the reply to one request; see the module."""
    parameters = request.parameters(ResponsiveParameters)
    memory = request.remembered(Memory)
    case = case_of(request, parameters, memory)
    answer = case.answer
    kept = case.memory.document()
    waits = _cooling(request, case)
    if waits is not None:
        return reply_of(answer, None, "cooldown", waits, {}, kept)
    opinions = [(d, DIAGNOSERS[d.type](case, d)) for d in parameters.diagnosers]
    evidence = _evidence(case, opinions)
    recommendation = next(
        ((d, o) for d, o in opinions if o.replicas is not None and o.replicas != request.replicas), None
    )
    unknown = next((o for d, o in opinions if o.unknown is not None and d.type in UPWARDS), None)
    if recommendation is None:
        unknown = unknown or next((o for _, o in opinions if o.unknown is not None), None)
        if unknown is not None:
            return missing(str(unknown.unknown), unknown.reason, kept)
        return reply_of(answer, None, "no-diagnosis", "no diagnoser wants anything", evidence, kept)
    diagnoser, opinion = recommendation
    if (opinion.replicas or 0) < request.replicas:
        return _fewer(case, opinion, unknown, evidence)
    return _more(case, diagnoser, opinion, evidence)


def _more(case: Case, diagnoser: BaseModel, opinion: Opinion, evidence: Mapping[str, Number]) -> PlanReply:
    request, answer, now = case.request, case.answer, case.request.replicas
    kept = case.memory
    if isinstance(diagnoser, LagDiagnoser | LatencyDiagnoser) and _is_blocked(case):
        sentence = f"{opinion.reason}, and yet all threads are mostly blocked: more replicas would not help, look at brokers and network"
        return reply_of(answer, None, "blocked-but-late", sentence, evidence, kept.document())
    wanted = opinion.replicas or 0.0
    if case.parameters.max_scale_up_replicas is not None:
        wanted = min(wanted, now + case.parameters.max_scale_up_replicas)
    widest = max(request.limits, key=lambda name: request.limits[name].max)
    replicas = max(now, answer.within(widest, wanted))
    if isinstance(diagnoser, LatencyDiagnoser):
        kept = kept.model_copy(update={"wished_at": case.now})
    vector = request.uniform(replicas)
    # What has more than it may is for the bounds to say.
    vector = {name: max(p, request.current[name]) for name, p in vector.items()}
    if vector == request.current:
        sentence = f"{opinion.reason}, and {now} is as many as there may be"
        return reply_of(answer, None, "nothing-helps", sentence, evidence, kept.document())
    sentence = f"{changes(request.current, vector)}: {opinion.reason}"
    return reply_of(answer, vector, "overloaded", sentence, evidence, kept.document())


def _fewer(case: Case, opinion: Opinion, unknown: Opinion | None, evidence: Mapping[str, Number]) -> PlanReply:
    request, answer, kept = case.request, case.answer, case.memory.document()
    if case.restoring is not None:
        sentence = f"{opinion.reason}, but the application is {case.restoring}: a restoring thread looks idle"
        return reply_of(answer, None, "restoring", sentence, evidence, kept)
    if unknown is not None:
        return missing(str(unknown.unknown), unknown.reason, kept)
    wanted = request.uniform(max(1, math.ceil(opinion.replicas or 1)))
    vector = {name: min(p, request.current[name]) for name, p in wanted.items()}
    if vector == request.current:
        sentence = f"{opinion.reason}, and {request.replicas} is as few as there may be"
        return reply_of(answer, None, "at-least", sentence, evidence, kept)
    sentence = f"{changes(request.current, vector)}: {opinion.reason}"
    return reply_of(answer, vector, "over-provisioned", sentence, evidence, kept)


def _is_blocked(case: Case) -> bool:
    """Whether the busiest thread is blocked for more than the policy's saturation diagnoser tolerates."""
    limits = [d.threshold for d in case.parameters.diagnosers if isinstance(d, SaturationDiagnoser)]
    newest = case.memory.readings[-1].blocked if case.memory.readings else None
    return bool(limits) and newest is not None and newest > max(limits)


def _cooling(request: Request, case: Case) -> str | None:
    since, quiet = request.seconds_since_action, case.parameters.state_transition_cooldown_seconds
    if since is not None and since < quiet:
        return f"an action was {since:.0f} s ago, and nothing is diagnosed for {quiet:.0f} s after one"
    quiet = case.parameters.rebalance_cooldown_seconds
    if case.run_seconds is not None and case.run_seconds < quiet:
        return f"the run began {case.run_seconds:.0f} s ago, and nothing is diagnosed for {quiet:.0f} s after that"
    return None


def _evidence(case: Case, opinions: Sequence[tuple[Any, Opinion]]) -> dict[str, Number]:
    newest = case.memory.readings[-1]
    evidence: dict[str, Number] = {
        "replicas": case.request.replicas,
        "arrival_rate_records_per_second": case.arriving,
        "sustained_records_per_second": case.sustained,
        "lag_records": case.lag_records,
        "lag_growth_records_per_second": case.growth,
        "busiest_node_records_per_second": newest.taken,
        "blocked_share_of_busiest_thread": newest.blocked,
    }
    for i, (diagnoser, opinion) in enumerate(opinions):
        evidence[f"replicas_wanted[{i} {diagnoser.type}]"] = opinion.replicas
    return evidence

"""The built-in planner `flink-autoscaler`: what the Flink Kubernetes Operator's autoscaler would do, number by number.

Source: `apache/flink-kubernetes-operator`, module `flink-autoscaler`, versions 1.10.0 (compared with the original
itself, see `tests/golden/flink-autoscaler`), 1.15.0, 1.16.0 and 1.16.1 (as documented, and as their own tests have it).
Formulas: `evaluation.py` (window, target rates, true processing rate, thresholds) and `decision.py` (factor, alignment,
waiting). In short, for each operator in topological order

    target(source) = records in/s + growth of lag/s         target(v) = Σ target(input) · records reaching v per record
    taken there capacity needed = lag / catch_up + target · restart / catch_up + target / utilization p' = ⌈p · capacity
    needed / true processing rate⌉, limited per step, aligned to partitions or key groups

and all that change are rescaled together once one of them lies outside its thresholds.

What differs is where the numbers come from: each cycle's sample is taken from the analysis, not from Flink's REST.
Counters are the integrals of the analysed rates, the busiest subtask's busy share is the mean times the skew (the mean
while the skew is unknown), lag is the brokers'. A cycle counts as the original's loop, whatever the policy's interval.
A rescale becomes history when its parallelism is seen to run, because the guards, the mode or the executor may have
kept it from being done. Not part of it, because it has its place elsewhere in Weir or bears on nothing but Flink's
memory: excluded periods and quotas (guards), memory pressure and tuning, events.

It needs a window of 15 minutes without a restart, after 5 minutes of stabilization; it assumes linear scaling and an
even load; it ignores the objective, the price of a restart, slots and any operator's backlog but the sources'.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import isfinite, isinf, isnan
from typing import Any

from weir_contracts import MEMORY_LIMIT_BYTES, Infeasible, Parallelism, PlanReply, changes, listed, short_name
from weir_sdk import MetricMissing, Request, planner

from .decision import Decision, JobDecision, Limits, decide_job
from .evaluation import Evaluated, NoIngestionRate, evaluate
from .loop import Stage, State, collected, decided, of_run, rescaled, restart_seconds, trimmed
from .memory import read, write
from .parameters import FlinkAutoscalerParameters
from .readings import Cycle, busy_ms_per_second, cycle_of, limits_of, sample_of

Evidence = dict[str, float | int | str | bool | None]


@planner(
    name="flink-autoscaler",
    description="the Flink Kubernetes Operator's autoscaler, number by number: windows, thresholds, catch-up, "
    "delayed scale-down, alignment",
    parameters=FlinkAutoscalerParameters,
    reads=[],
)
def plan_flink_autoscaler(request: Request) -> PlanReply:
    """The original's decision for the request's application; the window is kept in the reply's memory."""
    parameters = request.parameters(FlinkAutoscalerParameters)
    if request.analysis.status != "running":
        sentence = f"the application is {request.analysis.status.replace('_', ' ')}, so nothing is decided"
        return PlanReply(kind="hold", code="not-running", sentence=sentence, memory=request.memory)
    cycle = cycle_of(request, parameters)
    cycle, state = _caught_up(cycle, read(request.memory, cycle.topology.graph_hash(), cycle.topology.names))
    try:
        sample = sample_of(cycle, state)
    except MetricMissing as gap:
        return _hold(cycle, state, ("metric-missing", f"{gap}, so nothing changes"), {})
    stage, until_ms = _stage(cycle, state)
    if sample is not None:
        state, stage, until_ms = collected(state, sample, parameters)
    state = trimmed(state, cycle.graph.parallelism, cycle.now_ms, parameters)
    evidence: Evidence = {
        "version": parameters.version,
        "samples": len(state.samples),
        "window_seconds": (state.samples[-1].at_ms - state.samples[0].at_ms) / 1000 if state.samples else 0.0,
        "restart_seconds": restart_seconds(state, parameters),
    }
    if stage != "full" or len(state.samples) < 2:
        return _hold(cycle, replace(state, decided=None), _not_yet(cycle, stage, until_ms), evidence)
    try:
        evaluated = evaluate(cycle.graph, state.samples, parameters, restart_seconds(state, parameters))
    except NoIngestionRate as gap:
        return _hold(cycle, state, ("metric-missing", f"nothing changes, because {gap}"), evidence)
    return _decided(cycle, state, evaluated, evidence)


def _caught_up(cycle: Cycle, state: State) -> tuple[Cycle, State]:
    """Move an executed decision to the history; drop an impossible one and samples of an earlier run. An operator
    whose parallelism changed without a new run counts as restarted."""
    previous, running, since_ms = state.decided, cycle.graph.parallelism, cycle.running_ms
    if previous is not None and any(running.get(name) != before for name, (before, *_) in previous.vertices.items()):
        state = rescaled(state, previous, running, cycle.parameters)
    elif previous is not None and cycle.running_ms > state.running_ms:
        state = replace(state, decided=None)
    if state.samples and state.parallelism != running and cycle.running_ms <= state.samples[-1].at_ms:
        since_ms = cycle.now_ms
    elif cycle.running_ms < state.running_ms <= cycle.now_ms:
        since_ms = state.running_ms
    state = of_run(replace(state, parallelism=running), since_ms)
    return replace(cycle, running_ms=since_ms), state


def _stage(cycle: Cycle, state: State) -> tuple[Stage, int]:
    """Return the stage of a cycle without a new sample: that of its newest sample."""
    first = next((s.at_ms for s in state.samples if s.at_ms >= cycle.stable_ms), None)
    if first is None:
        return "stabilizing", cycle.stable_ms
    full_ms = first + cycle.parameters.metrics_window_ms
    return ("full" if cycle.now_ms >= full_ms else "filling"), full_ms


def _decided(cycle: Cycle, state: State, evaluated: Mapping[str, Evaluated], evidence: Evidence) -> PlanReply:
    excluded = frozenset(cycle.parameters.vertex_exclude)
    limits = {
        o.name: limits_of(cycle, o.name)
        for o in cycle.topology.operators
        if o.name not in excluded and o.id not in excluded
    }
    analysed = {o.operator: o for o in cycle.request.analysis.operators}
    # Without a busy time an operator is left out of this cycle.
    limits = {
        name: limit
        for name, limit in limits.items()
        if name in analysed and not isnan(busy_ms_per_second(analysed[name], "AVG"))
    }
    decision = decide_job(
        evaluated,
        limits,
        state.history,
        state.waiting,
        cycle.parameters,
        restart_seconds=restart_seconds(state, cycle.parameters),
        now_ms=cycle.now_ms,
    )
    state = replace(state, waiting=decision.waiting)
    evidence |= _numbers(evaluated, decision)
    by_mean = [
        n for n, p in cycle.graph.parallelism.items() if n in analysed and analysed[n].skew.value is None and p > 1
    ]
    if by_mean and cycle.parameters.busy_time_aggregator == "MAX":
        evidence["busy_time_is_the_mean_of"] = ", ".join(by_mean)[:500]
    infeasible = _infeasible(decision, limits, evaluated)
    if not decision.rescale:
        state = replace(state, decided=None)
        return _hold(cycle, state, _why_not(cycle, evaluated, decision, limits), evidence, infeasible)
    now = decided(decision, evaluated, cycle.now_ms)
    if state.decided is not None and {n: v[:2] for n, v in state.decided.vertices.items()} == {
        n: v[:2] for n, v in now.vertices.items()
    }:
        now = replace(now, at_ms=state.decided.at_ms)  # the same rescale, still under way
    state = replace(state, decided=now)
    vector: Parallelism = {**cycle.graph.parallelism, **decision.changes}
    grows = any(vector[name] > p for name, p in cycle.graph.parallelism.items())
    outside = [name for name in decision.changes if decision.vertices[name].outside]
    text = listed([_outside_thresholds(evaluated[name], decision.vertices[name]) for name in outside], 90, "; ")
    return _reply(
        cycle,
        state,
        PlanReply(
            kind="scale",
            parallelism=vector,
            code="overloaded" if grows else "over-provisioned",
            sentence=f"{changes(cycle.graph.parallelism, vector)}: {text}",
            evidence=dict(list(evidence.items())[:200]),
            infeasible=infeasible,
        ),
    )


def _rate(value: float) -> str:
    return "any number of" if isinf(value) else f"{value:,.0f}"


def _outside_thresholds(evaluated: Evaluated, decision: Decision) -> str:
    """Why an operator alone is a reason to rescale."""
    if evaluated.true_processing_rate < evaluated.scale_up_threshold:
        side = f"less than the {_rate(evaluated.scale_up_threshold)} it takes"
    else:
        side = f"more than {_rate(evaluated.scale_down_threshold)}, the most that is left alone"
    if decision.waiting is not None:
        side += ", and fewer subtasks were wanted for as long as a scale-down has to wait"
    return f"{short_name(evaluated.operator)} can process {_rate(evaluated.true_processing_rate)} records/s, {side}"


def _not_yet(cycle: Cycle, stage: Stage, until_ms: int) -> tuple[str, str]:
    left = max(0.0, (until_ms - cycle.now_ms) / 1000)
    if stage == "stabilizing":
        return "stabilizing", f"the application has just begun to run: readings count in {left:.0f} s"
    return "window-not-full", f"the window of {cycle.parameters.metrics_window_minutes:g} min is full in {left:.0f} s"


def _why_not(
    cycle: Cycle, evaluated: Mapping[str, Evaluated], decision: JobDecision, limits: Mapping[str, Limits]
) -> tuple[str, str]:
    """Code and words of a cycle in which nothing is rescaled."""
    not_sizable = [n for n in cycle.topology.names if isnan(evaluated[n].true_processing_rate)]
    for n in cycle.topology.names:
        is_excluded = not {n, cycle.topology.operator(n).id}.isdisjoint(cycle.parameters.vertex_exclude)
        if n not in limits and n not in not_sizable and not is_excluded:
            not_sizable.append(n)
    if not_sizable:
        return "metric-missing", f"the busy time of {short_name(not_sizable[0])} is unknown, so its capacity is, too"
    blocked = [n for n, d in decision.vertices.items() if d.ineffective and d.parallelism is None]
    if blocked:
        return "ineffective", f"{short_name(blocked[0])} gained too little by its last scale-up, so it gets no more"
    if decision.changes:
        moved = changes(cycle.graph.parallelism, {**cycle.graph.parallelism, **decision.changes})
        return "within-thresholds", f"{moved} would fit better, and what runs is within its thresholds"
    if decision.waiting:
        name, first = min(decision.waiting.items(), key=lambda item: item[1].since_ms)
        waited = (cycle.now_ms - first.since_ms) / 60_000
        interval = cycle.parameters.scale_down_interval_minutes
        return (
            "scale-down-delayed",
            f"{short_name(name)} has wanted fewer subtasks for {waited:.0f} of {interval:g} min",
        )
    return "within-thresholds", "every operator runs at the parallelism that its load asks for"


def _numbers(evaluated: Mapping[str, Evaluated], decision: JobDecision) -> Evidence:
    """Rates in records/s of each operator."""
    numbers: Evidence = {}
    for name, found in evaluated.items():
        numbers[f"true_processing_rate[{name}]"] = _as_json(found.true_processing_rate)
        numbers[f"target_data_rate[{name}]"] = _as_json(found.target_data_rate)
        numbers[f"catch_up_data_rate[{name}]"] = _as_json(found.catch_up_data_rate)
        numbers[f"scale_up_threshold[{name}]"] = _as_json(found.scale_up_threshold)
        numbers[f"scale_down_threshold[{name}]"] = _as_json(found.scale_down_threshold)
        numbers[f"busy_share[{name}]"] = _as_json(found.load)
        decided_of = decision.vertices.get(name)
        if decided_of is not None and decided_of.parallelism is not None:
            numbers[f"expected_processing_rate[{name}]"] = _as_json(decided_of.expected_processing_rate)
    return numbers


def _as_json(value: float) -> float | str | None:
    if isfinite(value):
        return value
    return None if isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def _infeasible(
    decision: JobDecision, limits: Mapping[str, Limits], evaluated: Mapping[str, Evaluated]
) -> list[Infeasible]:
    """Operators that would need more subtasks than their limits, key groups or partitions let them have."""
    found = []
    for name, vertex in decision.vertices.items():
        had = evaluated[name].parallelism if vertex.parallelism is None else vertex.parallelism
        waits = vertex.parallelism is None and (vertex.waiting is not None or vertex.ineffective)
        if vertex.raw is None or vertex.raw <= max(had, 0) or waits:
            continue
        limit = limits[name]
        if vertex.raw > max(evaluated[name].parallelism, limit.max):
            code = "bounds"
        elif vertex.raw > limit.max_parallelism:
            code = "key-groups"
        else:
            code = "alignment"
        reason = f"{short_name(name)} would need {vertex.raw} and gets {had}"
        found.append(Infeasible(operator=name, wanted=float(vertex.raw), limit=float(had), code=code, because=reason))
    return found[:100]


def _hold(
    cycle: Cycle,
    state: State,
    reason: tuple[str, str],
    evidence: Evidence,
    infeasible: list[Infeasible] | None = None,
) -> PlanReply:
    code, sentence = reason
    return _reply(
        cycle,
        state,
        PlanReply(
            kind="hold",
            code=code,
            sentence=sentence,
            evidence=dict(list(evidence.items())[:200]),
            infeasible=infeasible or [],
        ),
    )


def _reply(cycle: Cycle, state: State, reply: PlanReply) -> PlanReply:
    """The reply with its memory; a hold where the window of so many operators cannot be kept."""
    memory: dict[str, Any] | None = write(state, cycle.topology.names, cycle.stable_ms)
    if memory is not None:
        return reply.model_copy(update={"memory": memory})
    count = len(cycle.topology.names)
    return PlanReply(
        kind="hold",
        code="too-many-operators",
        sentence=f"the window of {count:,} operators does not fit a planner's memory of {MEMORY_LIMIT_BYTES:,} bytes: choose "
        "another planner, such as rate",
    )

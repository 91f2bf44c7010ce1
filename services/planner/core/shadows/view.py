"""The request as a shadow sees it: the real one, with everything that depends on its own decisions simulated.

Arrivals, selectivities, learned capacities, restart times and `signals` are real. Parallelism, backlog, lag,
utilization, throughput, outcomes, history and raw observations are those of its simulated application.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from weir_contracts import (
    Analysis,
    Candidate,
    Deployment,
    Estimate,
    Observation,
    OperatorAnalysis,
    OperatorReading,
    Outcome,
    PartitionReading,
    PlannerChoice,
    PlanRequest,
    Run,
    ScalingPolicy,
    SourceAnalysis,
    Symptom,
    VirtualReading,
    VirtualRescale,
    derive_id,
    unknown,
)
from weir_contracts.outcome import ActionState

from predictor import arrivals_at

from .real import Real
from .simulated import Elapsed

SETTLE_SECONDS = 10.0
"""Time from running to verified, until an action of the real application shows its own."""
WARM_UP_SECONDS = 10.0
CATCHING_UP_SECONDS = 2.0
OF_THE_REAL_RUN = frozenset(
    {"warming-up", "catching-up", "stalled", "restarting", "source-bound", "downstream-bound", "not-running"}
)
"""Symptoms that a simulated application need not share."""


def request_of(real: Real, candidate: Candidate, choice: PlannerChoice, elapsed: Elapsed) -> PlanRequest:
    """Return the request to a planner about its simulated application."""
    chosen = PlannerChoice(name=choice.name, parameters=choice.parameters, timeout=choice.timeout)
    policy = real.request.policy
    policy = _with(policy, spec=_with(policy.spec, planner=chosen, shadows=[]))
    deployment = _deployment(real, candidate)
    found: PlanRequest = _with(
        real.request,
        id=derive_id(real.request.id, f"shadow {candidate.label}"),
        policy=policy,
        deployment=deployment,
        analysis=_analysis(real, candidate, elapsed, deployment, policy),
        observations=_observations(real, candidate, deployment, policy),
        history=list(candidate.history),
        outcomes=_outcomes(real, candidate, deployment),
        quarantine=[],
        memory=candidate.state.memory,
        state=_with(candidate.state, memory={}),
    )
    return found


def _with(message: Any, **fields: Any) -> Any:
    return message.model_copy(update=fields)


def _deployment(real: Real, candidate: Candidate) -> Deployment:
    runs, slots = dict(candidate.parallelism), real.request.deployment.slots
    if slots is not None:
        # The slots of the real application are free for the simulated one, and vice versa.
        free = slots.available + real.request.topology.slots(real.request.current) - real.request.topology.slots(runs)
        slots = _with(slots, available=max(0, free))
    found: Deployment = _with(
        real.request.deployment,
        observed=runs,
        requested=runs,
        health="running",
        state="RUNNING",
        slots=slots,
        restarts=None,
        replicas=None if real.request.deployment.replicas is None else max(runs.values()),
        pods=real.request.deployment.pods if runs == real.request.current else [],
    )
    return found


def _analysis(
    real: Real, candidate: Candidate, elapsed: Elapsed, deployment: Deployment, policy: ScalingPolicy
) -> Analysis:
    sources = [_source(real, source, elapsed) for source in real.request.analysis.sources]
    arriving = {name: arrivals_at(real.model.flow, name, real.model.arrivals) for name in elapsed.capacities}
    loads = [
        (rate / elapsed.capacities[name], name)
        for name, rate in arriving.items()
        if rate is not None and elapsed.capacities[name] > 0
    ]
    used, busiest = max(loads, default=(0.0, None))
    found: Analysis = _with(
        real.request.analysis,
        policy=policy,
        status="running",
        run=Run(running_since=candidate.running_since) if candidate.running_since else None,
        deployment=deployment,
        operators=[_operator(real, candidate, operator, elapsed) for operator in real.request.analysis.operators],
        sources=sources,
        lag_records=_simulated(sum(s.lag_records.value for s in sources if s.lag_records.value is not None)),
        lag_growth=_simulated(sum(s.lag_growth.value for s in sources if s.lag_growth.value is not None)),
        lag_seconds=_simulated(elapsed.interval.lag_seconds),
        expected_latency_seconds=_simulated(elapsed.interval.latency_seconds),
        bottleneck=busiest if used > 1 else None,
        symptoms=_symptoms(real, candidate, sources),
    )
    return found


def _simulated(value: float | None, reason: str = "the simulated capacity is unknown") -> Estimate:
    return unknown(reason) if value is None else Estimate(value=round(value, 4), basis="simulated", confidence=0.9)


def _source(real: Real, source: SourceAnalysis, elapsed: Elapsed) -> SourceAnalysis:
    left = elapsed.interval.backlogs.get(source.operator)
    if left is None:
        return source
    arriving, taken = real.model.arrivals[source.operator], elapsed.rates[source.operator]
    latency = 0.0 if left.records <= 0 else left.records / taken if taken > 0 else None
    found: SourceAnalysis = _with(
        source,
        lag_records=_simulated(left.records),
        lag_growth=_simulated(arriving - taken),
        lag_seconds=_simulated(left.age_seconds),
        expected_latency_seconds=_simulated(latency, "the source takes in nothing"),
    )
    return found


def _operator(real: Real, candidate: Candidate, operator: OperatorAnalysis, elapsed: Elapsed) -> OperatorAnalysis:
    name, p = operator.operator, candidate.parallelism[operator.operator]
    curve, arriving = real.model.curves.get(name), arrivals_at(real.model.flow, name, elapsed.rates)
    used = elapsed.utilization(real, name)
    per_record = (operator.output_rate.value or 0.0) / operator.input_rate.value if operator.input_rate.value else None
    output = None if per_record is None or arriving is None else arriving * per_record
    lower_bound = operator.min_processing_rate
    if lower_bound is not None and lower_bound.value is not None:
        # Of fewer subtasks each does at least as much.
        lower_bound = _with(lower_bound, value=lower_bound.value * min(1.0, p / operator.parallelism))
    capacity = per_subtask = unknown("its capacity is unknown")
    if curve is not None:
        rate = curve.rate(p)
        capacity = Estimate(value=rate, basis="simulated", confidence=curve.confidence)
        per_subtask = Estimate(value=rate / p, basis="simulated", confidence=curve.confidence)
    found: OperatorAnalysis = _with(
        operator,
        parallelism=p,
        input_rate=_simulated(arriving, "its input is unknown"),
        output_rate=_simulated(output, "its output is unknown"),
        true_processing_rate=capacity,
        true_processing_rate_per_subtask=per_subtask,
        min_processing_rate=lower_bound,
        utilization=_simulated(used),
        backpressure=_simulated(None if used is None else _backpressure(real, name, elapsed, used)),
        capacities=[c for c in operator.capacities if c.parallelism != p or p == operator.parallelism],
    )
    return found


def _backpressure(real: Real, name: str, elapsed: Elapsed, used: float) -> float:
    """Return the share of time in which an operator waits for a downstream one: its demand that does not get through."""
    wanted, arriving = (arrivals_at(real.model.flow, name, rates) for rates in (real.model.arrivals, elapsed.rates))
    capacity = elapsed.capacities.get(name)
    if not wanted or arriving is None or capacity is None or arriving >= min(wanted, capacity) * 0.999:
        return 0.0
    return max(0.0, 1.0 - used)


def _symptoms(real: Real, candidate: Candidate, sources: list[SourceAnalysis]) -> list[Symptom]:
    kept = [s for s in real.request.analysis.symptoms if s.code not in OF_THE_REAL_RUN]
    at, rescale = real.request.analysis.observed_at, candidate.rescales[0] if candidate.rescales else None
    if rescale is not None and at < rescale.running_at:
        kept.append(Symptom(code="restarting", evidence="It restarts for another parallelism."))
    elif rescale is not None and at < rescale.running_at + timedelta(seconds=WARM_UP_SECONDS):
        kept.append(Symptom(code="warming-up", evidence="The run has just started."))
    for source in sources:
        lag, growth = source.lag_seconds.value or 0.0, source.lag_growth.value or 0.0
        if lag > CATCHING_UP_SECONDS and growth < 0:
            evidence = f"A lag of {lag:.1f} s shrinks."
            kept.append(Symptom(code="catching-up", operator=source.operator, evidence=evidence))
    return kept[:100]


def _outcomes(real: Real, candidate: Candidate, deployment: Deployment) -> list[Outcome]:
    """Return outcomes of the simulated rescales, newest first, with the real restart times."""
    before = real.request.outcomes
    if not candidate.rescales and before:
        return [_with(before[0], action=None, last_action=None, quarantine=[], phase="refused")]
    times = list(before[0].restarts_seconds) if before else []
    return [_outcome(real, candidate, deployment, rescale, times) for rescale in candidate.rescales]


def _settle_time(outcomes: Sequence[Outcome]) -> timedelta:
    """Return the time from running to verified of the newest verified action."""
    for action in (outcome.newest_action for outcome in outcomes):
        if action is not None and action.phase == "verified" and action.running_at and action.finished_at:
            return action.finished_at - action.running_at
    return timedelta(seconds=SETTLE_SECONDS)


def _outcome(
    real: Real, candidate: Candidate, deployment: Deployment, rescale: VirtualRescale, times: list[float]
) -> Outcome:
    settled, now = rescale.running_at + _settle_time(real.request.outcomes), real.request.analysis.observed_at
    phase = "applying" if now < rescale.running_at else "verifying" if now < settled else "verified"
    common: dict[str, Any] = {
        "application": real.request.application,
        "plan_id": rescale.id,
        "observation_id": rescale.id,
        "phase": phase,
        "code": phase,
        "sentence": f"simulated: the action is {phase}",
        "before": rescale.before,
        "wanted": rescale.wanted,
    }
    action = ActionState(
        **common,
        id=rescale.id,
        attempt_id=rescale.id,
        version=1,
        deployment=deployment.ref(),
        started_at=rescale.at,
        requested_at=rescale.at,
        running_at=rescale.running_at if phase != "applying" else None,
        finished_at=settled if phase == "verified" else None,
    )
    return Outcome(
        **common,
        id=derive_id(rescale.id, phase),
        at=settled if phase == "verified" else now,
        observed=dict(candidate.parallelism),
        restart_seconds=(rescale.running_at - rescale.at).total_seconds() if phase != "applying" else None,
        action=action,
        restarts_seconds=times,
    )


def _observations(real: Real, candidate: Candidate, deployment: Deployment, policy: ScalingPolicy) -> list[Observation]:
    """Return the real observations with the simulated readings of the same instants."""
    readings, since = {reading.at: reading for reading in candidate.readings}, candidate.running_since
    found: list[Observation] = []
    for observation in real.request.observations:
        reading = readings.get(observation.observed_at)
        if reading is None:
            continue
        found.append(
            _with(
                observation,
                policy=policy,
                status="running",
                run=Run(running_since=since) if since and reading.at >= since else None,
                deployment=_with(deployment, observed=reading.parallelism, requested=reading.parallelism),
                operators=[_operator_reading(name, reading) for name in real.request.topology.names],
                partitions=_partitions(observation, reading),
            )
        )
    return found


def _operator_reading(name: str, reading: VirtualReading) -> OperatorReading:
    taken, given, busy = reading.records_in.get(name), reading.records_out.get(name), reading.busy_seconds.get(name)
    waiting = reading.backlogs.get(name)
    return OperatorReading(
        operator=name,
        parallelism=reading.parallelism[name],
        records_in=None if taken is None else round(taken),
        records_out=None if given is None else round(given),
        busy_ms=None if busy is None else busy * 1000,
        pending_records=None if waiting is None else round(waiting),
    )


def _partitions(real: Observation, reading: VirtualReading) -> list[PartitionReading]:
    """Return the broker's end offsets with simulated positions; a source's backlog is spread evenly over its
    partitions."""
    counts = Counter(partition.operator for partition in real.partitions)
    placed = []
    for partition in real.partitions:
        waiting, end, position = reading.backlogs.get(partition.operator), partition.log_end_offset, None
        if waiting is not None and end is not None:
            position = max(partition.log_start_offset or 0, end - round(waiting / counts[partition.operator]))
        placed.append(
            _with(
                partition,
                current_offset=position,
                committed_offset=_committed(partition, position),
                committed_at=None,
                next_record_offset=None,
                position_appended_at=None,
                refused_timestamp_ms=None,
                high_watermark=None,
            )
        )
    return placed


def _committed(real: PartitionReading, position: int | None) -> int | None:
    """Return an offset as far behind the position as the real commit is behind the real position."""
    if position is None or real.committed_offset is None:
        return None
    behind = 0 if real.current_offset is None else max(0, real.current_offset - real.committed_offset)
    return max(real.log_start_offset or 0, position - behind)

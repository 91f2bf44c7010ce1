"""The request as a shadow sees it: the real one, with what depends on its own decisions replaced by the simulated.

Arrivals, selectivities, learnt capacities and restart times are the real ones. Parallelism, backlog, lag, utilisation, throughput,
outcomes, past turns and raw readings are those of its copy. `signals` are as they were read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

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
    derive_id,
    unknown,
)
from weir_contracts.outcome import ActionState

from predictor import arrivals_at
from predictor.stretch import Stretch

from .known import Known

SETTLE_SECONDS = 10.0
"""Running, before a rescale counts as verified: the executor's own."""
WARM_UP_SECONDS = 10.0
CATCHING_UP_SECONDS = 2.0
OF_THE_REAL_RUN = frozenset(
    {"warming-up", "catching-up", "stalled", "restarting", "source-bound", "downstream-bound", "not-running"}
)
"""Symptoms that the copy need not share."""
BASIS = "simulated"


@dataclass(frozen=True)
class Lived:
    """What a copy did in the last stretch of time."""

    stretch: Stretch
    capacities: Mapping[str, float]
    rates: Mapping[str, float]
    """Records/s that each source took in."""

    def utilisation(self, known: Known, name: str) -> float | None:
        """Input over capacity; None where one of them is unknown."""
        reaching, capacity = arrivals_at(known.model.flow, name, self.rates), self.capacities.get(name)
        return None if reaching is None or not capacity else min(1.0, reaching / capacity)


def request_of(known: Known, candidate: Candidate, choice: PlannerChoice, lived: Lived) -> PlanRequest:
    """What the planner of `choice` is asked about its copy."""
    real = known.request
    policy = _policy(real.policy, choice)
    deployment = _deployment(known, candidate)
    return real.model_copy(
        update={
            "id": derive_id(real.id, f"shadow {candidate.label}"),
            "policy": policy,
            "deployment": deployment,
            "analysis": _analysis(known, candidate, lived, deployment, policy),
            "observations": _observations(known, candidate, deployment, policy),
            "history": list(candidate.history),
            "outcomes": _outcomes(known, candidate, deployment),
            "quarantine": [],
            "memory": candidate.state.memory,
            "state": candidate.state.model_copy(update={"memory": {}}),
        }
    )


def _policy(policy: ScalingPolicy, choice: PlannerChoice) -> ScalingPolicy:
    chosen = PlannerChoice(name=choice.name, parameters=choice.parameters, timeout=choice.timeout)
    spec = policy.spec.model_copy(update={"planner": chosen, "shadows": []})
    return policy.model_copy(update={"spec": spec})


def _deployment(known: Known, candidate: Candidate) -> Deployment:
    real, runs = known.deployment, dict(candidate.parallelism)
    slots = real.slots
    if slots is not None:
        # What the real application holds is free for the copy, and the other way round.
        free = slots.available + known.topology.slots(known.observed) - known.topology.slots(runs)
        slots = slots.model_copy(update={"available": max(0, free)})
    return real.model_copy(
        update={
            "observed": runs,
            "requested": runs,
            "health": "running",
            "state": "RUNNING",
            "slots": slots,
            "restarts": None,
            "replicas": None if real.replicas is None else max(runs.values()),
            "pods": real.pods if runs == known.observed else [],
        }
    )


def _analysis(
    known: Known, candidate: Candidate, lived: Lived, deployment: Deployment, policy: ScalingPolicy
) -> Analysis:
    real = known.analysis
    sources = [_source(known, source, lived) for source in real.sources]
    used, where = max(_loads(known, lived), default=(0.0, None))
    records = [s.lag_records.value for s in sources if s.lag_records.value is not None]
    growth = [s.lag_growth.value for s in sources if s.lag_growth.value is not None]
    return real.model_copy(
        update={
            "policy": policy,
            "status": "running",
            "run": Run(running_since=candidate.running_since) if candidate.running_since else None,
            "deployment": deployment,
            "operators": [_operator(known, candidate, operator, lived) for operator in real.operators],
            "sources": sources,
            "lag_records": _told(sum(records)),
            "lag_growth": _told(sum(growth)),
            "lag_seconds": _told(lived.stretch.lag_seconds),
            "expected_latency_seconds": _told(lived.stretch.latency_seconds),
            "bottleneck": where if used > 1 else None,
            "symptoms": _symptoms(known, candidate, sources),
        }
    )


def _loads(known: Known, lived: Lived) -> list[tuple[float, str]]:
    """Arrivals over capacity of each operator of which both are known."""
    arriving = {name: arrivals_at(known.model.flow, name, known.model.arrivals) for name in lived.capacities}
    return [
        (load / lived.capacities[n], n) for n, load in arriving.items() if load is not None and lived.capacities[n] > 0
    ]


def _told(value: float | None, why: str = "the copy's capacity is unknown") -> Estimate:
    return unknown(why) if value is None else Estimate(value=round(value, 4), basis=BASIS, confidence=0.9)


def _source(known: Known, source: SourceAnalysis, lived: Lived) -> SourceAnalysis:
    left = lived.stretch.backlogs.get(source.operator)
    if left is None:
        return source
    arriving, taken = known.model.arrivals[source.operator], lived.rates[source.operator]
    latency = 0.0 if left.records <= 0 else left.records / taken if taken > 0 else None
    return source.model_copy(
        update={
            "lag_records": _told(left.records),
            "lag_growth": _told(arriving - taken),
            "lag_seconds": _told(left.age_seconds),
            "expected_latency_seconds": _told(latency, "nothing was taken in"),
        }
    )


def _operator(known: Known, candidate: Candidate, real: OperatorAnalysis, lived: Lived) -> OperatorAnalysis:
    name, p = real.operator, candidate.parallelism[real.operator]
    curve = known.model.curves.get(name)
    reaching = arrivals_at(known.model.flow, name, lived.rates)
    used = lived.utilisation(known, name)
    rate = curve.rate(p) if curve is not None else None
    confidence = curve.confidence if curve is not None else 0.0
    blocked = None if used is None else _held_back(known, name, lived)
    per_record = (real.output_rate.value or 0.0) / real.input_rate.value if real.input_rate.value else None
    gives = None if per_record is None or reaching is None else reaching * per_record
    least = real.least_processing_rate
    if least is not None and least.value is not None:
        # A subtask does at least as much where there are fewer of them.
        least = least.model_copy(update={"value": least.value * min(1.0, p / real.parallelism)})
    return real.model_copy(
        update={
            "parallelism": p,
            "input_rate": _told(reaching, "what reaches it is unknown"),
            "output_rate": _told(gives, "what it gives out is unknown"),
            "true_processing_rate": _trusted(rate, confidence),
            "true_processing_rate_per_subtask": _trusted(None if rate is None else rate / p, confidence),
            "least_processing_rate": least,
            "utilisation": _told(used),
            "backpressure": _told(blocked),
            "capacities": [c for c in real.capacities if c.parallelism != p or p == real.parallelism],
        }
    )


def _trusted(value: float | None, confidence: float) -> Estimate:
    return (
        unknown("its capacity is unknown")
        if value is None
        else Estimate(value=value, basis=BASIS, confidence=confidence)
    )


def _held_back(known: Known, name: str, lived: Lived) -> float:
    """The share of time in which an operator waits for one behind it: what its inputs ask for and do not get through."""
    wanted, reaching = (
        arrivals_at(known.model.flow, name, known.model.arrivals),
        arrivals_at(known.model.flow, name, lived.rates),
    )
    used, capacity = lived.utilisation(known, name), lived.capacities.get(name)
    if not wanted or reaching is None or used is None or capacity is None or reaching >= min(wanted, capacity) * 0.999:
        return 0.0
    return max(0.0, 1.0 - used)


def _symptoms(known: Known, candidate: Candidate, sources: list[SourceAnalysis]) -> list[Symptom]:
    kept = [s for s in known.analysis.symptoms if s.code not in OF_THE_REAL_RUN]
    at, rescale = known.analysis.observed_at, candidate.rescales[0] if candidate.rescales else None
    if rescale is not None and at < rescale.running_at:
        kept.append(Symptom(code="restarting", evidence="It restarts for another parallelism."))
    elif rescale is not None and at < rescale.running_at + timedelta(seconds=WARM_UP_SECONDS):
        kept.append(Symptom(code="warming-up", evidence="The run has just begun."))
    for source in sources:
        lag, growth = source.lag_seconds.value or 0.0, source.lag_growth.value or 0.0
        if lag > CATCHING_UP_SECONDS and growth < 0:
            kept.append(
                Symptom(code="catching-up", operator=source.operator, evidence=f"A lag of {lag:.1f} s shrinks.")
            )
    return kept[:100]


def _outcomes(known: Known, candidate: Candidate, deployment: Deployment) -> list[Outcome]:
    """Of the copy's own rescales, newest first; what a restart takes is told as it was really seen."""
    real = known.request.outcomes
    times = list(real[0].restarts_seconds) if real else []
    told = []
    for rescale in candidate.rescales:
        seconds = (rescale.running_at - rescale.at).total_seconds()
        settled = rescale.running_at + timedelta(seconds=SETTLE_SECONDS)
        now = known.analysis.observed_at
        phase = "applying" if now < rescale.running_at else "verifying" if now < settled else "verified"
        sentence = f"simulated: it is {phase}"
        action = ActionState(
            id=rescale.id,
            application=known.request.application,
            attempt_id=rescale.id,
            plan_id=rescale.id,
            observation_id=rescale.id,
            version=1,
            phase=phase,
            deployment=deployment.ref(),
            before=rescale.before,
            wanted=rescale.wanted,
            started_at=rescale.at,
            requested_at=rescale.at,
            running_at=rescale.running_at if phase != "applying" else None,
            finished_at=settled if phase == "verified" else None,
            code=phase,
            sentence=sentence,
        )
        told.append(
            Outcome(
                id=derive_id(rescale.id, phase),
                application=known.request.application,
                plan_id=rescale.id,
                observation_id=rescale.id,
                at=min(now, settled) if phase == "verified" else now,
                phase=phase,
                code=phase,
                sentence=sentence,
                before=rescale.before,
                wanted=rescale.wanted,
                observed=dict(candidate.parallelism),
                restart_seconds=seconds if phase != "applying" else None,
                action=action,
                restarts_seconds=times,
            )
        )
    if told or not real:
        return told
    # Nothing was done to the copy yet, but what a restart takes is known.
    return [real[0].model_copy(update={"action": None, "last_action": None, "quarantine": [], "phase": "refused"})]


def _observations(
    known: Known, candidate: Candidate, deployment: Deployment, policy: ScalingPolicy
) -> list[Observation]:
    """The real scrapes with the copy's readings, as far as it lived then."""
    lived = {reading.at: reading for reading in candidate.readings}
    found = [(real, lived[real.observed_at]) for real in known.request.observations if real.observed_at in lived]
    since = candidate.running_since
    return [
        real.model_copy(
            update={
                "policy": policy,
                "status": "running",
                "run": Run(running_since=since) if since and reading.at >= since else None,
                "deployment": deployment.model_copy(
                    update={"observed": reading.parallelism, "requested": reading.parallelism}
                ),
                "operators": [_operator_reading(name, reading) for name in known.topology.names],
                "partitions": _partitions(real, reading),
            }
        )
        for real, reading in found
    ]


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
    """The broker's ends with the copy's positions: what waits is spread evenly over a source's partitions."""
    counts: dict[str, int] = {}
    for partition in real.partitions:
        counts[partition.operator] = counts.get(partition.operator, 0) + 1
    placed = []
    for partition in real.partitions:
        waiting, end = reading.backlogs.get(partition.operator), partition.log_end_offset
        at = None
        if waiting is not None and end is not None:
            at = max(partition.log_start_offset or 0, end - round(waiting / counts[partition.operator]))
        placed.append(
            partition.model_copy(
                update={
                    "current_offset": at,
                    "committed_offset": _committed(partition, at),
                    "committed_at": None,
                    "position_appended_at": None,
                }
            )
        )
    return placed


def _committed(real: PartitionReading, at: int | None) -> int | None:
    """As far behind the position as the real commit is behind the real position; what was never committed is not."""
    if at is None or real.committed_offset is None:
        return None
    behind = 0 if real.current_offset is None else max(0, real.current_offset - real.committed_offset)
    return max(real.log_start_offset or 0, at - behind)

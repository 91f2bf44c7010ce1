"""Simulated applications: how they start and advance, and the record of the real one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from weir_contracts import Candidate, PlannerChoice, PlanState, Supply, VirtualBacklog, VirtualReading
from weir_contracts.shadows import Role, parameters_id
from weir_planner.installed import reads

from predictor import Backlog, Model, Restart, arrivals_at
from predictor.interval import Interval, run_interval

from .real import Real
from .scoring import Figures

MAX_READINGS, MAX_SUPPLIES = 30, 200


@dataclass(frozen=True)
class Elapsed:
    """The last interval of a simulated application."""

    interval: Interval
    capacities: Mapping[str, float]
    rates: Mapping[str, float]
    """Records/s taken in by each source."""

    def utilization(self, real: Real, name: str) -> float | None:
        """Return input over capacity, at most 1; None if one of them is unknown."""
        arriving, capacity = arrivals_at(real.model.flow, name, self.rates), self.capacities.get(name)
        return None if arriving is None or not capacity else min(1.0, arriving / capacity)


def initial(real: Real, role: Role, label: str, choice: PlannerChoice) -> Candidate:
    """Return a simulated application in the state of the real one."""
    run = real.request.analysis.run
    return Candidate(
        label=label,
        planner=choice.name,
        parameters_id=parameters_id(choice.parameters),
        role=role,
        parallelism=real.request.current,
        backlogs=_real_backlogs(real),
        running_since=run.running_since if run else None,
        state=PlanState(planner=choice.name),
        supplies=[Supply(at=real.request.analysis.observed_at, parallelism=real.request.current)],
    )


def _real_backlogs(real: Real) -> dict[str, VirtualBacklog]:
    return {
        source: VirtualBacklog(records=backlog.records, age_seconds=max(0.0, backlog.age_seconds or 0.0))
        for source, backlog in real.model.backlogs.items()
    }


def at_rest(real: Real, candidate: Candidate) -> Elapsed | None:
    """Return the state of an application over no time; None if a capacity is unknown."""
    capacities = real.capacities(candidate.parallelism)
    if capacities is None:
        return None
    second = _run(real, candidate, capacities, Restart(), 1.0)
    backlogs = {s: Backlog(b.records, b.age_seconds) for s, b in candidate.backlogs.items()}
    lag = max((b.age_seconds for b in candidate.backlogs.values()), default=0.0)
    return Elapsed(Interval(0.0, backlogs, {}, lag, second.latency_seconds, 0.0), capacities, second.taken)


def _run(
    real: Real, candidate: Candidate, capacities: Mapping[str, float], restart: Restart, seconds: float
) -> Interval:
    model, backlogs = real.model, {source: Backlog(0.0, 0.0) for source in real.model.arrivals}
    backlogs |= {s: Backlog(b.records, b.age_seconds) for s, b in candidate.backlogs.items() if s in backlogs}
    objective = real.request.policy.spec.objective
    return run_interval(
        Model(model.topology, model.flow, model.curves, model.arrivals, backlogs),
        capacities,
        restart,
        seconds,
        objective_seconds=objective.bound_seconds,
        of_latency=objective.max_latency is not None,
    )


def advanced(real: Real, old: Candidate, seconds: float) -> tuple[Candidate, Elapsed | None, Figures]:
    """Advance an application by the real arrivals of so many seconds, and score it; while a capacity is unknown it
    stands still."""
    capacities = real.capacities(old.parallelism)
    if capacities is None:
        # At the real parallelism the real backlog is known.
        at_real = old.parallelism == real.request.current
        return (old.model_copy(update={"backlogs": _real_backlogs(real)}) if at_real else old), None, {}
    if seconds <= 0:
        return old, at_rest(real, old), {}
    restart = Restart(min(old.down_seconds, seconds), real.restart.replay_seconds if old.replay else 0.0)
    interval = _run(real, old, capacities, restart, seconds)
    elapsed = Elapsed(interval, capacities, {s: taken / seconds for s, taken in interval.taken.items()})
    target, late_seconds = real.request.policy.spec.objective.utilization, interval.violation_seconds
    if target is not None:
        late = is_above(target, [elapsed.utilization(real, name) for name in real.request.topology.names])
        late_seconds = interval.seconds if late else 0.0
    moved = old.model_copy(
        update={
            "backlogs": {
                s: VirtualBacklog(records=round(b.records, 3), age_seconds=round(b.age_seconds or 0.0, 4))
                for s, b in interval.backlogs.items()
            },
            "down_seconds": max(0.0, round(old.down_seconds - seconds, 4)),
            "replay": False,
            "readings": _readings(real, old, elapsed, seconds, ran=seconds - restart.seconds),
        }
    )
    return moved, elapsed, _ran(real, old, seconds, late_seconds)


def _ran(real: Real, candidate: Candidate, seconds: float, late_seconds: float) -> Figures:
    slot_seconds = real.request.topology.slots(candidate.parallelism) * seconds
    return {"simulated_seconds": seconds, "slot_seconds": slot_seconds, "violation_seconds": late_seconds}


def is_above(target: float, shares: Sequence[float | None]) -> bool:
    """Return whether an operator is busier than the target."""
    return any(share is not None and share > target + 1e-9 for share in shares)


def observed(real: Real, old: Candidate, seconds: float) -> tuple[Candidate, Figures]:
    """Record what the real application did, and score it; not while its lag is unknown."""
    objective, analysis = real.request.policy.spec.objective, real.request.analysis
    lag = (analysis.expected_latency_seconds if objective.max_latency is not None else analysis.lag_seconds).value
    if objective.bound_seconds is not None:
        late = lag is not None and lag > objective.bound_seconds
    else:
        late = is_above(objective.utilization or 1.0, [o.utilization.value for o in analysis.operators])
    is_scored = seconds > 0 and (lag is not None or objective.utilization is not None)
    figures = _ran(real, old, seconds, seconds if late else 0.0) if is_scored else {}
    if old.parallelism != real.request.current:
        figures = {**figures, "rescales": 1}
        old = rescaled(old, analysis.observed_at, real.request.current)
    return old.model_copy(update={"backlogs": _real_backlogs(real)}), figures


def rescaled(candidate: Candidate, at: datetime, vector: Mapping[str, int]) -> Candidate:
    """Return the application with another parallelism from an instant on."""
    supplies = [*candidate.supplies, Supply(at=at, parallelism=dict(vector))][-MAX_SUPPLIES:]
    return candidate.model_copy(update={"parallelism": dict(vector), "supplies": supplies})


def _readings(real: Real, old: Candidate, elapsed: Elapsed, seconds: float, *, ran: float) -> list[VirtualReading]:
    """Append the counters that a scrape would read; only for planners that read raw observations."""
    if "observations" not in reads(old.planner):
        return []
    # Counters start with a run.
    last = old.readings[-1] if old.readings and not old.replay else None
    taken, given, busy = (dict(getattr(last, f)) if last else {} for f in ("records_in", "records_out", "busy_seconds"))
    for operator in real.request.analysis.operators:
        name = operator.operator
        arriving, used = arrivals_at(real.model.flow, name, elapsed.rates), elapsed.utilization(real, name)
        if arriving is not None:
            outputs = [arrivals_at(real.model.flow, out, elapsed.rates) for out in real.request.topology.outputs(name)]
            taken[name] = round(taken.get(name, 0.0) + arriving * seconds, 1)
            given[name] = round(given.get(name, 0.0) + sum(rate or 0.0 for rate in outputs) * seconds, 1)
        if used is not None:
            busy[name] = round(busy.get(name, 0.0) + min(ran, used * seconds) * old.parallelism[name], 2)
    reading = VirtualReading(
        at=real.request.analysis.observed_at,
        parallelism=old.parallelism,
        records_in=taken,
        records_out=given,
        busy_seconds=busy,
        backlogs={s: round(b.records, 1) for s, b in elapsed.interval.backlogs.items()},
    )
    return [*old.readings, reading][-MAX_READINGS:]

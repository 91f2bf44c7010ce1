"""A simulated copy of the application: where it begins, how it moves on, and what really ran beside it."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from weir_contracts import (
    Candidate,
    PlannerChoice,
    PlanState,
    Supply,
    VirtualBacklog,
    VirtualReading,
)
from weir_contracts.shadows import Role, parameters_id
from weir_planner.installed import reads

from predictor import Backlog, Model, Restart, arrivals_at
from predictor.stretch import Stretch, run_on

from .known import Known
from .sums import Sums
from .virtual import Lived

MOST_READINGS, MOST_SUPPLIES = 30, 200


def newborn(known: Known, role: Role, label: str, choice: PlannerChoice) -> Candidate:
    """Where the real application is."""
    run = known.analysis.run
    return Candidate(
        label=label,
        planner=choice.name,
        parameters_id=parameters_id(choice.parameters),
        role=role,
        parallelism=known.observed,
        backlogs=_real_backlogs(known),
        running_since=run.running_since if run else None,
        state=PlanState(planner=choice.name),
        supplies=[Supply(at=known.analysis.observed_at, parallelism=known.observed)],
    )


def _real_backlogs(known: Known) -> dict[str, VirtualBacklog]:
    return {
        source: VirtualBacklog(records=backlog.records, age_seconds=max(0.0, backlog.age_seconds or 0.0))
        for source, backlog in known.model.backlogs.items()
    }


def standing(known: Known, candidate: Candidate) -> Lived | None:
    """A copy as it is, without a past of its own; None: with its parallelism nothing can be told."""
    capacities = known.capacities(dict(candidate.parallelism))
    if capacities is None:
        return None
    stretch = _run(_model(known, candidate), capacities, Restart(), 1.0, known)
    backlogs = {s: Backlog(b.records, b.age_seconds) for s, b in candidate.backlogs.items()}
    lag = max((b.age_seconds for b in candidate.backlogs.values()), default=0.0)
    standing = Stretch(0.0, backlogs, {}, lag, stretch.latency_seconds, 0.0)
    return Lived(standing, capacities, stretch.taken)


def _model(known: Known, candidate: Candidate) -> Model:
    backlogs = {}
    for source in known.model.arrivals:
        left = candidate.backlogs.get(source)
        backlogs[source] = Backlog(left.records, left.age_seconds) if left else Backlog(0.0, 0.0)
    real = known.model
    return Model(real.topology, real.flow, real.curves, real.arrivals, backlogs)


def _run(model: Model, capacities: Mapping[str, float], restart: Restart, seconds: float, known: Known) -> Stretch:
    objective = known.request.policy.spec.objective
    return run_on(
        model,
        capacities,
        restart,
        seconds,
        objective_seconds=objective.bound_seconds,
        of_latency=objective.max_latency is not None,
    )


def moved_on(known: Known, old: Candidate, seconds: float, sums: Sums) -> tuple[Candidate, Lived | None]:
    """A copy after so many seconds of what really arrived; where its capacity cannot be told it stands still, and is not scored."""
    capacities = known.capacities(dict(old.parallelism))
    if capacities is None:
        # With the real parallelism the real application tells what the model cannot.
        return (
            old.model_copy(update={"backlogs": _real_backlogs(known)}) if old.parallelism == known.observed else old
        ), None
    if seconds <= 0:
        return old, standing(known, old)
    restart = Restart(min(old.down_seconds, seconds), known.restart.replay_seconds if old.replay else 0.0)
    stretch = _run(_model(known, old), capacities, restart, seconds, known)
    ran = seconds - restart.seconds
    lived = Lived(stretch, capacities, {s: taken / seconds for s, taken in stretch.taken.items()})
    sums.add(
        simulated_seconds=seconds,
        slot_seconds=known.topology.slots(old.parallelism) * seconds,
        violation_seconds=_violation(known, stretch, [lived.utilisation(known, n) for n in known.topology.names]),
    )
    moved = old.model_copy(
        update={
            "backlogs": {
                s: VirtualBacklog(records=round(b.records, 3), age_seconds=round(b.age_seconds or 0.0, 4))
                for s, b in stretch.backlogs.items()
            },
            "down_seconds": max(0.0, round(old.down_seconds - seconds, 4)),
            "replay": False,
            "readings": _read(known, old, lived, seconds, ran),
        }
    )
    return moved, lived


def _violation(known: Known, stretch: Stretch, shares: Sequence[float | None]) -> float:
    target = known.request.policy.spec.objective.utilization
    if target is None:
        return stretch.violation_seconds
    return stretch.seconds if any(share is not None and share > target + 1e-9 for share in shares) else 0.0


def watched(known: Known, old: Candidate, seconds: float, sums: Sums) -> tuple[Candidate, Lived | None]:
    """What really ran, and how it really did; not counted while its lag is unknown."""
    changed = dict(old.parallelism) != known.observed
    lag, objective = known.analysis.lag_seconds.value, known.request.policy.spec.objective
    if objective.max_latency is not None:
        lag = known.analysis.expected_latency_seconds.value
    shares = [o.utilisation.value for o in known.analysis.operators]
    late = any(s is not None and s > objective.utilization + 1e-9 for s in shares) if objective.utilization else False
    if objective.bound_seconds is not None:
        late = lag is not None and lag > objective.bound_seconds
    if seconds > 0 and (lag is not None or objective.utilization is not None):
        sums.add(
            simulated_seconds=seconds,
            slot_seconds=known.topology.slots(old.parallelism) * seconds,
            violation_seconds=seconds if late else 0.0,
        )
    if changed:
        sums.add(rescales=1)
        old = supplying(old, known.analysis.observed_at, known.observed)
    return old.model_copy(update={"backlogs": _real_backlogs(known)}), None


def supplying(candidate: Candidate, at: datetime, vector: Mapping[str, int]) -> Candidate:
    supplies = [*candidate.supplies, Supply(at=at, parallelism=dict(vector))][-MOST_SUPPLIES:]
    return candidate.model_copy(update={"parallelism": dict(vector), "supplies": supplies})


def _read(known: Known, old: Candidate, lived: Lived, seconds: float, ran: float) -> list[VirtualReading]:
    """The counters a scrape of the copy would show; kept for planners that look at raw observations."""
    if "observations" not in reads(old.planner):
        return []
    # Counters begin with a run.
    last = old.readings[-1] if old.readings and not old.replay else None
    taken, given, busy = (dict(getattr(last, f)) if last else {} for f in ("records_in", "records_out", "busy_seconds"))
    for operator in known.analysis.operators:
        name, reaching = operator.operator, arrivals_at(known.model.flow, operator.operator, lived.rates)
        used = lived.utilisation(known, name)
        if reaching is not None:
            taken[name] = round(taken.get(name, 0.0) + reaching * seconds, 1)
            outs = [arrivals_at(known.model.flow, out, lived.rates) for out in known.topology.outputs(name)]
            given[name] = round(given.get(name, 0.0) + sum(rate or 0.0 for rate in outs) * seconds, 1)
        if used is not None:
            busy[name] = round(busy.get(name, 0.0) + min(ran, used * seconds) * old.parallelism[name], 2)
    reading = VirtualReading(
        at=known.analysis.observed_at,
        parallelism=old.parallelism,
        records_in=taken,
        records_out=given,
        busy_seconds=busy,
        backlogs={s: round(b.records, 1) for s, b in lived.stretch.backlogs.items()},
    )
    return [*old.readings, reading][-MOST_READINGS:]

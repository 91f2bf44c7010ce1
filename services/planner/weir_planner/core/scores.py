"""Score planners in retrospect: what the plans of each would have led to, with the arrivals that came. Pure.

Each planner has a course: the parallelism that its last plan leads to, and the records that would wait there. A cycle
first lets every course run through the time since the last one, on the model that the plans are judged on; then each new
plan takes effect. All planners are asked about the real application, whatever their earlier plans would have led to:
only `weir replay` on a simulated application closes the loop.
"""

from dataclasses import replace
from datetime import datetime

from weir_contracts import (
    NO_OPINION,
    NO_REPLY,
    TERMINAL,
    Parallelism,
    Plan,
    PlanRequest,
    Score,
    ScoredCourse,
    WaitingRecords,
)
from weir_contracts.plan_state import parameters_id
from weir_predictor import Backlog, Restart, Scenario
from weir_predictor.trajectory import busiest, run_interval

MIN_GAP_SECONDS = 15.0
"""A longer time without a cycle, and one of more than three intervals, is not scored."""
WAITS = frozenset(
    {"one-in-flight", "tasks-move", "excluded-period", "action-budget", "input-outage", "will-be-needed"}
    | {"stabilisation", "cooldown", "reversal", "scale-down-gate", "quarantine"}
)
"""Guards that hold a change for a while: until then its planner stays where its last plan led."""


def basis_of(request: PlanRequest) -> str:
    """Return the id of what a score is about: the parameters of the request's planner, and the objective."""
    spec = request.policy.spec
    return parameters_id({"of": spec.planner.parameters, "objective": spec.objective.model_dump(mode="json")})


def begun(label: str, planner: str, basis_id: str, scenario: Scenario, now: datetime) -> ScoredCourse:
    """Return the course of a planner from the real application on."""
    return ScoredCourse(
        score=Score(label=label, planner=planner, since=now),
        basis_id=basis_id,
        until=now,
        parallelism=scenario.current,
        waiting={
            source: WaitingRecords(records=backlog.records, age_seconds=max(0.0, backlog.age_seconds or 0.0))
            for source, backlog in scenario.model.backlogs.items()
        },
    )


def continued(course: ScoredCourse, scenario: Scenario, now: datetime) -> ScoredCourse:
    """Return a course after the time since its last cycle, which is added to its score.

    After a gap, or with other operators, it goes on from the real application, and that time does not count.
    """
    seconds, spec, score = (now - course.until).total_seconds(), scenario.analysis.policy.spec, course.score
    is_gap = seconds > max(3 * spec.interval.total_seconds(), MIN_GAP_SECONDS)
    if is_gap or set(course.parallelism) != set(scenario.topology.names):
        again = begun(score.label, score.planner, course.basis_id, scenario, now)
        return again.model_copy(update={"score": score})
    if seconds <= 0:
        return course
    capacities = scenario.model.capacities(course.parallelism)
    waiting = {source: course.waiting.get(source, WaitingRecords(records=0.0)) for source in scenario.model.arrivals}
    backlogs = {source: Backlog(each.records, each.age_seconds) for source, each in waiting.items()}
    interval = run_interval(
        replace(scenario.model, backlogs=backlogs),
        capacities,
        Restart(min(course.down_seconds, seconds), course.replay_seconds),
        seconds,
        objective_seconds=spec.objective.bound_seconds,
        of_latency=spec.objective.max_latency is not None,
    )
    late_seconds, target = interval.violation_seconds, spec.objective.utilization
    if target is not None:
        late_seconds = seconds if (busiest(scenario.model.loads, capacities)[0] or 0.0) > target else 0.0
    sums = {
        "seconds": score.seconds + seconds,
        "late_seconds": score.late_seconds + late_seconds,
        "slot_seconds": score.slot_seconds + scenario.topology.slots(course.parallelism) * seconds,
    }
    return course.model_copy(
        update={
            "score": score.model_copy(update={name: round(value, 3) for name, value in sums.items()}),
            "until": now,
            "waiting": {
                source: WaitingRecords(records=round(left.records, 3), age_seconds=round(left.age_seconds or 0.0, 3))
                for source, left in interval.backlogs.items()
            },
            "down_seconds": max(0.0, round(course.down_seconds - seconds, 3)),
            "replay_seconds": 0.0,
        }
    )


def followed(course: ScoredCourse, plan: Plan, request: PlanRequest, scenario: Scenario) -> ScoredCourse:
    """Return the course of a planner on which its plan takes effect."""
    score, vector = course.score, _leads_to(course.parallelism, plan, request, scenario.current)
    if plan.code in NO_REPLY:
        score = score.model_copy(update={"unanswered": score.unanswered + 1})
    if vector == course.parallelism:
        return course.model_copy(update={"score": score})
    cost = scenario.restarts.of(course.parallelism, vector)
    return course.model_copy(
        update={
            "score": score.model_copy(update={"restarts": score.restarts + 1}),
            "parallelism": vector,
            "down_seconds": round(cost.seconds, 3) if cost.away_share > 0 else 0.0,
            "replay_seconds": round(cost.replay_seconds, 3),
        }
    )


def _leads_to(stands: Parallelism, plan: Plan, request: PlanRequest, current: Parallelism) -> Parallelism:
    """Return the parallelism after a plan of a planner whose last one led to `stands`.

    A hold recommends the present parallelism, except where it says nothing, or a change only has to wait.
    """
    if plan.approved is not None:
        return plan.approved
    action = request.newest_action
    is_under_way = action is not None and action.phase not in TERMINAL
    waits = is_under_way or any(amendment.guard in WAITS for amendment in plan.amendments)
    return stands if waits or plan.code in NO_OPINION else current

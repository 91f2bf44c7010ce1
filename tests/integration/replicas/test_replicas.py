"""Two replicas each of knowledge, monitor, planner and executor share twelve applications; one after the other is
killed."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from itertools import pairwise
from uuid import UUID

from tests.unit.planner.build import SOURCE, WORK
from weir_contracts import Observation, Outcome, Plan

from .conftest import APPLICATIONS, INTERVAL_SECONDS, Fleet

MAX_SECONDS = 15.0
"""In which a killed replica's applications are taken over."""
HANDLED = {
    "knowledge": "weir_knowledge_messages_total",
    "monitor": "weir_monitor_applications",
    "planner": "weir_planner_plans_total",
    "executor": "weir_executor_outcomes_total",
}
"""How much a replica has done, or watches."""


async def test_work_is_shared_taken_over_and_decided_once(
    fleet: Fleet, record_property: Callable[[str, object], None]
) -> None:
    """Every replica has its assignment; a killed one is replaced within 15 s; no decision or action happens twice."""
    await settled(fleet, arrivals=1200)
    for name, metric in HANDLED.items():
        assert [await fleet.metric(name, number, metric) > 0 for number in (0, 1)] == [True, True], name
    applications = [await fleet.metric("monitor", number, HANDLED["monitor"]) for number in (0, 1)]
    assert sum(applications) == len(APPLICATIONS)

    took: dict[str, float] = {}
    # Neither of these two needs the other, so that one wait serves for both.
    planner, knowledge = kill(fleet, "planner"), kill(fleet, "knowledge")
    took["planner"], took["knowledge"] = await asyncio.gather(
        heard(fleet, Plan, planner, APPLICATIONS), remembered(fleet, knowledge)
    )
    took["monitor"] = await heard(fleet, Observation, kill(fleet, "monitor"), APPLICATIONS)

    fleet.arrivals = 2400
    async with asyncio.timeout(30):
        while await fleet.metric("executor", 1, "weir_executor_actions_in_flight") < 3:  # noqa: ASYNC110 - no event signals it
            await asyncio.sleep(0.1)
    killed = kill(fleet, "executor")
    took["executor"] = await heard(fleet, Outcome, killed, under_way(fleet))
    await settled(fleet, arrivals=2400)

    for name, seconds in took.items():
        record_property(f"takeover_{name}_seconds", round(seconds, 1))
    print("taken over after", {name: f"{seconds:.1f} s" for name, seconds in took.items()})  # noqa: T201 - with -s
    assert max(took.values()) <= MAX_SECONDS, took
    observations_are_one_stream(fleet)
    decisions_are_single(fleet)
    actions_are_single(fleet)


def kill(fleet: Fleet, name: str) -> tuple[float, float]:
    """Send SIGKILL to the second replica; return the time on both clocks."""
    fleet.services[name, 1].process.kill()
    return time.monotonic(), time.time()


def under_way(fleet: Fleet) -> list[str]:
    """The applications whose newest action has not ended."""
    newest = {o.application: o.action for o in fleet.messages(Outcome) if o.action is not None}
    return [application for application, action in newest.items() if not action.terminal]


def made_at(message: Observation | Plan | Outcome) -> datetime:
    if isinstance(message, Plan):
        return message.created_at
    return message.observed_at if isinstance(message, Observation) else message.at


async def heard(
    fleet: Fleet, model: type[Observation | Plan | Outcome], killed: tuple[float, float], of: Collection[str]
) -> float:
    """Return the seconds from the kill until each application has a later message."""
    since, instant = killed
    first: dict[str, float] = {}

    def all_heard() -> bool:
        for at, message in fleet.received[model]:
            if made_at(message).timestamp() > instant:
                first.setdefault(message.application, at - since)
        return set(first) >= set(of)

    await fleet.until(all_heard, 60, f"{model.__name__} of each of {of}")
    return max(first[application] for application in of)


async def remembered(fleet: Fleet, killed: tuple[float, float]) -> float:
    """Return the seconds from the kill until every application has a later observation in the knowledge service."""
    since, instant = killed
    async with asyncio.timeout(60):
        while not await fleet.remembered(instant):  # noqa: ASYNC110 - no event signals it
            await asyncio.sleep(0.2)
    return time.monotonic() - since


async def settled(fleet: Fleet, arrivals: float) -> None:
    """Wait until every job has the parallelism its load needs, and no action is under way."""
    fleet.arrivals = arrivals

    def verified() -> bool:
        newest = {o.application: o for o in fleet.messages(Outcome) if o.action is not None}
        jobs = fleet.flink.jobs.values()
        return (
            set(newest) == set(APPLICATIONS)
            and all(o.action is not None and o.action.terminal for o in newest.values())
            and all(job.observed == job.requested and job.observed[WORK] * 500 > arrivals for job in jobs)
        )

    await fleet.until(verified, 120, f"all applications as {arrivals:g} records/s need it")


def observations_are_one_stream(fleet: Fleet) -> None:
    """Each application is watched by one replica at a time: five readings of it span more than half of four intervals,
    but for the moment in which replicas first share work. (Two alone may be close: scrapes are published at their
    end.)"""
    times: dict[str, list[Observation]] = defaultdict(list)
    for observation in fleet.messages(Observation):
        times[observation.application].append(observation)
    begun = min(o.observed_at for o in fleet.messages(Observation)) + timedelta(seconds=10)
    for application, stream in times.items():
        assert stream == sorted(stream, key=lambda o: o.observed_at), application
        assert len({o.id for o in stream}) == len(stream), application
        times_seen = [o.observed_at for o in stream if o.observed_at > begun]
        spans = [(last - first).total_seconds() for first, last in zip(times_seen, times_seen[4:], strict=False)]
        assert spans and min(spans) > 2 * INTERVAL_SECONDS, (application, spans)


def decisions_are_single(fleet: Fleet) -> None:
    """One analysis, one plan; a plan published twice is unchanged."""
    plans: dict[UUID, list[Plan]] = defaultdict(list)
    for plan in fleet.messages(Plan):
        plans[plan.analysis_id].append(plan)
    for group in plans.values():
        assert len({(p.id, p.kind, p.code, str(p.approved)) for p in group}) == 1, group


def actions_are_single(fleet: Fleet) -> None:
    """One plan, one action, one end of it and one rescale: the cluster got one request for each vector."""
    actions: dict[UUID, list[Outcome]] = defaultdict(list)
    for outcome in fleet.messages(Outcome):
        if outcome.action is not None and outcome.action.plan_id == outcome.plan_id:
            actions[outcome.plan_id].append(outcome)
    applied: dict[str, int] = defaultdict(int)
    for group in actions.values():
        assert len({o.action.id for o in group if o.action}) == 1
        assert len({o.phase for o in group if o.action and o.action.terminal}) == 1, [o.phase for o in group]
        applied[group[0].application] += any(o.phase == "applying" for o in group)
    for application in APPLICATIONS:
        job = fleet.flink.jobs[application.partition("/")[2]]
        assert len(job.requests) == applied[application], (application, job.requests)
        assert all(a != b for a, b in pairwise(job.requests)), (application, job.requests)
        assert job.observed[SOURCE] == 1

"""Cost of a rescale by its direction: of a job that restarts entirely, and of a consumer group whose tasks move.

A group goes on while tasks move. Growing, the tasks that move stand still for one rebalance; where state is warmed up
first they move, and capacity counts, only then. Shrinking, the tasks of the instances that end stand still until the
group has noticed, and without standby tasks until their state is restored.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from statistics import median

from weir_contracts import Analysis, Deployment, Group, Outcome, Topology

from .model import STAY, Restart
from .reading import USUAL_RESTART_SECONDS, restart_of

MAX_MEASURED = 5
"""Rescales of one direction whose median counts."""

USUAL_START_SECONDS = 30.0
"""Time from a request for TaskManagers until their slots are registered, until one was measured."""

FRESH_SECONDS, HALF_LIFE_SECONDS = 300.0, 300.0
"""Age up to which the measured time of a shrink counts in full, and time in which it then halves."""


@dataclass(frozen=True)
class Restarts:
    """Cost of growing and of shrinking."""

    up: Restart
    down: Restart
    moves: bool = False
    """Whether only the tasks that move are away: their share depends on both parallelisms."""

    def of(self, now: Mapping[str, int], wanted: Mapping[str, int]) -> Restart:
        """Return the cost of changing from one parallelism to another."""
        if self.is_one:
            return self.up
        before, after = sum(now.get(name, p) for name, p in wanted.items()), sum(wanted.values())
        found = self.up if after >= before else self.down
        if not self.moves:
            return found
        if before == after:
            return STAY
        return replace(found, away_share=found.away_share * abs(after - before) / max(after, before))

    @property
    def is_one(self) -> bool:
        """Whether every change costs the same."""
        return self.up is self.down and not self.moves

    @property
    def settled_seconds(self) -> float:
        """Time until everything processes with the new capacity, in the slower direction."""
        return max(self.up.settled_seconds, self.down.settled_seconds)


@dataclass(frozen=True)
class Serving:
    """Threads that process as much as the group does while tasks wait for their warm-ups on other instances."""

    parallelism: Mapping[str, int]
    next_seconds: float
    """Time until the probing rebalance, which moves the tasks that are warmed up."""
    seconds: float
    """Time until all tasks have moved."""


def serving_of(analysis: Analysis, deployment: Deployment, topology: Topology) -> Serving | None:
    """Return what serves while a probing rebalance is due; None: no task waits for one, or the tasks are unknown."""
    group, instances, run = deployment.group, deployment.instances, analysis.run
    active = [each.active_tasks for each in instances]
    known = [count for count in active if count is not None]
    if group is None or group.probing_rebalance_at is None or run is None or len(known) < len(active) or not sum(known):
        return None
    (name, now), tasks = next(iter(deployment.observed.items())), sum(known)
    max_tasks = max(math.ceil(count / max(1, each.threads)) for count, each in zip(known, instances, strict=True))
    serving = max(1, tasks // max_tasks)
    if topology.smallest_useful(name, now) <= serving:
        return None
    next_seconds = max(0.0, (group.probing_rebalance_at - analysis.observed_at).total_seconds())
    interval = max(next_seconds, (group.probing_rebalance_at - run.running_since).total_seconds())
    fair = math.ceil(tasks / max(1, len(instances)))
    waiting = sum(max(0, count - fair) for count in known)
    warm_ups = max(1, sum(each.standby_tasks or 0 for each in instances))
    rounds = max(1, math.ceil(waiting / warm_ups))
    return Serving({name: serving}, next_seconds, next_seconds + (rounds - 1) * interval)


def restarts_of(
    analysis: Analysis,
    deployment: Deployment | None,
    outcomes: Sequence[Outcome] = (),
    usual_seconds: float = USUAL_RESTART_SECONDS,
) -> Restarts:
    """Return the cost of a rescale by direction; arguments as of `restart_of`, by which both directions of a job cost the
    same."""
    if deployment is None or deployment.group is None:
        found = restart_of(analysis, deployment, outcomes, usual_seconds)
        if analysis.policy.spec.target.managers is None:
            return Restarts(found, found)
        # The job goes on with what it has until the TaskManagers are there, and only then restarts.
        return Restarts(replace(found, capacity_after_seconds=start_seconds(outcomes) + found.seconds), found)
    times, group = analysis.restart_times, deployment.group
    grown, shrunk = _measured(outcomes, 1), _measured(outcomes, -1, analysis.observed_at)
    restore = _restore_seconds(analysis, deployment)
    # A run ends when tasks get other owners, whichever direction.
    moved = times.seconds
    is_new_protocol = group.protocol == "streams"
    up_restore = restore if is_new_protocol else 0.0
    up = Restart(
        seconds=(usual_seconds if moved is None else moved) + up_restore,
        measured=moved is not None,
        capacity_after_seconds=(grown or 0.0) + (0.0 if is_new_protocol else times.warm_up_seconds or 0.0),
        restore_seconds=up_restore,
    )
    noticed = next((seconds for seconds in (shrunk, moved) if seconds is not None), usual_seconds)
    down = Restart(
        seconds=noticed + restore,
        # A rebalance in which instances started is a guess at one in which they end.
        measured=shrunk is not None,
        restore_seconds=restore,
    )
    return Restarts(up, down, moves=_is_cooperative(group))


def _measured(outcomes: Sequence[Outcome], direction: int, now: datetime | None = None) -> float | None:
    """Return the median time from request to running of the last rescales in one direction (1 up, -1 down); None: there is
    none. With `now` a time is worth less with its age: else one that was long by chance, as its machine was busy, would
    prevent the next rescale that measures it again."""
    found: dict[object, float] = {}
    for outcome in outcomes:
        change = sum(outcome.wanted.values()) - sum(outcome.before.values())
        if outcome.restart_seconds is not None and change * direction > 0:
            age = 0.0 if now is None else max(0.0, (now - outcome.at).total_seconds() - FRESH_SECONDS)
            found.setdefault(outcome.plan_id, outcome.restart_seconds * 0.5 ** (age / HALF_LIFE_SECONDS))
    return median(list(found.values())[:MAX_MEASURED]) if found else None


def _restore_seconds(analysis: Analysis, deployment: Deployment) -> float:
    """Return how long tasks restore their state on another instance; 0 with standby tasks, which have a copy of it, and
    where no restore was ever seen."""
    standbys = [each.standby_tasks for each in deployment.instances]
    has_copies = bool(standbys) and all(count is not None and count > 0 for count in standbys)
    return 0.0 if has_copies else analysis.restart_times.restore_seconds or 0.0


def _is_cooperative(group: Group) -> bool:
    """Return whether a rebalance stops only the tasks that move: Kafka Streams' assignor, the cooperative one of plain
    consumers, and the protocols in which the brokers assign."""
    return group.protocol in ("consumer", "streams") or group.assignor in ("stream", "cooperative-sticky")


def start_seconds(outcomes: Sequence[Outcome]) -> float:
    """Return the usual seconds from a request for TaskManagers until their slots are registered: the median of the last
    ones in `outcomes` (newest first), else `USUAL_START_SECONDS`."""
    found: dict[object, float] = {}
    for outcome in outcomes:
        change = None if outcome.action is None else outcome.action.managers
        if outcome.action is not None and change is not None and change.start_seconds is not None:
            found.setdefault(outcome.action.id, change.start_seconds)
    return median(list(found.values())[:MAX_MEASURED]) if found else USUAL_START_SECONDS


def growth_seconds(outcomes: Sequence[Outcome], topology: Topology) -> float | None:
    """Return the usual seconds of the growths in `outcomes`, from the request for more slots until they process records;
    None: there is none."""
    slots, grown = topology.slots, dict[object, float]()
    for outcome in outcomes:
        seconds, action = outcome.restart_seconds, outcome.action
        known = set(topology.names) <= set(outcome.before) & set(outcome.wanted)
        if seconds is not None and action is not None and known and slots(outcome.wanted) > slots(outcome.before):
            change = action.managers
            grown.setdefault(action.id, seconds + ((change.start_seconds if change is not None else None) or 0.0))
    return median(grown.values()) if grown else None


def seconds_until_capacity(
    outcomes: Sequence[Outcome], topology: Topology, restart: Restart, remembered: float | None = None
) -> float:
    """Return the seconds from a request for more slots until they process records: the usual time of the growths in
    `outcomes`, else of an earlier one that is `remembered`, else of any rescale."""
    found = growth_seconds(outcomes, topology)
    if found is None:
        found = remembered
    if found is not None:
        return max(restart.seconds, found)
    return max([restart.settled_seconds, *(outcomes[0].restarts_seconds if outcomes else [])])

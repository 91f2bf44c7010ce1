"""Cost of a rescale by its direction: of a job that restarts as a whole, and of a consumer group whose tasks move.

A group goes on while tasks move. Growing, the tasks that move stand still for one rebalance; where state is warmed up
first they move, and capacity counts, only then. Shrinking, the tasks of the instances that end stand still until the
group has noticed, and without standby tasks until their state is restored.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from weir_contracts import Analysis, Deployment, Group, Outcome

from .model import STAY, Restart
from .reading import USUAL_RESTART_SECONDS, restart_of

MAX_MEASURED = 5
"""Rescales of one direction whose median counts."""


@dataclass(frozen=True)
class Restarts:
    """Cost of growing and of shrinking."""

    up: Restart
    down: Restart
    moves: bool = False
    """Whether only the tasks that move are away: their share depends on both parallelisms."""

    def of(self, now: Mapping[str, int], wanted: Mapping[str, int]) -> Restart:
        """Return the cost of changing from one parallelism to another."""
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

    @property
    def free(self) -> "Restarts":
        """The same as if a change cost nothing."""
        up = replace(self.up, seconds=0.0, replay_seconds=0.0, capacity_after_seconds=0.0, restore_seconds=0.0)
        return Restarts(up, up)


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
        return Restarts(found, found)
    times, group = analysis.restart_times, deployment.group
    grown, shrunk = _measured(outcomes, 1), _measured(outcomes, -1)
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
    noticed = next((seconds for seconds in (shrunk, moved) if seconds is not None), None)
    down = Restart(
        seconds=(usual_seconds if noticed is None else noticed) + restore,
        measured=noticed is not None,
        restore_seconds=restore,
    )
    return Restarts(up, down, moves=_is_cooperative(group))


def _measured(outcomes: Sequence[Outcome], direction: int) -> float | None:
    """Return the median time from request to running of the last rescales in one direction (1 up, -1 down); None: there is
    none."""
    found: dict[object, float] = {}
    for outcome in outcomes:
        change = sum(outcome.wanted.values()) - sum(outcome.before.values())
        if outcome.restart_seconds is not None and change * direction > 0:
            found.setdefault(outcome.plan_id, outcome.restart_seconds)
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

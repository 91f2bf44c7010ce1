"""Assignment of tasks to instances, after the classic assignor of Kafka Streams 4.1 (HighAvailabilityTaskAssignor, KIP-441).

Stateful tasks are dealt out in turn. One whose new instance is not caught up stays with a caught-up instance and is
warmed up on the new one, a few tasks of the whole group at a time; a probing rebalance then looks again. If no instance
is caught up, the task moves at once and waits for its state. Stateless tasks stay where they are while that is balanced.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from .streams_spec import Task

Missing = Callable[[str, Task], float]
"""Changelog records that an instance would have to read before it can run a task."""


@dataclass(frozen=True)
class Assignment:
    """Owner of each task, and the copies of its state elsewhere."""

    active: Mapping[Task, str] = field(default_factory=dict)
    standbys: Mapping[Task, tuple[str, ...]] = field(default_factory=dict)
    warmups: Mapping[Task, str] = field(default_factory=dict)
    probes: bool = False
    """Whether a task waits for a warm-up, so that a probing rebalance follows."""


def assign(
    instances: Sequence[str],
    stateful: Sequence[Task],
    stateless: Sequence[Task],
    previous: Mapping[Task, str],
    missing: Missing,
    *,
    acceptable_lag: float,
    max_warmups: int,
    standbys: int,
) -> Assignment:
    """Return the assignment to these instances, which are in the order of their process ids."""
    if not instances:
        return Assignment()
    active: dict[Task, str] = {}
    warmups: dict[Task, str] = {}
    probes = False
    for i, task in enumerate(stateful):
        wanted = instances[i % len(instances)]
        caught_up = [each for each in instances if missing(each, task) <= acceptable_lag]
        if wanted in caught_up or not caught_up:
            active[task] = wanted
            continue
        probes = True
        owner = previous.get(task)
        active[task] = owner if owner in caught_up and owner is not None else _closest(caught_up, task, missing)
        if len(warmups) < max_warmups:
            warmups[task] = wanted
    copies = {task: _copies(i, active[task], instances, standbys) for i, task in enumerate(stateful)}
    _balance(instances, stateless, previous, active)
    return Assignment(active, {task: found for task, found in copies.items() if found}, warmups, probes)


def _closest(instances: Sequence[str], task: Task, missing: Missing) -> str:
    return min(instances, key=lambda each: missing(each, task))


def _copies(turn: int, owner: str, instances: Sequence[str], count: int) -> tuple[str, ...]:
    """Return the instances of a task's standbys, the next ones in turn."""
    others = [instances[(turn + k) % len(instances)] for k in range(1, len(instances) + 1)]
    return tuple([each for each in others if each != owner][:count])


def _balance(
    instances: Sequence[str], stateless: Sequence[Task], previous: Mapping[Task, str], active: dict[Task, str]
) -> None:
    """Add the stateless tasks: each stays with its owner while that one has no more than its part."""
    total = len(active) + len(stateless)
    loads = dict.fromkeys(instances, 0)
    for owner in active.values():
        loads[owner] += 1
    fair, spare = divmod(total, len(instances))
    left = []
    for task in stateless:
        owner = previous.get(task, "")
        if owner in loads and (loads[owner] < fair or (loads[owner] == fair and spare > 0)):
            spare -= loads[owner] == fair
            active[task] = owner
            loads[owner] += 1
        else:
            left.append(task)
    for task in left:
        owner = min(instances, key=lambda each: loads[each])
        active[task] = owner
        loads[owner] += 1

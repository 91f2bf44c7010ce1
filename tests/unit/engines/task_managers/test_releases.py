"""TaskManagers that go while something else happens: which ones go, and what comes before, as far as their driver decides."""

import json
from typing import Any

import httpx
import pytest

from tests.unit.engines.driver_suite import OPEN, Closed
from tests.unit.engines.task_managers.rig import URL, WANTED, WORKLOAD, ManagedRig, subject
from tests.unit.executor.builders import TOPOLOGY
from weir_engines.driver import Accepted, Refusal, TargetChanged, Unanswered
from weir_engines.flink.driver import FlinkDriver
from weir_engines.kubernetes.api import ApiFailed, Call
from weir_executor.core.managers import managers_needed


def busy_rig(kind: str = "Deployment", managers: int = 4, free: tuple[int, ...] = (1,)) -> ManagedRig:
    """Return a cluster whose TaskManagers have slots in use, but for some."""
    rig = ManagedRig(kind, managers)
    rig.job.observed = rig.job.requested = dict(WANTED)
    if kind != "endpoint":
        names = rig.kubernetes.names(WORKLOAD)
        rig.cluster.idle = frozenset(names[i] for i in free)
    return rig


def pods_left(rig: ManagedRig) -> set[str]:
    rig.kubernetes._control(rig.kind, WORKLOAD)
    return set(rig.kubernetes.names(WORKLOAD))


async def test_without_the_right_to_mark_pods_a_checkpoint_comes_first() -> None:
    rig = busy_rig()
    rig.kubernetes.denied = {"patch pods"}
    free = set(rig.cluster.idle)
    assert isinstance(await rig.driver.provide(rig.subject, rig.job_id, 3, range(1, 5), OPEN), Accepted)
    ended = {f"{WORKLOAD}-{i}" for i in range(4)} - pods_left(rig)
    assert ended == free or rig.job.checkpoints_triggered, f"{ended} had slots in use, and no checkpoint was completed"


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "endpoint"])
async def test_nothing_goes_while_the_cluster_cannot_be_read(kind: str) -> None:
    rig = busy_rig(kind)
    rig.cluster.away[URL] = "connection refused"
    answer = await rig.driver.provide(rig.subject, rig.job_id, 3, range(1, 5), OPEN)
    assert rig.writes() == [], "a TaskManager went, in use or not, without a checkpoint"
    assert isinstance(answer, Unanswered)


async def test_slots_taken_since_the_observation_are_kept() -> None:
    """Another job of a session cluster took one of two free TaskManagers; only the own job gets a checkpoint."""
    rig = busy_rig(free=(1,))
    answer = await rig.driver.provide(rig.subject, rig.job_id, 2, range(1, 5), OPEN)
    busy = {f"{WORKLOAD}-{i}" for i in (0, 2, 3)}
    assert busy <= pods_left(rig), f"gone: {busy - pods_left(rig)}"
    assert isinstance(answer, TargetChanged)


async def test_more_than_fifty_go_at_once() -> None:
    rig = ManagedRig("Deployment", 60)
    rig.subject = subject("Deployment", max=80)
    rig.job.observed = rig.job.requested = TOPOLOGY.uniform(10)
    names = rig.kubernetes.names(WORKLOAD)
    rig.cluster.idle = frozenset(names[:55])
    rig.cluster.running = lambda: [(name, name) for name in rig.kubernetes.names(WORKLOAD)]
    found = (await rig.driver.observe(rig.subject)).managers
    await rig.driver.provide(rig.subject, rig.job_id, 60 - found.releasable, range(1, 61), OPEN)
    gone = set(names[55:]) - pods_left(rig)
    assert not gone or rig.job.checkpoints_triggered, f"in use, without a checkpoint: {gone}"


async def test_fewer_may_be_requested_above_the_maximum() -> None:
    """A user ran ten, the policy allows eight: nine are nearer to it than ten."""
    rig = busy_rig(managers=10, free=(9,))
    assert isinstance(await rig.driver.provide(rig.subject, rig.job_id, 9, range(1, 11), OPEN), Accepted)
    assert rig.writes() == [9]


async def test_a_lost_partition_triggers_no_checkpoint() -> None:
    rig = busy_rig("StatefulSet")
    answer = await rig.driver.provide(rig.subject, rig.job_id, 3, range(1, 5), Closed(None))
    assert isinstance(answer, Unanswered) and rig.writes() == []
    assert rig.job.checkpoints_triggered == 0, "two readings that may take 10 s each come before it"


async def test_a_pause_during_the_checkpoint_holds_a_reactive_shrink() -> None:
    rig = ManagedRig("StatefulSet", 4, reactive=True, scheduler="reactive")

    class Paused:
        async def begin(self) -> Refusal | None:
            return Refusal("not-act", "the policy's mode is paused") if rig.job.checkpoints_triggered else None

        async def go_on(self) -> None:
            return None

    answer = await rig.driver.request(rig.subject, rig.job_id, TOPOLOGY.uniform(2), TOPOLOGY.uniform(8), Paused())
    assert rig.writes() == [] and isinstance(answer, Refusal)


async def test_a_pod_that_vanished_is_no_reason_to_leave_the_others_unmarked() -> None:
    rig = busy_rig(free=(0, 1))
    lower, first = rig.kubernetes.lower_cost, list[str]()

    async def lower_cost(found: Any, pod: str) -> None:
        if not first:
            first.append(pod)
            raise ApiFailed(Call("patch", "pods", "shop", pod), "not found", 404, "NotFound")
        await lower(found, pod)

    rig.kubernetes.lower_cost = lower_cost  # type: ignore[method-assign]
    await rig.driver.provide(rig.subject, rig.job_id, 2, range(1, 5), OPEN)
    assert rig.kubernetes.costs.get(WORKLOAD) or rig.job.checkpoints_triggered


async def test_a_pod_in_use_that_is_not_ready_would_go_first() -> None:
    """Kubernetes ranks pods that are not ready before their deletion cost: of a ReplicaSet they go whatever is marked."""
    rig = busy_rig(free=(1,))
    names = rig.kubernetes.names(WORKLOAD)
    rig.cluster.running = lambda: [(name, name) for name in rig.kubernetes.names(WORKLOAD)]
    rig.pods.waiting = {names[0]: "CrashLoopBackOff"}
    found = (await rig.driver.observe(rig.subject)).managers
    await rig.driver.provide(rig.subject, rig.job_id, 3, range(1, 5), OPEN)
    assert rig.job.checkpoints_triggered or rig.writes() == [], (
        f"{found.releasable} releasable, {rig.kubernetes.costs} marked"
    )


async def test_unused_slots_that_the_own_job_holds_are_no_other_jobs() -> None:
    """A session cluster, 30 s after a shrink from 8 to 2: the job holds 6 more slots for slot.idle.timeout; by Flink's shapes."""
    rig = ManagedRig("Deployment", 5)
    own, other = "a" * 32, "b" * 32
    ids = [f"10.0.0.{i}:6122-a{i}" for i in range(5)]

    def listed(id: str) -> dict[str, Any]:
        path = f"pekko.tcp://flink@{id.partition(':')[0]}:6122/user/rpc/taskmanager_0"
        return {"id": id, "path": path, "slotsNumber": 2, "freeSlots": 0}

    answers: dict[str, Any] = {
        "/taskmanagers": {"taskmanagers": [listed(each) for each in ids]},
        "/jobs/overview": {
            "jobs": [
                {"jid": own, "name": "orders", "state": "RUNNING"},
                {"jid": other, "name": "other", "state": "RUNNING"},
            ]
        },
        **{
            f"/taskmanagers/{each}": {"allocatedSlots": [{"jobId": other if each == ids[4] else own}] * 2}
            for each in ids
        },
    }
    transport = httpx.MockTransport(lambda request: httpx.Response(200, content=json.dumps(answers[request.url.path])))
    flink = FlinkDriver(rig.clock, transport=transport)
    rig.cluster.registered = flink.registered  # type: ignore[method-assign]
    snapshot = await rig.driver.observe(rig.subject)
    needed = managers_needed(snapshot, {"orders": 2, "enrich": 8, "sink": 1})
    await flink.close()
    assert needed == 5, "four for the eight slots that it still holds, one for the other job"

"""Policies as resources, in memory: the suite, and what a real API server would take minutes for."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import structlog
from aiohttp import web

from tests.unit.knowledge.builders import INTERVAL_SECONDS, NOON, analysis, observation, outcome, plan
from tests.unit.knowledge.direct_log import PARTITIONS, show_messages
from tests.unit.knowledge.memory_resources import MemoryResources
from tests.unit.knowledge.resources_suite import WRITER, House, ResourcesSuite, accepted, condition
from weir_contracts import Deployment, Problem, WorkloadStatus, parse_policy
from weir_contracts.base import Estimate
from weir_engines.kubernetes.api import Access, ApiFailed, KubernetesApi
from weir_knowledge.resource_events import PAUSE_SECONDS
from weir_knowledge.resource_policies import (
    COMPARE_SECONDS,
    DEFINITION,
    FIGURES_SECONDS,
    RETRY_SECONDS,
    STATUS_SECONDS,
    KubernetesResources,
)
from weir_runtime.access import Problem as Refused


class MemoryWorld:
    namespace = "shop"

    def __init__(self) -> None:
        self.resources = MemoryResources()

    async def apply(self, document: Mapping[str, Any]) -> None:
        self.resources.apply(document)

    async def annotate(self, name: str, annotations: Mapping[str, str | None]) -> None:
        self.resources.annotate(self.namespace, name, annotations)

    async def delete(self, name: str) -> None:
        self.resources.delete(self.namespace, name)

    async def get(self, name: str) -> dict[str, Any]:
        return self.resources.documents[self.namespace, name]


@pytest.fixture
def world() -> MemoryWorld:
    return MemoryWorld()


@pytest.fixture
def house(world: MemoryWorld) -> House:
    return House(world)


class TestInMemory(ResourcesSuite):
    pass


async def test_a_cluster_without_the_kind_is_a_sentence_with_a_remedy() -> None:
    """An API server answers a path of a kind that was never defined in plain text, as any web server does."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=404, text="404 page not found\n")

    app = web.Application()
    app.router.add_get("/apis/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    resources = KubernetesResources(KubernetesApi(Access(f"http://127.0.0.1:{runner.addresses[0][1]}")))
    with pytest.raises(ApiFailed) as failed:
        await resources.read("shop")
    await resources.close()
    await runner.cleanup()
    assert str(failed.value).startswith(f"the cluster has no kind ScalingPolicy (404): kubectl apply -f {DEFINITION}")
    assert (Path(__file__).parents[3] / DEFINITION).is_file()


async def test_unreadable_resources_delete_nothing(house: House, world: MemoryWorld) -> None:
    """Neither while they cannot be listed, nor by a process that starts then."""
    await world.apply(house.document())
    await house.until(lambda status, _: accepted(status) == "True")
    world.resources.failure = "may not list scalingpolicies in namespace shop (403)"
    house.policies = house.new_process()
    for _ in range(3):
        house.clock.advance(COMPARE_SECONDS)
        await house.policies.check()
    assert await house.changes.view.policy(house.app) is not None
    world.resources.failure = None
    await world.delete("orders")
    await house.policies.check()
    assert await house.changes.view.policy(house.app) is None


async def test_the_policy_of_a_namespace_that_is_gone_can_be_deleted(house: House, world: MemoryWorld) -> None:
    """It was deleted with Weir's rights in it while knowledge was stopped: no resource is left that could be deleted. An
    API server that does not answer is no such case."""
    await world.apply(house.document(mode="act"))
    await house.until(lambda status, _: accepted(status) == "True")
    house.policies = house.new_process()
    world.resources.failure = "no answer within 5 s"
    with pytest.raises(Refused, match="belongs to the Kubernetes resource"):
        await house.changes.delete(house.app, WRITER, None)
    world.resources.failure, world.resources.denied = "may not list scalingpolicies in namespace shop (403)", True
    await house.policies.check()
    assert await house.changes.view.policy(house.app) is not None
    await house.changes.delete(house.app, WRITER, None)
    assert await house.changes.view.policy(house.app) is None


async def test_only_the_replica_that_decides_writes(house: House, world: MemoryWorld) -> None:
    """One that loses the lease forgets what it knew: another one may have stored more since."""
    await world.apply(house.document())
    house.decides = False
    await house.policies.check()
    assert (await house.changes.view.policy(house.app), world.resources.writes) == (None, 0)
    house.decides = True
    await house.until(lambda status, _: accepted(status) == "True")
    house.decides = False
    await house.policies.check()
    await world.delete("orders")
    house.decides = True
    await house.policies.check()
    assert await house.changes.view.policy(house.app) is None


async def test_what_the_store_lost_is_stored_again(house: House, world: MemoryWorld) -> None:
    """Redis may lose its last second: within a minute."""
    await world.apply(house.document())
    await house.until(lambda status, _: accepted(status) == "True")
    await house.store.set_policy(house.app, None, 1, PARTITIONS)
    house.clock.advance(COMPARE_SECONDS)
    await house.policies.check()
    assert await house.changes.view.policy(house.app) is not None


async def test_a_refusal_that_may_pass_is_tried_again(house: House, world: MemoryWorld) -> None:
    """The planner service is away: after half a minute, not at every check."""
    house.catalogue.away = True
    await world.apply(house.document(planner={"name": "hpa"}))
    status = await house.until(lambda status, _: accepted(status) == "False")
    assert condition(status)["reason"] == "Unavailable"
    asked = house.catalogue.disconnected
    for _ in range(10):
        house.clock.advance(1.0)
        await house.policies.check()
    assert house.catalogue.disconnected == asked
    house.clock.advance(RETRY_SECONDS)
    await house.policies.check()
    assert house.catalogue.disconnected == asked + 1


def _cycle(house: House) -> float:
    """Return the cycle of now."""
    return (house.clock.now() - NOON).total_seconds() / INTERVAL_SECONDS


async def _hear(
    house: House,
    cycle: float,
    *,
    lag_seconds: float | None,
    at_least_seconds: float | None = None,
    subtasks: int = 3,
) -> None:
    """Store a cycle of messages as `follow` does, and let the clock be at its time."""
    estimate = Estimate(value=lag_seconds, lower_bound=at_least_seconds, basis="measured", confidence=1.0)
    lag = {} if estimate.proven is None else {"lag_seconds": estimate}
    decided = plan(cycle, subtasks + 1, current={"work": subtasks})
    messages = (observation(cycle), analysis(cycle, **lag), decided)
    await show_messages(house.store, *messages)


async def test_a_status_shows_lag_decision_and_objective(house: House, world: MemoryWorld) -> None:
    """A figure that becomes unknown disappears, a lower bound above the objective misses it; figures alone are written
    twice a minute at most."""
    await world.apply(house.document(mode="act"))
    await house.until(lambda status, _: accepted(status) == "True")
    await _hear(house, 1, lag_seconds=12.34)
    status = await house.until(lambda status, _: "lagSeconds" in status)
    assert (status["lagSeconds"], status["decision"]["code"], status["decision"]["kind"]) == (
        12.3,
        "capacity-short",
        "scale",
    )
    assert condition(status, "ObjectiveMet")["message"] == "lag is 12.3 s, maxLag is 30s"
    writes = world.resources.writes
    for cycle in range(2, 7):
        await _hear(house, cycle, lag_seconds=12.0 + cycle)
        house.clock.advance(STATUS_SECONDS)
        await house.policies.check()
    assert world.resources.writes <= writes + 1
    house.clock.advance(FIGURES_SECONDS)
    await house.policies.check()
    assert (await world.get("orders"))["status"]["lagSeconds"] == 18.0
    await _hear(house, _cycle(house), lag_seconds=31.0)
    await house.until(lambda status, _: condition(status, "ObjectiveMet").get("status") == "False")
    await _hear(house, _cycle(house), lag_seconds=None)
    status = await house.until(lambda status, _: condition(status, "ObjectiveMet").get("status") == "Unknown")
    assert "lagSeconds" not in status
    await _hear(house, _cycle(house), lag_seconds=None, at_least_seconds=93.0)
    status = await house.until(lambda status, _: condition(status, "ObjectiveMet").get("status") == "False")
    assert "lagSeconds" not in status
    house.clock.advance(3600)
    status = await house.until(lambda status, _: condition(status, "Observed").get("status") == "False")
    assert condition(status, "Observed")["message"] == "no message lately from: monitor, analyzer"
    assert condition(status, "Planned")["reason"] == "Silent"
    assert condition(status, "ObjectiveMet")["status"] == "Unknown"


async def _store(house: House, *messages: Any) -> None:
    """Store messages as the newest ones."""
    await show_messages(house.store, *messages)


async def test_a_refusal_of_the_executor_is_in_the_conditions_and_an_event(house: House, world: MemoryWorld) -> None:
    """A right that lacks, in each plan's refusal: one event, whose series counts it once a minute. An action that succeeds
    ends it."""
    await world.apply(house.document(mode="act"))
    await house.until(lambda status, _: accepted(status) == "True")
    await _hear(house, 1, lag_seconds=1.0)
    status = await house.until(lambda status, _: condition(status, "Ready").get("status") == "True")
    assert condition(status, "Acting")["status"] == "True"
    sentence = "may not update deployments/scale of orders in namespace shop (403)"
    for _ in range(3):
        cycle = _cycle(house)
        await _hear(house, cycle, lag_seconds=99.0)
        await _store(house, outcome(plan(cycle, 4), "refused", code="forbidden", sentence=sentence))
        status = await house.until(lambda status, _: condition(status, "Acting").get("status") == "False")
    assert (condition(status, "Acting")["reason"], condition(status, "Acting")["message"]) == (
        "Forbidden",
        sentence,
    )
    assert (condition(status, "Ready")["status"], condition(status, "Ready")["message"]) == ("False", sentence)
    (event,) = world.resources.events.values()
    assert (event.is_warning, event.reason, event.note) == (True, "Refused", f"forbidden: {sentence}")
    assert world.resources.reasons() == [("Refused", 1)]
    house.clock.advance(PAUSE_SECONDS)
    cycle = _cycle(house)
    await _hear(house, cycle, lag_seconds=99.0)
    await _store(house, outcome(plan(cycle, 4), "refused", code="forbidden", sentence=sentence))
    await house.policies.check()
    assert world.resources.reasons() == [("Refused", 2)]
    await _store(house, outcome(plan(_cycle(house) + 1, 4), "verified"))
    await house.until(lambda status, _: condition(status, "Degraded").get("status") == "False")
    assert world.resources.reasons() == [("Refused", 2), ("Verified", 1)]


async def _decide(house: House, code: str, **changes: Any) -> None:
    """Store a cycle whose plan has this code, and check."""
    house.clock.advance(STATUS_SECONDS)
    cycle = _cycle(house)
    await _store(house, observation(cycle), analysis(cycle), plan(cycle, code=code, **changes))
    await house.policies.check()


async def test_a_changed_reason_is_one_event(house: House, world: MemoryWorld) -> None:
    """A hold once, however long it lasts and whatever its sentence; another one after a minute at the earliest; one that
    comes back counts in its series. A process that starts learns from the status what was recorded."""
    await world.apply(house.document())
    await house.until(lambda status, _: accepted(status) == "True")
    for number in range(4):
        await _decide(house, "objective-held", sentence=f"lag is {number} s")
    assert world.resources.reasons() == [("ObjectiveHeld", 1)]
    await _decide(house, "stabilization")
    await _decide(house, "cooldown")
    assert world.resources.reasons() == [("ObjectiveHeld", 1)]
    house.clock.advance(PAUSE_SECONDS)
    await _decide(house, "cooldown")
    assert world.resources.reasons() == [("ObjectiveHeld", 1), ("Cooldown", 1)]
    house.clock.advance(PAUSE_SECONDS)
    await _decide(house, "objective-held")
    assert world.resources.reasons() == [("ObjectiveHeld", 2), ("Cooldown", 1)]
    house.policies = house.new_process()
    await _decide(house, "objective-held")
    assert world.resources.reasons() == [("ObjectiveHeld", 2), ("Cooldown", 1)]
    await _decide(house, "metric-missing")
    event = list(world.resources.events.values())[-1]
    assert (event.reason, event.action, event.is_warning) == ("MetricMissing", "Hold", True)


async def test_a_change_that_is_made_is_the_event_of_its_action_alone(house: House, world: MemoryWorld) -> None:
    """In mode act: all its transitions since the last look that the target knows of, and not the plan. Advice is an event."""
    await world.apply(house.document(mode="act"))
    await house.until(lambda status, _: accepted(status) == "True")
    cycle = _cycle(house)
    made = plan(cycle, 4)
    steps = [
        outcome(made, phase, seconds=n) for n, phase in enumerate(("intended", "applying", "verifying", "verified"))
    ]
    await _store(house, observation(cycle), analysis(cycle), made, *steps)
    house.clock.advance(STATUS_SECONDS)
    await house.policies.check()
    assert world.resources.reasons() == [("Verifying", 1), ("Verified", 1)]
    assert {each.action for each in world.resources.events.values()} == {"Scale"}
    house.policies = house.new_process()
    await house.policies.check()
    assert world.resources.reasons() == [("Verifying", 1), ("Verified", 1)]
    house.clock.advance(STATUS_SECONDS)
    await _store(house, plan(_cycle(house), 6, code="forecast-peak", mode="advise"))
    await house.policies.check()
    assert [(each.action, each.reason) for each in world.resources.events.values()][-1] == ("Advise", "ForecastPeak")


@pytest.mark.parametrize(("status", "is_lost"), [(0, False), (503, False), (429, False), (403, True), (404, True)])
async def test_an_event_that_is_not_taken_stops_nothing(
    house: House, world: MemoryWorld, status: int, is_lost: bool
) -> None:
    """Policies and their status go on. It is written later if the API server was away, and logged once if it refuses."""
    world.resources.events_status = status
    await world.apply(house.document(mode="act"))
    with structlog.testing.capture_logs() as logs:
        await house.until(lambda status, _: accepted(status) == "True")
        await _decide(house, "objective-held")
        shown = await house.until(lambda status, _: "decision" in status)
        house.clock.advance(PAUSE_SECONDS)
        await _decide(house, "cooldown")
    assert shown["decision"]["code"] == "objective-held"
    assert len([each for each in logs if each["event"] == "event-not-recorded"]) == is_lost
    world.resources.events_status = None
    house.clock.advance(STATUS_SECONDS)
    await house.policies.check()
    assert world.resources.reasons() == ([] if is_lost else [("Cooldown", 1)])


async def test_a_plan_that_was_merely_late_is_no_obstacle(house: House, world: MemoryWorld) -> None:
    """Its refusal says nothing of the target."""
    await world.apply(house.document(mode="act"))
    await _hear(house, 1, lag_seconds=1.0)
    await _store(house, outcome(plan(1, 4), "refused", code="expired", sentence="the plan has expired"))
    status = await house.until(lambda status, _: condition(status, "Acting").get("status") == "True")
    assert condition(status, "Ready")["status"] == "True"


def _scaled_to_zero() -> Deployment:
    workload = WorkloadStatus(kind="Deployment", name="work", namespace="shop", uid="u", wanted=0, current=0, ready=0)
    return Deployment(
        engine="service",
        health="ended",
        job_id="u",
        job_name="work",
        graph_hash="0",
        state="ScaledToZero",
        observed={"work": 1},
        replicas=0,
        workloads=[workload],
    )


@pytest.mark.parametrize(
    ("seen", "reason", "word", "subtasks"),
    [
        ({"status": "not_found", "message": "Deployment orders does not exist in namespace shop"}, "NotFound", "does not exist", None),
        ({"status": "not_found", "message": "the kind Job of batch/v1 has no scale subresource"}, "NotFound", "kind Job", None),
        (
            {"status": "not_running", "message": "work: spec.replicas is 0", "deployment": _scaled_to_zero()},
            "Ended",
            "spec.replicas is 0",
            0,
        ),
        (
            {"problems": [Problem(where="target.kubernetes", what="StatefulSet tm does not exist in namespace shop")]},
            "NotFound",
            "StatefulSet tm does not exist",
            None,
        ),
    ],
)  # fmt: skip
async def test_a_target_that_cannot_be_scaled_is_in_the_conditions(  # noqa: PLR0917
    house: House, world: MemoryWorld, seen: dict[str, Any], reason: str, word: str, subtasks: int | None
) -> None:
    """Before any plan is refused; 0 replicas are 0 subtasks."""
    await world.apply(house.document())
    await house.until(lambda status, _: accepted(status) == "True")
    await _hear(house, 1, lag_seconds=1.0)
    await _store(house, observation(2, **seen))
    status = await house.until(lambda status, _: condition(status, "Degraded").get("status") == "True")
    assert condition(status, "Degraded")["reason"] == reason
    assert word in condition(status, "Degraded")["message"]
    assert condition(status, "Acting")["reason"] == "Advising"
    assert condition(status, "Ready")["status"] == "False"
    house.clock.advance(FIGURES_SECONDS)
    await house.policies.check()
    assert (await world.get("orders"))["status"].get("parallelism", {}).get("running") == subtasks


async def test_a_document_that_is_refused_is_an_event(house: House, world: MemoryWorld) -> None:
    """`kubectl describe` shows it below the conditions."""
    await world.apply(house.document(objective={"maxLag": "30s", "utilization": 0.7}))
    await house.until(lambda status, _: accepted(status) == "False")
    (event,) = world.resources.events.values()
    assert (event.reason, event.action, event.is_warning) == ("NotAccepted", "Accept", True)
    assert "give exactly one of" in event.note
    house.clock.advance(RETRY_SECONDS)
    await house.policies.check()
    assert world.resources.reasons() == [("NotAccepted", 1)]


async def test_a_resource_that_is_deleted_while_its_status_is_written_is_no_failure(
    house: House, world: MemoryWorld
) -> None:
    """The API server answers 404, and the next check deletes the policy."""
    await world.apply(house.document())
    read = world.resources.read

    async def deleting(namespace: str) -> Any:
        found = await read(namespace)
        if found:
            await world.delete("orders")
        return found

    world.resources.read = deleting  # type: ignore[method-assign]
    await house.policies.check()
    assert await house.changes.view.policy(house.app) is not None
    await house.policies.check()
    assert await house.changes.view.policy(house.app) is None


async def test_a_status_that_cannot_be_written_delays_no_other_policy(house: House, world: MemoryWorld) -> None:
    """Each has its own; the reason is logged once."""
    world.resources.unwritable = {"orders"}
    job = {"flink": {"url": "http://127.0.0.1:8082", "job": "other"}}
    await world.apply(house.document())
    await world.apply(house.document("other", application=job))
    with structlog.testing.capture_logs() as logs:
        await house.until(lambda status, _: accepted(status) == "True", "other")
        await house.until(lambda _, policy: policy is not None)
        for _ in range(10):
            house.clock.advance(1)
            await house.policies.check()
    reasons = [each["reason"] for each in logs if each["event"] == "kubernetes-failed"]
    assert reasons == ["cannot patch scalingpolicies/status of orders in namespace shop (422)"]


async def test_a_generated_name_is_no_unknown_field(house: House, world: MemoryWorld) -> None:
    """Fields that the API server adds are left out."""
    document = house.document()
    document["metadata"] |= {"generateName": "ord", "finalizers": ["example.org/x"], "selfLink": "/x"}
    await world.apply(document)
    await house.until(lambda status, _: accepted(status) == "True")


async def test_without_its_namespace_the_policy_of_a_resource_belongs_to_the_rest_api(
    house: House, world: MemoryWorld
) -> None:
    """The list of namespaces no longer has it: the policy stays, and can be changed again."""
    await world.apply(house.document())
    await house.until(lambda status, _: accepted(status) == "True")
    house.changes.resource_namespaces = []
    await house.policies.check()
    written, result = await house.changes.put(parse_policy(house.document(bounds={"max": 5})), WRITER, None)
    assert (result, written.metadata.owner, written.spec.bounds.max) == ("replaced", None, 5)
    house.changes.resource_namespaces = ["shop"]
    status = await house.until(lambda status, _: accepted(status) == "False")
    assert condition(status)["reason"] == "Conflict"

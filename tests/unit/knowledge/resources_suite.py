"""Suite of policies as resources: resources in memory, and those of a real API server."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.mount import Mount
from tests.unit.knowledge.builders import NOON, document
from tests.unit.knowledge.direct_log import DirectLog, changes_of, complete, show
from tests.unit.knowledge.memory_store import MemoryStore
from tests.unit.knowledge.test_api import Catalogue
from weir_contracts import ScalingPolicy, parse_policy
from weir_contracts.resource import PAUSED, RELEASE
from weir_knowledge.resource_policies import (
    COMPARE_SECONDS,
    STATUS_SECONDS,
    ResourcePolicies,
    Resources,
    resource_exists,
)
from weir_knowledge.settings import KnowledgeSettings
from weir_runtime.access import Caller, Problem
from weir_runtime.clock import FakeClock

DEADLINE_SECONDS = 30.0
WRITER = Caller("ada", frozenset({"write"}))


class World(Protocol):
    """A cluster with ScalingPolicy resources."""

    namespace: str
    resources: Resources

    async def apply(self, document: Mapping[str, Any]) -> None: ...

    async def annotate(self, name: str, annotations: Mapping[str, str | None]) -> None: ...

    async def delete(self, name: str) -> None: ...

    async def get(self, name: str) -> dict[str, Any]: ...


class House:
    """The knowledge service's part on a store in memory, for the resources of one namespace."""

    def __init__(self, world: World) -> None:
        self.world, self.clock, self.store, self.catalogue = world, FakeClock(NOON), MemoryStore(), Catalogue()
        self.changes = changes_of(
            self.store,
            self.clock,
            self.catalogue,
            resource_namespaces=[world.namespace],
            resource_exists=lambda application: resource_exists(self.world.resources, application),
        )
        assert isinstance(self.changes.log, DirectLog)
        self.log, self.decides = self.changes.log, True
        self.app = f"{world.namespace}/orders"
        self.policies = self.new_process()

    def new_process(self) -> ResourcePolicies:
        """Return what a process has that was just started."""
        return ResourcePolicies(self.world.resources, self.changes, lambda: self.decides)

    async def restart_on_an_emptied_store(self) -> None:
        """Start a process whose store has what the log of policies has, and nothing else."""
        policies = await self.changes.view.policies()
        self.store.empty()
        complete(self.store)
        await show(self.store, *policies)
        self.policies = self.new_process()

    def document(self, name: str = "orders", **spec: Any) -> dict[str, Any]:
        """Return a policy as its user writes it."""
        return document(f"{self.world.namespace}/{name}", **spec)

    async def until(
        self, holds: Callable[[dict[str, Any], ScalingPolicy | None], bool], name: str = "orders"
    ) -> dict[str, Any]:
        """Check until the status of a resource and the stored policy are as wanted; return the status."""
        status: dict[str, Any] = {}
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                while True:
                    self.clock.advance(STATUS_SECONDS)
                    await self.policies.check()
                    status = (await self.world.get(name)).get("status", {})
                    if holds(status, await self.changes.view.policy(f"{self.world.namespace}/{name}")):
                        return status
                    await asyncio.sleep(0.05)
        except TimeoutError:
            pytest.fail(f"not within {DEADLINE_SECONDS:g} s: {status}")


def condition(status: Mapping[str, Any], type_: str = "Accepted") -> dict[str, Any]:
    """Return a condition of a status; an empty one if it has none."""
    return next((each for each in status.get("conditions", []) if each["type"] == type_), {})


def accepted(status: Mapping[str, Any]) -> str | None:
    return condition(status).get("status")


class ResourcesSuite:
    """Fixture `house`: the part of the knowledge service with a dedicated world."""

    async def test_a_resource_is_a_policy_until_it_is_deleted(self, house: House) -> None:
        """Created, changed, deleted: what it says is stored, each time as a new version."""
        await house.world.apply(house.document(mode="act"))
        await house.until(lambda status, _: accepted(status) == "True")
        first = await house.changes.existing(house.app)
        assert (first.metadata.owner, first.metadata.updated_by, first.spec.mode) == ("resource", "kubernetes", "act")

        await house.world.apply(house.document(mode="act", bounds={"max": 7}))
        status = await house.until(lambda status, _: status["observedGeneration"] == 2)
        second = await house.changes.existing(house.app)
        assert second.spec.bounds.max == 7
        assert (second.metadata.version or 0) > (first.metadata.version or 0)
        assert condition(status)["message"] == f"the policy is in force as version {second.metadata.version}"
        assert condition(status)["observedGeneration"] == 2

        await house.world.delete("orders")
        async with asyncio.timeout(DEADLINE_SECONDS):
            while await house.changes.view.policy(house.app) is not None:
                await house.policies.check()
                await asyncio.sleep(0.05)
        assert [each.kind for each in house.log.accepted] == ["put", "put", "delete"]

    async def test_what_no_schema_refuses_is_in_the_status(self, house: House) -> None:
        """A time zone that does not exist: the sentence of the REST API, and the generation that stays in force."""
        await house.world.apply(house.document())
        since = condition(await house.until(lambda status, _: accepted(status) == "True"))["lastTransitionTime"]
        odd = {"from": "08:00", "to": "09:00", "timeZone": "Nowhere"}
        await house.world.apply(house.document(behavior={"excludedPeriods": [odd]}))
        status = await house.until(lambda status, _: accepted(status) == "False")
        assert condition(status)["reason"] == "Invalid"
        assert condition(status)["message"] == (
            "spec.behavior.excludedPeriods.0.timeZone: there is no time zone 'Nowhere'; use a name such as Europe/Berlin or UTC. "
            "Generation 1 of this resource stays in force"
        )
        assert condition(status)["lastTransitionTime"] > since
        policy = await house.changes.existing(house.app)
        assert policy.spec.objective.utilization is None
        await house.world.apply(house.document(objective={"utilization": 0.7}))
        await house.until(lambda _, policy: policy is not None and policy.spec.objective.utilization == 0.7)

    async def test_the_rest_api_may_pause_it_and_nothing_else(self, house: House) -> None:
        """A change or deletion there would not last, so it is refused; a pause lasts until the resource changes."""
        await house.world.apply(house.document(mode="act"))
        await house.until(lambda status, _: accepted(status) == "True")
        for change in (
            house.changes.put(parse_policy(house.document(mode="act")), WRITER, None),
            house.changes.delete(house.app, WRITER, None),
        ):
            with pytest.raises(
                Problem, match=f"kubectl -n {house.world.namespace} edit scalingpolicy orders"
            ) as refused:
                await change
            assert refused.value.status == 409
        await house.changes.pause(house.app, WRITER)
        status = await house.until(lambda status, _: status.get("mode") == "paused")
        assert accepted(status) == "True"
        assert (await house.changes.resume(house.app, WRITER)).spec.mode == "act"
        await house.changes.pause(house.app, WRITER)
        await house.world.apply(house.document(mode="act", interval="10s"))
        await house.until(lambda status, policy: status.get("mode") == "act" and policy is not None)

    async def test_its_annotation_pauses_it(self, house: House) -> None:
        """`kubectl annotate` pauses, and removing the annotation resumes in the mode of the document; `weir resume` does
        not, and says why."""
        await house.world.apply(house.document(mode="act"))
        await house.until(lambda status, _: status.get("mode") == "act")
        await house.world.annotate("orders", {PAUSED: "maintenance until 18:00"})
        status = await house.until(lambda status, _: status.get("mode") == "paused")
        assert condition(status, "Acting")["message"].endswith(": maintenance until 18:00")
        assert (condition(status)["status"], condition(status, "Acting")["reason"]) == ("True", "Paused")
        with pytest.raises(Problem, match=f"annotate scalingpolicy orders {PAUSED}-") as refused:
            await house.changes.resume(house.app, WRITER)
        assert refused.value.status == 409
        await house.world.annotate("orders", {PAUSED: None})
        await house.until(lambda status, _: status.get("mode") == "act")
        assert PAUSED not in (await house.changes.existing(house.app)).metadata.annotations
        await house.world.annotate("orders", {PAUSED: "false"})
        await house.until(lambda status, _: status.get("mode") == "act")

    async def test_an_annotated_document_never_acts(self, house: House) -> None:
        """From its first version on, and while it changes; a document that is paused itself resumes by its own mode."""
        annotated = house.document(mode="act")
        annotated["metadata"]["annotations"] = {PAUSED: "true"}
        await house.world.apply(annotated)
        await house.until(lambda status, _: accepted(status) == "True")
        annotated["spec"]["bounds"] = {"max": 7}
        await house.world.apply(annotated)
        await house.until(lambda status, _: status["observedGeneration"] == 2)
        written = [each.policy for each in house.log.accepted if each.policy is not None]
        assert [(each.spec.mode, each.metadata.mode_before_pause) for each in written] == [("paused", "act")] * 2
        annotated["spec"]["mode"] = "paused"
        await house.world.apply(annotated)
        await house.until(lambda status, _: status["observedGeneration"] == 3)
        await house.world.annotate("orders", {PAUSED: None})
        house.clock.advance(COMPARE_SECONDS)
        await house.policies.check()
        assert (await house.changes.existing(house.app)).spec.mode == "paused"

    async def test_an_annotation_ends_no_pause_of_the_rest_api(self, house: House) -> None:
        """Whichever came first: an operator's pause lasts until it is resumed there."""
        await house.world.apply(house.document(mode="act"))
        await house.until(lambda status, _: accepted(status) == "True")
        await house.changes.pause(house.app, WRITER, "an incident")
        await house.world.annotate("orders", {PAUSED: "true"})
        await house.policies.check()
        await house.world.annotate("orders", {PAUSED: None})
        await house.until(lambda status, _: condition(status, "Acting")["message"].endswith(": an incident"))
        assert (await house.changes.resume(house.app, WRITER)).spec.mode == "act"
        await house.world.annotate("orders", {PAUSED: "true"})
        await house.until(lambda status, _: status.get("mode") == "paused")
        await house.changes.pause(house.app, WRITER, "another one")
        await house.world.annotate("orders", {PAUSED: None})
        await house.until(lambda status, _: condition(status, "Acting")["message"].endswith(": another one"))
        assert (await house.changes.resume(house.app, WRITER)).spec.mode == "act"

    async def test_the_annotation_counts_while_a_newer_document_is_refused(self, house: House) -> None:
        """The generation in force is paused and resumed."""
        await house.world.apply(house.document(mode="act"))
        await house.until(lambda status, _: accepted(status) == "True")
        odd = {"from": "08:00", "to": "09:00", "timeZone": "Nowhere"}
        await house.world.apply(house.document(mode="act", behavior={"excludedPeriods": [odd]}))
        await house.until(lambda status, _: accepted(status) == "False")
        for value, mode in (("true", "paused"), (None, "act")):
            await house.world.annotate("orders", {PAUSED: value})
            status = await house.until(lambda status, _, mode=mode: status.get("mode") == mode)  # type: ignore[misc]
            assert accepted(status) == "False"

    async def test_a_pause_outlives_the_store(self, house: House) -> None:
        """An emptied store is restored from the log: the resource is paused still, and resumes to act as before."""
        await house.world.apply(house.document(mode="act"))
        await house.until(lambda status, _: accepted(status) == "True")
        await house.changes.pause(house.app, WRITER)
        await house.restart_on_an_emptied_store()
        await house.policies.check()
        assert (await house.changes.existing(house.app)).spec.mode == "paused"
        assert (await house.changes.resume(house.app, WRITER)).spec.mode == "act"

    async def test_a_namespace_is_added_without_a_restart(self, house: House, tmp_path: Path) -> None:
        """Its policies count once the mounted list has it. Taken out of the list again, they stay and are the REST API's."""
        lists = Mount(tmp_path / "lists", {"policies": ""})
        settings = KnowledgeSettings(kubernetes_namespaces_file=lists / "policies")
        house.changes.resource_namespaces = settings.namespaces
        await house.world.apply(house.document(mode="act"))
        await house.policies.check()
        assert await house.changes.view.policy(house.app) is None
        lists.replace({"policies": f"# of a team\n{house.world.namespace}\n"})
        assert [files.renew() for files in settings.followed_files] == [True]
        await house.until(lambda status, _: accepted(status) == "True")
        lists.replace({"policies": ""})
        assert [files.renew() for files in settings.followed_files] == [True]
        house.clock.advance(COMPARE_SECONDS)
        await house.policies.check()
        assert (await house.changes.existing(house.app)).spec.mode == "act"
        await house.changes.delete(house.app, WRITER, None)

    async def test_a_policy_of_the_rest_api_is_taken_over_only_if_its_owner_releases_it(self, house: House) -> None:
        """As a new version of the same policy: the application does not end. The resource's own annotation is no release."""
        written, _ = await house.changes.put(parse_policy(house.document(mode="act")), WRITER, None)
        taking = house.document(mode="act", bounds={"max": 9})
        taking["metadata"]["annotations"] = {RELEASE: "true", "weir.dev/adopt": "true"}
        await house.world.apply(taking)
        status = await house.until(lambda status, _: accepted(status) == "False")
        assert condition(status)["reason"] == "Conflict"
        assert 'weir.dev/release: "true"' in condition(status)["message"]
        assert (await house.changes.existing(house.app)).metadata.version == written.metadata.version
        released = house.document(mode="act")
        released["metadata"]["annotations"] = {RELEASE: "true"}
        await house.changes.put(parse_policy(released), WRITER, None)
        await house.until(lambda status, _: accepted(status) == "True")
        policy = await house.changes.existing(house.app)
        assert (policy.metadata.owner, policy.spec.bounds.max) == ("resource", 9)
        assert [each.kind for each in house.log.accepted] == ["put", "put", "put"]

    async def test_two_resources_cannot_scale_one_job(self, house: House) -> None:
        """The second is refused until the first is deleted."""
        await house.world.apply(house.document())
        await house.until(lambda status, _: accepted(status) == "True")
        twin = house.document("twin", application=house.document()["spec"]["application"])
        await house.world.apply(twin)
        status = await house.until(lambda status, _: accepted(status) == "False", "twin")
        assert condition(status)["message"].startswith(f"{house.world.namespace}/twin has the target of {house.app}")
        await house.world.delete("orders")
        await house.until(lambda status, _: accepted(status) == "True", "twin")

    async def test_a_process_that_starts_finds_what_was_deleted_meanwhile(self, house: House) -> None:
        """And writes nothing again that is as it should be."""
        await house.world.apply(house.document())
        await house.world.apply(
            house.document("kept", application={"flink": {"url": "http://127.0.0.1:8082", "job": "kept"}})
        )
        for name in ("orders", "kept"):
            await house.until(lambda status, _: accepted(status) == "True", name)
        kept = await house.changes.existing(f"{house.world.namespace}/kept")
        await house.world.delete("orders")
        house.policies = house.new_process()
        await house.until(lambda status, _: accepted(status) == "True", "kept")
        async with asyncio.timeout(DEADLINE_SECONDS):
            while await house.changes.view.policy(house.app) is not None:
                await house.policies.check()
                await asyncio.sleep(0.05)
        assert await house.changes.existing(f"{house.world.namespace}/kept") == kept

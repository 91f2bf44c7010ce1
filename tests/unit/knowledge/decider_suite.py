"""The suite of the decider: on the memory bus and on a real Kafka it keeps the same promises."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pytest

from tests.unit.knowledge.builders import APP, action, plan, policy
from weir_contracts import ActionState, Answer, Change, ChangeRecord, ScalingPolicy
from weir_contracts.topics import ACTIONS, CHANGES, POLICIES
from weir_knowledge.change_log import ChangeLog
from weir_knowledge.decider import Decider
from weir_runtime.access import Problem
from weir_runtime.bus import VERSION_HEADER, Bus, Record, version_of
from weir_runtime.clock import SystemClock
from weir_runtime.loop import Stop
from weir_runtime.messages import decode
from weir_runtime.reading import DeadLetters, readable

OTHER, THIRD = "shop/payments", "shop/returns"
WAIT_SECONDS = 30.0


def change(kind: str, application: str = APP, **given: Any) -> Change:
    """A request of a user of the REST API."""
    now = SystemClock().now()
    return Change(id=uuid4(), kind=kind, application=application, caller="ann", at=now, **given)  # type: ignore[arg-type]


def target(job: str, namespace: str = "shop") -> dict[str, Any]:
    """What a policy scales."""
    return {"flink": {"url": f"http://{namespace}:8081", "job": job}}


def put(application: str = APP, job: str = "orders", **given: Any) -> Change:
    scaled = target(job, application.partition("/")[0])
    return change("put", application, policy=policy(application, application=scaled), **given)


@dataclass(frozen=True)
class Names:
    """Applications of one test: a broker keeps those of the tests before."""

    namespace: str

    @property
    def app(self) -> str:
        return f"{self.namespace}/orders"

    @property
    def other(self) -> str:
        return f"{self.namespace}/payments"

    @property
    def third(self) -> str:
        return f"{self.namespace}/returns"


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():  # noqa: ASYNC110 - no event signals it
            await asyncio.sleep(0.005)


async def shown(_topic: str, _application: str, _version: int) -> bool:
    """The view has everything at once."""
    return True


@dataclass
class Replica:
    """A replica of knowledge, without its view."""

    decider: Decider
    log: ChangeLog
    stop: Stop = field(default_factory=Stop)

    async def run(self) -> None:
        await asyncio.gather(self.decider.run(self.stop), self.log.run(self.stop))


@asynccontextmanager
async def replica(bus: Bus, wait_seconds: float = WAIT_SECONDS) -> AsyncIterator[Replica]:
    clock = SystemClock()
    here = Replica(Decider(bus, clock, DeadLetters(bus, "knowledge", clock)), ChangeLog(bus, shown, wait_seconds))
    running = asyncio.create_task(here.run())
    try:
        yield here
    finally:
        here.stop.request("test")
        await asyncio.wait_for(running, WAIT_SECONDS)


async def records(bus: Bus, topic: str, namespace: str = "") -> list[Record]:
    """Return all records of a topic, or those of the applications of one namespace."""
    reader = bus.reader(topic)
    found: list[Record] = []
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            while not await reader.caught_up():
                found += await reader.receive(timeout_seconds=0.2)
    finally:
        await reader.close()
    return [record for record in found if str(record.key).startswith(namespace)]


async def answers(bus: Bus, id: object) -> list[Answer]:
    """All answers in the log to one request."""
    read = [readable(record, ChangeRecord) for record in await records(bus, CHANGES.name)]
    return [each.answer for each in read if each and each.answer and each.answer.change_id == id]


class DeciderSuite:
    """Subclasses give a fixture `bus` with the topics of the loop."""

    @pytest.fixture
    def names(self) -> Names:
        return Names(f"shop-{uuid4().hex[:8]}")

    async def test_a_decision_is_the_policys_record_and_its_answer(self, bus: Bus, names: Names) -> None:
        """As its user wrote it, with one version in the document, in the header and in the answer."""
        async with replica(bus) as here:
            answer = await here.log.submit(put(names.app))
        (record,) = await records(bus, POLICIES.name, names.namespace)
        stored = decode(record, ScalingPolicy).message
        assert (answer.refused, answer.was_created, answer.policy) == (None, True, stored)
        assert version_of(record.headers) == answer.version == stored.metadata.version
        assert (stored.metadata.updated_by, record.key) == ("ann", names.app)
        written = stored.to_document()
        assert written["spec"] == put(names.app).policy.to_document()["spec"]  # type: ignore[union-attr]

    async def test_a_deletion_is_two_tombstones(self, bus: Bus, names: Names) -> None:
        """Of the policy and of its action, with one version."""
        async with replica(bus) as here:
            await here.log.submit(put(names.app))
            first = action(plan(1, application=names.app))
            answer = await here.log.submit(change("action", names.app, action=first, expected=0))
            assert answer.action == first
            deleted = await here.log.submit(change("delete", names.app))
        policies, actions = (
            await records(bus, POLICIES.name, names.namespace),
            await records(bus, ACTIONS.name, names.namespace),
        )
        assert [(r.value is None, version_of(r.headers)) for r in policies][1:] == [(True, deleted.version)]
        assert decode(actions[0], ActionState).message == first
        assert [(r.value is None, version_of(r.headers)) for r in actions] == [
            (False, answer.version),
            (True, deleted.version),
        ]

    async def test_requests_that_wait_are_decided_in_their_order(self, bus: Bus, names: Names) -> None:
        """Of two for one target the first has it, and each version is above the one before."""
        async with replica(bus) as here:
            await until(lambda: here.decider.decides)
            requests = [
                put(names.app),
                put(names.other),
                put(names.third, job="other"),
                change("pause", names.app),
                change("pause", names.other),
            ]
            found = await asyncio.gather(*map(here.log.submit, requests))
        assert [each.refused for each in found] == [None, "taken", None, None, "missing"]
        versions = [each.version for each in found if each.version is not None]
        assert versions == sorted(set(versions)) and len(versions) == 3
        assert found[1].rival == names.app
        assert [r.key for r in await records(bus, POLICIES.name, names.namespace) if r.key == names.app] == [
            names.app,
            names.app,
        ]

    async def test_what_waits_is_decided_by_the_next_owner(self, bus: Bus, names: Names) -> None:
        """No replica decides when it is written; its caller got no answer, and another one finds it decided."""
        asking = ChangeLog(bus, shown, 0.3)
        with pytest.raises(Problem, match="it is not known whether it was taken"):
            await asking.submit(put(names.app))
        request = put(names.other, job="b")
        await asking.request([request])
        async with replica(bus) as here:
            again = await here.log.submit(request.model_copy(update={"id": uuid4()}))
            assert (again.refused, again.version) == (None, None)
            assert [each.was_created for each in await answers(bus, request.id)] == [True]

    async def test_a_successor_knows_what_was_decided(self, bus: Bus, names: Names) -> None:
        """Versions, targets and actions, and no request is decided twice."""
        first = put(names.app)
        async with replica(bus) as here:
            before = await here.log.submit(first)
            await here.log.submit(
                change("action", names.app, action=action(plan(1, application=names.app)), expected=0)
            )
        async with replica(bus) as there:
            assert (await there.log.submit(put(names.other))).rival == names.app
            second = await there.log.submit(
                change("action", names.app, action=action(plan(2, application=names.app)), expected=0)
            )
            assert second.refused == "conflict"
            after = await there.log.submit(put(names.app, expected=before.version, job="c"))
            assert after.version is not None and after.version > (before.version or 0)
        assert len(await answers(bus, first.id)) == 1

    async def test_of_two_replicas_one_decides_and_both_answer(self, bus: Bus, names: Names) -> None:
        """The other takes over at once when it leaves."""
        async with replica(bus) as here, replica(bus) as there:
            await until(lambda: here.decider.decides or there.decider.decides)
            await here.log.submit(put(names.app))
            await there.log.submit(put(names.other, job="b"))
            decides, other = (here, there) if here.decider.decides else (there, here)
            assert not other.decider.decides
            decides.stop.request("test")
            await until(lambda: other.decider.decides)
            assert not decides.decider.decides
            answer = await other.log.submit(put(names.third, job="b"))
            assert (answer.refused, answer.rival) == ("taken", names.other)

    async def test_a_lost_deletion_gives_the_target_to_the_newer_policy(self, bus: Bus, names: Names) -> None:
        """The topic has two policies of one target: the older one is deleted before anything else is decided."""
        for name, version in ((names.app, 7), (names.other, 9)):
            each = policy(name, version=version, application=target("orders", names.namespace))
            headers = {VERSION_HEADER: str(version)}
            await bus.publish(POLICIES.name, name, each.model_dump_json(exclude_unset=True).encode(), headers)
        async with replica(bus) as here:
            answer = await here.log.submit(change("pause", names.app))
        assert answer.refused == "missing"
        deletion = [r for r in await records(bus, POLICIES.name, names.namespace) if r.value is None]
        assert [(r.key, (version_of(r.headers) or 0) > 9) for r in deletion] == [(names.app, True)]

    async def test_what_is_no_change_is_a_dead_letter_and_stops_nothing(self, bus: Bus, names: Names) -> None:
        """Another program wrote into the topic."""
        await bus.publish(CHANGES.name, names.app, b"{")
        async with replica(bus) as here:
            assert (await here.log.submit(put(names.app))).refused is None

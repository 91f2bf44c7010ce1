"""The planner as a process, on a real Kafka: replicas share the work, and HTTP returns the decision it would make."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from testbed.kafka import KafkaBroker
from testbed.service import WeirService
from tests.installed import GOOD, install
from tests.unit.planner.build import WORK, analysis, policy, request
from weir_contracts import Plan, PlanRequest
from weir_contracts.topics import ANALYSES, PLANS
from weir_planner.core.decide import plan_offline
from weir_runtime.kafka_bus import KafkaBus
from weir_runtime.messages import encode

JSON = {"Content-Type": "application/json"}
PATIENT = {"name": "rate", "timeout": "10s"}
"""On a busy machine the usual 2 s may pass once, and a hold be the answer."""


@pytest.fixture
async def bus(kafka: KafkaBroker) -> AsyncIterator[KafkaBus]:
    made = KafkaBus(kafka.bootstrap_servers)
    await made.start()
    yield made
    await made.close()


def planner(kafka: KafkaBroker, folder: Path, **environment: str) -> WeirService:
    folder.mkdir()
    return WeirService("planner", folder, {"WEIR_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers, **environment})


async def until(condition: Callable[[], Awaitable[bool]], *, seconds: float, what: str) -> None:
    try:
        async with asyncio.timeout(seconds):
            while not await condition():  # noqa: ASYNC110 - no event signals it
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise AssertionError(f"not within {seconds} s: {what}") from None


async def analyse(bus: KafkaBus, names: list[str]) -> datetime:
    """A fresh analysis of each application; returns its time."""
    now = datetime.now(UTC)
    for name in names:
        found = analysis(at=now, the_policy=policy(name, planner=PATIENT), arrivals=2400)
        body, headers = encode(found, type=ANALYSES.type, source="test", id=found.id, time=now)
        await bus.publish(ANALYSES.name, name, body, headers)
    return now


async def test_two_replicas_share_the_applications_and_one_takes_over(
    kafka: KafkaBroker, bus: KafkaBus, tmp_path: Path
) -> None:
    """Both plan; then one ends, and the other plans for all of them, once each."""
    names = [f"story-{uuid4().hex[:8]}/job-{i}" for i in range(12)]
    plans: list[Plan] = []
    first, second = (planner(kafka, tmp_path / name) for name in ("first", "second"))
    with first, second:
        for replica in (first, second):
            await asyncio.to_thread(replica.wait_ready)
        reader = bus.reader(PLANS.name, from_beginning=False)

        async def at_the_end() -> bool:
            await reader.receive(timeout_seconds=0.2)
            return await reader.caught_up()

        await until(at_the_end, seconds=20, what="the end of the plans")

        async def all_planned(at: datetime) -> bool:
            records = await reader.receive(timeout_seconds=0.5)
            plans.extend(Plan.model_validate_json(r.value or b"") for r in records if r.key in names)
            return {p.application for p in plans if p.observed_at == at} == set(names)

        async def both_plan() -> bool:
            """Rounds of analyses, until the group has settled on sharing."""
            at = await analyse(bus, names)
            await until(lambda: all_planned(at), seconds=30, what="a plan for each application")
            return all([await planned_by(replica) > 0 for replica in (first, second)])

        await until(both_plan, seconds=60, what="plans of both replicas")
        await asyncio.to_thread(first.stop)
        before = await planned_by(second)
        at = await analyse(bus, names)
        await until(lambda: all_planned(at), seconds=30, what="plans after the takeover")

        async def counted() -> bool:
            """A plan is counted once the broker has confirmed it, which is after it can be read."""
            return await planned_by(second) >= before + len(names)

        await until(counted, seconds=10, what="the count of the last plan")
        assert await planned_by(second) == before + len(names)
        await reader.close()
    assert all(plan.kind == "scale" for plan in plans)
    # Derived ids: what was published twice at the rebalance is the same plan.
    assert len({plan.id for plan in plans}) == len({(plan.application, plan.observed_at) for plan in plans})


async def planned_by(replica: WeirService) -> int:
    """Plans a replica has published."""
    async with httpx.AsyncClient(timeout=5.0) as client:
        text = (await client.get(f"{replica.url}/metrics")).text
    return sum(
        int(float(line.split()[-1])) for line in text.splitlines() if line.startswith("weir_planner_plans_total{")
    )


async def test_what_would_be_decided(kafka: KafkaBroker, tmp_path: Path) -> None:
    """Over HTTP the same as without a server; a planner that is not there and a wrong parameter are named with their
    place."""
    question = request(of={"arrivals": 2400})
    with planner(kafka, tmp_path / "planner") as service:
        await asyncio.to_thread(service.wait_ready)
        async with httpx.AsyncClient(base_url=service.url, timeout=10.0, headers=JSON) as client:
            listed = {each["name"]: each for each in (await client.get("/v1/planners")).json()["planners"]}
            assert "drain_seconds" in listed["rate"]["parameters"]["properties"]

            answer = await client.post("/v1/plan", content=question.model_dump_json())
            assert answer.status_code == 200, answer.text
            plan = Plan.model_validate_json(answer.content)
            assert plan.approved is not None
            assert plan.approved[WORK] > 2
            assert plan.model_copy(update={"planning_seconds": None}) == plan_offline(question)

            for choice, place in (
                ({"name": "magic"}, "policy.spec.planner.name"),
                ({"name": "rate", "parameters": {"speed": 3}}, "policy.spec.planner.parameters"),
            ):
                await refused(client, request(analysis(the_policy=policy(planner=choice))), place)
            assert (await client.post("/v1/plan", json={"id": 1})).status_code == 422


async def refused(client: httpx.AsyncClient, question: PlanRequest, place: str) -> None:
    answer = await client.post("/v1/plan", content=question.model_dump_json())
    assert answer.status_code == 422
    assert place in answer.text


async def test_planners_of_installed_packages(kafka: KafkaBroker, tmp_path: Path) -> None:
    """One is asked in the worker processes; one that cannot be imported is named, and the service is ready all the
    same."""
    install(tmp_path, "good_hand", GOOD, steady_hand="good_hand:plan")
    install(tmp_path, "bad_hand", "import a_module_that_is_not_there", bad_hand="bad_hand:plan")
    question = request(analysis(the_policy=policy(planner={"name": "steady-hand", "parameters": {"parallelism": 5}})))
    with planner(kafka, tmp_path / "planner", PYTHONPATH=str(tmp_path)) as service:
        await asyncio.to_thread(service.wait_ready)
        async with httpx.AsyncClient(base_url=service.url, timeout=10.0, headers=JSON) as client:
            ready = (await client.get("/health/ready")).json()
            assert "planner bad-hand of package bad_hand cannot be used" in str(ready["dependencies"])
            async with asyncio.timeout(60):
                while (answer := await client.post("/v1/plan", content=question.model_dump_json())).status_code == 503:
                    assert "still starting" in answer.text  # on a busy machine
            plan = Plan.model_validate_json(answer.content)
            assert plan.proposed is not None
            assert set(plan.proposed.values()) == {5}
            rate = await client.post("/v1/plan", content=request(of={"arrivals": 2400}).model_dump_json())
            assert rate.json()["action"] is not None

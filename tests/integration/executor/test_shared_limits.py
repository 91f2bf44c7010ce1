"""Two executors on a real Kafka: the limit of a cluster counts the actions of both."""

import asyncio
from uuid import UUID, uuid4

from testbed.kafka import KafkaBroker
from tests.integration.executor.test_rescale import OnKafka
from tests.unit.executor.builders import BEFORE, TOPOLOGY, WANTED, plan, policy
from tests.unit.executor.test_shared_limits import restarts_at_once
from weir_contracts import Outcome
from weir_contracts.topics import OUTCOMES, PLANS, POLICIES
from weir_runtime.bus import partition_of
from weir_runtime.service import topic_specs

PARTITIONS = 4
NAMES = [f"shop/app-{i}" for i in range(40)]
APPLICATIONS = [[n for n in NAMES if partition_of(n, PARTITIONS) == p][i] for p in range(PARTITIONS) for i in (0, 1)]


async def test_two_replicas_never_restart_three_jobs_of_one_cluster(own_kafka: KafkaBroker) -> None:
    """Eight jobs in four partitions want more at the same moment, again and again, until all have it."""
    house = OnKafka(own_kafka)
    await house.bus.start()
    await house.bus.ensure_topics(topic_specs(PARTITIONS))
    at_once = restarts_at_once(house.driver)
    for name in APPLICATIONS:
        house.knowledge.policies[name] = made = policy(name)
        job = house.driver.add(made.subject, TOPOLOGY, BEFORE, uuid4().hex)
        job.rescale_seconds = 0.5
        await house.publish(POLICIES, name, made, uuid4())
    buses = [house.connect(), house.connect()]
    running = [await house.start(bus) for bus in buses]
    reader = house.bus.reader(OUTCOMES.name)
    published: list[Outcome] = []

    async def read() -> None:
        while True:
            records = [r for r in await reader.receive(timeout_seconds=0.2) if r.key in APPLICATIONS]
            published.extend(Outcome.model_validate_json(r.value or b"") for r in records)

    reading = asyncio.create_task(read())
    try:
        async with asyncio.timeout(120):
            number, waiting = 0, set(APPLICATIONS)
            while waiting:
                number += 1
                plans = set(await asyncio.gather(*(_plan(house, name, number) for name in waiting)))
                while not plans <= {o.plan_id for o in published if o.terminal}:  # noqa: ASYNC110 - no event signals it
                    await asyncio.sleep(0.1)
                waiting -= {o.application for o in published if o.phase == "verified"}
    finally:
        reading.cancel()
        for stop, task in running:
            stop.request("the test is over")
            await task
        await asyncio.gather(reading, return_exceptions=True)
        await reader.close()
        for bus in (*buses, house.bus):
            await bus.close()
    assert len({o.action.attempt_id for o in published if o.action is not None}) == 2, "both replicas have acted"
    assert max(at_once) == 2


async def _plan(house: OnKafka, application: str, number: int) -> UUID:
    """Publish a plan for the job as it is now, and return its id."""
    found = await house.driver.observe(house.knowledge.policies[application].subject)
    assert found.deployment is not None
    base = {"deployment": found.deployment.ref(), "current": found.deployment.observed, "at": house.clock.now()}
    made = plan(WANTED, number=number, application=application, **base)
    await house.publish(PLANS, application, made, made.id)
    return made.id

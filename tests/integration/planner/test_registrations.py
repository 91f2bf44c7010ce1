"""Registered planners on a real Kafka: registered at one replica, known to the other, and still known after both were restarted."""

import asyncio
from pathlib import Path

import httpx

from testbed.kafka import KafkaBroker
from testbed.service import WeirService
from tests.integration.planner.test_service import until
from tests.unit.planner.build import SOURCE, WORK, analysis, policy, request
from tests.unit.planner.plugin import Plugin

NAME = "registered-once"
JSON = {"Content-Type": "application/json"}


def replica(kafka: KafkaBroker, folder: Path) -> WeirService:
    folder.mkdir(exist_ok=True)
    environment = {
        "WEIR_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "WEIR_PLANNER_PLUGIN_SCHEMES": "http",
        "WEIR_PLANNER_PLUGIN_NETWORKS": "127.0.0.0/8",
    }
    return WeirService("planner", folder, environment)


async def knows(service: WeirService) -> bool:
    async with httpx.AsyncClient(timeout=5.0) as client:
        return (await client.get(f"{service.url}/v1/planners/{NAME}")).status_code == 200


async def decided(service: WeirService) -> object:
    """What it would decide with the registered planner."""
    question = request(analysis(the_policy=policy(planner={"name": NAME}))).model_dump_json()
    async with httpx.AsyncClient(timeout=20.0) as client:
        answer = await client.post(f"{service.url}/v1/plan", content=question, headers=JSON)
    assert answer.status_code == 200, answer.text
    return answer.json()["proposed"]


async def test_every_replica_knows_it_and_a_restart_forgets_nothing(kafka: KafkaBroker, tmp_path: Path) -> None:
    """Register on A, B plans with it; both end, a new one has it as soon as it is ready; removed, it is gone everywhere."""
    async with Plugin() as plugin:
        body = {"name": NAME, "url": plugin.url}
        with replica(kafka, tmp_path / "a") as first, replica(kafka, tmp_path / "b") as second:
            for service in (first, second):
                await asyncio.to_thread(service.wait_ready)
            async with httpx.AsyncClient(timeout=40.0) as client:
                answer = await client.post(f"{first.url}/v1/planners", json=body)
            assert answer.status_code == 201, answer.text
            assert await knows(first)
            await until(lambda: knows(second), seconds=15, what="the other replica knows it")
            assert await decided(second) == {SOURCE: 2, WORK: 3}
        with replica(kafka, tmp_path / "c") as third:
            await asyncio.to_thread(third.wait_ready)
            assert await knows(third)
            assert await decided(third) == {SOURCE: 2, WORK: 3}
            async with httpx.AsyncClient(timeout=20.0) as client:
                assert (await client.delete(f"{third.url}/v1/planners/{NAME}")).status_code == 204
            assert not await knows(third)

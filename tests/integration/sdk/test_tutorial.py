"""The tutorial, as a reader follows it: its blocks are extracted and run, in their order, in a separate folder.

Where it starts the trial, a planner service and a knowledge service of this process stand in, with a bus and a store in
memory; and the planner that was registered then holds a simulated job, asked over HTTP as it would be in the trial.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, contextmanager

import httpx
import pytest
from fastapi import FastAPI
from weir_contracts import Plan, PlannerRegistration, PlanReply, PlanRequest, parse_policy
from weir_contracts.topics import PLANS
from weir_planner.testing import running

from replay.loop import Loop
from runtime.clock import FakeClock, SystemClock
from runtime.http import application
from runtime.loop import Stop
from runtime.memory_bus import MemoryBus
from services.knowledge.adapters.planner import PlannerCatalogue
from services.knowledge.policies_api import policies_router
from services.knowledge.policy_changes import PolicyChanges
from services.planner.adapters.http import PlannerClient
from services.planner.api import planner_router
from services.planner.planners import Planners
from services.planner.registrations import Registrations
from services.planner.remote import Remote
from simulator import PRESETS, Simulation
from testbed.process import free_port
from tests.tutorial import Reader, shell
from tests.unit.knowledge.memory_store import MemoryStore
from tests.unit.planner.build import NOON
from tests.unit.planner.plugin import LOOPBACK
from tests.unit.planner.test_service import InProcess

pytestmark = pytest.mark.integration


def planner_service() -> FastAPI:
    """As in the trial, which lets planners be on this machine."""
    clock = FakeClock(NOON)
    registrations = Registrations(MemoryBus(partitions=2, clock=clock), clock)

    @asynccontextmanager
    async def alive(_app: FastAPI) -> AsyncIterator[None]:
        stop = Stop()
        following = asyncio.create_task(registrations.follow(stop))
        yield
        stop.request("the test is over")
        await following

    app = application("Weir planner", "Planners.", lifespan=alive)
    client = PlannerClient(LOOPBACK)
    app.include_router(planner_router(Planners(InProcess(), registrations, Remote(client, clock, {})), clock))
    return app


def knowledge_service(planner_url: str) -> FastAPI:
    """Policies in memory, whose planners the planner service judges."""
    app = application("Weir knowledge", "Policies.")
    catalogue = PlannerCatalogue(planner_url, timeout_seconds=30.0)
    app.include_router(policies_router(PolicyChanges(MemoryStore(), SystemClock(), catalogue, lambda: None)))
    return app


@contextmanager
def house() -> Iterator[dict[str, str]]:
    """The settings of a shell next to a trial."""
    with running(planner_service()) as planner_url, running(knowledge_service(planner_url)) as url:
        policy = {
            "apiVersion": "weir.dev/v1alpha1",
            "kind": "ScalingPolicy",
            "metadata": {"namespace": "trial", "name": "orders"},
            "spec": {
                "target": {"flink": {"url": "http://127.0.0.1:8081", "job": "orders"}},
                "objective": {"maxLag": "30s"},
                "bounds": {"min": 1, "max": 12},
                "planner": {"name": "rate"},
                "interval": "10s",
                "mode": "act",
            },
        }
        httpx.put(f"{url}/v1/policies/trial/orders", json=policy, timeout=30).raise_for_status()
        yield {
            **shell(),
            "WEIR_SERVER": url,
            "WEIR_PLANNER_SERVER": planner_url,
        }


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """The tutorial, read to its end; its planner still runs."""
    with house() as environment:
        reader = Reader(tmp_path_factory.mktemp("tutorial"), environment, free_port())
        try:
            reader.reads()
            yield reader
        finally:
            reader.ends()


def test_every_step_has_its_documented_result(read: Reader) -> None:
    """The tests pass before and after the change; the planner is checked, registered and chosen."""
    output = "\n".join(read.printed)
    assert output.count("5 passed") == 2
    assert '"name":"my-planner"' in output
    assert "my-planner registered" in output
    assert "my-planner: 0.00% of the time late" in output
    stored = httpx.get(f"{read.environment['WEIR_SERVER']}/v1/policies/trial/orders").json()
    assert stored["spec"]["planner"] == {"name": "my-planner"}


def test_a_policy_with_wrong_parameters_is_refused_when_it_is_written(read: Reader) -> None:
    """As the tutorial promises: the parameter is named."""
    address = f"{read.environment['WEIR_SERVER']}/v1/policies/trial/orders"
    document = httpx.get(address).json()
    document["spec"]["planner"]["parameters"] = {"confirmations": 0}
    refused = httpx.put(address, json=document)
    assert refused.status_code == 422
    assert "spec.planner.parameters.confirmations" in refused.text


def test_the_registered_planner_holds_a_job(read: Reader) -> None:
    """Asked over HTTP in Weir's loop, it rescales a simulated job whose load triples: its plans act, with its own
    words, and its memory comes back."""
    url = read.environment["WEIR_PLANNER_SERVER"]
    shown = httpx.get(f"{url}/v1/planners/my-planner").json()
    registration = PlannerRegistration(
        name="my-planner", url=shown["url"], version=1, registered_at=NOON, registered_by="me"
    )
    stored = httpx.get(f"{read.environment['WEIR_SERVER']}/v1/policies/trial/orders").json()

    async def once(request: PlanRequest) -> PlanReply:
        client = PlannerClient(LOOPBACK)
        try:
            return await Remote(client, FakeClock(NOON), {}).ask(request, registration, 30.0)
        finally:
            await client.close()

    def asks(request: PlanRequest, name: str) -> PlanReply:
        assert name == "my-planner"
        # The loop is a coroutine already, and asks without waiting for others.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(lambda: asyncio.run(once(request))).result()

    policy = parse_policy(stored)
    simulation = Simulation(PRESETS["chain"](2), lambda t: 600.0 if t < 120 else 1800.0)
    with closing(Loop(asks=asks)) as loop:
        loop.add(simulation, policy, seed=1)
        loop.run(400)
    assert loop.tally.ends["verified"] >= 1
    plans = [Plan.model_validate_json(record.value or b"") for record in loop.bus.records(PLANS.name)]
    grown = [plan for plan in plans if plan.code == "scale-out"]
    assert grown
    assert grown[0].planner == "my-planner"
    assert grown[0].sentence.startswith("enrich needs ")
    assert simulation.lag_seconds < 5
    assert loop.tally.codes["confirming"] > 5

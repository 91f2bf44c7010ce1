"""The tutorial, as a reader follows it: its blocks are extracted and run, in their order, in a separate folder.

Where it starts the trial, a planner service and a knowledge service of this process stand in, with a bus and a store in
memory; and the planner that was registered then holds a simulated job, asked over HTTP as it would be in the trial.
"""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from testbed.process import free_port
from tests.tutorial import ROOT, TUTORIAL, Reader, shell
from tests.unit.knowledge.direct_log import changes_of
from tests.unit.knowledge.memory_store import MemoryStore
from tests.unit.planner.build import NOON
from tests.unit.planner.plugin import LOOPBACK
from tests.unit.planner.test_service import InProcess
from weir_contracts import Plan, PlannerRegistration, PlanReply, PlanRequest, parse_policy
from weir_contracts.topics import PLANS
from weir_knowledge.policies_api import policies_router
from weir_knowledge.policy_changes import PlannerCatalogue
from weir_planner.adapters.http import PlannerClient
from weir_planner.api import planner_router
from weir_planner.calls import Planners
from weir_planner.remote import Registrations, Remote
from weir_replay.loop import Loop
from weir_replay.simulator import PRESETS, Simulation
from weir_runtime.clock import FakeClock, SystemClock
from weir_runtime.http import application
from weir_runtime.loop import Stop
from weir_runtime.memory_bus import MemoryBus
from weir_sdk.testing import running

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
    app.include_router(planner_router(Planners(InProcess(), registrations, Remote(client, clock)), clock))
    return app


def knowledge_service(planner_url: str) -> FastAPI:
    """Policies in memory, whose planners the planner service judges."""
    app = application("Weir knowledge", "Policies.")
    catalogue = PlannerCatalogue(planner_url, timeout_seconds=30.0)
    app.include_router(policies_router(changes_of(MemoryStore(), SystemClock(), catalogue)))
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
                "application": {"flink": {"url": "http://127.0.0.1:8081", "job": "orders"}},
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
    """The planner's tests pass; it is checked, registered and chosen."""
    output = "\n".join(read.printed)
    assert "5 passed" in output
    assert '"name":"my-planner"' in output
    assert "my-planner registered" in output
    assert "my-planner: 0.00% of the time late" in output
    stored = httpx.get(f"{read.environment['WEIR_SERVER']}/v1/policies/trial/orders").json()
    assert stored["spec"]["planner"] == {"name": "my-planner"}


def test_its_files_have_the_projects_style(read: Reader) -> None:
    """A reader copies them as they are."""
    python = ["my_planner.py", "test_my_planner.py"]
    style = [sys.executable, "-m", "ruff", "format", "--check", "--no-cache", "--line-length", "120", *python]
    styled = subprocess.run(style, cwd=read.folder, capture_output=True, text=True, timeout=60, check=False)
    assert styled.returncode == 0, styled.stdout + styled.stderr


def test_its_dockerfile_installs_weir_from_a_checkout(read: Reader, tmp_path: Path) -> None:
    """The tutorial's wheel command and the Dockerfile's pip command run offline, and the installed planner is found by its
    entry point."""
    (wheels,) = re.findall(r"^python (-m pip wheel .*)$", TUTORIAL.read_text(), re.MULTILINE)
    (install,) = re.findall(r"^RUN pip (install .*?) &&", (read.folder / "Dockerfile").read_text(), re.MULTILINE)
    offline = f"--no-index --no-deps --no-build-isolation --disable-pip-version-check --target {tmp_path}"
    found = "import weir_sdk; from importlib.metadata import entry_points as e; print(e(group='weir.planners')['my-planner'].load())"
    for command in (
        f'"$PYTHON" {wheels.replace("../", f"{ROOT}/")} --no-index --no-build-isolation',
        f'"$PYTHON" -m pip {install} {offline}',
        f'PYTHONPATH={tmp_path} "$PYTHON" -P -c "{found}; print(weir_sdk.__file__)"',
    ):
        ran = subprocess.run(
            ["bash", "-c", command],
            cwd=read.folder,
            env={"PATH": os.environ["PATH"], "PYTHON": sys.executable},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert ran.returncode == 0, f"{command}\n{ran.stdout}\n{ran.stderr}"
    planner, sdk = ran.stdout.splitlines()
    assert planner.startswith("<function plan")
    assert sdk.startswith(str(tmp_path))


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
    described = httpx.get(f"{shown['url']}/").json()
    registration = PlannerRegistration(
        name="my-planner", url=shown["url"], version=1, description=described, registered_at=NOON, registered_by="me"
    )
    stored = httpx.get(f"{read.environment['WEIR_SERVER']}/v1/policies/trial/orders").json()

    async def once(request: PlanRequest) -> PlanReply:
        client = PlannerClient(LOOPBACK)
        try:
            return await Remote(client, FakeClock(NOON)).ask(request, registration, 30.0)
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

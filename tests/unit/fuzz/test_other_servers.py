"""Bad bodies for the servers that are none of the loop's: a planner's and the load generator's."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from tests.effort import some
from tests.unit.workloads.memory_output import MemoryOutput
from weir_replay.trace import LoadTrace, Step
from weir_sdk import Reply, Request, planner, server
from workloads.loadgen.control import WorkloadBoard, create_app
from workloads.loadgen.generator import Generator
from workloads.loadgen.load import Load

from .documents import broken_at_random, example


@planner(name="careful", version="1")
def careful(request: Request) -> Reply:
    """Looks at everything and holds."""
    registered = [
        name for name in request.operators if request.demand(name) is not None and request.capacity(name) is not None
    ]
    return request.hold(
        "fine", f"{len(registered)} operators are known", useful=len(request.useful_parallelisms(request.operators[0]))
    )


def load_generator() -> FastAPI:
    return create_app(Generator(Load(LoadTrace(Step(), 2400)), MemoryOutput(), now_seconds=0.0), WorkloadBoard())


SERVERS: dict[str, tuple[Callable[[], FastAPI], str, str, Callable[[], Any], int]] = {
    "planner": (lambda: server.application(careful), "POST", "/plan", lambda: example("plan-request"), 40),
    "load": (
        load_generator,
        "PUT",
        "/load",
        lambda: {"rate": 1200, "factor": 1.5, "key_skew": 1.1, "record_bytes": 200},
        1,
    ),
    "workload": (load_generator, "PUT", "/workload", lambda: {"operators": {"enrich": {"service_time_us": 500}}}, 1),
}
"""What serves, where a body goes, one that is right, and how many of its broken forms are left out for each that is
tried."""


@pytest.mark.parametrize("name", SERVERS)
async def test_a_broken_body_is_refused_and_no_fault(name: str) -> None:
    """Each field with each kind of nonsense in it: never a 5xx, and a refusal is JSON. A correct request works
    afterwards."""
    make, method, path, document, every = SERVERS[name]
    right = document()
    transport = httpx.ASGITransport(make(), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://weir") as http:
        for body in some(broken_at_random(right, every), 8):
            answer = await http.request(method, path, content=body, headers={"content-type": "application/json"})
            assert answer.status_code < 500, (body[:2000], answer.text[:2000])
            assert json.loads(answer.text) is not None
        last = await http.request(method, path, json=right)
        assert last.status_code == 200, last.text

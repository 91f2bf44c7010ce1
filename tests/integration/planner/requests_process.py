"""The planner's HTTP API in a separate process, with the packages of its environment: prints its responses."""

import asyncio
import json
import sys
from typing import Any

import httpx

from tests.unit.planner.build import NOON
from tests.unit.planner.plugin import LOOPBACK
from tests.unit.planner.shelf import FixedRegistrations
from weir_planner.adapters.http import PlannerClient
from weir_planner.api import planner_router
from weir_planner.calls import Planners
from weir_planner.remote import Remote
from weir_planner.workers import Workers
from weir_runtime.clock import FakeClock
from weir_runtime.http import application


async def responses(rounds: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the responses to checks of choices and to judgements, of which those of a round are sent at once."""
    clock, client, workers = FakeClock(NOON), PlannerClient(LOOPBACK), Workers(1)
    app = application("Weir planner", "Of a test.")
    app.include_router(planner_router(Planners(workers, FixedRegistrations(clock), Remote(client, clock)), clock))
    try:
        await workers._requests.start()
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://planner") as http:
            found: list[httpx.Response] = []
            for bodies in rounds:
                paths = ["/v1/planners/validate" if "choices" in body else "/v1/judge" for body in bodies]
                calls = [http.post(path, json=body) for path, body in zip(paths, bodies, strict=True)]
                found += await asyncio.gather(*calls)
        return [{"status": each.status_code, "body": each.json()} for each in found]
    finally:
        workers.close()
        await client.close()


def main() -> None:
    """Not run as the main module, which each forked process would import again."""
    sys.stdout.write("\n" + json.dumps(asyncio.run(responses(json.loads(sys.argv[1])))))

"""A planner process with the candidates given on the command line: prints plans as JSON lines."""

import asyncio
import json
import sys
import time
from typing import Any

from runtime.clock import SystemClock
from services.planner.planners import plan_for
from services.planner.workers import Workers
from tests.unit.planner.build import analysis, policy, request


async def plans(candidates: list[dict[str, Any]], timeout: str, cycles: int) -> None:
    """Print each plan, and the seconds that it took."""
    workers = Workers(1)
    await workers.start()
    await workers._alongside._started(60.0)
    try:
        for _ in range(cycles):
            question = request(
                analysis(arrivals=2400, the_policy=policy(planner={"timeout": timeout}, candidates=candidates))
            )
            began = time.monotonic()
            plan = await plan_for(workers, question, SystemClock(), created_at=question.now)
            taken = time.monotonic() - began
            sys.stdout.write(json.dumps({"seconds": taken, "plan": plan.model_dump(mode="json")}) + "\n")
            sys.stdout.flush()
    finally:
        workers.close()


def main() -> None:
    """Not run as the main module, which each forked process would import again."""
    asyncio.run(plans(json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])))

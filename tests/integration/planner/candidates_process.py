"""A planner process with a policy whose further fields are given on the command line: prints plans as JSON lines."""

import asyncio
import json
import sys
import time
from typing import Any

from tests.unit.planner.build import analysis, policy, request
from weir_planner.calls import plan_for
from weir_planner.workers import Workers
from weir_runtime.clock import SystemClock


async def plans(timeout: str, cycles: int, **spec: Any) -> None:
    """Print each plan, and the seconds that it took."""
    workers = Workers(1)
    await workers.start()
    await workers._candidates.start()
    await workers._shadows.start()
    try:
        for _ in range(cycles):
            question = request(analysis(arrivals=2400, the_policy=policy(**{"planner": {"timeout": timeout}, **spec})))
            began = time.monotonic()
            plan = await plan_for(workers, question, SystemClock(), created_at=question.now)
            taken = time.monotonic() - began
            sys.stdout.write(json.dumps({"seconds": taken, "plan": plan.model_dump(mode="json")}) + "\n")
            sys.stdout.flush()
    finally:
        workers.close()


def main() -> None:
    """Not run as the main module, which each forked process would import again."""
    asyncio.run(plans(sys.argv[2], int(sys.argv[3]), **json.loads(sys.argv[1])))

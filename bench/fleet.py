"""How many applications one loop carries on this machine: `make bench-fleet`, results in bench/results/fleet.json.

A simulated monitor publishes the observations of many applications of ten operators, each at its own time within the
interval; analyzer, planner, executor and knowledge are the real services on a real Kafka and Redis. Measured: from the
observation to the plan at the broker, and each process's memory and processor time.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from bench.cost import OPERATORS
from bench.results_file import distribution, write
from bench.running import PlanLatencies, usage_over
from bench.simulated_monitor import HISTORY, Fleet, remember_the_past
from testbed.kafka import KafkaBroker
from testbed.process import free_port
from testbed.service import RedisServer, WeirService, loop_settings, wait_all_ready
from weir_knowledge.adapters.redis import RedisStore
from weir_runtime.kafka_bus import KafkaBus

PARTITIONS = 2
PLANNER_WORKERS = 2
"""As many as there are cores here."""
WARM_UP_SECONDS = 45.0
MEASURED_SECONDS = 60.0


async def measured(
    kafka: KafkaBroker, services: list[WeirService], applications: int, interval_seconds: float
) -> dict[str, Any]:
    """One size of fleet at one interval."""
    bus = KafkaBus(kafka.bootstrap_servers)
    await bus.start()
    try:
        latencies = PlanLatencies(kafka.bootstrap_servers, PARTITIONS)
        fleet = Fleet(bus, applications, interval_seconds)
        await fleet.publish_policies()
        publishing = asyncio.create_task(fleet.run(time.monotonic() + WARM_UP_SECONDS + MEASURED_SECONDS))
        await asyncio.sleep(WARM_UP_SECONDS)
        before = len(latencies.seconds)
        published = sum(a.count for a in fleet.applications)
        processes = [kafka.process, *(s.process for s in services)]
        usage = await asyncio.to_thread(usage_over, processes, MEASURED_SECONDS - 2.0)
        await publishing
        waited = (await asyncio.to_thread(latencies.stop))[before:]
        published = sum(a.count for a in fleet.applications) - published
    finally:
        await bus.close()
    return {
        "applications": applications,
        "operators_each": OPERATORS,
        "interval_seconds": interval_seconds,
        "planner_workers": PLANNER_WORKERS,
        "past_cycles_each": HISTORY,
        "observations_per_second": round(published / MEASURED_SECONDS, 1),
        "plans_per_observation": round(len(waited) / published, 3) if published else None,
        "observation_to_plan_seconds": distribution(waited),
        "monitor_late_seconds": round(fleet.late_seconds, 3),
        "usage": usage,
    }


async def _remember_the_past(redis: RedisServer, applications: int) -> None:
    store = RedisStore(SecretStr(redis.url), history_kept=HISTORY)
    try:
        await remember_the_past(store, applications)
    finally:
        await store.close()


def scenario(applications: int, interval_seconds: float) -> dict[str, Any]:
    """Fresh parts for each, so that no backlog of one is another's burden."""
    with tempfile.TemporaryDirectory(prefix="weir-fleet-") as name:
        folder = Path(name)
        with KafkaBroker(folder / "kafka") as kafka, RedisServer(folder / "redis") as redis:
            asyncio.run(_remember_the_past(redis, applications))
            port = free_port()
            url = f"http://127.0.0.1:{port}"
            environment = loop_settings(kafka.bootstrap_servers, PARTITIONS, url, redis.url, folder)
            environment |= {"WEIR_LOG_LEVEL": "WARNING", "WEIR_PLANNER_WORKERS": str(PLANNER_WORKERS)}
            services = [
                WeirService(name, folder, environment, port=port if name == "knowledge" else None)
                for name in ("knowledge", "analyzer", "planner", "executor")
            ]
            try:
                for service in services:
                    service.start()
                wait_all_ready(services)
                return asyncio.run(measured(kafka, services, applications, interval_seconds))
            finally:
                for service in services:
                    service.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--applications", type=int, nargs="*", default=[200, 1000], help="sizes of the fleet")
    parser.add_argument("--intervals", type=float, nargs="*", default=[10.0, 5.0], help="seconds between observations")
    arguments = parser.parse_args()
    results = []
    for applications in arguments.applications:
        for interval in arguments.intervals:
            results.append(scenario(applications, interval))
            print(json.dumps(results[-1]), flush=True)
    print(write("fleet", "make bench-fleet", {"fleets": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

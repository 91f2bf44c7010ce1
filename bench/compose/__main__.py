"""From `docker compose up` to the first acted plan, and what each container holds: `make bench-compose`, results in
bench/results/compose.json.

A project of its own from nothing, with empty volumes; images are built before and not counted. Memory: of the sample job's loop
alone, its load paused, then with simulated applications beside it, whose observations come from this machine.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import docker
import httpx

from bench.fleet import Fleet
from bench.results_file import write
from runtime.kafka_bus import KafkaBus
from testbed.compose import ComposeStack, compose_command, running
from testbed.docker import ANSWER_SECONDS, unanswered
from testbed.images import Images
from testbed.process import TestbedError, free_port, wait_until

APPLICATION = "demo/orders"
ACT_SECONDS = 600.0
"""Far beyond the two minutes it should take: a slow machine's figure is a figure, too."""
REST_SECONDS = 60.0
FLEET_SECONDS = 120.0
INTERVAL_SECONDS = 10.0
KAFKA_PUBLISHED = Path(__file__).with_name("kafka.yaml")


def first_action(stack: ComposeStack, port: int, began: datetime) -> dict[str, Any]:
    """Seconds from `began` until each step of the first action, by the services' own times."""
    headers = {"Authorization": f"Bearer {stack.operator_token()}"}
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=10) as client:

        def verified() -> dict[str, Any] | None:
            with contextlib.suppress(httpx.TransportError):
                answer = client.get(f"/v1/applications/{APPLICATION}/action")
                if answer.status_code == 200 and answer.json()["finished_at"]:
                    return dict(answer.json())
            return None

        action = wait_until(verified, timeout_seconds=ACT_SECONDS, what="a first action", poll_seconds=0.5)
    steps = {"requested": "requested_at", "running": "running_at", "ended": "finished_at"}
    times = {step: datetime.fromisoformat(action[field]) for step, field in steps.items() if action[field]}
    return {step: round((at - began).total_seconds(), 1) for step, at in times.items()} | {"phase": action["phase"]}


async def publish(kafka_port: int, applications: int) -> float:
    """Publish the observations of a monitor of many applications; returns its largest delay in s."""
    bus = KafkaBus(f"127.0.0.1:{kafka_port}")
    await bus.start()
    try:
        fleet = Fleet(bus, applications, INTERVAL_SECONDS)
        await fleet.run(time.monotonic() + FLEET_SECONDS)
        return round(fleet.late_seconds, 3)
    finally:
        await bus.close()


def megabytes(stack: ComposeStack) -> dict[str, float]:
    return {name: round(held / 1e6, 1) for name, held in sorted(stack.memory_bytes().items())}


def measure(settings: Mapping[str, str], applications: int, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """All figures of one fresh stack."""
    port, kafka_port = free_port(), free_port()
    chosen = {**settings, "WEIR_PORT": str(port), "BENCH_KAFKA_PORT": str(kafka_port), "WEIR_LOG_LEVEL": "WARNING"}
    stack = ComposeStack(f"weir-bench-{port}", folder, chosen, further=[KAFKA_PUBLISHED])
    began = datetime.now(UTC)
    with running(stack):
        up = round((datetime.now(UTC) - began).total_seconds(), 1)
        say(f"up after {up:g} s")
        acted = first_action(stack, port, began)
        say(f"first action: {acted}")
        stack.exec("load", "python", "-m", "workloads.loadgen.set_load", "paused=true")
        time.sleep(REST_SECONDS)
        rest = megabytes(stack)
        say(f"at rest: {sum(rest.values()):.0f} MB")
        late = asyncio.run(publish(kafka_port, applications))
        fleet = megabytes(stack)
        say(f"with {applications} applications: {sum(fleet.values()):.0f} MB")
        limits = {n: round(b / 1e6, 1) for n, b in sorted(stack.limits_bytes().items())}
    return {
        "up_returned_seconds": up,
        "first_action_seconds": acted,
        "memory_megabytes": {
            "at_rest": rest,
            "at_rest_total": round(sum(rest.values()), 1),
            "with_applications": fleet,
            "with_applications_total": round(sum(fleet.values()), 1),
            "limits": limits,
        },
        "applications": applications,
        "operators_each": 10,
        "interval_seconds": INTERVAL_SECONDS,
        "publisher_late_seconds": late,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--applications", type=int, default=200, help="simulated, in addition to the sample job")
    parser.add_argument(
        "--official",
        action="store_true",
        help="the images that .env names, instead of what tests build on this machine",
    )
    arguments = parser.parse_args()
    if reason := unanswered() or (None if compose_command() else "no Docker Compose on the PATH: install it"):
        sys.stderr.write(f"bench-compose: {reason}\n")
        return 1
    try:
        settings: Mapping[str, str] = {}
        if not arguments.official:
            with contextlib.closing(docker.from_env(timeout=ANSWER_SECONDS)) as client:
                settings = Images(client, report=print).for_tests()
        with tempfile.TemporaryDirectory(prefix="weir-bench-") as folder:
            results = measure(settings, arguments.applications, Path(folder), say=lambda text: print(text, flush=True))
    except TestbedError as error:
        sys.stderr.write(f"bench-compose: {error}\n")
        return 1
    print(json.dumps(results, indent=2))
    print(write("compose", "make bench-compose", results))
    return 0


if __name__ == "__main__":
    sys.exit(main())

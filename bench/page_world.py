"""The knowledge service in one process with applications whose messages come every interval, for `make bench-page`.

Messages are the contracts' full examples, moved to now: an application of three operators. It says `ready` once all of them
are shown. The first application has a past of so many cycles.
"""

import argparse
import asyncio
import json
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid5

from weir_cli.single import SingleSettings, compose_knowledge, of_environment
from weir_cli.single_run import log_and_store
from weir_contracts import LoopResult, Plan, ScalingPolicy, example
from weir_contracts.topics import ANALYSES, OBSERVATIONS, OUTCOMES, PLANS, POLICIES, Topic
from weir_knowledge.core import MAX_HISTORY_COUNT
from weir_knowledge.store import Batch
from weir_runtime.bus import VERSION_HEADER, Outgoing
from weir_runtime.clock import SystemClock
from weir_runtime.loop import Stop
from weir_runtime.service import run_service, wait_for_topics

FIRST = "bench/app-0000"
_EXAMPLE_NOW = datetime.fromisoformat("2026-06-14T18:30:00Z")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)")
_KINDS: tuple[tuple[Topic, str], ...] = (
    (OBSERVATIONS, "observation"),
    (ANALYSES, "analysis"),
    (PLANS, "plan"),
    (OUTCOMES, "outcome"),
)
_TEXTS = {name: json.dumps(example(name)) for _, name in _KINDS}


def cycle(application: str, number: int, now: datetime) -> Iterator[tuple[Topic, bytes]]:
    """Return the messages of one cycle of an application."""
    for topic, name in _KINDS:
        text = _TEXTS[name].replace("shop/orders", application)
        text = _UUID.sub(lambda found: str(uuid5(UUID(found[0]), f"{application} {number}")), text)
        text = _TIME.sub(lambda found: (now + (datetime.fromisoformat(found[0]) - _EXAMPLE_NOW)).isoformat(), text)
        yield topic, text.encode()


def record(topic: Topic, application: str, body: bytes, **headers: str) -> Outgoing:
    return Outgoing(topic.name, application, body, {"ce_type": topic.type, **headers})


def policy_of(application: str) -> bytes:
    namespace, name = application.split("/")
    document = example("policy")
    document["metadata"] = {"namespace": namespace, "name": name, "version": 1}
    document["spec"]["application"] = {"flink": {"url": f"http://{name}:8081", "job": name}}
    return ScalingPolicy.model_validate(document).model_dump_json(exclude_unset=True).encode()


def past(count: int, seconds: float, now: datetime) -> list[tuple[str, LoopResult]]:
    """Return past cycles of the first application, of which every fiftieth changed something."""
    plan = Plan.model_validate(example("plan"))
    lines = []
    for number in range(count):
        is_hold = number % 50 != 0
        line = plan.in_short(12.5 + number % 20, 40_000.0 + number % 977, 39_900.0)
        changes = {"kind": "hold", "code": f"reason-{number // 50 % 5}", "approved": None} if is_hold else {}
        at = now - timedelta(seconds=seconds * (count - number))
        plan_id = uuid5(UUID(int=7), str(number))
        lines.append((FIRST, line.model_copy(update={"at": at, "plan_id": plan_id, **changes})))
    return lines


async def run(port: int, count: int, interval_seconds: float, cycles: int) -> int:
    """Run until ended by a signal."""
    settings = of_environment(SingleSettings, http_host="127.0.0.1", http_port=port)
    names = [f"bench/app-{number:04}" for number in range(count)]
    clock = SystemClock()
    with log_and_store(None, clock) as (bus, store):
        one = compose_knowledge(settings, bus, store, clock)

        async def live(stop: Stop) -> None:
            if not await wait_for_topics(bus, settings, stop):
                return
            await bus.publish_many([record(POLICIES, name, policy_of(name), **{VERSION_HEADER: "1"}) for name in names])
            number = 0
            while not stop.requested:
                # An application at a time, as they are observed.
                began = clock.monotonic()
                for place, name in enumerate(names):
                    messages = cycle(name, number, datetime.now(UTC))
                    await bus.publish_many([record(topic, name, body) for topic, body in messages])
                    if number > 0 and await stop.wait(
                        max(0.0, began + interval_seconds * place / count - clock.monotonic())
                    ):
                        return
                if number == 0:
                    await shown(stop)
                number += 1
                if await stop.wait(max(0.0, began + interval_seconds - clock.monotonic())):
                    return

        async def shown(stop: Stop) -> None:
            path = f"/v1/applications/{names[-1]}/plan"
            async with asyncio.timeout(600.0):
                while (await one.api.client.get(path)).status_code != 200 and not await stop.wait(0.2):
                    pass
            await store.apply(Batch({}, {}, entries=past(cycles, 86_400.0 / max(1, cycles), datetime.now(UTC))))
            sys.stdout.write("ready\n")
            sys.stdout.flush()

        return await run_service("weir", settings, app=one.app, tasks={**one.tasks, "live": live}, on_stopped=one.close)


def serve() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("--port", type=int, required=True)
    options.add_argument("--applications", type=int, default=200)
    options.add_argument("--interval-seconds", type=float, default=5.0)
    options.add_argument(
        "--cycles", type=int, default=0, help=f"past cycles of the first one, at most {MAX_HISTORY_COUNT}"
    )
    given = options.parse_args()
    return asyncio.run(run(given.port, given.applications, given.interval_seconds, given.cycles))


if __name__ == "__main__":
    sys.exit(serve())

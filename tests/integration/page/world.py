"""A process that serves the page on applications of simulated time: `python -m tests.integration.page.world`.

It prints its address when the past is there. An application `shop/orders` is held by the loop under a day's load, from then on
an interval a second; `shop/hostile` has names and sentences that attack a page; others come with `--many`.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid5

from weir_cli.demo_run import INTERVAL_SECONDS, NOISE, prepared_day
from weir_cli.single import OneProcess, SingleSettings, compose_knowledge, of_environment
from weir_cli.single_run import log_and_store
from weir_contracts import Analysis, Observation, Outcome, Plan, example
from weir_contracts.topics import POLICIES, TOPICS
from weir_replay.loop import Loop
from weir_replay.simulator import Noise, Simulation
from weir_runtime.bus import VERSION_HEADER, Outgoing
from weir_runtime.loop import Stop
from weir_runtime.messages import encode
from weir_runtime.service import run_service

ORDERS, HOSTILE = "shop/orders", "shop/hostile"
PAST_SECONDS = 4500.0
BATCH_SECONDS = 50.0
"""Of the past at once: knowledge keeps few cycles that wait for their plan."""
SHOWN_SECONDS = 300.0
"""For a plan to be shown on a busy machine."""
MARKUP = '<img src=x onerror="document.title=\'taken\'"><script>document.title="taken"</script>'
LONG = "long" * 75
RIGHT_TO_LEFT = "\u202eالطلبات\u202e"
SENTENCE = f"{MARKUP} {RIGHT_TO_LEFT} {LONG}"[:400]
_EXAMPLE_NOW = datetime.fromisoformat("2026-06-14T18:30:00Z")
_NAMES = {
    "enrich": MARKUP,
    "Source: orders": RIGHT_TO_LEFT,
    "sink: Writer": LONG,
    "shop/orders": HOSTILE,
    "orders": "hostile",
}


def hostile(now: datetime, count: int) -> Iterator[Observation | Analysis | Plan | Outcome]:
    """Return the full examples of one cycle, moved to now, with texts that attack a page."""

    def turned(value: Any) -> Any:
        if isinstance(value, dict):
            return {turned(name): turned(each) for name, each in value.items()}
        if isinstance(value, list):
            return [turned(each) for each in value]
        return _text(value, now, count) if isinstance(value, str) else value

    for name, model in (("observation", Observation), ("analysis", Analysis), ("plan", Plan), ("outcome", Outcome)):
        document = turned(example(name))
        for field in ("sentence", "message"):
            if field in document:
                document[field] = SENTENCE
        yield model.model_validate(document)


def _text(text: str, now: datetime, count: int) -> str:
    if text in _NAMES:
        return _NAMES[text]
    try:
        return str(uuid5(UUID(text), str(count)))
    except ValueError:
        pass
    try:
        return (now + (datetime.fromisoformat(text) - _EXAMPLE_NOW)).isoformat()
    except (ValueError, TypeError):
        return text


def _other(number: int, document: Any) -> Outgoing:
    """Return the decision on the policy of one of many applications, of which nothing else is known."""
    name = f"app-{number:04}"
    spec = document["spec"] | {"application": {"flink": {"url": f"http://{name}:8081", "job": name}}}
    policy = document | {"metadata": {"namespace": "many", "name": name, "version": 1}, "spec": spec}
    headers = {"ce_type": POLICIES.type, VERSION_HEADER: "1"}
    return Outgoing(POLICIES.name, f"many/{name}", json.dumps(policy).encode(), headers)


class World:
    """The applications and their messages."""

    def __init__(self, one: OneProcess, publish: Callable[[list[Outgoing]], Any], loop: Loop, many: int) -> None:
        self.one, self.loop, self.many = one, loop, many
        self.messages: list[Any] = []
        self._publish_all = publish
        self._seconds = 0.0

    async def live(self, stop: Stop) -> None:
        """Let the past happen, say the address, then let an interval pass each second."""
        day = prepared_day("rate")
        simulation = Simulation(day.job, day.trace.rate_at, step_seconds=day.step_seconds)
        policy = day.policy.to_document() | {"metadata": {"namespace": "shop", "name": "orders"}}
        policy["spec"]["shadows"] = [{"name": "hpa"}]
        await self._put(ORDERS, policy)
        quiet = policy | {"metadata": {"namespace": "shop", "name": "hostile"}}
        quiet["spec"] = quiet["spec"] | {"application": {"flink": {"url": "http://hostile:8081", "job": "hostile"}}}
        await self._put(HOSTILE, quiet)
        await self._publish_all([_other(number, quiet) for number in range(self.many)])
        stored = (await self.one.api.client.get(f"/v1/policies/{ORDERS}")).json()
        application = self.loop.add(simulation, type(day.policy).model_validate(stored), noise=Noise(relative=NOISE))
        while self._seconds < PAST_SECONDS:
            await self._pass(BATCH_SECONDS)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while not stop.requested:
            await self._pass(INTERVAL_SECONDS)
            stored = (await self.one.api.client.get(f"/v1/policies/{ORDERS}")).json()
            application.policy = type(day.policy).model_validate(stored)
            await stop.wait(1.0)

    async def _pass(self, seconds: float) -> None:
        """Let time pass, and wait until its last plan is shown."""
        await asyncio.to_thread(self.loop.run, seconds)
        self._seconds += seconds
        last = await self._publish()
        path = f"/v1/applications/{ORDERS}/plan"
        async with asyncio.timeout(SHOWN_SECONDS):
            while last is not None:
                if (await self.one.api.client.get(path)).json().get("id") == last:
                    return
                await asyncio.sleep(0.02)

    async def _put(self, application: str, document: Any) -> None:
        refused = await self.one.api.put(application, document)
        if refused is not None:
            raise RuntimeError(refused.text)

    async def _publish(self) -> str | None:
        """Publish what the loop wrote meanwhile; return the id of its last plan."""
        arrived, self.messages[:] = list(self.messages), []
        last = next((str(each.id) for each in reversed(arrived) if isinstance(each, Plan)), None)
        arrived += hostile(self.loop.now - timedelta(seconds=1), int(self._seconds))
        records = []
        for message in arrived:
            topic = next(topic for topic in TOPICS if isinstance(message, topic.contract))
            at = getattr(message, "observed_at", None) or self.loop.now
            body, headers = encode(message, type=topic.type, source="world", id=message.id, time=at)
            records.append(Outgoing(topic.name, message.application, body, headers))
        await self._publish_all(records)
        return last


async def run(port: int, many: int) -> int:
    """Run until ended by a signal."""
    settings = of_environment(SingleSettings, http_host="127.0.0.1", http_port=port)
    messages: list[Any] = []

    def carry(message: Any) -> Any:
        messages.append(message)
        return message

    loop = Loop(carry=carry)
    with log_and_store(None, loop.clock) as (bus, store):
        one = compose_knowledge(settings, bus, store, loop.clock)
        world = World(one, bus.publish_many, loop, many)
        world.messages = messages

        async def close() -> None:
            await asyncio.to_thread(loop.close)
            await one.close()

        return await run_service(
            "weir", settings, app=one.app, tasks={**one.tasks, "world": world.live}, on_stopped=close
        )


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("--port", type=int, required=True)
    options.add_argument("--many", type=int, default=0)
    given = options.parse_args()
    return asyncio.run(run(given.port, given.many))


if __name__ == "__main__":
    sys.exit(main())

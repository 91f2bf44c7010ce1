"""A loop under measurement: a trial's stack with its policy and what its event feed has reported, the topics of the loop,
and processes' usage."""

import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import httpx
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaException, Message, TopicPartition

from bench.results_file import log
from testbed.process import ManagedProcess, NotInTime, wait_until
from testbed.trial.loop_stack import LoopStack
from testbed.trial.sampler import REPORTED_KINDS, UNREPORTED_FIELDS, EventFollower
from weir_contracts import ActionState, Outcome, Plan, parse_policy
from weir_contracts.topics import PLANS
from weir_runtime.http_client import client

Stack = TypeVar("Stack", bound=LoopStack)


class Running:
    """A started stack. Lists of plans and actions are oldest first."""

    def __init__(self, stack: LoopStack) -> None:
        self.stack = stack
        self.events = EventFollower(f"{stack.api_url}/v1/events", kinds=REPORTED_KINDS, without=UNREPORTED_FIELDS)
        self._http = client(timeout=5.0)
        self._read = 0
        self._plans: list[Plan] = []
        self._actions: dict[str, ActionState] = {}

    def close(self) -> None:
        """End the feed and the connections."""
        self.events.stop()
        self._http.close()

    def _follow(self) -> None:
        """Take in the events that came since the last call."""
        events = self.events.events()
        for event in events[self._read :]:
            if event.kind == "plan":
                self._plans.append(Plan.model_validate(event.data))
            elif action := Outcome.model_validate(event.data).action:
                self._actions[str(action.id)] = action
        self._read = len(events)

    def plans(self) -> list[Plan]:
        """Return all plans so far."""
        self._follow()
        return self._plans

    def actions(self) -> list[ActionState]:
        self._follow()
        return list(self._actions.values())

    def idle(self) -> bool:
        """Return whether no action is in flight."""
        actions = self.actions()
        return not actions or actions[-1].terminal

    def lag_seconds(self) -> float | None:
        """Return the lag by the probe at the application's output."""
        return None if self.stack.probe is None else self.stack.probe.lag_seconds()

    def change_policy(self, **spec: Any) -> None:
        """Replace parts of the policy's specification."""
        url = f"{self.stack.api_url}/v1/policies/{self.stack.policy.application}"
        answer = self._http.get(url).raise_for_status()
        document = answer.json()
        document["spec"] |= spec
        self._http.put(url, json=document, headers={"If-Match": answer.headers["ETag"]}).raise_for_status()

    def wait(self, condition: Callable[[], bool], seconds: float, what: str, *, poll_seconds: float = 0.2) -> bool:
        """Wait until a condition holds; False, and a line in the log, if it does not within so many seconds."""

        def holds() -> bool:
            self.stack.check()
            try:
                return condition()
            except httpx.HTTPError as error:
                log(f"{what}: {type(error).__name__}")
                return False

        try:
            return wait_until(holds, timeout_seconds=seconds, what=what, poll_seconds=poll_seconds)
        except NotInTime:
            log(f"not within {seconds:g} s: {what}")
            return False


class TopicFollower:
    """Hands every record of some topics that has a value to `take`, on its own thread, through outages, until stopped: as
    compaction deletes records."""

    def __init__(
        self,
        bootstrap_servers: str,
        topics: Sequence[str],
        partitions: int,
        take: Callable[[Message], None],
        *,
        from_beginning: bool = True,
    ) -> None:
        self._take = take
        self._stopped = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                # Partitions are assigned, never subscribed to; the library wants a name all the same.
                "group.id": "weir-bench",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest" if from_beginning else "latest",
                "log_level": 0,
            }
        )
        begin = OFFSET_BEGINNING if from_beginning else OFFSET_END
        self._consumer.assign([TopicPartition(topic, p, begin) for topic in topics for p in range(partitions)])
        self._thread = threading.Thread(target=self._follow, name="topic-follower", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Returns once the thread has ended."""
        self._stopped.set()
        self._thread.join(10)

    def _follow(self) -> None:
        while not self._stopped.is_set():
            try:
                messages = self._consumer.consume(500, 0.2)
            except KafkaException:
                continue
            for message in messages:
                # A broker that is away is an event for the client, not for the benchmark.
                if not message.error() and message.value() is not None:
                    self._take(message)
        self._consumer.close()


class PlanLatencies:
    """Latencies from an observation to its plan at the broker; follows the plans' topic from its end until stopped."""

    def __init__(self, bootstrap_servers: str, partitions: int) -> None:
        self.seconds: list[float] = []
        """Seconds from the end of a scrape to the plan's timestamp at the broker, in order of arrival."""
        self._follower = TopicFollower(bootstrap_servers, [PLANS.name], partitions, self._take, from_beginning=False)

    def stop(self) -> list[float]:
        """Stop following; returns all latencies."""
        self._follower.stop()
        return self.seconds

    def _take(self, message: Message) -> None:
        observed = datetime.fromisoformat(json.loads(message.value() or b"")["observed_at"])
        self.seconds.append(message.timestamp()[1] / 1000 - observed.timestamp())


@contextmanager
def run_folder() -> Iterator[Path]:
    """Yield a folder for one run, removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as folder:
        yield Path(folder)


def with_spec(stack: Stack, spec: Mapping[str, Any]) -> Stack:
    """Return the stack with these parts in its policy's specification; objects are merged."""
    document = stack.policy.to_document()
    for name, value in spec.items():
        before = document["spec"].get(name)
        merges = isinstance(before, dict) and isinstance(value, dict)
        document["spec"][name] = {**before, **value} if merges else value
    stack.policy = parse_policy(document)
    return stack


Bench = TypeVar("Bench", bound=Running)


@contextmanager
def started(bench: Bench) -> Iterator[Bench]:
    """Start the stack and follow its feed; both are ended afterwards."""
    try:
        bench.stack.start(log)
        bench.events.start()
        yield bench
    finally:
        bench.close()
        bench.stack.stop()


def recovery(lags: Sequence[tuple[float, float | None]], objective_seconds: float) -> tuple[float | None, float | None]:
    """Return when the lag came within the objective for good, and the maximum lag.

    `lags` are pairs of seconds and lag. 0 if it never left the objective; None if it was late to the end, and for a lag
    that was never known.
    """
    late = [t for t, lag in lags if lag is None or lag > objective_seconds]
    after = [t for t, _ in lags if not late or t > max(late)]
    measured = [lag for _, lag in lags if lag is not None]
    recovered = None if not after else 0.0 if not late else round(after[0], 1)
    return recovered, round(max(measured), 1) if measured else None


def usage_over(processes: Sequence[ManagedProcess], seconds: float) -> dict[str, dict[str, float]]:
    """Mean processor share (of one core) and resident memory of each process over a while."""
    first = {p.name: p.usage() for p in processes}
    began = time.monotonic()
    threading.Event().wait(seconds)
    took = time.monotonic() - began
    figures = {}
    for process in processes:
        before, after = first[process.name], process.usage()
        if before and after:
            figures[process.name] = {
                "rss_megabytes": round(after.rss_bytes / 1e6, 1),
                "cpu_cores": round((after.cpu_seconds - before.cpu_seconds) / took, 3),
            }
    return figures

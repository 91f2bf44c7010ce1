"""A trial of the Kafka Streams sample under measurement: its load, its endpoint, its policy and its commits."""

import itertools
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from confluent_kafka import Consumer, KafkaException, TopicPartition
from weir_contracts import ActionState, Outcome, Plan, parse_policy
from weir_contracts.endpoint import EndpointState

from bench.results_file import log
from runtime.event_feed import EventFollower
from testbed.process import NotInTime, wait_until
from testbed.trial.options import GROUP_ID, INPUT_TOPIC, TrialOptions
from testbed.trial.sampler import REPORTED_KINDS, UNREPORTED_FIELDS
from testbed.trial.streams_stack import StreamsStack


class Running:
    """The stack, and what its event feed has reported so far."""

    def __init__(self, stack: StreamsStack) -> None:
        self.stack = stack
        self._events = EventFollower(f"{stack.api_url}/v1/events", kinds=REPORTED_KINDS, without=UNREPORTED_FIELDS)
        self._read = 0
        self._plans: list[Plan] = []
        self._actions: dict[str, ActionState] = {}
        self._http = httpx.Client(timeout=5.0, trust_env=False)

    def start(self) -> None:
        """Follow the feed; once the stack runs."""
        self._events.start()

    def stop(self) -> None:
        """End the feed and the connections."""
        self._events.stop()
        self._http.close()

    def set_rate(self, rate: float) -> float:
        """Change the load; returns the monotonic time of the change."""
        self._http.put(f"{self.stack.load_url}/load", json={"rate": rate}).raise_for_status()
        return time.monotonic()

    def endpoint(self, application_id: str = GROUP_ID) -> EndpointState:
        """Return what the supervisor reports."""
        answer = self._http.get(self.stack.endpoint_url_of(application_id)).raise_for_status()
        return EndpointState.model_validate_json(answer.content)

    def scale(self, replicas: int, application_id: str = GROUP_ID) -> None:
        """Request so many instances of the supervisor, past Weir."""
        body = {"replicas": replicas, "version": self.endpoint(application_id).version}
        self._http.put(self.stack.endpoint_url_of(application_id), json=body).raise_for_status()

    def _follow(self) -> None:
        """Take in the events that came since the last call."""
        events = self._events.events()
        for event in events[self._read :]:
            if event.kind == "plan":
                self._plans.append(Plan.model_validate(event.data))
            elif action := Outcome.model_validate(event.data).action:
                self._actions[str(action.id)] = action
        self._read = len(events)

    def actions(self) -> list[ActionState]:
        """Return the last state of each action, oldest first."""
        self._follow()
        return list(self._actions.values())

    def plans(self) -> list[Plan]:
        """Return all plans so far, oldest first."""
        self._follow()
        return self._plans

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
        document["spec"] = {**document["spec"], **spec}
        headers = {"If-Match": answer.headers["ETag"]}
        self._http.put(url, json=document, headers=headers).raise_for_status()

    def wait(self, condition: Callable[[], bool], seconds: float, what: str) -> bool:
        """Wait until a condition holds; False, and a line in the log, if it does not within so many seconds."""

        def holds() -> bool:
            self.stack.check()
            try:
                return condition()
            except httpx.HTTPError as error:
                log(f"{what}: {type(error).__name__}")
                return False

        try:
            wait_until(holds, timeout_seconds=seconds, what=what, poll_seconds=0.2)
        except NotInTime:
            log(f"not within {seconds:g} s: {what}")
            return False
        return True

    def has(self, replicas: int) -> bool:
        """Return whether exactly so many instances run and are ready."""
        state = self.endpoint()
        return state.replicas == state.ready == len(state.instances) == replicas


@contextmanager
def running(
    options: TrialOptions, spec: Mapping[str, Any], *, supervisor: Mapping[str, object], partitions: int = 12
) -> Iterator[Running]:
    """A started stack whose policy has these parts; everything is ended afterwards."""
    with tempfile.TemporaryDirectory(prefix="weir-bench-streams-") as folder:
        stack = StreamsStack(options, Path(folder), partitions=partitions, supervisor=supervisor)
        document = stack.policy.to_document()
        for name, value in spec.items():
            before = document["spec"].get(name)
            merged = {**before, **value} if isinstance(before, dict) and isinstance(value, dict) else value
            document["spec"][name] = merged
        stack.policy = parse_policy(document)
        found = Running(stack)
        try:
            stack.start(log)
            found.start()
            yield found
        finally:
            found.stop()
            stack.stop()


class CommitWatch:
    """Polls a group's commits and remembers when each partition's last advanced."""

    POLL_SECONDS = 0.1

    def __init__(self, servers: str, group: str, partitions: int, topics: Sequence[str] = (INPUT_TOPIC,)) -> None:
        self._consumer = Consumer({"bootstrap.servers": servers, "group.id": group, "enable.auto.commit": False})
        self._places = [TopicPartition(topic, n) for topic in topics for n in range(partitions)]
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._offsets: dict[tuple[str, int], int] = {}
        self._advances: dict[tuple[str, int], list[float]] = {}
        self._thread = threading.Thread(target=self._run, name="commits", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and the connection."""
        self._stopped.set()
        self._thread.join(10)
        self._consumer.close()

    def _run(self) -> None:
        while not self._stopped.wait(self.POLL_SECONDS):
            try:
                found = self._consumer.committed(self._places, timeout=2.0)
            except KafkaException:
                continue
            now = time.monotonic()
            with self._lock:
                for each in found:
                    place = (each.topic, each.partition)
                    if each.error is None and each.offset > self._offsets.get(place, -1):
                        self._offsets[place] = each.offset
                        self._advances.setdefault(place, []).append(now)

    def longest_still_seconds(self, since: float) -> float | None:
        """Return the longest time in which a partition's commits did not advance, until now, of the gaps that ended
        after `since`; None if some partition never advanced."""
        now = time.monotonic()
        with self._lock:
            if len(self._advances) < len(self._places):
                return None
            longest = 0.0
            for times in self._advances.values():
                first = max((i for i, at in enumerate(times) if at <= since), default=0)
                seen = [*times[first:], now]
                longest = max([longest, *(b - a for a, b in itertools.pairwise(seen))])
        return longest

    def all_advance_after(self, since: float) -> bool:
        """Return whether every partition advanced after a moment."""
        with self._lock:
            return len(self._advances) == len(self._places) and all(t[-1] > since for t in self._advances.values())

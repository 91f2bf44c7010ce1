"""A trial of the Kafka Streams sample under measurement: its endpoint and its commits."""

import itertools
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from bench.running import Running, run_folder, started, with_spec
from testbed.trial.options import GROUP_ID, INPUT_TOPIC, TrialOptions
from testbed.trial.streams_stack import StreamsStack
from weir_contracts.plugins import EndpointState


class StreamsRunning(Running):
    """The stack, and the endpoints of its applications."""

    stack: StreamsStack

    def endpoint(self, application_id: str = GROUP_ID) -> EndpointState:
        """Return what the supervisor reports."""
        answer = self._http.get(self.stack.endpoint_url_of(application_id)).raise_for_status()
        return EndpointState.model_validate_json(answer.content)

    def scale(self, replicas: int, application_id: str = GROUP_ID) -> None:
        """Request so many instances of the supervisor, past Weir."""
        body = {"replicas": replicas, "version": self.endpoint(application_id).version}
        self._http.put(self.stack.endpoint_url_of(application_id), json=body).raise_for_status()

    def has(self, replicas: int) -> bool:
        """Return whether exactly so many instances run and are ready."""
        state = self.endpoint()
        return state.replicas == state.ready == len(state.instances) == replicas


@contextmanager
def running(
    options: TrialOptions, spec: Mapping[str, Any], *, supervisor: Mapping[str, object], partitions: int = 12
) -> Iterator[StreamsRunning]:
    """A started stack whose policy has these parts; everything is ended afterwards."""
    with run_folder() as folder:
        stack = StreamsStack(options, folder, partitions=partitions, supervisor=supervisor)
        with started(StreamsRunning(with_spec(stack, spec))) as bench:
            yield bench


class CommitWatch:
    """Polls a group's commits and remembers when each partition's last advanced."""

    POLL_SECONDS = 0.1

    def __init__(self, servers: str, group: str, partitions: int) -> None:
        self._consumer = Consumer({"bootstrap.servers": servers, "group.id": group, "enable.auto.commit": False})
        self._places = [TopicPartition(INPUT_TOPIC, n) for n in range(partitions)]
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

    def max_still_seconds(self, since: float) -> float | None:
        """Return the longest time in which a partition's commits did not advance, until now, of the gaps that ended
        after `since`; None if some partition never advanced."""
        now = time.monotonic()
        with self._lock:
            if len(self._advances) < len(self._places):
                return None
            max_still = 0.0
            for times in self._advances.values():
                first = max((i for i, at in enumerate(times) if at <= since), default=0)
                observed = [*times[first:], now]
                max_still = max([max_still, *(b - a for a, b in itertools.pairwise(observed))])
        return max_still

    def all_advance_after(self, since: float) -> bool:
        """Return whether every partition advanced after a moment."""
        with self._lock:
            return len(self._advances) == len(self._places) and all(t[-1] > since for t in self._advances.values())

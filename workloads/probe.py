"""The independent probe: a consumer at the sample job's sink that compares produce timestamps with its own clock.

It shares nothing with Weir: no group, no metrics, no topic of the loop. It measures the lag of the job's results.
"""

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Self

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

RECENT_SECONDS = 2.0
"""Results arrive in a burst per window; the lag is the largest of this interval."""


class UnreadableResult(ValueError):
    """A sink record is not a result; the sentence names the field."""


@dataclass(frozen=True)
class Result:
    """Freshness of a sink record: produce times of its oldest and newest order."""

    oldest_seconds: float
    """Produce time of its oldest order."""
    newest_seconds: float

    @classmethod
    def read(cls, line: bytes) -> "Result":
        """Parse `<key>;<count>;<payload_bytes>;<oldest_ms>;<newest_ms>;<window_end_ms>`."""
        fields = line.split(b";")
        if len(fields) != 6:
            raise UnreadableResult(f"{len(fields)} fields where there should be 6")
        oldest, newest = (_millis(name, text) for name, text in (("oldest_ms", fields[3]), ("newest_ms", fields[4])))
        return cls(oldest / 1000, newest / 1000)


def _millis(name: str, text: bytes) -> int:
    if not text.isdigit():
        raise UnreadableResult(f"field {name}: {text[:40]!r} is not a time in milliseconds")
    return int(text)


class Freshness:
    """Collects results in order of arrival and returns their lag."""

    def __init__(self) -> None:
        self._recent: deque[tuple[float, float]] = deque()
        self._newest_oldest: float | None = None
        self._newest: float | None = None

    def add(self, result: Result, arrived_at: float) -> None:
        """Add one result. A producer's clock that is ahead gives a lag of 0."""
        lag = max(0.0, arrived_at - result.oldest_seconds)
        # A falling sequence: its first element is always the largest recent lag.
        while self._recent and self._recent[-1][1] <= lag:
            self._recent.pop()
        self._recent.append((arrived_at, lag))
        self._forget_before(arrived_at - RECENT_SECONDS)
        self._newest_oldest = max(self._newest_oldest or 0.0, result.oldest_seconds)
        self._newest = max(self._newest or 0.0, result.newest_seconds)

    def lag_seconds(self, now: float, newest_input: float | None = None) -> float | None:
        """Return the larger of the largest lag among recent results and the age of the freshest result.

        The age counts only while there is input without a result: `newest_input` is the produce time of the newest
        order in the job's input, None if unknown. Returns None before the first result.
        """
        if self._newest_oldest is None or self._newest is None:
            return None
        self._forget_before(now - RECENT_SECONDS)
        recent = self._recent[0][1] if self._recent else 0.0
        complete = newest_input is not None and newest_input <= self._newest
        return recent if complete else max(recent, now - self._newest_oldest)

    def _forget_before(self, at: float) -> None:
        while self._recent and self._recent[0][0] < at:
            self._recent.popleft()


_POLL_SECONDS = 0.05
"""Bounds the error of a lag by a result that waits to be read."""
_ADMIN_TIMEOUT_SECONDS = 10.0
_INPUT_EVERY_SECONDS = 1.0


class ProbeError(Exception):
    """The probe cannot read its topic; the sentence has the reason."""


class Probe:
    """Reads all partitions of the sink's topic from its end, on its own thread.

    With `input_topic` it also reads the time of the job's newest input once a second, so that an application without
    input does not count as late. Without it, missing results always count as late.
    """

    def __init__(self, bootstrap_servers: str, topic: str, *, input_topic: str | None = None) -> None:
        self.unreadable = 0
        """Sink records that are not results."""
        self.problem: str | None = None
        """Kafka's last error; None after the next record."""
        self._configuration = {"bootstrap.servers": bootstrap_servers, "client.id": "weir-probe", "log_level": 2}
        self._topic = topic
        self._input_topic = input_topic
        self._lock = threading.Lock()
        self._freshness = Freshness()
        self._newest_input: float | None = None
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, timeout_seconds: float = 10.0) -> Self:
        """Begin at the end of every partition; raises `ProbeError` if topic or Kafka stay unavailable."""
        consumer = Consumer(
            {
                **self._configuration,
                # Partitions are assigned, not subscribed to, but the library requires a group.
                "group.id": "weir-probe",
                "enable.auto.commit": False,
                "auto.offset.reset": "latest",
                "fetch.wait.max.ms": 50,
                "error_cb": self._note_problem,
            }
        )
        try:
            consumer.assign(self._ends(consumer, time.monotonic() + timeout_seconds))
        except (ProbeError, KafkaException) as error:
            consumer.close()
            raise ProbeError(f"{self._topic}: {error}") from None
        self._threads = [threading.Thread(target=self._read, args=(consumer,), name="probe", daemon=True)]
        if self._input_topic is not None:
            self._threads.append(threading.Thread(target=self._watch_input, name="probe-input", daemon=True))
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> None:
        """End the threads; the samples stay. Idempotent."""
        self._stop.set()
        for thread in self._threads:
            thread.join(5.0)

    def lag_seconds(self, now: float | None = None) -> float | None:
        """Return the lag of the job's results at `now`, in seconds since the epoch (None: now).

        None before the first result. See `Freshness.lag_seconds`.
        """
        with self._lock:
            return self._freshness.lag_seconds(time.time() if now is None else now, self._newest_input)

    def _ends(self, consumer: Consumer, deadline: float) -> list[TopicPartition]:
        found = consumer.list_topics(self._topic, timeout=_left(deadline)).topics[self._topic]
        # A new topic takes time to reach every broker.
        while found.error is not None or not found.partitions:
            if time.monotonic() >= deadline or self._stop.wait(0.2):
                raise ProbeError(found.error.str() if found.error else "has no partitions")
            found = consumer.list_topics(self._topic, timeout=_left(deadline)).topics[self._topic]
        # Offsets instead of OFFSET_END: records written before the first fetch count too.
        ends = []
        for number in found.partitions:
            partition = TopicPartition(self._topic, number, OFFSET_END)
            _, partition.offset = consumer.get_watermark_offsets(partition, timeout=_left(deadline))
            ends.append(partition)
        return ends

    def _read(self, consumer: Consumer) -> None:
        try:
            while not self._stop.is_set():
                messages = consumer.consume(1000, _POLL_SECONDS)
                if messages:
                    self._add(messages, time.time())
        finally:
            consumer.close()

    def _add(self, messages: list[Message], arrived_at: float) -> None:
        with self._lock:
            for message in messages:
                if (error := message.error()) is not None:
                    self.problem = error.str()
                    continue
                try:
                    self._freshness.add(Result.read(message.value() or b""), arrived_at)
                except UnreadableResult:
                    self.unreadable += 1
                else:
                    self.problem = None

    def _watch_input(self) -> None:
        admin = AdminClient({**self._configuration, "log_level": 0})
        while not self._stop.wait(_INPUT_EVERY_SECONDS):
            try:
                newest = self._input_newest(admin)
            except KafkaException as error:
                self._note_problem(error.args[0])
                newest = None
            with self._lock:
                self._newest_input = newest

    def _input_newest(self, admin: AdminClient) -> float | None:
        found = admin.list_topics(self._input_topic, timeout=_ADMIN_TIMEOUT_SECONDS).topics[self._input_topic]
        wanted = {TopicPartition(found.topic, number): OffsetSpec.max_timestamp() for number in found.partitions}
        if not wanted:
            return None
        answers = admin.list_offsets(wanted, request_timeout=_ADMIN_TIMEOUT_SECONDS)
        newest = [int(answer.result(_ADMIN_TIMEOUT_SECONDS).timestamp) for answer in answers.values()]
        # An empty partition has no newest record; with an empty topic no result can be late.
        return max(0, *newest) / 1000

    def _note_problem(self, error: KafkaError) -> None:
        self.problem = str(error.str())


def _left(deadline: float) -> float:
    """Return the seconds until a deadline, at least 1 for one attempt."""
    return max(1.0, deadline - time.monotonic())

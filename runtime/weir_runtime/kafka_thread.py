"""Shared parts of the Kafka clients: a dedicated thread for each synchronous client, sentences for librdkafka's errors,
and what a group member and a reader have in common."""

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

import structlog
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException, Message, Producer

from .bus import BusError
from .clock import Clock
from .records import Record

T = TypeVar("T")

REPEAT_SECONDS = 60.0
"""Between two logs of the same error: librdkafka repeats it at every attempt to reconnect."""

AWAY = (
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._WAIT_COORD,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
)
"""The brokers cannot be reached: wait."""


def connection(bootstrap_servers: str, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return librdkafka's settings for one cluster: every Kafka client of every service connects with these.

    librdkafka does not log by itself, since callers get each error; `settings` replace and complete the defaults.
    """
    attempts = {"reconnect.backoff.ms": 100, "reconnect.backoff.max.ms": 2_000}
    return {"bootstrap.servers": bootstrap_servers, **attempts, "log_level": 0, **(settings or {})}


def explain(error: BaseException) -> str:
    """Return the sentence in an exception of confluent-kafka."""
    reason = error.args[0] if error.args else error
    return reason.str() if isinstance(reason, KafkaError) else str(reason) or type(error).__name__


def code_of(error: KafkaException) -> int | None:
    """Return the error code in an exception of confluent-kafka."""
    reason = error.args[0] if error.args else None
    return reason.code() if isinstance(reason, KafkaError) else None


_REASON_SECONDS = 1.0
"""Maximum wait after the first error for one that names the reason: librdkafka may report the lost connection first."""


def connection_problem(bootstrap_servers: str, timeout_seconds: float, settings: Mapping[str, str]) -> str:
    """Return why brokers refuse a connection with `settings`; empty if they take it, or do not answer. Blocks.

    librdkafka reports this to a callback alone, which an admin client of confluent-kafka 2.16 must not have.
    """
    errors: list[KafkaError] = []
    of_client = {"bootstrap.servers": bootstrap_servers, "error_cb": errors.append, "log_level": 0}
    try:
        client = Producer({**settings, **of_client})
    except KafkaException as error:
        return f"the files of the credentials cannot be used: {error.args[0].str()[:200]}"
    until = time.monotonic() + timeout_seconds
    while not errors and time.monotonic() < until:
        client.poll(0.1)
    until = min(until, time.monotonic() + _REASON_SECONDS)
    while not (reason := _refusal(errors)) and time.monotonic() < until:
        client.poll(0.1)
    return reason


def _refusal(errors: Sequence[KafkaError]) -> str:
    """Return the reason of the first error that names one; empty if none does."""
    for each in errors:
        if each.code() == KafkaError._AUTHENTICATION:
            return "the brokers refuse the credentials: user or password is wrong"
        if each.code() == KafkaError._SSL:
            return f"TLS: {each.str().partition(': ')[2][:200]}"
    return ""


class Complaints:
    """Logs librdkafka's errors, each once a minute. It retries by itself; `ping` and delivery reports show losses."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._logged_at: dict[int, float] = {}
        self._log = structlog.get_logger("kafka")

    def __call__(self, error: KafkaError) -> None:
        now = self._clock.monotonic()
        if now - self._logged_at.get(error.code(), float("-inf")) >= REPEAT_SECONDS:
            self._logged_at[error.code()] = now
            self._log.warning("kafka-error", code=error.name(), reason=error.str())


class ClientThread:
    """Runs a synchronous client's calls in order on one thread, for callers on an event loop.

    A daemon: a call that librdkafka does not return from while the brokers are away must not delay the end of the
    process.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return the result of `function`. `BusError` for errors of the client, and once closed."""
        if self._closed:
            raise BusError(f"kafka: {self.name} is closed")
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
            self._thread.start()
        report = running_future()
        self._calls.put((partial(function, *arguments), report))
        result: T = await asyncio.wrap_future(report)
        return result

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            work, report = call
            try:
                report.set_result(work())
            except (KafkaException, TimeoutError) as error:
                problem = BusError(f"kafka: {explain(error)}")
                problem.__cause__ = error.with_traceback(None)  # its frames would keep the client alive, and connecting
                report.set_exception(problem)
            except Exception as error:  # noqa: BLE001 - belongs to the caller, not to this thread
                report.set_exception(error)
            call = work = report = None  # type: ignore[assignment] # so that its frames do not keep the client alive

    def abandon(self, reason: str, close: Callable[[], None]) -> None:
        """Give up a call that does not return: those that wait behind it fail with `BusError`, and `close` is called if
        it ever returns."""
        with suppress(queue.Empty):
            while (call := self._calls.get_nowait()) is not None:
                call[1].set_exception(BusError(reason))
        self._calls.put((close, running_future()))
        self.close()

    def close(self) -> None:
        """End after the pending calls; further ones are refused."""
        if not self._closed:
            self._closed = True
            self._calls.put(None)


def running_future() -> "Future[Any]":
    """Return a future that a caller on an event loop cannot cancel: its thread settles it in any case."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


CLOSE_SECONDS = 2.0
"""For leaving the group; librdkafka blocks for longer while the brokers are away, and the session expires anyway."""

READING = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "fetch.wait.max.ms": 100,
    "fetch.error.backoff.ms": 100,
    # Bounded buffers of prefetched records.
    "queued.max.messages.kbytes": 16_384,
    # New topics and partitions are noticed within this.
    "topic.metadata.refresh.interval.ms": 10_000,
}


def _record(message: Message) -> Record:
    key = message.key()
    kind, milliseconds = message.timestamp()
    headers: dict[str, str] = {}
    for name, value in message.headers() or []:
        headers[str(name)] = value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")
    return Record(
        topic=str(message.topic()),
        partition=int(message.partition() or 0),
        offset=int(message.offset() or 0),
        key=key.decode(errors="replace") if isinstance(key, bytes) else key,
        value=message.value(),
        headers=headers,
        timestamp=None if kind == TIMESTAMP_NOT_AVAILABLE else datetime.fromtimestamp(milliseconds / 1000, UTC),
    )


@dataclass(frozen=True)
class Shared:
    """Shared parts of the clients of one bus."""

    settings: Mapping[str, Any]
    clock: Clock
    complaints: Complaints
    on_closed: Callable[[object], None]


class ReadingClient:
    """A confluent-kafka consumer on its thread. The records of a cancelled `receive` go to the next one."""

    def __init__(self, name: str, shared: Shared) -> None:
        self._thread = ClientThread(name)
        self._client: Consumer | None = None
        self._clock = shared.clock
        self._complaints = shared.complaints
        self._on_closed = shared.on_closed
        self._under_way: asyncio.Future[list[Record]] | None = None

    async def _take(self, max_records: int, timeout_seconds: float) -> list[Record]:
        if self._under_way is None:
            self._under_way = asyncio.ensure_future(self._thread.call(self._receive, max_records, timeout_seconds))
        try:
            records = await asyncio.shield(self._under_way)
        except asyncio.CancelledError:
            raise  # kept: its records would otherwise be lost
        except BaseException:
            self._under_way = None
            raise
        self._under_way = None
        return records

    def _receive(self, max_records: int, timeout_seconds: float) -> list[Record]:
        raise NotImplementedError

    def _poll(self, client: Consumer, max_records: int, timeout_seconds: float) -> tuple[list[Record], set[int]]:
        """Return records, and partitions read to their end. Waits for the first record only: `consume` would wait for
        all."""
        first = client.poll(timeout_seconds)
        if first is None:
            return [], set()
        messages = [first, *(client.consume(max_records - 1, 0.0) if max_records > 1 else [])]
        records, ends = [], set()
        for message in messages:
            error = message.error()
            if error is None:
                records.append(_record(message))
            elif error.code() == KafkaError._PARTITION_EOF:
                ends.add(int(message.partition()))
            else:
                self._complaints(error)
        return records, ends

    def _close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    async def close(self) -> None:
        self._on_closed(self)
        try:
            await asyncio.wait_for(self._thread.call(self._close), CLOSE_SECONDS)
        except (BusError, TimeoutError) as error:
            structlog.get_logger("kafka").info("closed-without-leaving", reason=explain(error))
        finally:
            self._thread.close()

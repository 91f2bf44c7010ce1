"""The lease of a role: exactly one contender holds it, for as long as it confirms it. `judge` is pure; `KafkaLease` keeps
leases on Kafka: by a consumer group whose one partition belongs to one member at a time.

Brokers keep the group, so it works across machines and has one clock: the coordinator's. The holder confirms its lease
by committing to the group; the broker refuses a commit of a member that is no longer the owner, and restarts the
session at each accepted one. The commit carries what the other contenders read: the epoch as its offset, the holder and
its start as its metadata. Nothing is written to the topic itself.
"""

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal, Protocol

import structlog
from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from .bus import TopicSpec
from .clock import Clock
from .kafka_client import connection, explain

_HEARTBEAT_SECONDS = 1.0
_CONFIRM_SECONDS = 2.0
_READ_SECONDS = 1.0
_POLL_SECONDS = 0.2
_ASK_SECONDS = 2.0
_CLOSE_SECONDS = 2.0
_NOT_THE_OWNER = (
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.FENCED_INSTANCE_ID,
    KafkaError._ASSIGNMENT_LOST,
)


@dataclass(frozen=True, slots=True)
class Terms:
    """Role and duration of a lease, and how long a contender stands by for another holder."""

    role: str
    """Names its holder in messages, and its group: one lease for each role of a loop."""
    lease_seconds: float = 10.0
    standby_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class Holder:
    """A holder of the lease as the other contenders read it."""

    name: str
    since: datetime
    epoch: int
    """Grows with each holder: no two have the same, even if the brokers forgot the last one."""


@dataclass(frozen=True, slots=True)
class LeaseState:
    """One contender's view at an instant. Times are its own monotonic seconds, so clocks of two processes are never
    compared."""

    waits_since: float
    """When it requested or lost the lease."""
    own: Holder | None = None
    """This contender, while it owns the lease."""
    confirmed_at: float | None = None
    """When it sent the last confirmation that was accepted: the sending, so that it never counts longer than others do.
    """
    other: Holder | None = None
    """The last other holder that was read."""
    other_renewed_at: float | None = None
    """When the other holder's record last changed. None: it was read once, and its holder may have ended long ago."""
    other_alive_since: float | None = None
    """Start of the other holder's renewals without a gap as long as a lease. None: `waits_since`."""
    problem: str = ""
    """Reason why the last attempt failed."""


@dataclass(frozen=True, slots=True)
class LeaseDecision:
    """Permission to work, with its reason."""

    kind: Literal["works", "waits", "refused"]
    reason: str


def judge(state: LeaseState, now: float, terms: Terms) -> LeaseDecision:
    """Decide whether a contender may work at `now`.

    It works while its lease was confirmed within `lease_seconds`. It is refused after `standby_seconds` next to a
    holder that renewed its lease all that time; while the brokers are away, or the lease of a dead holder runs out, it
    goes on waiting.
    """
    because_of = f": {state.problem}" if state.problem else ""
    if state.own is not None:
        if state.confirmed_at is None:
            return LeaseDecision("waits", f"its lease is not confirmed yet{because_of}")
        age = now - state.confirmed_at
        if age < terms.lease_seconds:
            return LeaseDecision("works", f"its lease was confirmed {age:.1f} s ago")
        return LeaseDecision("waits", f"its lease was last confirmed {age:.1f} s ago{because_of}")
    other = state.other
    if other is None:
        return LeaseDecision("waits", f"the group has not answered yet{because_of}")
    holder = f"another {terms.role} of this loop is at work: {other.name}, since {other.since:%Y-%m-%d %H:%M:%S} UTC"
    if state.other_renewed_at is None:
        return LeaseDecision("waits", f"{holder}; unknown whether it is alive{because_of}")
    silent = now - state.other_renewed_at
    if silent >= terms.lease_seconds:
        return LeaseDecision("waits", f"{holder}; not renewed for {silent:.0f} s{because_of}")
    waited = now - max(state.waits_since, state.other_alive_since or state.waits_since)
    if waited >= terms.standby_seconds:
        return LeaseDecision("refused", f"{holder}; waited {waited:.0f} s for it to end")
    return LeaseDecision("waits", f"stands by: {holder}")


def renewed_by_other(state: LeaseState, other: Holder, now: float, terms: Terms) -> LeaseState:
    """Return the state after another holder's record changed at `now`."""
    last = state.other_renewed_at
    unbroken = last is not None and now - last < terms.lease_seconds
    since = state.other_alive_since if unbroken else now
    return replace(state, other=other, other_renewed_at=now, other_alive_since=since, problem="")


class Lease(Protocol):
    """One contender for the lease of a role. Does not block, except `close`, briefly."""

    def open(self) -> None:
        """Contend for the lease. May be called again; does nothing then."""

    def state(self) -> LeaseState:
        """Return the current state. From any thread."""

    def close(self) -> None:
        """Release the lease, so that others need not wait until it expires. From any thread; may be called again."""


LEASES = TopicSpec("weir.leases", 1)
"""One partition, always empty: a role's group assigns it to the holder."""


class KafkaLease:
    """One contender, on a dedicated thread. `name` is what the others read: host and process."""

    def __init__(
        self,
        bootstrap_servers: str,
        clock: Clock,
        terms: Terms,
        name: str,
        *,
        security: Mapping[str, str] | None = None,
    ) -> None:
        """`security`: TLS and SASL settings of librdkafka."""
        self._bootstrap_servers = bootstrap_servers
        self._security = dict(security or {})
        self._clock = clock
        self._terms = terms
        self._name = name
        self._log = structlog.get_logger("lease")
        self._state = LeaseState(clock.monotonic())
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._owns = False
        self._confirmations = 0
        self._sent_at: float | None = None
        self._member_id = ""
        """The member id of the confirmation without a response yet."""
        self._next_at = 0.0
        self._last_read: tuple[int, str] | None = None
        self._last_own: Holder | None = None
        """Its own last entry, which it reads again after an outage in which the lease had no other holder."""

    def open(self) -> None:
        """Join the group."""
        if self._thread is None:
            self._state = LeaseState(self._clock.monotonic())
            self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
            self._thread.start()

    def state(self) -> LeaseState:
        return self._state

    def close(self) -> None:
        """Leave the group; while the brokers are away the membership expires."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        settings = self._settings()
        settings["on_commit"] = lambda error, partitions: self._on_commit(consumer.memberid(), error, partitions)
        consumer: Any = Consumer(settings)
        try:
            consumer.subscribe(
                [LEASES.name], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
            )
            while not self._closing.is_set():
                self._cycle(consumer)
        finally:
            self._lose("it was released")
            consumer.close()

    def _cycle(self, consumer: Consumer) -> None:
        try:
            message = consumer.poll(_POLL_SECONDS)
            error = None if message is None else message.error()
            if error is not None:
                self._failed(error.str())
            if self._clock.monotonic() >= self._next_at:
                (self._confirm if self._owns else self._read)(consumer)
        except Exception as error:  # noqa: BLE001 - the border of a cycle: without this thread there is no lease
            self._failed(explain(error) if isinstance(error, KafkaException) else repr(error))
            self._next_at = self._clock.monotonic() + _READ_SECONDS

    def _settings(self) -> dict[str, Any]:
        lease_milliseconds = round(self._terms.lease_seconds * 1000)
        own = {
            "client.id": self._name,
            "group.id": f"weir-{self._terms.role}-lease",
            # The owner of the partition keeps it when another member joins.
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": lease_milliseconds,
            "heartbeat.interval.ms": round(_HEARTBEAT_SECONDS * 1000),
            # A process whose thread hangs does not work, although librdkafka sends its heartbeats.
            "max.poll.interval.ms": lease_milliseconds,
            "socket.timeout.ms": 5_000,
            "reconnect.backoff.max.ms": 1_000,
            "topic.metadata.refresh.interval.ms": 2_000,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
        }
        return connection(self._bootstrap_servers, {**self._security, **own})

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if not partitions:
            return
        places = [TopicPartition(p.topic, p.partition, OFFSET_END) for p in partitions]
        consumer.incremental_assign(places)
        consumer.pause(places)
        self._owns = True
        self._next_at = 0.0

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if partitions:
            consumer.incremental_unassign(partitions)
            self._lose("the group revoked it")

    def _lose(self, reason: str) -> None:
        self._owns, self._sent_at, self._next_at = False, None, 0.0
        if self._state.own is not None:
            self._last_read = None
            self._state = LeaseState(self._clock.monotonic(), problem=reason)

    def _confirm(self, consumer: Consumer) -> None:
        """Commit as the holder; the first commit chooses the epoch."""
        if self._sent_at is not None:
            return  # `_on_commit` gets the response or the failure
        own = self._state.own
        if own is None:
            offset, _ = self._committed(consumer)
            now = self._clock.now()
            # By time, so that it also grows where the brokers forgot the last one: they do after a week without a
            # member.
            own = Holder(self._name, now, max(offset + 1, int(now.timestamp() * 1000)))
            self._state = LeaseState(self._clock.monotonic(), own)
            self._last_own = own
        self._confirmations += 1
        text = json.dumps({"holder": own.name, "since": own.since.isoformat(), "confirmed": self._confirmations})
        self._member_id, self._sent_at = consumer.memberid(), self._clock.monotonic()
        self._next_at = self._sent_at + _CONFIRM_SECONDS
        try:
            consumer.commit(offsets=[TopicPartition(LEASES.name, 0, own.epoch, text)], asynchronous=True)
        except KafkaException:
            self._sent_at = None
            raise

    def _on_commit(self, member_id: str, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        error = error or next((p.error for p in partitions if p.error is not None), None)
        sent_at, self._sent_at = self._sent_at, None
        if error is not None:
            self._next_at = self._clock.monotonic() + _POLL_SECONDS
            if error.code() in _NOT_THE_OWNER:
                self._state = replace(self._state, confirmed_at=None)
            self._failed(error.str())
        elif not member_id or member_id != self._member_id:
            # A client that lost its membership has no member id, and an empty group accepts its commit all the same.
            self._state = replace(self._state, confirmed_at=None)
            self._failed("it is no longer a member of the group")
        elif sent_at is not None and self._state.own is not None:
            self._state = replace(self._state, confirmed_at=sent_at, problem="")

    def _read(self, consumer: Consumer) -> None:
        """Read who holds the lease, and whether the holder still confirms it."""
        now = self._clock.monotonic()
        self._next_at = now + _READ_SECONDS
        found = self._committed(consumer)
        before, self._last_read = self._last_read, found
        other = _holder(*found)
        if found == before or other is None or other == self._last_own:
            return
        if before is None:  # the first entry read may have been written long ago
            self._state = replace(self._state, other=other, problem="")
        else:
            self._state = renewed_by_other(self._state, other, now, self._terms)

    @staticmethod
    def _committed(consumer: Consumer) -> tuple[int, str]:
        """Return the last epoch (0: none), and the text that its holder wrote."""
        (found,) = consumer.committed([TopicPartition(LEASES.name, 0)], timeout=_ASK_SECONDS)
        if found.error is not None:
            raise KafkaException(found.error)
        return max(0, found.offset), found.metadata or ""

    def _failed(self, reason: str) -> None:
        if reason != self._state.problem:
            self._state = replace(self._state, problem=reason)
            self._log.info("lease-not-confirmed", reason=reason)


def _holder(epoch: int, text: str) -> Holder | None:
    try:
        entry = json.loads(text)
        return Holder(str(entry["holder"]), datetime.fromisoformat(entry["since"]), epoch)
    except (ValueError, KeyError, TypeError):
        return None

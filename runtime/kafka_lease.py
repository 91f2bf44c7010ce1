"""The lease on Kafka: a consumer group whose one partition belongs to one member at a time.

Brokers keep the group, so it works across machines, and judges by one clock: the coordinator's. The holder confirms its claim by
committing to the group, which the broker refuses from whoever is no longer the owner, and which starts its time anew at the broker. What
is committed is for the others to read: as the offset the epoch, as its metadata who holds it and since when. Nothing is
ever written to the topic itself.
"""

import json
import threading
from dataclasses import replace
from datetime import datetime
from typing import Any

import structlog
from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from .clock import Clock
from .lease import Claim, Standing, Terms, heard
from .records import TopicSpec

TOPIC = TopicSpec("weir.leases", 1)
"""One partition, always empty: what the members of a role's group can own."""

_HEARTBEAT_SECONDS = 1.0
_CONFIRM_SECONDS = 2.0
_LISTEN_SECONDS = 1.0
_POLL_SECONDS = 0.2
_ASK_SECONDS = 2.0
_CLOSE_SECONDS = 2.0
_NOT_THE_OWNER = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError._ASSIGNMENT_LOST,
    }
)


class KafkaLease:
    """One contender, on a thread of its own. `who` is what the others read: host and process."""

    def __init__(self, bootstrap_servers: str, clock: Clock, terms: Terms, who: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._clock = clock
        self._terms = terms
        self._who = who
        self._log = structlog.get_logger("lease")
        self._standing = Standing(clock.monotonic())
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._owns = False
        self._confirmations = 0
        self._sent_at: float | None = None
        self._member_id = ""
        """With which the confirmation was sent that is not answered yet."""
        self._next_at = 0.0
        self._heard: tuple[int, str] | None = None
        self._last: Claim | None = None
        """Its own last claim, which it reads again after an outage that nobody else used."""

    def open(self) -> None:
        """Join the group."""
        if self._thread is None:
            self._standing = Standing(self._clock.monotonic())
            self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
            self._thread.start()

    def standing(self) -> Standing:
        """What is known now."""
        return self._standing

    def close(self) -> None:
        """Leave the group; while the brokers are away it ends by itself."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        consumer: Consumer

        def answered(error: KafkaError | None, partitions: list[TopicPartition]) -> None:
            self._answered(consumer.memberid(), error, partitions)

        consumer = Consumer({**self._settings(), "on_commit": answered})
        try:
            consumer.subscribe([TOPIC.name], on_assign=self._given, on_revoke=self._taken, on_lost=self._taken)
            while not self._closing.is_set():
                self._turn(consumer)
        finally:
            self._lose("it was given back")
            consumer.close()

    def _turn(self, consumer: Consumer) -> None:
        try:
            message = consumer.poll(_POLL_SECONDS)
            error = None if message is None else message.error()
            if error is not None:
                self._failed(error.str())
            if self._clock.monotonic() >= self._next_at:
                (self._confirm if self._owns else self._listen)(consumer)
        except KafkaException as raised:
            self._failed(raised.args[0].str())
            self._next_at = self._clock.monotonic() + _LISTEN_SECONDS
        except Exception as error:  # noqa: BLE001 - the border of a cycle: without this thread there is no lease
            self._failed(f"{type(error).__name__}: {error}")
            self._next_at = self._clock.monotonic() + _LISTEN_SECONDS

    def _settings(self) -> dict[str, Any]:
        lease_milliseconds = round(self._terms.lease_seconds * 1000)
        return {
            "bootstrap.servers": self._bootstrap_servers,
            "client.id": self._who,
            "group.id": f"weir-{self._terms.role}-lease",
            # Who owns the partition keeps it when another one joins.
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": lease_milliseconds,
            "heartbeat.interval.ms": round(_HEARTBEAT_SECONDS * 1000),
            # A process whose thread hangs is not at work, however well its heartbeat goes.
            "max.poll.interval.ms": lease_milliseconds,
            "socket.timeout.ms": 5_000,
            "reconnect.backoff.ms": 100,
            "reconnect.backoff.max.ms": 1_000,
            "topic.metadata.refresh.interval.ms": 2_000,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "log_level": 0,
        }

    def _given(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if not partitions:
            return
        places = [TopicPartition(p.topic, p.partition, OFFSET_END) for p in partitions]
        consumer.incremental_assign(places)
        consumer.pause(places)
        self._owns = True
        self._next_at = 0.0

    def _taken(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if partitions:
            consumer.incremental_unassign(partitions)
            self._lose("the group gave it to another, or took it back")

    def _lose(self, why: str) -> None:
        self._owns, self._sent_at, self._next_at = False, None, 0.0
        if self._standing.claim is not None:
            self._heard = None
            self._standing = Standing(self._clock.monotonic(), why_not=why)

    def _confirm(self, consumer: Consumer) -> None:
        """Say that it is still there; the first time also in which epoch."""
        if self._sent_at is not None:
            return  # its answer, or its failure, comes to `_answered`
        claim = self._standing.claim
        if claim is None:
            offset, _ = self._committed(consumer)
            now = self._clock.now()
            # By time, so that it also grows where the brokers forgot the last one: they do after a week without a member.
            claim = Claim(self._who, now, max(offset + 1, int(now.timestamp() * 1000)))
            self._standing = Standing(self._clock.monotonic(), claim)
            self._last = claim
        self._confirmations += 1
        text = json.dumps({"holder": claim.holder, "since": claim.since.isoformat(), "confirmed": self._confirmations})
        self._member_id, self._sent_at = consumer.memberid(), self._clock.monotonic()
        self._next_at = self._sent_at + _CONFIRM_SECONDS
        try:
            consumer.commit(offsets=[TopicPartition(TOPIC.name, 0, claim.epoch, text)], asynchronous=True)
        except KafkaException:
            self._sent_at = None
            raise

    def _answered(self, member_id: str, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        error = error or next((p.error for p in partitions if p.error is not None), None)
        sent_at, self._sent_at = self._sent_at, None
        if error is not None:
            self._next_at = self._clock.monotonic() + _POLL_SECONDS
            if error.code() in _NOT_THE_OWNER:
                self._standing = replace(self._standing, confirmed_at=None)
            self._failed(error.str())
        elif not member_id or member_id != self._member_id:
            # A client that lost its membership has no member id, and an empty group accepts its commit all the same.
            self._standing = replace(self._standing, confirmed_at=None)
            self._failed("it is no member of the group any more")
        elif sent_at is not None and self._standing.claim is not None:
            self._standing = replace(self._standing, confirmed_at=sent_at, why_not="")

    def _listen(self, consumer: Consumer) -> None:
        """Read whose lease it is, and whether that one still confirms it."""
        now = self._clock.monotonic()
        self._next_at = now + _LISTEN_SECONDS
        found = self._committed(consumer)
        before, self._heard = self._heard, found
        claim = _claim(*found)
        if found == before or claim is None or claim == self._last:
            return
        # What is read first may have been written long ago.
        told = replace(self._standing, other=claim, why_not="")
        self._standing = told if before is None else heard(self._standing, claim, now, self._terms)

    @staticmethod
    def _committed(consumer: Consumer) -> tuple[int, str]:
        """The last epoch (0: there was none), and what its holder wrote."""
        (found,) = consumer.committed([TopicPartition(TOPIC.name, 0)], timeout=_ASK_SECONDS)
        if found.error is not None:
            raise KafkaException(found.error)
        return max(0, found.offset), found.metadata or ""

    def _failed(self, reason: str) -> None:
        if reason != self._standing.why_not:
            self._standing = replace(self._standing, why_not=reason)
            self._log.info("lease-not-confirmed", reason=reason)


def _claim(epoch: int, text: str) -> Claim | None:
    try:
        said = json.loads(text)
        return Claim(str(said["holder"]), datetime.fromisoformat(said["since"]), epoch)
    except (ValueError, KeyError, TypeError):
        return None

"""Publishes policies from the outbox, and ends applications that were left without one, on the replica that holds the
lease (docs/adr/0007).

A record carries its version and the epoch of its publisher's lease, so that consumers ignore late ones. Compaction
would keep a late record as the last of its key, so the holder reads the topic as well and publishes the newer version
again. The store alone assigns versions: a record with a newer one was written past knowledge, and the stored policy
gets a version above it.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import structlog
from prometheus_client import Gauge

from weir_contracts import Observation, ScalingPolicy, derive_id, ended_observation, observation_id
from weir_contracts.topics import OBSERVATIONS, POLICIES
from weir_runtime.bus import Bus, Outgoing, Reader, Record, RecordVersion, Refused, version_of
from weir_runtime.clock import Clock
from weir_runtime.lease import Lease, Terms, judge
from weir_runtime.loop import Stop, run_forever
from weir_runtime.messages import encode, new_traceparent

from .store import OutboxEntry, Store, StoreFull, StoreUnavailable, TargetTaken, VersionConflict

POLL_SECONDS = 0.25
"""Between two polls of the outbox for entries of other replicas."""
DELETIONS_KEPT = timedelta(days=30)
"""Much longer than a topic keeps a tombstone, and than a process may be paused."""
MAX_PAUSE_SECONDS = 300.0
REFUSED_PAUSE_SECONDS = 60.0
"""Before an entry that the brokers refused is sent again."""
_BATCH = 100
"""Entries of the outbox that are read at once, without those that are passed over."""
_log = structlog.get_logger("outbox")
_OUTBOX = Gauge("weir_knowledge_outbox", "Policies stored and not yet published")
_HOLDS_LEASE = Gauge("weir_knowledge_lease_held", "1 while this replica is the one that publishes policies")


@dataclass(eq=False, repr=False)
class PolicyPublisher:
    """Publishes stored changes in order, while this replica holds the lease.

    `rebuilt` is set while the store has all data of the topics. Until then the replica publishes nothing and releases
    the lease, as another replica may reach the store.
    """

    bus: Bus
    store: Store
    clock: Clock
    new_lease: Callable[[], Lease]
    terms: Terms
    rebuilt: asyncio.Event
    read_seconds: float = 120.0
    outbox_filled: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _lease: Lease | None = field(default=None, init=False)
    _reader: Reader | None = field(default=None, init=False)
    _compared_in: int | None = field(default=None, init=False)
    """The epoch in which the topic was compared with the store; it is followed since then."""
    _sent: dict[str, int] = field(default_factory=dict, init=False)
    """Number of the newest version of each key that this publisher has sent in its epoch."""
    _others: dict[str, int] = field(default_factory=dict, init=False)
    """The same of all other records in the topic."""
    _again_at: dict[str, float] = field(default_factory=dict, init=False)
    """Monotonic second from which a refused entry is tried again, by its id."""

    @property
    def epoch(self) -> int | None:
        """The epoch of the lease that this replica holds; None while it must not publish."""
        state = None if self._lease is None else self._lease.state()
        if state is None or judge(state, self.clock.monotonic(), self.terms).kind != "works":
            return None
        return None if state.own is None else state.own.epoch

    async def run(self, stop: Stop) -> None:
        """Publish entries of the outbox soon after they were written, until stopped."""
        try:
            await run_forever("outbox", lambda: self._cycle(stop), stop)
        finally:
            await self._release()

    async def _release(self) -> None:
        await self._close_reader()
        lease, self._lease = self._lease, None
        _HOLDS_LEASE.set(0)
        if lease is not None:
            await asyncio.to_thread(lease.close)

    async def _cycle(self, stop: Stop) -> None:
        if not self.rebuilt.is_set():
            await self._release()
            await stop.race(self.rebuilt.wait())
            return
        self.outbox_filled.clear()
        try:
            # Before publishing, which takes long while the brokers are away; by every replica, as there may be no
            # holder.
            _OUTBOX.set(await self.store.outbox_size())
            # The stop interrupts it: a record that was sent and not removed is sent again, unchanged.
            if await stop.race(self.publish()):
                _OUTBOX.set(await self.store.outbox_size())
        except StoreUnavailable as error:
            # Redis may have lost its last second: compare it with the topic first.
            if not isinstance(error, StoreFull):
                self.rebuilt.clear()
            raise
        with suppress(TimeoutError):
            await stop.race(asyncio.wait_for(self.outbox_filled.wait(), POLL_SECONDS))

    async def publish(self) -> int:
        """Publish the outbox, and newer versions after late records; return the number of entries published, 0 without
        the lease."""
        if self._lease is None:
            self._lease = self.new_lease()
            self._lease.open()
        epoch = self.epoch
        _HOLDS_LEASE.set(epoch is not None)
        if epoch is None or not self.rebuilt.is_set():
            await self._close_reader()
            return 0
        if self._compared_in != epoch:
            await self._compare(epoch)
        count = await self._drain(epoch)
        if self.epoch == epoch and await self._published_too_late(epoch):
            count += await self._drain(epoch)
        return count

    async def _drain(self, epoch: int) -> int:
        """Publish every entry in order and remove it once acknowledged. One that the brokers refuse stays, and the others do
        not wait for it: it is tried again after a pause, as the topic's limit may change, or replaced by a newer one."""
        count = 0
        passed: dict[str, OutboxEntry] = {}
        while entries := [e for e in await self.store.outbox(_BATCH + len(passed)) if e.id not in passed]:
            for entry in entries:
                if self.clock.monotonic() < self._again_at.get(entry.id, 0.0):
                    passed[entry.id] = entry
                    continue
                number, records = await self._records(entry, epoch)
                if await self._is_late(entry.application, number):
                    await self.store.published([entry])
                    continue
                self._sent[entry.application] = number
                try:
                    for record in records:
                        if self.epoch != epoch:
                            return count  # another replica may hold the lease, and publishes the entry
                        await self.bus.publish(record.topic, record.key, record.value, record.headers)
                except Refused as error:
                    _log.error("policy-refused", application=entry.application, version=number, reason=str(error))
                    self._again_at[entry.id] = self.clock.monotonic() + REFUSED_PAUSE_SECONDS
                    passed[entry.id] = entry
                    continue
                # Behind the newer record an older one would be the last of its key.
                replaced = [each for each in passed.values() if each.application == entry.application]
                await self.store.published([*replaced, entry])
                count += 1
        self._again_at = {entry: at for entry, at in self._again_at.items() if entry in passed}
        return count

    async def _is_late(self, application: str, number: int) -> bool:
        """Return whether the topic has a newer version of an entry's policy; the stored one is above it then."""
        newest = self._others.get(application, 0)
        if number >= newest:
            return False
        if (await self._stored(application) or 0) < newest:
            await self._outbid(application, newest)
        return True

    async def _stored(self, application: str) -> int | None:
        """Return the version of a stored policy or deletion."""
        policy = await self.store.policy(application)
        return await self.store.deletion(application) if policy is None else policy.metadata.version

    async def _outbid(self, application: str, number: int) -> None:
        """Give a stored policy or deletion a version above one in the topic, and put it into the outbox again."""
        _log.warning("outbids-a-foreign-version", application=application, version=number)
        policy = await self.store.policy(application)
        if policy is None:
            await self.store.restore_deletion(application, number + 1)
            await self.store.publish_again(application)
            return
        metadata = policy.metadata.model_copy(update={"version": number + 1})
        # changed meanwhile: the change's entry is compared with the topic in its turn
        with suppress(VersionConflict, TargetTaken):
            await self.store.put_policy(policy.model_copy(update={"metadata": metadata}), policy.metadata.version)

    async def _records(self, entry: OutboxEntry, epoch: int) -> tuple[int, list[Outgoing]]:
        """Return an entry's version and its records: the policy, or its tombstone and the application's end."""
        if entry.value is not None:
            policy = ScalingPolicy.model_validate_json(entry.value)
            return policy.metadata.version or 0, [self._policy_record(policy, epoch)]
        version = entry.version or 0
        records = [Outgoing(POLICIES.name, entry.application, None, RecordVersion(version, epoch).headers())]
        if entry.deleted is not None:
            policy = ScalingPolicy.model_validate_json(entry.deleted)
            records.append(end_record(await self._end(policy, version)))
        return version, records

    def _policy_record(self, policy: ScalingPolicy, epoch: int) -> Outgoing:
        now = self.clock.now()
        # The same id for each publication of a change.
        message_id = derive_id(observation_id(policy.application, policy.metadata.updated_at or now), "policy")
        body, headers = encode(
            policy,
            type=POLICIES.type,
            source="knowledge",
            id=message_id,
            time=now,
            traceparent=new_traceparent(message_id),
            exclude_unset=True,  # as its user wrote it: a rebuilt store gives the same document
        )
        version = RecordVersion(policy.metadata.version or 0, epoch)
        return Outgoing(POLICIES.name, policy.application, body, headers | version.headers())

    async def _end(self, policy: ScalingPolicy, version: int) -> Observation:
        """Return the application's end, dated by the deletion's version and later than the newest message: readers
        ignore an older one."""
        at = datetime.fromtimestamp(min(version / 1000, self.clock.now().timestamp()), UTC)
        state = await self.store.state(policy.application)
        newest = state.times.newest if state is not None else None
        return ended_observation(policy, at if newest is None else max(at, newest + timedelta(milliseconds=1)))

    async def _compare(self, epoch: int) -> None:
        """Read the topic, publish stored policies again whose last record is older, and outbid those that are newer: the
        store was rebuilt, so it had all that its publishers wrote."""
        await self._close_reader()
        self._reader = self.bus.reader(POLICIES.name)
        last: dict[str, int] = {}
        newest: dict[str, int] = {}
        async with asyncio.timeout(self.read_seconds):
            while not await self._reader.caught_up():
                for record in await self._reader.receive(timeout_seconds=0.2):
                    if record.key is not None:
                        last[record.key] = number = _number(record)
                        newest[record.key] = max(number, newest.get(record.key, 0))
        deletions = await self.store.deletions()
        stored = {policy.application: policy.metadata.version or 0 for policy in await self.store.policies()}
        behind = [name for name, version in stored.items() if last.get(name, -1) < version]
        # A deletion needs no record: compaction removes the tombstone after everything before it.
        behind += [n for n, version in deletions.items() if last.get(n, version) < version]
        self._sent, self._others = {}, newest
        for name, version in (stored | deletions).items():
            if version < newest.get(name, version):
                await self._outbid(name, newest[name])
        pending = {entry.application for entry in await self.store.outbox()}
        for application in behind:
            if application not in pending:
                await self.store.publish_again(application)
        self._compared_in = epoch
        _log.info("publishes-policies", epoch=epoch, published_again=[n for n in behind if n not in pending])

    async def _published_too_late(self, epoch: int) -> bool:
        """Return whether another publisher wrote a record behind a newer one, or with a version that the store did not
        assign; the stored policy goes into the outbox again."""
        found = False
        for record in await self._reader.receive(timeout_seconds=0.02) if self._reader is not None else ():
            version = version_of(record.headers)
            if record.key is None:
                continue
            number = _number(record)
            if version is not None and version.epoch == epoch and number <= self._sent.get(record.key, 0):
                continue
            self._others[record.key] = max(number, self._others.get(record.key, 0))
            stored = await self._stored(record.key)
            if stored is None:
                continue
            if number > stored or (number == stored and version is not None and version.epoch > epoch):
                await self._outbid(record.key, number)
            elif number < stored:
                _log.warning("published-too-late", application=record.key, place=record.place, stored=stored)
                await self.store.publish_again(record.key)
            else:
                continue
            found = True
        return found

    async def _close_reader(self) -> None:
        reader, self._reader, self._compared_in = self._reader, None, None
        if reader is not None:
            await reader.close()


def end_record(observation: Observation) -> Outgoing:
    """Return the record of an application's end, as a monitor would publish it."""
    body, headers = encode(
        observation,
        type=OBSERVATIONS.type,
        source="knowledge",
        id=observation.id,
        time=observation.observed_at,
        traceparent=new_traceparent(observation.id),
    )
    return Outgoing(OBSERVATIONS.name, observation.application, body, headers)


def _number(record: Record) -> int:
    """Return a policy record's version from its headers; 0 without one."""
    version = version_of(record.headers)
    return 0 if version is None else version.number


@dataclass(eq=False, repr=False)
class Leftovers:
    """Deletes silent applications without a policy that never ended, on the replica that publishes policies
    (`publishes`).

    An application's end comes from its monitor, or from the publisher when its policy is deleted. Neither comes if the
    policy itself was lost, or if a late message restored a part of the state.
    """

    bus: Bus
    store: Store
    clock: Clock
    publishes: Callable[[], bool]
    forget_after_seconds: float
    _since: dict[tuple[str, datetime | None], float] = field(default_factory=dict, init=False)
    """Monotonic seconds since which an application has no policy and this newest message."""

    async def run(self, stop: Stop) -> None:
        """Check ten times in `forget_after_seconds`, and at least every five minutes, until stopped."""
        pause_seconds = min(MAX_PAUSE_SECONDS, self.forget_after_seconds / 10)
        await run_forever("leftovers", self.tidy, stop, pause_seconds=pause_seconds)

    async def tidy(self) -> None:
        """Check once; end and delete applications that have been silent for long enough."""
        if not self.publishes():
            self._since.clear()
            return
        now = self.clock.monotonic()
        found = (await self.store.leftovers()).items()
        self._since = {each: self._since.get(each, now) for each in found}
        for (application, newest), since in list(self._since.items()):
            if now - since >= self.forget_after_seconds and await self.store.policy(application) is None:
                await self._forget(application, newest)
        oldest = self.clock.now() - DELETIONS_KEPT
        await self.store.forget_deletions(int(oldest.timestamp() * 1000))

    async def _forget(self, application: str, newest: datetime | None) -> None:
        """Publish the end if a message has the policy, so that the analyzer drops its state as well; delete the
        application."""
        messages = await self.store.newest(application, ["observation", "analysis"])
        last = None if messages is None else messages.observation or messages.analysis
        if last is not None:
            after = max(self.clock.now(), (newest or last.observed_at) + timedelta(milliseconds=1))
            record = end_record(ended_observation(last.policy, after, "it has no policy and sends no messages"))
            try:
                await self.bus.publish(record.topic, record.key, record.value, record.headers)
            except Refused as error:
                structlog.get_logger("knowledge").error("end-refused", application=application, reason=str(error))
        await self.store.forget(application)
        structlog.get_logger("knowledge").info(
            "forgotten", application=application, silent_seconds=self.forget_after_seconds
        )

"""Delivers notifications: at least once, in the order of each receiver, and without anything waiting for a receiver.

A notification waits in the store since the transaction that decided it, and leaves it when its receiver has accepted it, so
neither a crash nor a new owner loses one. The replica that owns an application's partition delivers its notifications. Each
entry of the file has its own task, client and pauses: a slow or dead receiver delays its own notifications only.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from random import Random

import httpx
import structlog
from prometheus_client import Counter, Gauge

from weir_contracts import Notification, format_duration, one_line
from weir_runtime.clock import Clock
from weir_runtime.loop import Stop, run_forever

from .notifications import CONTENT_TYPES, KEPT, KIND, Waiting, body_of, of_refusal
from .receivers import Receiver, Receivers
from .store import Batch, Key, StoreUnavailable
from .view import TEXT, View

LOOK_SECONDS = 5.0
"""Between two looks for notifications that another replica has decided."""
ATTEMPT_SECONDS = 15.0
"""For one request, name resolution included."""
MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 1.0, 300.0
"""After the first and after many failures of a receiver; each pause is a random time from half of it on."""
MAX_RETRY_AFTER_SECONDS = 3600.0
"""Of a receiver's `Retry-After`."""
MAX_WAITING = 500
"""Of a namespace; the oldest are given up."""
REFUSED = frozenset({400, 413, 415, 422})
"""Statuses by which a receiver refuses this notification for good. Others may be over once the receiver or its entry is
repaired."""
REFUSAL = "refusal"
"""Kind of the documents with the last refused document of each application."""
REFUSALS_KEPT_MS = 7 * 86_400_000
SWEEP_SECONDS = 3600.0
_LOG = structlog.get_logger("notifications")
_COUNT = Counter(
    "weir_knowledge_notifications_total",
    "Notifications by their end, and failed attempts",
    ["receiver", "result"],
)
_WAITING = Gauge("weir_knowledge_notifications_waiting", "Notifications that wait for their receiver", ["receiver"])


class Undelivered(Exception):
    """An attempt failed. `retry_after_seconds`: what the receiver asks for; None: nothing. `is_final`: it refuses this one for good."""

    def __init__(self, reason: str, retry_after_seconds: float | None = None, *, is_final: bool = False) -> None:
        self.retry_after_seconds = retry_after_seconds
        self.is_final = is_final
        super().__init__(reason)


@dataclass(eq=False)
class _Line:
    """Notifications that wait for one receiver, oldest first."""

    waiting: list[Waiting] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    failures: int = 0
    """In a row."""
    client: httpx.AsyncClient | None = None
    client_of: Receiver | None = None


@dataclass(eq=False, repr=False)
class Notifier:
    """Delivers what waits in the store for the partitions of this replica."""

    view: View
    receivers: Receivers
    clock: Clock
    partitions: Callable[[], Collection[int]]
    """Partitions that this replica owns."""
    random: Random = field(default_factory=Random)
    look_seconds: float = LOOK_SECONDS
    min_pause_seconds: float = MIN_PAUSE_SECONDS
    attempt_seconds: float = ATTEMPT_SECONDS
    _lines: dict[str, _Line] = field(default_factory=lambda: defaultdict(_Line), init=False)
    """By entry of the file."""
    _done: set[str] = field(default_factory=set, init=False)
    """Keys that were delivered and are still in the store, which could not be written."""
    _arrived: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _swept_at: float = field(default=float("-inf"), init=False)

    def wake(self) -> None:
        """Look for notifications now."""
        self._arrived.set()

    async def run(self, stop: Stop) -> None:
        """Deliver until stopped."""
        if self.receivers.files is None:
            return
        try:
            await run_forever("notifications", lambda: self._look(stop), stop)
        finally:
            tasks = [line.task for line in self._lines.values() if line.task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for line in self._lines.values():
                if line.client is not None:
                    await line.client.aclose()

    async def _look(self, stop: Stop) -> None:
        """Sort what waits by receiver, give up what has waited for too long, and wait for more."""
        self._arrived.clear()
        try:
            await self._sort(stop)
        except StoreUnavailable as error:
            _LOG.debug("store-away", reason=str(error))
        with suppress(TimeoutError):
            async with asyncio.timeout(self.look_seconds):
                await stop.race(self._arrived.wait())

    async def _sort(self, stop: Stop) -> None:
        keys = await self.view.store.keys(KIND)
        self._done.intersection_update(keys)
        if self._done:
            await self._remove(self._done)
        owned = self.partitions()
        waiting = [Waiting.read(key) for key in keys if key not in self._done]
        waiting = [each for each in waiting if self.view.partition(each.application) in owned]
        kept = await self._without_old(waiting)
        by_entry: dict[str, list[Waiting]] = defaultdict(list)
        for each in kept:
            entry = self.receivers.entry_of(each.namespace)
            if entry is not None:
                by_entry[entry].append(each)
        for entry in self._lines.keys() | by_entry.keys():
            line = self._lines[entry]
            line.waiting = by_entry.get(entry, [])
            _WAITING.labels(entry).set(len(line.waiting))
            if line.waiting:
                line.arrived.set()
                if line.task is None or line.task.done():
                    line.task = asyncio.create_task(self._serve(entry, line, stop))
        await self._sweep(owned)

    async def _without_old(self, waiting: Sequence[Waiting]) -> list[Waiting]:
        """Return what is still to be delivered; give up the rest."""
        oldest_ms = int((self.clock.now() - KEPT).timestamp() * 1000)
        kept, given_up, counts = list[Waiting](), dict[Waiting, str](), defaultdict[str, int](int)
        for each in reversed(waiting):  # the newest first
            counts[each.namespace] += 1
            if self.receivers.entry_of(each.namespace) is None:
                given_up[each] = "no receiver"
            elif each.decided_ms < oldest_ms:
                given_up[each] = f"not accepted within {format_duration(KEPT)}"
            elif counts[each.namespace] > MAX_WAITING:
                given_up[each] = f"more than {MAX_WAITING} wait"
            else:
                kept.append(each)
        await self._give_up(given_up)
        return kept[::-1]

    async def _give_up(self, given_up: Mapping[Waiting, str]) -> None:
        """Remove notifications that are not delivered: one line in the log for a namespace and reason."""
        if not given_up:
            return
        await self._remove([each.key for each in given_up])
        by_reason: dict[tuple[str, str], list[Waiting]] = defaultdict(list)
        for each, reason in given_up.items():
            by_reason[each.namespace, reason].append(each)
            _COUNT.labels(self.receivers.entry_of(each.namespace) or "none", "given-up").inc()
        for (namespace, reason), found in by_reason.items():
            applications = sorted({each.application for each in found})[:10]
            _LOG.warning(
                "given-up", namespace=namespace, reason=reason, notifications=len(found), applications=applications
            )

    async def _remove(self, keys: Collection[str]) -> None:
        await self.view.store.apply(Batch({}, {}, deleted=[(KIND, key) for key in keys]))

    async def _sweep(self, owned: Collection[int]) -> None:
        """Forget refusals of long ago."""
        if self.clock.monotonic() - self._swept_at < SWEEP_SECONDS:
            return
        oldest_ms = self.clock.now().timestamp() * 1000 - REFUSALS_KEPT_MS
        found = await self.view.store.all(REFUSAL)
        old: list[Key] = [
            (REFUSAL, name)
            for name, fields in found.items()
            if self.view.partition(name) in owned and int(fields.get("at", "0")) < oldest_ms
        ]
        if old:
            await self.view.store.apply(Batch({}, {}, deleted=old))
        self._swept_at = self.clock.monotonic()

    async def _serve(self, entry: str, line: _Line, stop: Stop) -> None:
        """Deliver to one receiver until stopped."""

        async def cycle() -> None:
            line.arrived.clear()
            if not line.waiting:
                await stop.race(line.arrived.wait())
            else:
                receiver = self.receivers.entries.get(entry)
                until = self.clock.monotonic() + await self._deliver(entry, line, line.waiting[0])
                # A repaired entry is tried at once.
                while (left_seconds := until - self.clock.monotonic()) > 0 and not stop.requested:
                    await stop.wait(min(self.look_seconds, left_seconds))
                    if self.receivers.entries.get(entry) != receiver:
                        break

        await run_forever("notifications", cycle, stop)

    async def _deliver(self, entry: str, line: _Line, next_: Waiting) -> float:
        """Try to deliver the next notification; return the pause until the next attempt, in s."""
        receiver = self.receivers.entries.get(entry)
        if receiver is None or self.view.partition(next_.application) not in self.partitions():
            self._forget(line, next_)
            return 0.0
        try:
            found = await self.view.store.get([(KIND, next_.key)])
        except StoreUnavailable:
            return self.look_seconds
        fields = found.get((KIND, next_.key))
        if fields is None:  # another replica has delivered it
            self._forget(line, next_)
            return 0.0
        notification = Notification.model_validate_json(fields[TEXT])
        if receiver.kinds is not None and notification.kind not in receiver.kinds:
            await self._finish(line, next_)
            return 0.0
        try:
            await self._send(line, receiver, notification)
        except Undelivered as error:
            return await self._failed(entry, line, next_, notification, error)
        if line.failures:
            _LOG.info("receiver-accepts", receiver=entry, place=receiver.place, failures=line.failures)
        line.failures = 0
        _COUNT.labels(entry, "delivered").inc()
        await self._finish(line, next_)
        return 0.0

    async def _failed(
        self, entry: str, line: _Line, next_: Waiting, notification: Notification, error: Undelivered
    ) -> float:
        _COUNT.labels(entry, "failed").inc()
        place = self.receivers.entries[entry].place if entry in self.receivers.entries else None
        if error.is_final:
            _COUNT.labels(entry, "given-up").inc()
            _LOG.warning(
                "refused-by-receiver",
                receiver=entry,
                place=place,
                reason=str(error),
                application=notification.application,
                kind=notification.kind,
                id=str(notification.id),
            )
            await self._finish(line, next_)
            return 0.0
        line.failures += 1
        pause_seconds = min(MAX_PAUSE_SECONDS, self.min_pause_seconds * 2.0 ** min(line.failures - 1, 20))
        pause_seconds *= self.random.uniform(0.5, 1.0)
        if error.retry_after_seconds is not None:
            asked_seconds = min(error.retry_after_seconds, MAX_RETRY_AFTER_SECONDS)
            pause_seconds = max(pause_seconds, asked_seconds * self.random.uniform(1.0, 1.1))
        if line.failures == 1:  # once for a receiver that is away, not for each attempt
            _LOG.warning(
                "not-delivered",
                receiver=entry,
                place=place,
                reason=str(error),
                application=notification.application,
                retry_in_seconds=round(pause_seconds, 1),
            )
        return pause_seconds

    async def _finish(self, line: _Line, done: Waiting) -> None:
        """Remove a notification that needs no further attempt; while the store is away, remember that."""
        self._done.add(done.key)
        self._forget(line, done)
        with suppress(StoreUnavailable):
            await self._remove([done.key])
            self._done.discard(done.key)

    @staticmethod
    def _forget(line: _Line, done: Waiting) -> None:
        line.waiting = [each for each in line.waiting if each != done]

    async def _send(self, line: _Line, receiver: Receiver, notification: Notification) -> None:
        """Send one notification; `Undelivered` unless its receiver accepts it."""
        if line.client is None or line.client_of != receiver:
            if line.client is not None:
                await line.client.aclose()
            line.client, line.client_of = receiver.client(self.receivers.networks), receiver
        body = body_of(notification, receiver.format, receiver.source)
        headers = {"Content-Type": CONTENT_TYPES[receiver.format]}
        try:
            async with (
                asyncio.timeout(self.attempt_seconds),
                line.client.stream(
                    "POST", receiver.url.get_secret_value(), content=body, headers=headers
                ) as answer,  # whose body may be anything, and is not read
            ):
                status, retry_after = answer.status_code, answer.headers.get("retry-after", "")
        except TimeoutError:
            raise Undelivered(f"no answer within {self.attempt_seconds:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Undelivered(one_line(error)) from None
        if 200 <= status < 300:
            return
        if 300 <= status < 400:
            raise Undelivered(
                f"it answers {status}, a redirection, which is not followed: set the address that it leads to"
            )
        asked_seconds = retry_after_seconds(retry_after, self.clock.now())
        raise Undelivered(f"it answers {status}", asked_seconds, is_final=status in REFUSED)


def retry_after_seconds(header: str, now: datetime) -> float | None:
    """Return the seconds that `Retry-After` asks for, a number or a date; None without one that can be read."""
    text = header.strip()[:100]
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return max(0.0, (at - now).total_seconds())


@dataclass(frozen=True)
class RefusedPolicies:
    """Lets the receiver of a namespace know of refused documents, of which the log has nothing."""

    view: View
    receivers: Receivers
    clock: Clock
    on_notification: Callable[[], None]

    async def __call__(self, application: str, caller: str, code: str, sentence: str) -> None:
        """Store the notification unless the same document was refused last."""
        if self.receivers.entry_of(application.partition("/")[0]) is None:
            return
        now = self.clock.now()
        try:
            policy, key = await self.view.policy(application), (REFUSAL, application)
            version = 0 if policy is None else policy.metadata.version or 0
            found = of_refusal(application, now, caller=caller, version=version, code=code, sentence=sentence)
            last = (await self.view.store.get([key])).get(key, {})
            if last.get("id") == str(found.id):
                return
            changed = {
                key: {"id": str(found.id), "at": str(int(now.timestamp() * 1000))},
                (KIND, Waiting.of(found, now).key): {TEXT: found.model_dump_json()},
            }
            await self.view.store.apply(Batch({}, {}, changed=changed))
        except StoreUnavailable as error:
            _LOG.warning("refusal-not-told", application=application, reason=str(error))
            return
        self.on_notification()

"""Watch of one resource in one namespace: lists it once, then follows its changes without polling.

A watch that ends is opened again from its last version. Only an expired version (410) lists again. Every reopening
waits for a back-off with jitter, so that many watches that end at once do not become a burst of requests.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Generic, TypeVar

import structlog

from .api import AnswerTooLarge, ApiFailed, Call, KubernetesApi
from .discovery import Kind
from .values import mapping, name, sequence

T = TypeVar("T")

PAGE = 100
"""Objects of one page of a list; 500 ordinary pods have more elements than are read."""
MAX_OBJECTS = 50_000
_TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1"
"""`Accept` of a page as kubectl shows it, which has no more of an object than its columns."""
WATCH_SECONDS = (300, 600)
"""Time after which the API server ends a watch, drawn between these."""
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS, _DENIED_PAUSE_SECONDS = 0.5, 30.0, 60.0
_FAILURES_BEFORE_LIST = 5
"""Refusals of one version after which the objects are listed again."""


@dataclass(frozen=True)
class Pauses:
    """Waiting times between attempts in seconds; tests shorten them."""

    first_seconds: float = _FIRST_PAUSE_SECONDS
    max_seconds: float = _MAX_PAUSE_SECONDS
    denied_seconds: float = _DENIED_PAUSE_SECONDS

    def after(self, failures: int, *, denied: bool, random: Random) -> float:
        """Return the pause before the next attempt: doubled with each failure, with up to half of it as jitter.

        A denied call is repeated soon as well: an API server that has just started denies for a moment what is allowed,
        until it has read the roles.
        """
        limit = self.denied_seconds if denied else self.max_seconds
        return min(limit, self.first_seconds * 2.0 ** min(failures, 16)) * (0.5 + random.random() / 2)


async def pages(
    api: KubernetesApi, call: Call, path: str, left_out: dict[str, ApiFailed] | None = None
) -> AsyncGenerator[tuple[Sequence[Mapping[str, Any]], str], None]:
    """Yield the objects and the version of each page of a list. A page that is too large is read in smaller ones, and the
    following ones grow again. A single object that is too large is put into `left_out`, with the reason by its name;
    without `left_out` it raises `AnswerTooLarge`."""
    limit, following = PAGE, ""
    while True:
        query: dict[str, str | int] = {"limit": limit} | ({"continue": following} if following else {})
        try:
            page = mapping(await api.get(call, path, query, is_large=limit == 1))
        except AnswerTooLarge as error:
            if limit > 1:
                limit = max(1, limit // 8)
                continue
            if left_out is None:
                raise
            page = mapping(await api.get(call, path, {**query, "includeObject": "None"}, accept=_TABLE))
            for called in _names(page):
                left_out[called] = AnswerTooLarge(call, called, error.limit)
        limit = min(PAGE, 2 * limit)
        metadata = mapping(page.get("metadata"))
        yield [mapping(each) for each in sequence(page.get("items"))], name(metadata.get("resourceVersion"), 100)
        token = metadata.get("continue")
        if not isinstance(token, str) or not token:
            return
        following = token


def _names(table: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names in a `Table`."""
    columns = [mapping(each).get("name") for each in sequence(table.get("columnDefinitions"))]
    for row in map(mapping, sequence(table.get("rows"))):
        cells = dict(zip(columns, sequence(row.get("cells")), strict=False))
        if called := name(cells.get("Name")):
            yield called


class Watch(Generic[T]):
    """Objects of one resource and namespace by name, parsed. `parse` returns None for an object that is ignored.

    `leaves_out`: an object that is too large to be read is left out, with the reason in `left_out`. Without it, such an
    object makes the list fail.
    """

    def __init__(
        self,
        api: KubernetesApi,
        kind: Kind,
        namespace: str,
        parse: Callable[[Any], T | None],
        *,
        leaves_out: bool = False,
        unused_seconds: float = 1200.0,
        pauses: Pauses | None = None,
    ) -> None:
        self._api = api
        self._path = kind.path(namespace)
        self._resource, self._namespace = kind.resource, namespace
        self._parse = parse
        self._leaves_out = leaves_out
        self._unused_seconds = unused_seconds
        self._pauses = pauses or Pauses()
        self._random = Random()  # noqa: S311 - jitter
        self._log = structlog.get_logger("kubernetes")
        self._loop = asyncio.get_running_loop()
        self._version = ""
        self._synced = asyncio.Event()
        self._contact_at = self._used_at = self._loop.time()
        self.objects: dict[str, T] = {}
        self.left_out: dict[str, ApiFailed] = {}
        self.failure: ApiFailed | None = None
        """Why the objects are not current; None while they are."""
        self._failed = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"watch-{namespace}-{kind.resource}")

    @property
    def is_over(self) -> bool:
        """Whether it has ended, because it was not used for a while or was closed."""
        return self._task.done()

    @property
    def age_seconds(self) -> float:
        """Time since the API server last sent anything; while the watch is open, at most its longest silence."""
        return self._loop.time() - self._contact_at

    def get(self, called: str) -> T | None:
        """Return an object, or None if there is none. Raises `ApiFailed` if it is left out."""
        if called in self.left_out:
            raise self.left_out[called].again()
        return self.objects.get(called)

    def check_complete(self) -> None:
        """Raise `ApiFailed` if an object is left out."""
        for error in self.left_out.values():
            raise error.again()

    async def synced(self, timeout_seconds: float) -> None:
        """Wait until the objects are listed; raise why they could not be, at the first failure."""
        self._used_at = self._loop.time()
        if self._synced.is_set():
            return
        if self.failure is None:
            waiting = [asyncio.ensure_future(event.wait()) for event in (self._synced, self._failed)]
            try:
                await asyncio.wait(waiting, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in waiting:
                    each.cancel()
        if not self._synced.is_set():
            call = Call("list", self._resource, self._namespace)
            raise self.failure or ApiFailed(call, f"cannot {call}: no answer within {timeout_seconds:g} s")

    async def close(self) -> None:
        """End the watch."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        failures = 0
        while self._loop.time() - self._used_at < self._unused_seconds:
            began = self._loop.time()
            try:
                if not self._version:
                    await self._list()
                await self._follow()
                failures, denied = 0, False
            except ApiFailed as error:
                # a watch that was open for a while has not failed: only its connection ended
                lasted = self._loop.time() - began > self._pauses.max_seconds and self.failure is None
                failures = 1 if lasted else failures + 1
                denied = error.status in (401, 403) and error.reason != "Expired"
                self._note(error, failures)
            await asyncio.sleep(self._pauses.after(failures, denied=denied, random=self._random))

    def _note(self, error: ApiFailed, failures: int) -> None:
        # After the same version the API server would send the event that is too large again; a list has the other objects.
        is_large_event = isinstance(error, AnswerTooLarge) and bool(self._version)
        expired = error.status == 410 or error.reason in ("Expired", "Gone") or is_large_event
        if expired or (error.status is not None and failures % _FAILURES_BEFORE_LIST == 0):
            self._version = ""  # too old, or of a server that was restored from a backup
        if not expired:
            self.failure = error
            self._failed.set()

    async def _list(self) -> None:
        call = Call("list", self._resource, self._namespace)
        objects: dict[str, T] = {}
        left_out: dict[str, ApiFailed] = {}
        version = ""
        listing = pages(self._api, call, self._path, left_out if self._leaves_out else None)
        async for items, version in listing:  # noqa: B007 - the last one's counts
            if len(objects) > MAX_OBJECTS:
                raise ApiFailed(call, f"cannot {call}: there are more than {MAX_OBJECTS}")
            for each in items:
                self._put(objects, each)
        if not version:
            raise ApiFailed(call, f"cannot {call}: the list has no resourceVersion")
        for called in left_out.keys() - self.left_out:
            self._log.warning("object-left-out", reason=str(left_out[called]))
        self.objects, self.left_out, self._version = objects, left_out, version
        self._contact()
        self._synced.set()

    async def _follow(self) -> None:
        seconds = self._random.randint(*WATCH_SECONDS)
        call = Call("watch", self._resource, self._namespace)
        async with contextlib.aclosing(self._api.watch(call, self._path, self._version, seconds)) as events:
            async for kind, found in events:
                metadata = mapping(found.get("metadata"))
                called, version = name(metadata.get("name")), name(metadata.get("resourceVersion"), 100)
                self.left_out.pop(called, None)
                if kind in ("ADDED", "MODIFIED"):
                    self._put(self.objects, found)
                elif kind == "DELETED":
                    self.objects.pop(called, None)
                if version:
                    self._version = version
                self._contact()

    def _put(self, objects: dict[str, T], document: Mapping[str, Any]) -> None:
        """Keep an object's parsed form, not its document, which may be large. An object that is ignored replaces its
        former state."""
        called = name(mapping(document.get("metadata")).get("name"))
        try:
            parsed = self._parse(document)
        except ValueError:
            parsed = None  # out of a contract's bounds
        if called and parsed is not None and (called in objects or len(objects) <= MAX_OBJECTS):
            objects[called] = parsed
        elif parsed is None:
            objects.pop(called, None)

    def _contact(self) -> None:
        self._contact_at = self._loop.time()
        self.failure = None
        self._failed.clear()

"""Follows the knowledge service's event feed, so that a reader misses nothing between two requests."""

import contextlib
import json
import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import httpx

from weir_runtime.http_client import ENDLESS, client

BREAK_SECONDS = 1.0
"""Pause between two connections."""


@dataclass(frozen=True)
class Event:
    """One server-sent event: `kind` is plan, outcome, …; `data` its message."""

    id: str
    kind: str
    data: Any


def parse_events(lines: Iterator[str]) -> Iterator[Event]:
    """Yield the server-sent events of a stream's lines (WHATWG HTML, 9.2.6), without those whose data is not JSON."""
    event_id, kind, data = "", "message", list[str]()
    for line in lines:
        if not line:
            if data:
                with contextlib.suppress(ValueError):
                    yield Event(event_id, kind, json.loads("\n".join(data)))
            kind, data = "message", []
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "id":
            event_id = value
        elif name == "event":
            kind = value
        elif name == "data":
            data.append(value)


class EventFollower:
    """Reads the feed on a separate thread, resuming by `Last-Event-ID` after a break, until stopped.

    It may run for hours and keeps what it reads: only events of `kinds` (None: all), without the fields `without` of
    their data.
    """

    def __init__(self, url: str, *, kinds: Collection[str] | None = None, without: Collection[str] = ()) -> None:
        self._url = url
        self._kinds = kinds
        self._without = without
        self._events: list[Event] = []
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="event-feed", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns at once; the thread ends with its connection."""
        self._stopped.set()

    def events(self) -> list[Event]:
        """Return the kept events so far, oldest first."""
        with self._lock:
            return list(self._events)

    def _follow(self) -> None:
        last = "0"
        timeout = httpx.Timeout(5.0, read=30.0)
        with client(timeout=timeout) as http:
            while not self._stopped.is_set():
                # A status error is a break like any other: the service may be on its way up.
                with (
                    contextlib.suppress(httpx.HTTPError),
                    http.stream("GET", self._url, headers={"Last-Event-ID": last}, extensions=ENDLESS) as response,
                ):
                    response.raise_for_status()
                    for event in parse_events(response.iter_lines()):
                        last = event.id or last
                        self._keep(event)
                        if self._stopped.is_set():
                            return
                self._stopped.wait(BREAK_SECONDS)

    def _keep(self, event: Event) -> None:
        if self._kinds is not None and event.kind not in self._kinds:
            return
        if self._without and isinstance(event.data, dict):
            slim = {name: value for name, value in event.data.items() if name not in self._without}
            event = Event(event.id, event.kind, slim)
        with self._lock:
            self._events.append(event)

"""Follows the knowledge service's event feed, so that the trial misses no decision between two samples."""

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx


@dataclass(frozen=True)
class Event:
    """One server-sent event: `kind` is plan, outcome, …; `data` its message."""

    id: str
    kind: str
    data: Any


def parse_events(lines: Iterator[str]) -> Iterator[Event]:
    """Server-sent events out of a stream's lines (WHATWG HTML, 9.2.6). An event whose data is not JSON is left out."""
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
    """Reads the feed on a thread of its own, resuming by `Last-Event-ID` after a break, until stopped."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._events: list[Event] = []
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="trial-events", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns at once; the thread ends with its connection."""
        self._stopped.set()

    def events(self) -> list[Event]:
        """All that came so far, oldest first."""
        with self._lock:
            return list(self._events)

    def _follow(self) -> None:
        last = "0"
        timeout = httpx.Timeout(5.0, read=30.0)
        with httpx.Client(timeout=timeout) as client:
            while not self._stopped.is_set():
                try:
                    with client.stream("GET", self._url, headers={"Last-Event-ID": last}) as response:
                        for event in parse_events(response.iter_lines()):
                            last = event.id or last
                            with self._lock:
                                self._events.append(event)
                            if self._stopped.is_set():
                                return
                except httpx.HTTPError:
                    self._stopped.wait(1.0)

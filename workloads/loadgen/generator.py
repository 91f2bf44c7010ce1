"""Produces what the load asks for, tick by tick. `Generator` is the part without a thread; `run` gives it one's time."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from .keys import DEFAULT_KEYS, Keys
from .load import Load, LoadChange
from .output import Output
from .pace import Pace
from .records import Records

TICK_SECONDS = 0.01
RATE_WINDOW_SECONDS = 2.0
_SERVE_EVERY = 500
"""Records between two looks at what has arrived."""


@dataclass(frozen=True)
class Statistics:
    """What the generator does and has done."""

    target_rate: float
    """Records/s asked for now."""
    rate: float | None
    """Records/s that arrived in the last two seconds; None before there was time to measure."""
    produced: int
    delivered: int
    failed: int
    let_go: int
    """Records not produced after a stall that was too long to catch up."""
    problem: str | None


class Generator:
    """Holds the load in force. `change` and `statistics` may be called from any thread, `tick` from one only."""

    def __init__(
        self, load: Load, output: Output, *, keys: int = DEFAULT_KEYS, seed: int = 1, now_seconds: float
    ) -> None:
        self._lock = threading.Lock()
        self._load = load
        self._output = output
        self._keys = Keys(keys, load.skew_now(), seed)
        self._seed = seed
        self._records = Records(seed)
        self._pace = Pace(now_seconds)
        self._produced = 0
        self._history: deque[tuple[float, int]] = deque([(now_seconds, 0)])

    @property
    def load(self) -> Load:
        """The load in force."""
        with self._lock:
            return self._load

    def change(self, change: LoadChange) -> Load:
        """Set what the change names; it holds from the next tick on."""
        with self._lock:
            self._load = self._load.changed(change)
            return self._load

    def statistics(self) -> Statistics:
        with self._lock:
            first, last = self._history[0], self._history[-1]
            elapsed = last[0] - first[0]
            return Statistics(
                target_rate=self._load.target_rate(),
                rate=(last[1] - first[1]) / elapsed if elapsed >= RATE_WINDOW_SECONDS / 4 else None,
                produced=self._produced,
                delivered=self._output.delivered,
                failed=self._output.failed,
                let_go=round(self._pace.let_go),
                problem=self._output.problem,
            )

    def tick(self, now_seconds: float, now_millis: int) -> int:
        """Produce what is due at this monotonic time and return how much that was; `now_millis` is the wall clock."""
        with self._lock:
            load = self._load = self._load.after(now_seconds - self._pace.since_seconds)
            self._pace, due = self._pace.advance(now_seconds, load.target_rate())
        skew = load.skew_now()
        if skew != self._keys.skew:
            self._keys = Keys(self._keys.count, skew, self._seed)
        sent = self._send(due, load.bytes_now(), now_millis)
        self._output.serve()
        with self._lock:
            self._produced += sent
            self._note(now_seconds)
        return sent

    def _send(self, due: int, record_bytes: int, now_millis: int) -> int:
        for sent, key in enumerate(self._keys.draw(due)):
            if not self._output.send(key, self._records.value(now_millis, key, record_bytes), now_millis):
                # No room: the broker is away or slow. What is due meanwhile is bounded by the pace.
                self._output.serve(TICK_SECONDS)
                return sent
            if sent % _SERVE_EVERY == _SERVE_EVERY - 1:
                self._output.serve()
        return due

    def _note(self, now_seconds: float) -> None:
        self._history.append((now_seconds, self._output.delivered))
        while len(self._history) > 2 and self._history[1][0] <= now_seconds - RATE_WINDOW_SECONDS:
            self._history.popleft()

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Wait for what is on its way."""
        self._output.close(timeout_seconds)


def run(
    generator: Generator, stop: threading.Event, *, monotonic: Callable[[], float], wall: Callable[[], float]
) -> None:
    """Tick until told to stop."""
    while not stop.wait(TICK_SECONDS):
        generator.tick(monotonic(), int(wall() * 1000))

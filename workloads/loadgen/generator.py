"""Produces the requested load, tick by tick. `Generator` starts no thread; `run` drives it."""

import random
import string
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

from weir_replay.trace import MAX_BYTES

from .load import Load, LoadChange
from .output import Output

DEFAULT_KEYS = 5000
_POOL_BYTES = 65_536


class Keys:
    """Draws keys, the k-th in proportion to 1/k^s. With s = `skew` = 1 the first of 5,000 keys has 11 % of the records."""

    def __init__(self, count: int, skew: float = 0.0, seed: int = 1) -> None:
        if count < 1:
            raise ValueError(f"count: must be at least 1, is {count}")
        if skew < 0:
            raise ValueError(f"skew: must not be negative, is {skew}")
        self.count = count
        self.skew = skew
        self._names = [f"customer-{number:06d}".encode() for number in range(count)]
        self._random = random.Random(seed)
        self._cumulative = list(accumulate((rank + 1) ** -skew for rank in range(count))) if skew else None

    def draw(self, count: int) -> list[bytes]:
        """Return the next `count` keys."""
        if self._cumulative is None:
            return self._random.choices(self._names, k=count)
        return self._random.choices(self._names, cum_weights=self._cumulative, k=count)


class Records:
    """Makes record values of a given size. Payloads are random text, almost incompressible, cut from one pool."""

    def __init__(self, seed: int = 1) -> None:
        letters = random.Random(seed).choices(string.ascii_letters + string.digits, k=_POOL_BYTES)
        self._pool = "".join(letters).encode() * (MAX_BYTES // _POOL_BYTES + 2)
        self._at = 0

    def value(self, produced_at_millis: int, key: bytes, size_bytes: int) -> bytes:
        """Return a record of `size_bytes`, or more if timestamp and key need them."""
        head = b"%d;%s;" % (produced_at_millis, key)
        payload = max(0, size_bytes - len(head))
        self._at = (self._at + payload + 1) % _POOL_BYTES
        return head + self._pool[self._at : self._at + payload]


TICK_SECONDS = 0.01
RATE_WINDOW_SECONDS = 2.0
MAX_CATCH_UP_SECONDS = 1.0
"""Records due before that are dropped after a stall (machine asleep, broker away): a burst would distort the load."""
_SERVE_EVERY = 500
"""Records between two polls of the delivery reports."""


@dataclass(frozen=True)
class Pace:
    """Records due between two ticks, so that a rate is exact on an irregular clock. Pure."""

    since_seconds: float
    """Clock at the last tick."""
    fraction: float = 0.0
    """Fraction of a record that was due at the last tick."""
    let_go: float = 0.0
    """Records dropped because a stall was too long."""

    def advance(self, now_seconds: float, rate: float) -> "tuple[Pace, int]":
        """Return the pace after this tick and the records due, at `rate` records/s since the last tick.

        No record is due after a clock goes backwards.
        """
        elapsed = max(0.0, now_seconds - self.since_seconds)
        counted = min(elapsed, MAX_CATCH_UP_SECONDS)
        records = self.fraction + counted * rate
        due = int(records)
        let_go = self.let_go + (elapsed - counted) * rate
        return Pace(max(now_seconds, self.since_seconds), records - due, let_go), due


@dataclass(frozen=True)
class Statistics:
    """Counters and current rates of the generator."""

    target_rate: float
    """Records/s requested now."""
    rate: float | None
    """Records/s that arrived in the last two seconds; None before there was time to measure."""
    produced: int
    delivered: int
    failed: int
    let_go: int
    """Records dropped after a stall that was too long to catch up."""
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
        with self._lock:
            return self._load

    def change(self, change: LoadChange) -> Load:
        """Apply the change from the next tick on."""
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
        """Produce the records due at this monotonic time and return their number; `now_millis` is the wall clock."""
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
                # The queue is full: the broker is away or slow. The pace bounds the records due meanwhile.
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
        """Wait for records in flight."""
        self._output.close(timeout_seconds)


def run(
    generator: Generator, stop: threading.Event, *, monotonic: Callable[[], float], wall: Callable[[], float]
) -> None:
    """Tick until `stop` is set."""
    while not stop.wait(TICK_SECONDS):
        generator.tick(monotonic(), int(wall() * 1000))

"""Faults of a campaign and their order. A fault is a row; each is mended as a supervisor or a user would."""

import random
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal, Protocol, TypeVar, get_args

from testbed.process import ManagedProcess

from .proxy import WHEN, FailPoint
from .service import clock_file

T = TypeVar("T")
How = Literal["kill", "stop", "state-lost", "emptied", "clock"]
UserDoes = Literal["nothing", "pauses", "narrows"]
USER: tuple[UserDoes, ...] = ("nothing", "nothing", "pauses", "narrows")
CLOCK_SECONDS = 60.0
MIN_STOP_SECONDS, MAX_STOP_SECONDS = 5.0, 120.0
SHARE_OF_TWO = 1 / 3
"""Of the rounds that have two faults at once."""

AWAITS = (
    ("kafka", "COMMIT", ""),
    ("kafka", "PRODUCE", "/intended"),
    ("kafka", "PRODUCE", "/applying"),
    ("kafka", "PRODUCE", "/verifying"),
    ("knowledge", "GET", r"/v1/policies/[^/]+/[^/]+"),
    ("knowledge", "PUT", "/action"),
    ("redis", "EVAL", "/weir:position"),
)
"""Requests that every action makes: the executor's, and knowledge's script in Redis that applies a decision to its view."""


@dataclass(frozen=True)
class Fault:
    """`stop` is SIGSTOP and, after 5 to 120 s, SIGCONT; `clock` sets the clock 60 s ahead or back."""

    how: How
    victim: str


@dataclass(frozen=True)
class RoundPlan:
    """One round: what strikes, where, and what the user does at that moment."""

    faults: tuple[Fault, ...]
    point: FailPoint
    user: UserDoes


def faults_of(**victims: Sequence[str]) -> tuple[Fault, ...]:
    """Return the rows: what is struck in each way."""
    return tuple(Fault(how, victim) for how in get_args(How) for victim in victims.get(how.replace("-", "_"), ()))


def points_of(*awaits: tuple[str, str, str]) -> tuple[FailPoint, ...]:
    """Return the fail points before and after each request: of every action, and of `awaits` at the target."""
    return tuple(FailPoint(*each, when) for each in (*AWAITS, *awaits) for when in WHEN)


def draw(rounds: int, seed: int, faults: Sequence[Fault], points: Sequence[FailPoint]) -> list[RoundPlan]:
    """Return the rounds of a seed: each fault and each fail point as often as any other, in a random order."""
    order = random.Random(seed)

    struck = _endlessly(faults, order)
    drawn = []
    for point in islice(_endlessly(points, order), rounds):
        first = next(struck)
        others = [fault for fault in faults if fault.victim != first.victim]
        second = order.sample(others, 1) if others and order.random() < SHARE_OF_TWO else []
        user = order.choice(USER)
        drawn.append(RoundPlan((first, *second), point, user))
    return drawn


def _endlessly(rows: Sequence[T], order: random.Random) -> Iterator[T]:
    while True:
        yield from order.sample(rows, len(rows))


class Struck(Protocol):
    """Parts that can be struck, by name."""

    @property
    def folder(self) -> Path:
        """Where the parts keep what they have."""

    def process(self, victim: str) -> ManagedProcess:
        """Return the process of a part."""

    def kill(self, victim: str) -> None:
        """SIGKILL, as a crash or the kernel would."""

    def restart(self, victim: str) -> None:
        """Start it again, as a supervisor would; returns once it can be used, or at once."""


class Blow:
    """A fault that strikes one part, and is to be mended `seconds` later."""

    def __init__(self, how: How, victim: str, stack: Struck, choice: random.Random) -> None:
        self.how, self.victim, self._stack = how, victim, stack
        self.struck_at = self.ended_at = 0.0
        """Seconds since the epoch; the end is when it begins to be mended."""
        self._ahead_seconds = choice.choice((-CLOCK_SECONDS, CLOCK_SECONDS))
        match how:
            case "stop":
                # Half of them below 7 s, which is shorter than a session, and one in twenty above 90 s.
                self.seconds = MIN_STOP_SECONDS + (MAX_STOP_SECONDS - MIN_STOP_SECONDS) * choice.random() ** 6
            case "clock":
                self.seconds = choice.uniform(4.0, 12.0)
            case _:
                self.seconds = choice.uniform(0.5, 3.0)

    def __str__(self) -> str:
        ahead = f" by {self._ahead_seconds:+g} s" if self.how == "clock" else ""
        return f"{self.how} {self.victim}{ahead} for {self.seconds:.1f} s"

    def strike(self) -> None:
        """Inflict it."""
        self.struck_at = time.time()
        match self.how:
            case "stop":
                self._stack.process(self.victim).signal_group(signal.SIGSTOP)
            case "clock":
                clock_file(self._stack.folder, self.victim).write_text(f"{self._ahead_seconds:g}")
            case _:
                self._stack.kill(self.victim)
        if self.how == "emptied":
            for kept in (self._stack.folder / "redis").glob("appendonly*"):  # a file, or from Redis 7 on a folder
                shutil.rmtree(kept) if kept.is_dir() else kept.unlink()
        if self.how == "state-lost":
            shutil.rmtree(self._stack.folder / "spark", ignore_errors=True)

    def mend(self) -> None:
        """End it."""
        self.ended_at = time.time()
        match self.how:
            case "stop":
                self._stack.process(self.victim).signal_group(signal.SIGCONT)
            case "clock":
                clock_file(self._stack.folder, self.victim).write_text("0")
            case _:
                self._stack.restart(self.victim)

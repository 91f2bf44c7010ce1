"""Which processes a run has started, on disk, so that the next start can end what a crash left behind.

A process is known by its id *and* start time, because ids are used again. What it started in its turn is known by the
session it shares with it and by a mark in its environment.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import psutil

FILE = "processes.jsonl"
MARK = "WEIR_TESTBED_OWNER"
"""In the environment of each started process, and so of all that it starts: pid and start time of who started it. Redis
writes its title over its environment, so that a process without a mark may still be one of ours."""

_SAME_START_SECONDS = 0.02
"""Start times are counted in clock ticks of 10 ms."""


@dataclass(frozen=True)
class Started:
    """A line of the register: a process, and the process that owns it. Times in seconds since the epoch."""

    name: str
    pid: int
    started: float
    owner: int
    owner_started: float

    @classmethod
    def parse(cls, text: str) -> "Started | None":
        """None if the line cannot be read: a run that crashes while writing leaves half a line."""
        try:
            raw = json.loads(text)
            return cls(
                str(raw["name"]),
                int(raw["pid"]),
                float(raw["started"]),
                int(raw["owner"]),
                float(raw["owner_started"]),
            )
        except (ValueError, KeyError, TypeError):
            return None

    @property
    def mark(self) -> str:
        return _mark(self.owner, self.owner_started)


def _mark(pid: int, started: float) -> str:
    return f"{pid}@{started:.2f}"


@cache
def _started_at(pid: int) -> float:
    return psutil.Process(pid).create_time()


def own_mark() -> str:
    """The mark of what this process starts."""
    return _mark(os.getpid(), _started_at(os.getpid()))


def note(folder: Path, name: str, pid: int) -> None:
    """Write a process just started into the folder's register. One that has ended already leaves no line."""
    with contextlib.suppress(psutil.NoSuchProcess):
        entry = Started(name, pid, psutil.Process(pid).create_time(), os.getpid(), _started_at(os.getpid()))
        with (folder / FILE).open("a") as out:
            out.write(json.dumps(asdict(entry)) + "\n")


def is_alive(pid: int, started: float) -> bool:
    """Whether this very process still runs: not a later one of the same id, and not one that only waits to be buried."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        same = abs(process.create_time() - started) < _SAME_START_SECONDS
        return same and process.status() != psutil.STATUS_ZOMBIE
    return False


def sessions() -> dict[int, list[int]]:
    """The ids of all processes by the session they belong to."""
    found: dict[int, list[int]] = {}
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            found.setdefault(os.getsid(pid), []).append(pid)
    return found


def members(session: int, mark: str, by_session: Mapping[int, list[int]] | None = None) -> list[psutil.Process]:
    """The living processes of a session that carry the mark; its leader need not live any more."""
    found = []
    for pid in (by_session or sessions()).get(session, []):
        with contextlib.suppress(psutil.Error, OSError):
            process = psutil.Process(pid)
            if process.environ().get(MARK) == mark:
                found.append(process)
    return found


def _entries(runs_folder: Path) -> Iterator[Started]:
    # Parts of a run keep their register in a folder of their own below the run's.
    for pattern in (FILE, f"*/{FILE}", f"*/*/{FILE}"):
        for path in sorted(runs_folder.glob(pattern)):
            for text in path.read_text(errors="replace").splitlines():
                if entry := Started.parse(text):
                    yield entry


def living(folder: Path) -> list[Started]:
    """The processes in the registers of a run folder, or of a folder of runs, that still run."""
    return [entry for entry in _entries(folder) if is_alive(entry.pid, entry.started)]


def reap_leftovers(runs_folder: Path) -> list[str]:
    """Kill processes that earlier runs left behind: those in registers whose owner has ended, and their children.

    Returns the names. A run whose owner still lives is another trial at work, and is left alone.
    """
    reaped = []
    by_session = sessions()
    for entry in _entries(runs_folder):
        if is_alive(entry.owner, entry.owner_started):
            continue
        left = members(entry.pid, entry.mark, by_session)
        if is_alive(entry.pid, entry.started):
            left.append(psutil.Process(entry.pid))
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        if left:
            reaped.append(entry.name)
    return reaped

"""The analyzer's state of one application between two observations.

Everything is bounded, immutable once made, and versioned. `to_bytes` is JSON without names for what repeats: it is
written and read once for each observation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json

MEMORY_VERSION = 1
"""Raised whenever an older state cannot be read any more. Part of the checkpoint directory's name."""

MAX_POINTS = 64
"""Capacity points kept for an operator."""
MAX_REMEMBERED = 1000
"""Operators, and edges, of which something learnt is kept: the oldest go first."""


class UnreadableMemory(ValueError):
    """A state written by another version, or damaged. The application starts again from its last analysis."""


class Sample(NamedTuple):
    """An operator's counters in one fresh snapshot; `at` is the observation's time. None is unknown."""

    at: float
    records_in: int | None
    records_out: int | None
    busy_ms: int | None
    backpressured_ms: int | None
    idle_ms: int | None


Cell = list[Any]
"""A sample without its time, as it is stored: in, out, busy, backpressured, idle."""


class Row(NamedTuple):
    """All operators at one fresh snapshot, in the order of `RunMemory.names`; None: incomplete or missing."""

    at: float
    cells: list[Cell | None]


class Mark(NamedTuple):
    """The end of an output burst: records that `source` had taken in and that had reached `target` by then."""

    at: float
    taken: int
    reached: int


@dataclass(frozen=True, slots=True)
class EdgeMemory:
    """An edge's output in the current run, burst by burst."""

    first: Mark
    last: Mark
    growing: bool = False
    """Whether the output grew in the latest interval."""
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceMemory:
    """A source's lag in the current run: points of (time, records), and the last seconds told."""

    points: tuple[tuple[float, float], ...] = ()
    seconds: float | None = None
    basis: str = ""


@dataclass(frozen=True, slots=True)
class RunMemory:
    """The samples of one run. Another run starts a new one: differences never span two."""

    running_since: float
    """As the engine's clock says: what tells one run from another."""
    started_at: float
    """The same instant by the monitor's clock."""
    attempt: int | None
    names: tuple[str, ...]
    parallelism: tuple[int, ...]
    rows: tuple[Row, ...] = ()
    snapshot: tuple[Cell | None, ...] = ()
    """The latest snapshot, sample or not, to tell an unchanged one."""
    snapshot_at: float = 0.0
    """When it was first seen."""
    positions: int | None = None
    """Sum of the sources' own positions, which move apart from the counters."""
    positions_at: float = 0.0
    """When they last moved."""
    edges: dict[str, EdgeMemory] = field(default_factory=dict)
    sources: dict[str, SourceMemory] = field(default_factory=dict)


class Point(NamedTuple):
    """Capacity learned at one parallelism, records/s of all its subtasks."""

    parallelism: int
    rate: float
    confidence: float
    saturated: bool
    samples: int
    at: float
    job_id: str
    off_since: float | None = None
    """Since when measurements disagree with it by more than the tolerance, without being believed yet."""


class Ratio(NamedTuple):
    """A learnt selectivity."""

    value: float
    confidence: float
    at: float


class LogRow(NamedTuple):
    """Log-end offsets at one instant, in the order of `LogHistory.keys`; a row may be shorter than the keys."""

    at: float
    ends: list[int | None]


@dataclass(frozen=True, slots=True)
class LogHistory:
    """When which offset was the end of a partition's log. Belongs to the brokers, so it outlives runs."""

    keys: tuple[str, ...] = ()
    rows: tuple[LogRow, ...] = ()
    distances: tuple[float, ...] = ()
    """Seconds between the last few times that anything was heard of the brokers."""
    back_at: float | None = None
    """When they were heard again after the latest time away; None: they never were."""


@dataclass(frozen=True, slots=True)
class RestartMemory:
    """Downtimes learnt, and where the present one began."""

    seconds: float | None = None
    last_seconds: float | None = None
    samples: int = 0
    running_at: float | None = None
    """Last observation of the latest run."""
    down_at: float | None = None
    """First observation since then that found the job not running."""
    still_down_at: float | None = None
    """The latest such observation."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Everything `advance` knows of an application before it sees the next observation."""

    observed_at: float
    dropped: int = 0
    job_id: str = ""
    run: RunMemory | None = None
    history: LogHistory = LogHistory()
    capacities: dict[str, tuple[Point, ...]] = field(default_factory=dict)
    selectivities: dict[str, Ratio] = field(default_factory=dict)
    restarts: RestartMemory = RestartMemory()

    def to_bytes(self) -> bytes:
        """The state as compact JSON."""
        return to_json(
            [
                MEMORY_VERSION,
                self.observed_at,
                self.dropped,
                self.job_id,
                None if self.run is None else _run_out(self.run),
                [
                    self.history.keys,
                    [(row.at, row.ends) for row in self.history.rows],
                    self.history.distances,
                    self.history.back_at,
                ],
                self.capacities,
                self.selectivities,
                _fields(self.restarts),
            ]
        )

    @classmethod
    def from_bytes(cls, state: bytes) -> "Memory":
        """Read a state; raises `UnreadableMemory` for another version or damage."""
        try:
            version, *rest = from_json(state)
        except (ValueError, TypeError) as error:
            raise UnreadableMemory(f"the state is not readable: {error}") from None
        if version != MEMORY_VERSION:
            raise UnreadableMemory(f"the state has version {version!r}, this analyzer reads {MEMORY_VERSION}")
        try:
            observed_at, dropped, job_id, run, history, capacities, selectivities, restarts = rest
            return cls(
                observed_at=float(observed_at),
                dropped=int(dropped),
                job_id=str(job_id),
                run=None if run is None else _run_in(run),
                history=_history_in(*history),
                capacities={name: tuple([Point(*point) for point in points]) for name, points in capacities.items()},
                selectivities={edge: Ratio(*ratio) for edge, ratio in selectivities.items()},
                restarts=RestartMemory(*restarts),
            )
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise UnreadableMemory(f"the state is damaged: {error}") from None


def _fields(value: Any) -> list[Any]:
    return [getattr(value, name) for name in value.__slots__]


def _history_in(
    keys: list[str], rows: list[Any], distances: Sequence[float] = (), back_at: float | None = None
) -> LogHistory:
    # a state written before the last two were kept has the first two only
    return LogHistory(tuple(keys), tuple([LogRow(at, ends) for at, ends in rows]), tuple(distances), back_at)


def _run_out(run: RunMemory) -> list[Any]:
    return [
        run.running_since,
        run.started_at,
        run.attempt,
        run.names,
        run.parallelism,
        [(row.at, row.cells) for row in run.rows],
        run.snapshot,
        run.snapshot_at,
        run.positions,
        run.positions_at,
        {edge: _fields(memory) for edge, memory in run.edges.items()},
        {name: _fields(memory) for name, memory in run.sources.items()},
    ]


def _run_in(stored: list[Any]) -> RunMemory:
    (
        since,
        started_at,
        attempt,
        names,
        parallelism,
        rows,
        snapshot,
        snapshot_at,
        positions,
        positions_at,
        edges,
        sources,
    ) = stored
    return RunMemory(
        running_since=since,
        started_at=started_at,
        attempt=attempt,
        names=tuple(names),
        parallelism=tuple(parallelism),
        rows=tuple([Row(at, cells) for at, cells in rows]),
        snapshot=tuple(snapshot),
        snapshot_at=snapshot_at,
        positions=positions,
        positions_at=positions_at,
        edges={edge: _edge_in(*memory) for edge, memory in edges.items()},
        sources={
            name: SourceMemory(tuple([(at, lag) for at, lag in points]), seconds, basis)
            for name, (points, seconds, basis) in sources.items()
        },
    )


def _edge_in(first: list[Any], last: list[Any], growing: bool, marks: list[list[Any]]) -> EdgeMemory:
    return EdgeMemory(Mark(*first), Mark(*last), growing, tuple([Mark(*mark) for mark in marks]))

"""The analyzer's state of one application between two observations.

Everything is bounded, immutable once made, and versioned. `to_bytes` is JSON without names for what repeats: it is
written and read once for each observation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json

from .forecast.state import ForecastState

STATE_VERSION = 2
"""Raised whenever an older state cannot be read any more. Part of the checkpoint directory's name."""

MAX_POINTS = 64
"""Capacity points kept for an operator."""


class UnreadableState(ValueError):
    """A state written by another version, or damaged. The application starts again from its last analysis."""


COUNTERS = 5
"""Counters of an operator in a row: records in, records out, and busy, backpressured and idle time in ms."""
MISSING = -1
"""First counter of an operator whose reading is missing or incomplete; the others are None."""
Row = tuple[float, list[int | None]]
"""Time and counters of one fresh snapshot: those of the first operator of `RunState.names`, those of the second, …"""


class Mark(NamedTuple):
    """The end of an output burst: records that `source` had taken in and that had reached `target` by then."""

    at: float
    taken: int
    reached: int


@dataclass(frozen=True, slots=True)
class EdgeState:
    """An edge's output in the current run, burst by burst."""

    first: Mark
    last: Mark
    growing: bool = False
    """Whether the output grew in the latest interval."""
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceState:
    """A source's lag in the current run: points of (time, records), and the latest estimate in seconds. Both are lower
    bounds while the lag of some partitions is unknown."""

    points: tuple[tuple[float, float], ...] = ()
    seconds: float | None = None
    basis: str = ""
    missing: int = 0
    """Checksum of the partitions whose lag is unknown; 0: all are known."""
    guessed_at: float | None = None
    """When the lag of some partition was last as of a commit, for want of a position; None: not in this run."""


@dataclass(frozen=True, slots=True)
class RunState:
    """The samples of one run. Another run starts a new one: differences never span two."""

    running_since: float
    """By the engine's clock; identifies a run without a key."""
    started_at: float
    """The same instant by the monitor's clock."""
    attempt: int | None
    key: str | None
    """Identifies the run; None if the monitor gave none."""
    names: tuple[str, ...]
    parallelism: tuple[int, ...]
    rows: tuple[Row, ...] = ()
    snapshot: tuple[int | None, ...] = ()
    """Counters of the latest snapshot, sample or not, to recognise an unchanged one."""
    snapshot_at: float = 0.0
    """When it was first observed."""
    positions: int | None = None
    """Sum of the sources' own positions, which move apart from the counters."""
    positions_at: float = 0.0
    """When they last moved."""
    edges: dict[str, EdgeState] = field(default_factory=dict)
    sources: dict[str, SourceState] = field(default_factory=dict)


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
    taken: float = 0.0
    """Highest records/s taken in over a window; 0: unknown."""
    skew: float | None = None
    """Busiest subtask's busy share over the mean."""


class Ratio(NamedTuple):
    """A learned selectivity."""

    value: float
    confidence: float
    at: float


LogRow = tuple[float, list[int | None]]
"""Time and log-end offsets in the order of `LogHistory.keys`; a row may be shorter than the keys."""


@dataclass(frozen=True, slots=True)
class LogHistory:
    """Log-end offsets of all partitions over time. It belongs to the brokers, so it outlives runs."""

    keys: tuple[str, ...] = ()
    rows: tuple[LogRow, ...] = ()
    distances: tuple[float, ...] = ()
    """Seconds between the last few answers of the brokers."""
    back_at: float | None = None
    """When they answered again after the latest absence; None: they were never away."""


@dataclass(frozen=True, slots=True)
class RestartState:
    """Learned downtimes, and where the present one began."""

    seconds: float | None = None
    last_seconds: float | None = None
    samples: int = 0
    running_at: float | None = None
    """Last observation of the latest run."""
    down_at: float | None = None
    """First observation since then that found the job not running."""
    still_down_at: float | None = None
    """The latest such observation."""
    restore_seconds: float | None = None
    """Learned time in which the tasks of a group restore their state."""
    restoring_since: float | None = None
    """First observation of the present restore."""
    warm_up_seconds: float | None = None
    """Learned time in which a group warms up state before its tasks move."""
    warming_since: float | None = None
    """First observation of the present warm-up."""


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """The last completed checkpoint of the job, and the sources' positions by partition."""

    completed_at: float | None = None
    """By the engine's clock."""
    offsets: dict[str, int] = field(default_factory=dict)
    """Positions that were read last before it began: it contains at least these."""
    latest: tuple[tuple[float, dict[str, int]], ...] = ()
    """Time and positions of the latest readings in the present run."""


@dataclass(frozen=True, slots=True)
class AnalyzerState:
    """State of one application from one observation to the next."""

    observed_at: float
    dropped: int = 0
    job_id: str = ""
    run: RunState | None = None
    history: LogHistory = LogHistory()
    capacities: dict[str, tuple[Point, ...]] = field(default_factory=dict)
    selectivities: dict[str, Ratio] = field(default_factory=dict)
    restarts: RestartState = RestartState()
    forecasts: ForecastState = field(default_factory=ForecastState)
    checkpoints: CheckpointState = field(default_factory=CheckpointState)

    def to_bytes(self) -> bytes:
        """The state as compact JSON."""
        history = self.history
        return to_json(
            [
                STATE_VERSION,
                self.observed_at,
                self.dropped,
                self.job_id,
                None if self.run is None else _run_out(self.run),
                [history.keys, history.rows, history.distances, history.back_at],
                {name: [tuple(point) for point in points] for name, points in self.capacities.items()},
                {edge: tuple(ratio) for edge, ratio in self.selectivities.items()},
                _fields(self.restarts),
                self.forecasts.to_json(),
                _fields(self.checkpoints),
            ]
        )

    @classmethod
    def from_bytes(cls, state: bytes) -> "AnalyzerState":
        """Read a state; raises `UnreadableState` for another version or damage."""
        try:
            version, *rest = from_json(state)
        except (ValueError, TypeError) as error:
            raise UnreadableState(f"the state is not readable: {error}") from None
        if version != STATE_VERSION:
            raise UnreadableState(f"the state has version {version!r}, this analyzer reads {STATE_VERSION}")
        try:
            observed_at, dropped, job_id, run, history, capacities, selectivities, restarts, *later = rest
            return cls(
                observed_at=float(observed_at),
                dropped=int(dropped),
                job_id=str(job_id),
                run=None if run is None else _run_in(run),
                history=_history_in(*history),
                capacities={name: tuple([Point(*point) for point in points]) for name, points in capacities.items()},
                selectivities={edge: Ratio(*ratio) for edge, ratio in selectivities.items()},
                restarts=RestartState(*restarts),
                # older states end before the forecasts, or before the checkpoints
                forecasts=ForecastState.from_json(later[0]) if later else ForecastState(),
                checkpoints=_checkpoints_in(*later[1]) if len(later) > 1 else CheckpointState(),
            )
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise UnreadableState(f"the state is damaged: {error}") from None


def _fields(value: Any) -> list[Any]:
    return [getattr(value, name) for name in value.__slots__]


def _history_in(
    keys: list[str], rows: list[Any], distances: Sequence[float] = (), back_at: float | None = None
) -> LogHistory:
    # older states end after the rows
    return LogHistory(tuple(keys), tuple([(at, ends) for at, ends in rows]), tuple(distances), back_at)


def _checkpoints_in(completed_at: float | None, offsets: dict[str, int], latest: list[Any]) -> CheckpointState:
    return CheckpointState(completed_at, offsets, tuple([(at, positions) for at, positions in latest]))


def _run_out(run: RunState) -> list[Any]:
    # plain tuples: named ones take several times as long to write
    edges = {
        edge: (tuple(state.first), tuple(state.last), state.growing, [tuple(mark) for mark in state.marks])
        for edge, state in run.edges.items()
    }
    sources = {name: _fields(state) for name, state in run.sources.items()}
    return [*_fields(run)[:-2], edges, sources]


def _run_in(stored: list[Any]) -> RunState:
    since, started_at, attempt, key, names, parallelism, rows, snapshot, at, positions, moved_at, edges, sources = (
        stored
    )
    return RunState(
        running_since=since,
        started_at=started_at,
        attempt=attempt,
        key=key,
        names=tuple(names),
        parallelism=tuple(parallelism),
        rows=tuple([(at, counters) for at, counters in rows]),
        snapshot=tuple(snapshot),
        snapshot_at=at,
        positions=positions,
        positions_at=moved_at,
        edges={edge: _edge_in(*state) for edge, state in edges.items()},
        sources={
            # older states end before the missing partitions, or before the time of a guess
            name: SourceState(tuple([(at, lag) for at, lag in points]), seconds, basis, *others)
            for name, (points, seconds, basis, *others) in sources.items()
        },
    )


def _edge_in(first: list[Any], last: list[Any], growing: bool, marks: list[list[Any]]) -> EdgeState:
    return EdgeState(Mark(*first), Mark(*last), growing, tuple([Mark(*mark) for mark in marks]))

"""The analyzer's state of one application between two observations, and the part of it that seeds a lost one.

Everything is bounded, immutable once made, and versioned. `to_bytes` is JSON without names for what repeats: it is
written and read once for each observation.
"""

from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError
from pydantic_core import from_json, to_json

from weir_contracts import MAX_NUMBER, MAX_SECONDS, Analysis, InvalidDocument, within
from weir_contracts.base import Seconds

from .capacity import MIN_RATE, Point, merged, published
from .forecast.application import MAX_SOURCES, ForecastState
from .forecast.series import SeriesState
from .graph import Ratio
from .offsets import LogHistory
from .restarts import CheckpointState, RestartState
from .run import EdgeState, Mark, RunState, SourceState
from .window import MAX_LEARNED

STATE_VERSION = 4
"""Raised whenever an older state cannot be read any more. Part of the checkpoint directory's name."""
_LEARNED_VERSION = 1
MAX_NAME = 1_000
"""Characters of an operator's name, or of two for an edge."""


class UnreadableState(ValueError):
    """A state written by another version, or damaged. The application starts again from its last analysis."""


@dataclass(frozen=True, slots=True)
class AnalyzerState:
    """State of one application from one observation to the next."""

    observed_at: float
    """Of the latest observation, in seconds since the epoch; 0: what was learned was imported, and nothing observed yet."""
    dropped: int = 0
    job_id: str = ""
    run: RunState | None = None
    history: LogHistory = field(default_factory=LogHistory)
    capacities: dict[str, tuple[Point, ...]] = field(default_factory=dict)
    selectivities: dict[str, Ratio] = field(default_factory=dict)
    restarts: RestartState = field(default_factory=RestartState)
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
            observed_at, dropped, job_id, run, history, capacities, selectivities, restarts, forecasts, checkpoints = (
                rest
            )
            keys, rows, distances, back_at = history
            completed_at, positions, latest = checkpoints
            return cls(
                observed_at=float(observed_at),
                dropped=int(dropped),
                job_id=str(job_id),
                run=None if run is None else _run_in(run),
                history=LogHistory(tuple(keys), tuple([(at, ends) for at, ends in rows]), tuple(distances), back_at),
                capacities={name: tuple([Point(*point) for point in points]) for name, points in capacities.items()},
                selectivities={edge: Ratio(*ratio) for edge, ratio in selectivities.items()},
                restarts=RestartState(*restarts),
                forecasts=ForecastState.from_json(forecasts),
                checkpoints=CheckpointState(completed_at, positions, tuple([(at, read) for at, read in latest])),
            )
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise UnreadableState(f"the state is damaged: {error}") from None


def _fields(value: Any) -> list[Any]:
    return [getattr(value, name) for name in value.__slots__]


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
        edges={
            edge: EdgeState(Mark(*first), Mark(*last), growing, tuple([Mark(*mark) for mark in marks]))
            for edge, (first, last, growing, marks) in edges.items()
        },
        sources={name: SourceState(*map(_stored, parts)) for name, parts in sources.items()},
    )


def _stored(value: Any) -> Any:
    """Return a part of a state as it was written: JSON has lists for tuples."""
    return tuple([_stored(each) for each in value]) if isinstance(value, list) else value


def learned_of(state: AnalyzerState) -> dict[str, Any]:
    """Capacities, selectivities, restart times and the models of the forecasts; the log-end history is not part of
    it."""
    return {
        "version": _LEARNED_VERSION,
        "job_id": state.job_id,
        "dropped": state.dropped,
        "capacities": {
            name: [
                [
                    p.parallelism,
                    round(p.rate, 6),
                    p.confidence,
                    p.saturated,
                    p.samples,
                    p.at,
                    p.job_id,
                    round(p.taken, 6),
                    p.skew,
                ]
                for p in curve
            ]
            for name, curve in state.capacities.items()
        },
        "selectivities": {edge: [round(r.value, 6), r.confidence, r.at] for edge, r in state.selectivities.items()},
        "restarts": [state.restarts.seconds, state.restarts.last_seconds, state.restarts.samples],
        "forecasts": state.forecasts.learned(),
        "moves": [state.restarts.restore_seconds, state.restarts.warm_up_seconds],
    }


def seed(analysis: Analysis) -> AnalyzerState | None:
    """A state to go on from: what the analysis's own `learned` says, and its time, so that a replay is ignored.

    None after the application's end. An unreadable or foreign `learned` seeds the time only.
    """
    if analysis.status == "ended":
        return None
    at = analysis.observed_at.timestamp()
    try:
        return learned_state(analysis.learned, at)
    except UnreadableState:
        return AnalyzerState(observed_at=at)


def learned_state(learned: dict[str, Any], at: float) -> AnalyzerState:
    """Return the state that has what `learned_of` returned and nothing else, as of `at`. `UnreadableState` for another
    version or damage."""
    version = learned.get("version")
    if version != _LEARNED_VERSION:
        raise UnreadableState(f"it has version {version!r}, this analyzer reads {_LEARNED_VERSION}")
    try:
        state = _read(learned, at)
        _check(state)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, OSError) as error:
        raise UnreadableState(f"it is damaged: {type(error).__name__}: {error}") from None
    return state


class _Exact(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class _Forecasts(_Exact):
    wait_seconds: Seconds | None = None
    series: dict[str, list[int | str]] = {}


class _Learned(_Exact):
    """The form of what `learned_of` returns."""

    version: Literal[1]
    job_id: str
    dropped: NonNegativeInt
    capacities: dict[str, list[tuple[int, float, float, bool, int, float, str, float, float | None]]]
    selectivities: dict[str, tuple[float, float, float]]
    restarts: tuple[Seconds | None, Seconds | None, NonNegativeInt]
    forecasts: _Forecasts
    moves: tuple[Seconds | None, Seconds | None]


def check_learned(learned: dict[str, Any]) -> AnalyzerState:
    """Return the state of what a file has learned. `UnreadableState` names what is not as `learned_of` wrote it: of a message what
    can be read counts, and a user can correct a file."""
    if learned.get("version") != _LEARNED_VERSION:
        return learned_state(learned, 0.0)  # which says so
    try:
        # As JSON, in which lists are tuples.
        exact = _Learned.model_validate_json(to_json(learned))
    except ValidationError as error:
        raise UnreadableState(str(InvalidDocument.of(error))) from None
    for name, model in exact.forecasts.series.items():
        try:
            SeriesState.seeded(model)
        except (ValueError, TypeError, IndexError) as error:
            raise UnreadableState(f"forecasts.series.{name}: is not readable ({error})") from None
    return learned_state(learned, 0.0)


def _check(state: AnalyzerState) -> None:
    """Raise `ValueError` for what an analysis could not carry: the file of an import may hold anything."""
    for points in state.capacities.values():
        published(points)
    if any(len(name) > MAX_NAME for name in (*state.capacities, *state.selectivities, *state.forecasts.series)):
        raise ValueError(f"a name has more than {MAX_NAME} characters")
    for ratio in state.selectivities.values():
        if not (0 <= ratio.value <= MAX_NUMBER and 0 <= ratio.confidence <= 1 and isfinite(ratio.at)):
            raise ValueError("selectivities are out of bounds")
    times = state.restarts
    for seconds in (times.seconds, times.last_seconds, times.restore_seconds, times.warm_up_seconds):
        if seconds is not None and seconds < 0:
            raise ValueError("restart times are negative")


def with_learned(state: AnalyzerState, other: AnalyzerState) -> AnalyzerState:
    """Return the state with what another analyzer learned, where this one measured nothing itself.

    The same again changes nothing.
    """
    restarts, series = state.restarts, dict(state.forecasts.series)
    if not restarts.samples:
        theirs = other.restarts
        restarts = replace(restarts, seconds=theirs.seconds, last_seconds=theirs.last_seconds, samples=theirs.samples)
    for name in ("restore_seconds", "warm_up_seconds"):
        if getattr(restarts, name) is None:
            restarts = replace(restarts, **{name: getattr(other.restarts, name)})
    for name, model in other.forecasts.series.items():
        # one without a model yet is soon learned again
        if series[name].learned() is None if name in series else len(series) < MAX_SOURCES:
            series[name] = model
    return replace(
        state,
        job_id=state.job_id or other.job_id,
        capacities=merged(state.capacities, other.capacities),
        selectivities={**other.selectivities, **state.selectivities},
        restarts=restarts,
        forecasts=replace(state.forecasts, series=series),
    )


def _read(learned: dict[str, Any], at: float) -> AnalyzerState:
    capacities = {
        str(name): tuple(
            Point(
                int(p[0]),
                float(p[1]),
                float(p[2]),
                bool(p[3]),
                int(p[4]),
                float(p[5]),
                str(p[6]),
                taken=within(p[7], MAX_NUMBER) or 0.0,
                skew=within(p[8], MAX_NUMBER),
            )
            for p in curve
        )
        for name, curve in list(learned["capacities"].items())[:MAX_LEARNED]
    }
    if any(
        not (MIN_RATE <= p.rate <= MAX_NUMBER and p.parallelism >= 1) for curve in capacities.values() for p in curve
    ):
        raise ValueError("capacities are out of bounds")
    seconds, last_seconds, samples = learned["restarts"]
    restore_seconds, warm_up_seconds = learned["moves"]
    return AnalyzerState(
        observed_at=at,
        dropped=int(learned["dropped"]),
        job_id=str(learned["job_id"]),
        capacities=capacities,
        selectivities={
            str(edge): Ratio(float(r[0]), float(r[1]), float(r[2]))
            for edge, r in list(learned["selectivities"].items())[: 5 * MAX_LEARNED]
        },
        restarts=RestartState(
            within(seconds, MAX_SECONDS),
            within(last_seconds, MAX_SECONDS),
            int(samples),
            restore_seconds=within(restore_seconds, MAX_SECONDS),
            warm_up_seconds=within(warm_up_seconds, MAX_SECONDS),
        ),
        forecasts=ForecastState.seeded(learned["forecasts"]),
    )

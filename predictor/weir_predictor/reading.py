"""An analysis as the predictor reads it: arrivals, backlogs, capacity curves, the cost of a restart; and what is
unknown."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from weir_contracts import Analysis, Deployment, Outcome, Topology

from .capacity import curve_of
from .flow import flow_of, ratios_of
from .model import Backlog, Model, Restart

USUAL_RESTART_SECONDS = 8.0
"""Downtime of a rescale until one was measured."""
USUAL_RESUBMISSION_SECONDS = 60.0
"""The same for a job that is ended and started again: a savepoint, and pods that start."""


MAX_PROMPT_SECONDS = 30.0
"""Time from request to RUNNING up to which a rescale is taken to have had its capacity at once."""
MAX_MISSED_SECONDS = 5.0
"""What a gap misses at most of a restart, where the time until RUNNING says nothing of it."""
MIN_START_SECONDS, MAX_START_SECONDS = 0.5, 600.0
"""Beyond these the time until the first run was up is no start: the engine's clock, or slots that came late."""


@dataclass(frozen=True)
class Gap:
    """A value of an operator that is unknown, and why."""

    operator: str
    what: Literal["arrival rate", "lag", "capacity", "input"]
    because: str
    lower_bound: float | None = None
    """Lower bound of the arrival rate in records/s or the lag in records, which the model has instead: enough to grow."""

    @property
    def bounded(self) -> str:
        """The gap with its lower bound, if it has one, in a sentence."""
        if self.lower_bound is None:
            return f"the {self.what} of {self.operator} is unknown"
        unit = "records/s" if self.what == "arrival rate" else "records"
        return f"the {self.what} of {self.operator} is known in part: at least {self.lower_bound:,.0f} {unit}"


def model_of(analysis: Analysis, topology: Topology) -> tuple[Model, list[Gap]]:
    """Return the model and its gaps: sources in the graph's order first, then operators. The model has no entry where
    there is a gap (for a lag: a backlog of 0) but the lower bound, so its user has to look at the gaps that matter."""
    gaps: list[Gap] = []
    arrivals: dict[str, float] = {}
    backlogs: dict[str, Backlog] = {}
    analysed = {source.operator: source for source in analysis.sources}
    for name in topology.sources:
        source = analysed.get(name)
        if source is None:
            gaps.append(Gap(name, "arrival rate", "it was not analysed"))
            continue
        rate, lag = source.arrival_rate, source.lag_records
        if rate.value is None:
            gaps.append(Gap(name, "arrival rate", rate.basis, rate.lower_bound))
        if rate.proven is None:
            continue
        if lag.value is None:
            gaps.append(Gap(name, "lag", lag.basis, lag.lower_bound))
        arrivals[name] = max(0.0, rate.proven)
        backlogs[name] = Backlog(max(0.0, lag.proven or 0.0), source.lag_seconds.proven)
    found = {o.operator: curve_of(o, topology.work_shares(o.operator)) for o in analysis.operators}
    curves = {name: curve for name, curve in found.items() if curve is not None}
    flow = flow_of(topology, ratios_of(analysis))
    for name in topology.names:
        if name not in curves:
            gaps.append(Gap(name, "capacity", _why_no_curve(analysis, name)))
        if name not in flow:
            gaps.append(Gap(name, "input", _why_no_flow(analysis, name)))
    return Model(topology, flow, curves, arrivals, backlogs), gaps


def restart_of(
    analysis: Analysis,
    deployment: Deployment | None,
    outcomes: Sequence[Outcome] = (),
    usual_seconds: float = USUAL_RESTART_SECONDS,
) -> Restart:
    """Return the cost of a rescale, before one was measured from the job's first start and its checkpoints, else
    `usual_seconds`; where the job is started again at least `USUAL_RESUBMISSION_SECONDS`. Then the usual time from request to
    RUNNING (the median of the last ones in `outcomes`, newest first), but not less than the gap between runs and not more than
    an interval above it, as far as measured.

    The gap misses times shorter than an interval; the time to RUNNING includes work of the old parallelism: all of the
    time in which TaskManagers start. A single slow restart is not the usual one: taken for it, a slow restart in an
    outage would forbid shrinking until the next rescale.
    """
    gap, usual = analysis.restart_times.seconds, _usual(outcomes)
    if gap is not None and usual is not None:
        interval = analysis.policy.spec.interval.total_seconds()
        # The gap is measured to half an interval. A rescale that took clearly longer waited for new capacity, while the
        # job ran on.
        waited = usual > max(gap + interval / 2, MAX_PROMPT_SECONDS)
        usual = gap + min(interval, MAX_MISSED_SECONDS) if waited else min(usual, gap + interval)
    measured = [seconds for seconds in (gap, usual) if seconds is not None]
    points = deployment.checkpoints if deployment else None
    if not measured and (first := _first_start(analysis, deployment)) is not None:
        usual_seconds = first + ((points.last_duration_seconds if points else None) or 0.0)
    if deployment is not None and deployment.rescale.by_restart:
        usual_seconds = max(usual_seconds, USUAL_RESUBMISSION_SECONDS)
    # A checkpoint is triggered with the rescale, so only its own duration is replayed, not the interval.
    replay = points.last_duration_seconds if points and points.last_duration_seconds is not None else 1.0
    return Restart(max(measured) if measured else usual_seconds, replay, measured=bool(measured))


def _first_start(analysis: Analysis, deployment: Deployment | None) -> float | None:
    """Return the seconds from the job's start until its first run was up: a rescale starts the same tasks. None: unknown,
    or it was restarted since."""
    run = analysis.run
    if run is None or deployment is None or deployment.started_at is None or deployment.restarts != 0:
        return None
    seconds = (run.running_since - deployment.started_at).total_seconds()
    return seconds if MIN_START_SECONDS <= seconds <= MAX_START_SECONDS else None


def _usual(outcomes: Sequence[Outcome]) -> float | None:
    for outcome in outcomes:
        seconds = outcome.restarts_seconds or ([] if outcome.restart_seconds is None else [outcome.restart_seconds])
        if seconds:
            return median(seconds)
    return None


def _why_no_curve(analysis: Analysis, name: str) -> str:
    operator = analysis.operator(name)
    if operator is None:
        return "it was not analysed"
    rate = operator.true_processing_rate
    return rate.basis if rate.value is None else f"it was measured with too little confidence ({rate.confidence:.0%})"


def _why_no_flow(analysis: Analysis, name: str) -> str:
    unknown = [e for e in analysis.edges if e.target == name and e.selectivity.value is None]
    if unknown:
        return f"records from {unknown[0].source} per record: {unknown[0].selectivity.basis}"
    return "the input of an operator before it is unknown"


def no_capacity(analysis: Analysis) -> str:
    """Return why no operator's capacity is known: how much of the first window of a run has passed, or that it was in
    vain."""
    numbers = next((each.numbers for each in analysis.symptoms if each.code == "warming-up"), {})
    age, needed = numbers.get("run_age_seconds"), numbers.get("needed_seconds")
    if age is not None and needed is not None and age < needed:
        return f"measuring capacity, {age:.0f} of {needed:.0f} s of the run"
    return "no operator's capacity is known yet: none was measured since the run's warm-up"

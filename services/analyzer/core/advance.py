"""One observation in, one analysis out.

The order of work: is it newer; what the brokers say (demand outlives runs); which run it is and whether its snapshot is
a sample; lag; rates, shares and capacities; targets through the graph; symptoms; what was learnt.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from weir_contracts import Estimate, Observation, OperatorReading, unknown
from weir_contracts.analysis import Analysis

from . import capacity, demand, history, lag, propagation, restarts, selectivity, window
from .context import AnalysisContext, OperatorContext, SourceContext
from .memory import LogHistory, Memory, Point, RunMemory, Sample
from .numbers import estimate, slope
from .propagation import Graph, graph_of
from .report import analysis_of
from .settings import AnalysisSettings
from .symptoms import symptoms_of
from .window import Shares, View

_NO_SHARES = Shares(None, None, None)


def advance(
    memory: Memory | None,
    observation: Observation,
    settings: AnalysisSettings | None = None,
    *,
    lost_records: int | None = None,
) -> tuple[Memory | None, Analysis | None]:
    """Take in one observation.

    Returns the new memory (None after the application's end) and the analysis (None for an observation that is not
    newer than the last: it is only counted). `lost_records` is the number of observations of the
    application's partition that retention deleted before this one could be read. Never mutates `memory`.
    """
    settings = settings or AnalysisSettings()
    at = observation.observed_at.timestamp()
    if memory is not None and at <= memory.observed_at:
        return replace(memory, dropped=memory.dropped + 1), None
    gap = None if memory is None else at - memory.observed_at
    memory = replace(memory or Memory(observed_at=at), observed_at=at)
    if lost_records:
        memory = replace(memory, dropped=memory.dropped + _own_share(lost_records, gap, observation))
    memory = _with_brokers(_with_job(memory, observation), observation, at, settings)
    graph = None if observation.topology is None else graph_of(observation.topology)
    memory, fresh_run, stale = _with_run(memory, observation, graph, at, settings)
    observed = AnalysisContext(observation, at, None if stale is None else memory.run, fresh_run, gap, lost_records)
    memory, context = _context(memory, graph, Frame(observation, at, settings, stale), observed)
    symptoms = symptoms_of(context, memory.capacities, settings)
    analysis = analysis_of(context, memory, symptoms)
    return (None if observation.status == "ended" else memory), analysis


def _own_share(lost_records: int, gap_seconds: float | None, observation: Observation) -> int:
    """How many of a partition's lost observations were this application's: as many as its interval fits in the gap."""
    interval = observation.policy.spec.interval.total_seconds()
    fitting = 1 if gap_seconds is None else max(1, round(gap_seconds / interval) - 1)
    return min(lost_records, fitting)


def _with_job(memory: Memory, observation: Observation) -> Memory:
    """Another job id: perhaps other code, so what was learnt counts half."""
    job_id = "" if observation.deployment is None else observation.deployment.job_id
    if not job_id or job_id == memory.job_id:
        return memory
    if not memory.job_id:
        return replace(memory, job_id=job_id)
    ratios = {k: r._replace(confidence=round(r.confidence / 2, 4)) for k, r in memory.selectivities.items()}
    return replace(
        memory,
        job_id=job_id,
        run=None,
        capacities=capacity.halved(memory.capacities),
        selectivities=ratios,
        # another job is a resubmission: the time until it came is no restart time
        restarts=replace(memory.restarts, running_at=None, down_at=None, still_down_at=None),
    )


def _with_brokers(memory: Memory, observation: Observation, at: float, settings: AnalysisSettings) -> Memory:
    interval = observation.policy.spec.interval.total_seconds()
    extended = history.extend(
        memory.history,
        observation.partitions,
        at,
        reach_seconds=settings.history_seconds,
        interval_seconds=interval,
    )
    return replace(memory, history=extended)


def _readings(observation: Observation) -> list[OperatorReading]:
    """The readings in the topology's order, where there is one; twice the same operator counts once."""
    by_name = {reading.operator: reading for reading in observation.operators}
    if observation.topology is None:
        return list(by_name.values())
    return [by_name[name] for name in observation.topology.names if name in by_name]


def _with_run(
    memory: Memory, observation: Observation, graph: Graph | None, at: float, settings: AnalysisSettings
) -> tuple[Memory, bool, float | None]:
    """The run's ring with this observation in it, whether the run is new, and for how long its snapshot is unchanged.

    The age is None outside of a run.
    """
    if observation.status == "not_running":
        return replace(memory, restarts=restarts.observed_down(memory.restarts, at)), False, None
    if observation.status != "running" or observation.run is None:
        return memory, False, None
    readings = _readings(observation)
    ring = memory.run
    fresh_run = ring is None or not window.same_run(ring, observation.run, readings)
    if ring is None or fresh_run:
        # the engine's clock gives the run's start, the monitor's everything else here
        ahead = 0.0 if observation.source_time is None else at - observation.source_time.timestamp()
        started_at = min(at, observation.run.running_since.timestamp() + ahead)
        after = window.start(observation.run, readings, started_at)
        memory, ring = _with_restart(memory, ring, after, at, settings), after
    else:
        memory = replace(memory, restarts=restarts.observed_running(memory.restarts, at))
    moved = window.positions_of(observation)
    ring, fresh = window.extend(ring, readings, at, settings)
    if fresh and graph is not None:
        wirings = selectivity.wirings_of(graph, ring.names)
        ring = selectivity.track(ring, wirings, settings)
    if moved != ring.positions:
        ring, fresh = replace(ring, positions=moved, positions_at=at), True
    stale = 0.0 if fresh else at - max(ring.snapshot_at, ring.positions_at)
    return replace(memory, run=ring), fresh_run, stale


def _with_restart(
    memory: Memory, before: RunMemory | None, after: RunMemory, at: float, settings: AnalysisSettings
) -> Memory:
    """Take a change of run into the restart times; the first observed run adds none."""
    if before is None:
        observed = restarts.observed_running(memory.restarts, at)
    else:
        rescaled = before.parallelism != after.parallelism
        observed = restarts.observed_new_run(memory.restarts, after.started_at, at, rescaled, settings)
    return replace(memory, restarts=observed)


@dataclass(frozen=True, slots=True)
class Frame:
    """The observation being analysed."""

    observation: Observation
    at: float
    settings: AnalysisSettings
    stale_seconds: float | None
    """For how long the engine's snapshot has not changed; None while the job is not running."""

    def run_of(self, memory: Memory) -> RunMemory | None:
        """The run the observation was taken in; None while the job is not running."""
        return None if self.stale_seconds is None else memory.run


@dataclass(frozen=True, slots=True)
class _Operators:
    """Values derived from every operator's window."""

    views: dict[str, View]
    spent: dict[str, Shares]
    readings: dict[str, OperatorReading]
    input_rates: dict[str, Estimate]
    output_rates: dict[str, Estimate]


def _context(
    memory: Memory, topology: Graph | None, frame: Frame, context: AnalysisContext
) -> tuple[Memory, AnalysisContext]:
    if topology is None:
        return memory, context
    operators = _operators(topology, frame, context.run, memory.history)
    memory, sources = _sources(memory, topology, operators, frame)
    measured = {name: _measured(name, topology, operators, sources, frame.settings) for name in topology.names}
    memory, ratios = _learn(memory, topology, operators, measured, frame)
    arrivals = {name: source.arrival_rate for name, source in sources.items()}
    targets = propagation.target_rates(topology, arrivals, ratios)
    contexts = _operator_contexts(topology, frame.observation, operators, measured, memory.capacities)
    return memory, replace(
        context,
        operators=contexts,
        sources=sources,
        targets=targets,
        selectivities=ratios,
        bottleneck=_bottleneck(topology, contexts, targets),
    )


def _operators(topology: Graph, frame: Frame, run: RunMemory | None, log: LogHistory) -> _Operators:
    readings = {reading.operator: reading for reading in _readings(frame.observation)} if run is not None else {}
    views = {}
    if run is not None:
        # Without its brokers a sink is busy with waiting, and looks as if it could do next to nothing.
        back_at = history.brokers_back_at(log, frame.at)
        views = window.views(run, frame.settings, back_at)
    spent = {}
    for name in topology.names:
        view, reading = views.get(name), readings.get(name)
        spent[name] = _NO_SHARES if view is None else window.shares(view.taught, view.parallelism)
        if reading is not None and spent[name].busy is None:
            # the engine's own gauges average 60 s and climb through a run's first minute: better than nothing
            spent[name] = Shares(reading.busy_share_mean, reading.backpressure_share_mean, None)
    rates = {name: _rates(views.get(name), frame.settings) for name in topology.names}
    return _Operators(
        views,
        spent,
        readings,
        {name: each[0] for name, each in rates.items()},
        {name: each[1] for name, each in rates.items()},
    )


def _rates(view: View | None, settings: AnalysisSettings) -> tuple[Estimate, Estimate]:
    """Return the input and output rate of an operator in records/s."""
    if view is None:
        reason = unknown("the job is not running or reports nothing of this operator")
        return reason, reason
    samples = window.recent(view.samples, settings.rate_window_seconds)
    return _rate(samples, 1, view.parallelism), _rate(samples, 2, view.parallelism)


def _rate(samples: Sequence[Sample], field: int, parallelism: int) -> Estimate:
    value = window.rate(samples, field, parallelism)
    if value is None:
        return unknown(f"{len(samples)} of 2 samples of this run seen, or its counter is unknown")
    seconds = samples[-1].at - samples[0].at
    return estimate(value, "counters", min(0.95, 0.5 + 0.1 * len(samples)), len(samples), seconds)


def _sources(
    memory: Memory, topology: Graph, operators: _Operators, frame: Frame
) -> tuple[Memory, dict[str, SourceContext]]:
    contexts = {}
    run = frame.run_of(memory)
    for name in topology.sources:
        behind, run = lag.source_lag(
            name,
            frame.observation,
            operators.readings.get(name),
            memory.history,
            run,
            stale_seconds=frame.stale_seconds or 0.0,
            at=frame.at,
            settings=frame.settings,
        )
        arrives, trend = demand.arrival_rate(memory.history, name, frame.at, frame.settings)
        taken = _taken(name, operators)
        if arrives.value is None:
            arrives = _from_throughput(arrives, taken, behind.growth)
        backlogged = run is not None and _backlogged(run, name, taken, frame.settings)
        contexts[name] = SourceContext(name, arrives, trend, behind, backlogged)
    return (memory if run is None else replace(memory, run=run)), contexts


def _taken(name: str, operators: _Operators) -> Estimate:
    """Return a source's input rate, or its output rate where it does not count its input."""
    rate = operators.input_rates[name]
    return rate if rate.value is not None else operators.output_rates[name]


def _from_throughput(reason: Estimate, taken: Estimate, growth: Estimate) -> Estimate:
    """Return the arrival rate without the brokers: throughput plus growth of lag."""
    if taken.value is None or growth.value is None:
        return reason
    rate = max(0.0, taken.value + growth.value)
    basis = f"source throughput + growth of lag ({reason.basis})"[:300]
    return estimate(rate, basis, 0.6 * min(taken.confidence, growth.confidence), taken.samples, taken.window_seconds)


def _backlogged(run: RunMemory, name: str, taken: Estimate, settings: AnalysisSettings) -> bool:
    """Whether a source lagged throughout the capacity window and is not merely read late.

    A lag that neither grows nor shrinks is what late readings of a position look like.
    """
    points = run.sources[name].points if name in run.sources else ()
    since = points[-1][0] - settings.capacity_window_seconds if points else 0.0
    inside = [point for point in points if point[0] >= since - 1e-6]
    if len(inside) < 3 or inside[0][0] > since + settings.capacity_window_seconds / 3 or not taken.value:
        return False
    growth = slope(inside)
    smallest = min(records for _, records in inside)
    return (
        growth is not None and smallest >= settings.backlog_seconds * taken.value and abs(growth) >= 0.05 * taken.value
    )


def _measured(
    name: str,
    topology: Graph,
    operators: _Operators,
    sources: Mapping[str, SourceContext],
    settings: AnalysisSettings,
) -> capacity.Measured:
    upstream = topology.inputs[name]
    reading, view = operators.readings.get(name), operators.views.get(name)
    blocked = [
        share
        for each in upstream
        if (share := operators.spent[each].backpressured) is not None
        and capacity.holds_back(
            operators.spent[name],
            reading,
            [(operators.spent[o], operators.readings.get(o)) for o in topology.outputs[each] if o != name],
            settings,
        )
    ]
    pressure = capacity.Pressure(
        is_source=not upstream,
        source_backlogged=any(sources[source].backlogged for source in topology.fed_by[name]),
        upstream_backpressured=max(blocked, default=None),
    )
    return capacity.measure(view, reading, operators.spent[name], pressure, settings)


def _learn(
    memory: Memory,
    topology: Graph,
    operators: _Operators,
    measured: Mapping[str, capacity.Measured],
    frame: Frame,
) -> tuple[Memory, dict[tuple[str, str], Estimate]]:
    """Capacities and selectivities with this observation in them, and the selectivities to go by now."""
    run, at, settings = frame.run_of(memory), frame.at, frame.settings
    curves, ratios = dict(memory.capacities), dict(memory.selectivities)
    for name, view in operators.views.items():
        if name in measured and view.samples and view.samples[-1].at == at:
            curves[name] = capacity.learn(
                curves.get(name, ()),
                view.parallelism,
                measured[name],
                throughput=window.rate(view.taught, 1, view.parallelism),
                at=at,
                job_id=memory.job_id,
                settings=settings,
            )
    edges: dict[tuple[str, str], Estimate] = {}
    wirings = selectivity.wirings_of(topology, () if run is None else run.names)
    for (source, target), wiring in wirings.items():
        key = selectivity.edge_key(source, target)
        now = unknown("the job is not running")
        if run is not None:
            now = selectivity.measured(wiring, run.edges.get(key), run, settings)
        learned = selectivity.learn(ratios.get(key), now, at, settings)
        if learned is not None:
            ratios[key] = learned
        edges[source, target] = selectivity.published_ratio(now, learned)
    return replace(memory, capacities=capacity.kept(curves), selectivities=selectivity.kept(ratios)), edges


def _operator_contexts(
    topology: Graph,
    observation: Observation,
    operators: _Operators,
    measured: Mapping[str, capacity.Measured],
    curves: Mapping[str, Sequence[Point]],
) -> dict[str, OperatorContext]:
    observed = {} if observation.deployment is None else observation.deployment.observed
    reported = {reading.operator: reading.parallelism for reading in observation.operators}
    contexts = {}
    sources = set(topology.sources)
    for name in topology.names:
        parallelism = reported.get(name) or observed.get(name)
        if parallelism is None:
            continue
        here = next((p.rate for p in curves.get(name, ()) if p.parallelism == parallelism), None)
        contexts[name] = OperatorContext(
            name=name,
            parallelism=parallelism,
            is_source=name in sources,
            reading=operators.readings.get(name),
            view=operators.views.get(name),
            spent=operators.spent[name],
            input_rate=_taken(name, operators) if name in sources else operators.input_rates[name],
            output_rate=operators.output_rates[name],
            measured=measured[name],
            learned_rate=here,
        )
    return contexts


def _bottleneck(
    topology: Graph, contexts: Mapping[str, OperatorContext], targets: Mapping[str, Estimate]
) -> str | None:
    load: dict[str, float | None] = {}
    for name, operator in contexts.items():
        target = targets[name].value
        load[name] = None if target is None or not operator.capacity else target / operator.capacity
    return propagation.bottleneck(
        topology,
        load,
        {name: operator.spent.busy for name, operator in contexts.items()},
        {name: operator.spent.backpressured for name, operator in contexts.items()},
        {name: operator.measured.saturated for name, operator in contexts.items()},
    )

"""One observation in, one analysis out.

The order of work: is it newer; the brokers' offsets (demand outlives runs); which run it is and whether its snapshot is
a sample; lag; rates, shares and capacities; targets through the graph; symptoms; the learned values.
"""

from collections.abc import Mapping
from dataclasses import replace

from weir_contracts import Estimate, Observation, OperatorReading, unknown
from weir_contracts.analysis import Analysis

from . import capacity, checkpoints, demand, groups, history, lag, propagation, restarts, selectivity, window
from .context import AnalysisContext, OperatorContext, OperatorWindow, SourceContext
from .forecast import application as forecast
from .lag import SourceLag
from .numbers import estimate, newest
from .offsets import hidden_partitions
from .propagation import Graph, graph_of
from .report import analysis_of
from .settings import AnalysisSettings
from .state import AnalyzerState, CheckpointState, Point, Ratio, SourceState
from .symptoms import symptoms_of
from .window import Counts, Shares, View

_FINISHED = Estimate(value=0.0, basis="all its subtasks have finished", confidence=1.0)


def advance(
    state: AnalyzerState | None,
    observation: Observation,
    settings: AnalysisSettings | None = None,
    *,
    lost_records: int | None = None,
) -> tuple[AnalyzerState | None, Analysis | None]:
    """Take in one observation.

    Returns the new state (None after the application's end) and the analysis (None for an observation that is not
    newer than the last: it is only counted). `lost_records` is the number of observations of the application's
    partition that retention deleted before this one could be read. Never mutates `state`.
    """
    settings = (settings or AnalysisSettings()).following(
        _commit_interval_seconds(observation), counts_commits=_counts_commits(observation)
    )
    at = observation.observed_at.timestamp()
    if state is not None and at <= state.observed_at:
        return replace(state, dropped=state.dropped + 1), None
    gap = None if state is None else at - state.observed_at
    interval = observation.policy.spec.interval.total_seconds()
    state = state or AnalyzerState(observed_at=at)
    state = replace(
        _with_job(state, observation),
        observed_at=at,
        dropped=state.dropped + _own_share(lost_records, gap, interval),
        history=history.extend(state.history, observation.partitions, at, interval),
    )
    graph = None if observation.topology is None else graph_of(observation.topology)
    readings = _readings(observation)
    state, fresh_run, stale = _with_run(state, observation, readings, graph, settings)
    run = None if stale is None else state.run
    state = replace(
        state, checkpoints=checkpoints.advanced(state.checkpoints, observation, at, run, is_fresh_run=fresh_run)
    )
    context = AnalysisContext(observation, at, run, stale or 0.0, fresh_run, gap, lost_records)
    if graph is not None:
        state, context = _derived(state, graph, readings, context, settings)
    state = _with_forecasts(state, context)
    analysis = analysis_of(context, state, symptoms_of(context, state.capacities, state.history, settings))
    return (None if observation.status == "ended" else state), analysis


def _with_forecasts(state: AnalyzerState, context: AnalysisContext) -> AnalyzerState:
    estimated = {name: source.arrival_rate.value for name, source in context.sources.items()}
    if not context.sources:  # the engine does not answer, and the brokers may
        estimated = dict.fromkeys(state.forecasts.series)
    forecasts = forecast.advanced(
        state.forecasts,
        context.observation,
        state.history,
        estimated,
        restart_seconds=state.restarts.seconds,
        gap_seconds=context.gap_seconds,
    )
    return replace(state, forecasts=forecasts)


def _commit_interval_seconds(observation: Observation) -> float | None:
    return None if observation.deployment is None else observation.deployment.commit_interval_seconds


def _counts_commits(observation: Observation) -> bool:
    return any(reading.records_at_commits is not False for reading in observation.operators)


def _own_share(lost_records: int | None, gap_seconds: float | None, interval_seconds: float) -> int:
    """This application's share of a partition's lost observations: as many as its interval fits in the gap."""
    fitting = 1 if gap_seconds is None else max(1, round(gap_seconds / interval_seconds) - 1)
    return min(lost_records or 0, fitting)


def _with_job(state: AnalyzerState, observation: Observation) -> AnalyzerState:
    """Halve the confidence of the learned values for another job id: perhaps it runs other code."""
    job_id = "" if observation.deployment is None else observation.deployment.job_id
    if not job_id or job_id == state.job_id:
        return state
    if not state.job_id:
        return replace(state, job_id=job_id)
    return replace(
        state,
        job_id=job_id,
        run=None,
        checkpoints=CheckpointState(),
        capacities=capacity.halved(state.capacities),
        selectivities={
            key: ratio._replace(confidence=round(ratio.confidence / 2, 4)) for key, ratio in state.selectivities.items()
        },
        # another job is a resubmission: the time until it came is no restart time
        restarts=replace(
            state.restarts,
            running_at=None,
            down_at=None,
            still_down_at=None,
            restoring_since=None,
            warming_since=None,
        ),
    )


def _readings(observation: Observation) -> dict[str, OperatorReading]:
    """The readings in the topology's order, where there is one; a repeated operator counts once."""
    by_name = {reading.operator: reading for reading in observation.operators}
    if observation.topology is None:
        return by_name
    return {name: by_name[name] for name in observation.topology.names if name in by_name}


def _with_run(
    state: AnalyzerState,
    observation: Observation,
    readings: Mapping[str, OperatorReading],
    graph: Graph | None,
    settings: AnalysisSettings,
) -> tuple[AnalyzerState, bool, float | None]:
    """The run's ring with this observation in it, whether the run is new, and for how long its snapshot is unchanged.

    The age is None outside of a run.
    """
    at = observation.observed_at.timestamp()
    state = replace(state, restarts=restarts.observed_group(state.restarts, observation.deployment, at))
    if observation.status == "not_running":
        return replace(state, restarts=restarts.observed_down(state.restarts, at)), False, None
    if observation.status != "running" or observation.run is None:
        return state, False, None
    before, operators = state.run, list(readings.values())
    if before is not None and window.same_run(before, observation.run, operators):
        ring, fresh_run = before, False
    else:
        # the engine's clock gives the run's start, the monitor's everything else here
        ahead = 0.0 if observation.source_time is None else at - observation.source_time.timestamp()
        started_at = min(at, observation.run.running_since.timestamp() + ahead)
        ring, fresh_run = window.start(observation.run, operators, started_at), True
    if before is None or not fresh_run:
        downtimes = restarts.observed_running(state.restarts, at)
    else:
        rescaled = before.parallelism != ring.parallelism
        downtimes = restarts.observed_new_run(state.restarts, ring.started_at, at, rescaled)
    ring, fresh = window.extend(ring, operators, at, settings)
    edges = ring.edges
    if fresh and graph is not None:
        edges = selectivity.track(ring, selectivity.wirings_of(graph, ring.names), settings)
    positions = window.positions_of(observation)
    moved = positions != ring.positions
    ring = replace(ring, edges=edges, positions=positions, positions_at=at if moved else ring.positions_at)
    stale = 0.0 if fresh or moved else at - max(ring.snapshot_at, ring.positions_at)
    return replace(state, run=ring, restarts=downtimes), fresh_run, stale


def _derived(
    state: AnalyzerState,
    graph: Graph,
    readings: Mapping[str, OperatorReading],
    context: AnalysisContext,
    settings: AnalysisSettings,
) -> tuple[AnalyzerState, AnalysisContext]:
    """Return the state and the context with all values derived from the topology's operators."""
    operators = _windows(graph, readings, state, context, settings)
    sources, source_states = _sources(graph, operators, state, context, settings)
    tasks = groups.tasks_of(context.observation)
    measured = {name: _measured(name, graph, operators, sources, settings, tasks=tasks) for name in graph.names}
    curves, topology = dict(state.capacities), context.observation.topology
    moving = groups.moves(context.observation.deployment)
    for name, operator in operators.items():
        view = operator.view
        if view is not None and view.at and view.at[-1] == context.at and not moving:
            curves[name] = capacity.learn(
                curves.get(name, ()),
                view.parallelism,
                measured[name],
                at=context.at,
                job_id=state.job_id,
                settings=settings,
                shares=topology.work_shares(name) if topology else None,
            )
    curves = capacity.kept(curves)
    ratios, edges = _selectivities(graph, state, context, settings)
    run = None if context.run is None else replace(context.run, sources={**context.run.sources, **source_states})
    targets = propagation.target_rates(graph, {name: source.arrival_rate for name, source in sources.items()}, edges)
    contexts = _operator_contexts(graph, context.observation, operators, measured, curves)
    context = replace(
        context,
        operators=contexts,
        sources=sources,
        targets=targets,
        selectivities=edges,
        bottleneck=_bottleneck(graph, contexts, targets),
    )
    return replace(state, run=run or state.run, capacities=curves, selectivities=ratios), context


def _windows(
    graph: Graph,
    readings: Mapping[str, OperatorReading],
    state: AnalyzerState,
    context: AnalysisContext,
    settings: AnalysisSettings,
) -> dict[str, OperatorWindow]:
    views: dict[str, View] = {}
    if context.run is None:
        readings = {}
    else:
        # without its brokers a sink is busy with waiting, and looks as if it could do next to nothing
        # Only an unknown job's first overload is answered before a window is full: a planner that acts on shares alone
        # would otherwise rescale again and again before any capacity is measured.
        early = not state.restarts.samples and not state.capacities
        views = window.views(context.run, settings, history.brokers_back_at(state.history, context.at), early=early)
    windows = {}
    for name in graph.names:
        view, reading = views.get(name), readings.get(name)
        spent = Shares() if view is None else window.shares(view)
        if reading is not None and spent.busy is None:
            # the engine's own gauges average 60 s and climb through a run's first minute: better than nothing
            spent = Shares(reading.busy_share_mean, reading.backpressure_share_mean)
        if view is None:
            taken = given = unknown("the job is not running or reports nothing of this operator")
        else:
            taken, given = _rate(view, view.records_in), _rate(view, view.records_out)
        if taken.value is None and not graph.inputs[name]:
            taken = given  # a source may count its output only
        if reading is not None and reading.finished:
            taken = given = _FINISHED
            spent = Shares(0.0, 0.0)
        windows[name] = OperatorWindow(reading, view, spent, taken, given)
    return windows


def _rate(view: View, counts: Counts) -> Estimate:
    value, samples = view.rate(counts, view.recent), len(counts) - view.recent
    if value is None:
        return unknown(f"{samples} of 2 samples of this run seen, or its counter is unknown")
    seconds = view.at[-1] - view.at[view.recent]
    return estimate(value, "counters", min(0.95, 0.5 + 0.1 * samples), samples, seconds)


def _sources(
    graph: Graph,
    operators: Mapping[str, OperatorWindow],
    state: AnalyzerState,
    context: AnalysisContext,
    settings: AnalysisSettings,
) -> tuple[dict[str, SourceContext], dict[str, SourceState]]:
    contexts, states = {}, {}
    for name in graph.sources:
        reading = operators[name].reading
        if reading is not None and reading.finished:
            contexts[name] = SourceContext(name, _FINISHED, _FINISHED, SourceLag(*[_FINISHED] * 3), backlogged=False)
            continue
        behind, states[name] = lag.source_lag(
            name,
            context.observation,
            reading,
            state.history,
            context.run,
            resume=state.checkpoints.offsets,
            stale_seconds=context.stale_seconds,
            at=context.at,
            settings=settings,
        )
        arrives, trend = demand.arrival_rate(state.history, name, context.at, settings)
        taken, hidden = operators[name].input_rate, hidden_partitions(context.observation, name)
        if arrives.value is not None and hidden:
            arrives = demand.of_known_partitions(arrives, hidden)
        counted = demand.contradiction(arrives, state.history, name, operators[name].view, states[name])
        if counted is not None:
            arrives = demand.corrected(arrives, counted)
        elif arrives.value is None:
            arrives = demand.from_lag(arrives, taken, behind.growth)
        if arrives.proven is None and (missing := demand.missing_signals(context.observation, name)):
            arrives = unknown(missing)
        elif arrives.proven is None and behind.records.proven is None and not _has_offsets(state, context, name):
            arrives = demand.from_throughput(taken, operators[name].spent)
            behind = lag.without_positions(arrives)
        backlogged = context.run is not None and lag.is_backlogged(states[name], taken, settings)
        waiting_since = None if context.run is None else lag.waiting_since(states[name], taken, settings)
        contexts[name] = SourceContext(name, arrives, trend, behind, backlogged, waiting_since, counted)
    return contexts, states


def _has_offsets(state: AnalyzerState, context: AnalysisContext, source: str) -> bool:
    """Return whether a source reads from brokers that its offsets can be read from, if not now: a group, or one with
    partitions whose brokers the policy names or that were read before."""
    observation = context.observation
    if observation.deployment is not None and observation.deployment.group is not None:
        return True
    if any(partition.operator == source for partition in observation.partitions):
        return True
    topology, kafka = observation.topology, observation.policy.spec.signals.kafka
    reported = None if topology is None else topology.operator(source).source_partitions
    return bool(history.columns_of(state.history.keys, source)) or (kafka is not None and reported is not None)


def _measured(
    name: str,
    graph: Graph,
    operators: Mapping[str, OperatorWindow],
    sources: Mapping[str, SourceContext],
    settings: AnalysisSettings,
    *,
    tasks: int | None,
) -> capacity.Measured:
    operator, upstream = operators[name], graph.inputs[name]
    blocked = []
    for each in upstream:
        share = operators[each].spent.backpressured
        siblings = [(operators[o].spent, operators[o].reading) for o in graph.outputs[each] if o != name]
        if share is not None and capacity.holds_back(operator.spent, operator.reading, siblings):
            blocked.append(share)
    pressure = capacity.Pressure(
        is_source=not upstream,
        source_backlogged=any(sources[source].backlogged for source in graph.fed_by[name]),
        upstream_backpressured=max(blocked, default=None),
        waiting_since=sources[name].waiting_since if name in sources else None,
    )
    return capacity.measure(operator.view, operator.reading, operator.spent, pressure, settings, tasks=tasks)


def _selectivities(
    graph: Graph, state: AnalyzerState, context: AnalysisContext, settings: AnalysisSettings
) -> tuple[dict[str, Ratio], dict[tuple[str, str], Estimate]]:
    """Return the learned ratios with this observation in them, and the selectivity of each edge."""
    run, ratios = context.run, dict(state.selectivities)
    edges: dict[tuple[str, str], Estimate] = {}
    for (source, target), wiring in selectivity.wirings_of(graph, () if run is None else run.names).items():
        key = selectivity.edge_key(source, target)
        now = (
            unknown("the job is not running")
            if run is None
            else selectivity.measured(wiring, run.edges.get(key), run, settings)
        )
        learned = selectivity.learn(ratios.get(key), now, context.at, settings)
        if learned is not None:
            ratios[key] = learned
        edges[source, target] = selectivity.published_ratio(now, learned)
    return newest(ratios, lambda ratio: ratio.at), edges


def _operator_contexts(
    graph: Graph,
    observation: Observation,
    operators: Mapping[str, OperatorWindow],
    measured: Mapping[str, capacity.Measured],
    curves: Mapping[str, tuple[Point, ...]],
) -> dict[str, OperatorContext]:
    """Return the operators whose parallelism is known."""
    parallelisms = {} if observation.deployment is None else dict(observation.deployment.observed)
    parallelisms |= {reading.operator: reading.parallelism for reading in observation.operators}
    contexts = {}
    for name, operator in operators.items():
        parallelism = parallelisms.get(name)
        if parallelism is not None:
            here = next((p.rate for p in curves.get(name, ()) if p.parallelism == parallelism), None)
            contexts[name] = OperatorContext(name, parallelism, not graph.inputs[name], *operator, measured[name], here)
    return contexts


def _bottleneck(graph: Graph, contexts: Mapping[str, OperatorContext], targets: Mapping[str, Estimate]) -> str | None:
    load: dict[str, float | None] = {}
    for name, operator in contexts.items():
        target = targets[name].value
        load[name] = None if target is None or not operator.capacity else target / operator.capacity
    return propagation.bottleneck(
        graph,
        load,
        {name: operator.spent.busy for name, operator in contexts.items()},
        {name: operator.spent.backpressured for name, operator in contexts.items()},
        {name: operator.measured.saturated for name, operator in contexts.items()},
    )

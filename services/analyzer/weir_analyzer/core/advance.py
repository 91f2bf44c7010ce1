"""One observation in, one analysis out.

The order of work: is it newer; the brokers' offsets (demand outlives runs); which run it is and whether its snapshot is
a sample; lag; rates, shares and capacities; targets through the graph; forecasts; symptoms; the message.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from weir_contracts import Estimate, Observation, OperatorReading, PartitionReading, unknown
from weir_contracts.analysis import Analysis

from . import capacity, demand, lag, offsets, restarts, run
from .analysis import Findings, OperatorFindings, OperatorWindow, SourceFindings, analysis_of
from .brokerless import carried_over, own_demand
from .forecast import application as forecast
from .graph import Graph, bottleneck, edges_with, graph_of, selectivities, target_rates
from .group_symptoms import moves
from .run import RunState, Shares, SourceState, View
from .state import AnalyzerState, UnreadableState, learned_state, with_learned
from .symptoms import symptoms_of
from .window import AnalysisSettings, estimate

_FINISHED = Estimate(value=0.0, basis="all its subtasks have finished", confidence=1.0)
_NOT_RUNNING = unknown("the job is not running or reports nothing of this operator")


def advance(
    state: AnalyzerState | None,
    observation: Observation,
    settings: AnalysisSettings | None = None,
    *,
    lost_records: int | None = None,
) -> tuple[AnalyzerState | None, Analysis | None]:
    """Take in one observation.

    Returns the new state (None after the application's end) and the analysis (None for an observation that is not
    newer than the last, which is only counted, and for one that carries what another Weir learned, which is no reading).
    `lost_records` is the number of observations of the application's partition that retention deleted before this one
    could be read. Never mutates `state`.
    """
    at, deployment = observation.observed_at.timestamp(), observation.deployment
    if observation.imported is not None:
        return _imported(state or AnalyzerState(observed_at=0.0), observation.imported.learned), None
    if state is not None and at <= state.observed_at:
        return replace(state, dropped=state.dropped + 1), None
    settings = (settings or AnalysisSettings()).following(
        None if deployment is None else deployment.commit_interval_seconds,
        counts_commits=any(reading.records_at_commits is not False for reading in observation.operators),
    )
    interval = observation.policy.spec.interval.total_seconds()
    gap = at - state.observed_at if state is not None and state.observed_at else None
    # of the partition's lost observations as many are this application's as its interval fits in the gap
    lost = min(lost_records or 0, 1 if gap is None else max(1, round(gap / interval) - 1))
    state = _of_job(state or AnalyzerState(observed_at=at), "" if deployment is None else deployment.job_id)
    logs = offsets.extend(state.history, observation.partitions, at, interval)
    topology = observation.topology
    graph = None if topology is None else graph_of(topology)
    readings = {reading.operator: reading for reading in observation.operators}  # a repeated operator counts once
    if graph is not None:
        readings = {name: readings[name] for name in graph.names if name in readings}
    ring, downtimes, is_fresh_run, stale_seconds = _followed(state, observation, readings, graph, settings)
    running = ring if stale_seconds is not None else None
    state = replace(
        state,
        observed_at=at,
        dropped=state.dropped + lost,
        run=ring,
        history=logs,
        restarts=downtimes,
        checkpoints=restarts.with_checkpoint(state.checkpoints, observation, at, running, is_fresh_run=is_fresh_run),
    )
    findings = Findings(observation, at, running, stale_seconds or 0.0, is_fresh_run, gap, lost_records)
    if graph is not None:
        state = _derived(state, graph, readings, findings, settings)
    estimated = {name: source.arrival_rate.value for name, source in findings.sources.items()}
    if not estimated:  # the engine does not answer, and the brokers may
        estimated = dict.fromkeys(state.forecasts.series)
    forecasts = forecast.advanced(
        state.forecasts,
        observation,
        logs,
        estimated,
        restart_seconds=state.restarts.seconds,
        gap_seconds=gap,
    )
    state = replace(state, forecasts=forecasts)
    analysis = analysis_of(findings, state, symptoms_of(findings, state.capacities, logs, settings))
    return (None if observation.status == "ended" else state), analysis


def _imported(state: AnalyzerState, learned: dict[str, Any]) -> AnalyzerState:
    """Add what another Weir learned; what cannot be read adds nothing."""
    try:
        return with_learned(state, _of_job(learned_state(learned, state.observed_at), state.job_id))
    except UnreadableState:
        return state


def _of_job(state: AnalyzerState, job_id: str) -> AnalyzerState:
    """Halve the confidence of the learned values for another job id: perhaps it runs other code."""
    if not job_id or job_id == state.job_id:
        return state
    if not state.job_id:
        return replace(state, job_id=job_id)
    return replace(
        state,
        job_id=job_id,
        run=None,
        checkpoints=restarts.CheckpointState(),
        capacities=capacity.halved(state.capacities),
        selectivities={
            edge: ratio._replace(confidence=round(ratio.confidence / 2, 4))
            for edge, ratio in state.selectivities.items()
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


def _followed(
    state: AnalyzerState,
    observation: Observation,
    readings: Mapping[str, OperatorReading],
    graph: Graph | None,
    settings: AnalysisSettings,
) -> tuple[RunState | None, restarts.RestartState, bool, float | None]:
    """Return the run's ring with this observation in it, the downtimes, whether the run is new, and for how long its
    snapshot is unchanged: None outside of a run."""
    before, at = state.run, observation.observed_at.timestamp()
    downtimes = restarts.observed_group(state.restarts, observation.deployment, at)
    if observation.status == "not_running":
        return before, restarts.observed_down(downtimes, at), False, None
    if observation.status != "running" or observation.run is None:
        return before, downtimes, False, None
    operators = list(readings.values())
    is_fresh_run = before is None or not run.same_run(before, observation.run, operators)
    if before is None or is_fresh_run:
        # the engine's clock gives the run's start, the monitor's everything else here
        ahead = 0.0 if observation.source_time is None else at - observation.source_time.timestamp()
        ring = run.start(observation.run, operators, min(at, observation.run.running_since.timestamp() + ahead))
        if before is not None:
            parallelism = dict(zip(before.names, before.parallelism, strict=True))
            sources = {
                n: carried_over(source, parallelism[n]) for n, source in before.sources.items() if n in parallelism
            }
            ring = replace(ring, sources=sources)
    else:
        ring = before
    if before is None or not is_fresh_run:
        downtimes = restarts.observed_running(downtimes, at)
    else:
        is_rescaled = before.parallelism != ring.parallelism
        downtimes = restarts.observed_new_run(downtimes, ring.started_at, at, is_rescaled)
    ring, is_new_snapshot = run.extend(ring, operators, at, settings)
    edges = ring.edges
    if is_new_snapshot and graph is not None:
        edges = edges_with(ring, graph, settings)
    # it moves whenever a source does, apart from the counters
    positions = [p.current_offset for p in observation.partitions if p.current_offset is not None]
    position = sum(positions) if positions else None
    has_moved = position != ring.positions
    ring = replace(ring, edges=edges, positions=position, positions_at=at if has_moved else ring.positions_at)
    is_unchanged = not is_new_snapshot and not has_moved
    return ring, downtimes, is_fresh_run, at - max(ring.snapshot_at, ring.positions_at) if is_unchanged else 0.0


def _derived(
    state: AnalyzerState,
    graph: Graph,
    readings: Mapping[str, OperatorReading],
    findings: Findings,
    settings: AnalysisSettings,
) -> AnalyzerState:
    """Fill the findings with all values derived from the topology's operators; return the state that learned of them."""
    observation, at = findings.observation, findings.at
    views: Mapping[str, View] = {}
    if findings.run is None:
        readings = {}
    else:
        # Only an unknown job's first overload is answered before a window is full: a planner that acts on shares alone
        # would otherwise rescale again and again before any capacity is measured.
        early = not state.restarts.samples and not state.capacities
        # without its brokers a sink is busy with waiting, and looks as if it could do next to nothing
        views = run.views(findings.run, settings, offsets.brokers_back_at(state.history, at), early=early)
    windows = {
        name: _window(views.get(name), readings.get(name), is_source=not graph.inputs[name]) for name in graph.names
    }
    source_states = {}
    for name in graph.sources:
        source, source_state = _source(name, windows[name], state, findings, settings)
        findings.sources[name] = _as_the_objective_names(source, windows[name], findings)
        if source_state is not None:
            source_states[name] = source_state
        if findings.sources[name].doubt:
            windows[name] = windows[name]._replace(spent=Shares(None, windows[name].spent.backpressured))
    topology, deployment = observation.topology, observation.deployment
    is_group = deployment is not None and deployment.group is not None
    tasks = topology.operators[0].source_partitions if is_group and topology is not None else None
    measured = {name: _measured(name, graph, windows, findings.sources, settings, tasks=tasks) for name in graph.names}
    curves = dict(state.capacities)
    if not moves(deployment):
        for name, window in windows.items():
            if window.view is not None and window.view.at and window.view.at[-1] == at:
                curves[name] = capacity.learn(
                    curves.get(name, ()),
                    window.view.parallelism,
                    measured[name],
                    at=at,
                    job_id=state.job_id,
                    settings=settings,
                    shares=topology.work_shares(name) if topology else None,
                )
    curves = capacity.kept(curves)
    ratios, findings.selectivities = selectivities(graph, findings.run, state.selectivities, at, settings)
    arrivals = {name: source.arrival_rate for name, source in findings.sources.items()}
    findings.targets = target_rates(graph, arrivals, findings.selectivities)
    parallelism = {} if deployment is None else dict(deployment.observed)
    parallelism |= {reading.operator: reading.parallelism for reading in observation.operators}
    for name, window in windows.items():
        if name in parallelism:
            here = next((p.rate for p in curves.get(name, ()) if p.parallelism == parallelism[name]), None)
            findings.operators[name] = OperatorFindings(
                name=name,
                parallelism=parallelism[name],
                is_source=not graph.inputs[name],
                window=window,
                measured=measured[name],
                learned_rate=here,
            )
    load = {}
    for name, operator in findings.operators.items():
        target = findings.targets[name].value
        load[name] = None if target is None or not operator.capacity else target / operator.capacity
    shares = {name: operator.window.spent for name, operator in findings.operators.items()}
    saturated = {name: operator.measured.saturated for name, operator in findings.operators.items()}
    findings.bottleneck = bottleneck(graph, load, shares, saturated)
    if findings.run is None:
        return replace(state, capacities=curves, selectivities=ratios)
    ring = replace(findings.run, sources={**findings.run.sources, **source_states})
    return replace(state, run=ring, capacities=curves, selectivities=ratios)


def _window(view: View | None, reading: OperatorReading | None, *, is_source: bool) -> OperatorWindow:
    """Return the rates and shares of one operator in the current window."""
    if reading is not None and reading.finished:
        return OperatorWindow(reading, view, Shares(0.0, 0.0), _FINISHED, _FINISHED)
    spent = Shares() if view is None else run.shares(view)
    if reading is not None and spent.busy is None:
        # the engine's own gauges average 60 s and climb through a run's first minute: better than nothing
        spent = Shares(reading.busy_share_mean, reading.backpressure_share_mean)
    if view is None:
        return OperatorWindow(reading, view, spent, _NOT_RUNNING, _NOT_RUNNING)
    taken, given = _rate(view, view.records_in), _rate(view, view.records_out)
    if taken.value is None and is_source:
        taken = given  # a source may count its output only
    return OperatorWindow(reading, view, spent, taken, given)


def _rate(view: View, counts: run.Counts) -> Estimate:
    value, samples = view.rate(counts, view.recent), len(counts) - view.recent
    if value is None:
        return unknown(f"{samples} of 2 samples of this run seen, or its counter is unknown")
    seconds = view.at[-1] - view.at[view.recent]
    return estimate(value, "counters", min(0.95, 0.5 + 0.1 * samples), samples, seconds)


def _source(
    name: str,
    window: OperatorWindow,
    state: AnalyzerState,
    findings: Findings,
    settings: AnalysisSettings,
) -> tuple[SourceFindings, SourceState | None]:
    """Return demand and lag of one source, and its state in the run: None for one that has finished."""
    observation, at, reading = findings.observation, findings.at, window.reading
    if reading is not None and reading.finished:
        nothing = lag.SourceLag(_FINISHED, _FINISHED, _FINISHED)
        return SourceFindings(name, _FINISHED, _FINISHED, nothing, backlogged=False), None
    partitions = [p for p in observation.partitions if p.operator == name]
    taken, running = window.input_rate, findings.run
    missing = demand.missing_signals(observation, partitions)
    if running is not None and not missing and not _has_offsets(observation, name, partitions, state.history):
        before = running.sources.get(name, SourceState())
        own = own_demand(
            window,
            before,
            at,
            started_at=running.started_at,
            stale_seconds=findings.stale_seconds,
            settings=settings,
        )
        trend = unknown("without the brokers' offsets no trend is measured")
        backlogged = lag.is_backlogged(own.state, taken, settings)
        return SourceFindings(name, own.arrives, trend, own.lag, backlogged, doubt=own.doubt), own.state
    hidden = offsets.hidden_partitions(observation, name, len(partitions))
    waiting, source_state = lag.source_lag(
        name,
        partitions,
        reading,
        state.history,
        running,
        hidden=hidden,
        interval_seconds=observation.policy.spec.interval.total_seconds(),
        resume=state.checkpoints.offsets,
        stale_seconds=findings.stale_seconds,
        at=at,
        settings=settings,
    )
    arrives, trend = demand.arrival_rate(state.history, name, at, settings)
    if arrives.value is not None and hidden:
        arrives = demand.of_known_partitions(arrives, hidden)
    counted = demand.contradiction(arrives, state.history, name, window.view, source_state)
    if counted is not None:
        arrives = demand.corrected(arrives, counted)
    elif arrives.value is None:
        arrives = demand.from_lag(arrives, taken, waiting.growth)
    if arrives.proven is None and missing:
        arrives = unknown(missing)
    backlogged = running is not None and lag.is_backlogged(source_state, taken, settings)
    waiting_since = lag.waiting_since(source_state, taken, settings) if running is not None else None
    return SourceFindings(name, arrives, trend, waiting, backlogged, waiting_since, counted), source_state


def _as_the_objective_names(source: SourceFindings, window: OperatorWindow, findings: Findings) -> SourceFindings:
    """Return the source with its lag in seconds by the metric that the objective names, if it names one."""
    metric = findings.observation.policy.spec.objective.lag_metric
    if metric is None or findings.run is None:
        return source
    return source._replace(lag=lag.by_metric(metric, source.lag, window.reading, window.input_rate))


def _has_offsets(
    observation: Observation, source: str, partitions: Sequence[PartitionReading], logs: offsets.LogHistory
) -> bool:
    """Return whether a source reads from brokers that its offsets can be read from, if not now: a group, or one with
    partitions whose brokers the policy names or that were read before."""
    if partitions or (observation.deployment is not None and observation.deployment.group is not None):
        return True
    topology, kafka = observation.topology, observation.policy.spec.signals.kafka
    operator = None if topology is None else topology.operator(source)
    if operator is not None and operator.has_broker_offsets is False:
        return False
    reported = None if operator is None else operator.source_partitions
    return bool(offsets.columns_of(logs.keys, source)) or (kafka is not None and reported is not None)


def _measured(
    name: str,
    graph: Graph,
    windows: Mapping[str, OperatorWindow],
    sources: Mapping[str, SourceFindings],
    settings: AnalysisSettings,
    *,
    tasks: int | None,
) -> capacity.Measured:
    """Return the capacity of one operator in the current window, with what surrounds it."""
    window, upstream = windows[name], graph.inputs[name]
    blocked = []
    for other in upstream:
        share = windows[other].spent.backpressured
        siblings = [(windows[o].spent, windows[o].reading) for o in graph.outputs[other] if o != name]
        if share is not None and capacity.holds_back(window.spent, window.reading, siblings):
            blocked.append(share)
    pressure = capacity.Pressure(
        is_source=not upstream,
        source_backlogged=any(sources[source].backlogged for source in graph.fed_by[name]),
        upstream_backpressured=max(blocked, default=None),
        waiting_since=sources[name].waiting_since if name in sources else None,
    )
    return capacity.measure(window.view, window.reading, window.spent, pressure, settings, tasks=tasks)

"""Strategies for valid requests, to test that every planner answers each of them."""

from datetime import timedelta
from typing import Any

from hypothesis import strategies as st

from tests.unit.planner.build import (
    NOON,
    action,
    after,
    analysis,
    deployment,
    known,
    operator,
    outcome,
    policy,
    request,
)
from weir_contracts import (
    MAX_NUMBER,
    MAX_SECONDS,
    MIN_NUMBER,
    Checkpoints,
    Edge,
    EdgeAnalysis,
    Operator,
    PlanRequest,
    RestartTimes,
    Run,
    SourceAnalysis,
    Symptom,
    Topology,
)

NUMBERS = st.one_of(
    st.none(),
    st.just(0.0),
    st.floats(min_value=0, max_value=1e6),
    st.sampled_from([-1.0, -MAX_NUMBER, MAX_NUMBER, MIN_NUMBER, 1e12]),
)
SHARES = st.one_of(st.none(), st.floats(min_value=0, max_value=1), st.sampled_from([0.0, 1.0, -3.0, MAX_NUMBER]))
ESTIMATES = NUMBERS.map(known)
SHARE_ESTIMATES = SHARES.map(known)
SYMPTOMS = ["warming-up", "catching-up", "stalled", "restarting", "skewed", "gap", "ended"]


@st.composite
def graphs(draw: st.DrawFn) -> Topology:
    """Return graphs of one to four operators with any edges between them."""
    names = [f"o{i}" for i in range(draw(st.integers(1, 4)))]
    edges = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :] if draw(st.booleans())]
    return Topology(
        operators=[
            Operator(
                name=name,
                id=name,
                max_parallelism=draw(st.one_of(st.none(), st.integers(1, 200))),
                source_partitions=draw(st.one_of(st.none(), st.integers(1, 30))),
            )
            for name in names
        ],
        edges=[Edge(source=a, target=b, ship_strategy=draw(st.sampled_from(["HASH", "FORWARD"]))) for a, b in edges],
    )


@st.composite
def requests(draw: st.DrawFn, planner: str, **parameters: Any) -> PlanRequest:
    """Return requests with numbers of any size, missing values, operators without analysis and malformed memory."""
    graph = draw(graphs())
    low = draw(st.integers(1, 3))
    the_policy = policy(
        planner={"name": planner, "parameters": parameters},
        bounds={"min": low, "max": draw(st.integers(low, 40))},
        objective=draw(st.sampled_from([{"maxLag": "30s"}, {"maxLatency": "5s"}, {"utilization": 0.7}])),
    )
    observed = {name: draw(st.integers(1, 40)) for name in graph.names if draw(st.integers(0, 19))}
    analysed = [name for name in graph.names if draw(st.integers(0, 9))]
    found = analysis(
        the_policy=the_policy,
        graph=graph,
        topology=draw(st.sampled_from([graph, graph, graph, None])),
        status=draw(st.sampled_from(["running", "running", "not_running"])),
        run=draw(st.sampled_from([None, Run(running_since=after(-9)), Run(attempt=1, running_since=after(-9999))])),
        deployment=draw(
            st.sampled_from(
                [
                    None,
                    deployment(observed, graph),
                    deployment(observed, graph, checkpoints=None),
                    deployment(observed, graph, checkpoints=Checkpoints(last_completed_at=after(-5))),
                ]
            )
        ),
        operators=[
            operator(
                name,
                observed.get(name, 1),
                None,
                None,
                input_rate=draw(ESTIMATES),
                true_processing_rate=draw(ESTIMATES),
                true_processing_rate_per_subtask=draw(ESTIMATES),
                utilization=draw(SHARE_ESTIMATES),
                backpressure=draw(SHARE_ESTIMATES),
                skew=draw(ESTIMATES),
                target_input_rate=draw(ESTIMATES),
            )
            for name in analysed
        ],
        edges=[EdgeAnalysis(source=e.source, target=e.target, selectivity=draw(ESTIMATES)) for e in graph.edges],
        sources=[
            SourceAnalysis(
                operator=name,
                arrival_rate=draw(ESTIMATES),
                arrival_rate_trend=draw(ESTIMATES),
                lag_records=draw(ESTIMATES),
                lag_growth=draw(ESTIMATES),
                lag_seconds=draw(ESTIMATES),
                expected_latency_seconds=draw(ESTIMATES),
            )
            for name in graph.sources
            if draw(st.integers(0, 9))
        ],
        symptoms=[
            Symptom(code=code, evidence="seen") for code in draw(st.lists(st.sampled_from(SYMPTOMS), max_size=2))
        ],
        restart_times=RestartTimes(last_seconds=draw(st.one_of(st.none(), st.floats(0, MAX_SECONDS)))),
    )
    acted = action(before=dict.fromkeys(graph.names, 1), wanted=dict.fromkeys(graph.names, 2))
    return request(
        found,
        now=NOON + timedelta(seconds=draw(st.integers(0, 10_000))),
        outcomes=draw(st.sampled_from([[], [outcome(acted)]])),
        memory=draw(
            st.sampled_from([{}, {"replicas": "x"}, {"minutes": [1e300, -1]}, {"since": -1}, {"readings": None}])
        ),
    )


def is_whole(reply: Any, plan_request: PlanRequest) -> bool:
    """Return whether a reply is a hold with a reason or a changed vector of the complete topology."""
    if reply.parallelism is None:
        return bool(reply.sentence)
    assert plan_request.topology is not None
    assert plan_request.deployment is not None
    return (
        set(reply.parallelism) == set(plan_request.topology.names)
        and reply.parallelism != plan_request.deployment.observed
    )

"""Sentences of plans fit one line: at most 160 characters, complete where operators have ordinary names."""

from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.effort import examples
from tests.sentences import assert_reads_well, faults
from tests.unit.planner.build import (
    NOON,
    REQUIRED_PARAMETERS,
    action,
    after,
    analysis,
    deployment,
    known,
    operator,
    outcome,
    point,
    policy,
    recommendation,
    request,
)
from tests.unit.planner.requests import requests
from weir_contracts import (
    MAX_SENTENCE,
    Edge,
    EdgeAnalysis,
    Operator,
    PastAction,
    Plan,
    PlanRequest,
    PlanState,
    QuarantinedVector,
    Slots,
    SourceAnalysis,
    Symptom,
    Topology,
)
from weir_planner.core.decide import plan_offline
from weir_sdk.installed import installed

NAMES = ("orders", "parse-json-payload", "enrich-with-customer", "join-with-shipments", "total-by-country-day", "sink")
"""Names of operators, of at most 20 characters."""
LONG_NAME = "Source: Iceberg table with schema evolution -> Filter(deleted = false) -> Calc(select=[id, name])"


@st.composite
def plausible_requests(draw: st.DrawFn, planner: str, names: tuple[str, ...] = NAMES) -> PlanRequest:
    """Return requests of chains of up to six operators: any load, every limit, and a past that guards remember."""
    names = names[: draw(st.integers(1, len(names)))]
    graph = Topology(
        operators=[
            Operator(
                name=name,
                id=f"v{i}",
                max_parallelism=draw(st.sampled_from([128, 720, 4096])),
                slot_sharing_group=draw(st.sampled_from(["all", name])),
                source_partitions=draw(st.sampled_from([1, 12, 48, 500])) if i == 0 else None,
            )
            for i, name in enumerate(names)
        ],
        edges=[Edge(source=a, target=b, ship_strategy="HASH") for a, b in pairwise(names)],
    )
    now = {name: draw(st.sampled_from([1, 2, 4, 12, 100, 200])) for name in names}
    arriving = draw(st.sampled_from([40.0, 800.0, 1_234_567.0]))
    loads = draw(st.sampled_from([[0.1, 0.3], [0.4, 0.8], [None, 0.1, 0.8, 1.04, 2.5]]))
    load = {name: draw(st.sampled_from(loads)) for name in names}
    maximum = draw(st.sampled_from([8, 64, 500]))
    the_policy = policy(
        planner={"name": planner, "parameters": REQUIRED_PARAMETERS.get(planner, {})},
        objective=draw(st.sampled_from([{"maxLag": "30s"}, {"maxLatency": "5s"}, {"utilization": 0.7}])),
        bounds={
            "min": draw(st.sampled_from([1, 3])),
            "max": maximum,
            **draw(st.sampled_from([{}, {"total": {"max": 30}}, {"total": {"min": 20}}])),
        },
        budget=draw(st.sampled_from([{}, {"slots": 10}, {"slots": 1}])),
        behavior={
            "scaleUp": draw(st.sampled_from([{"stabilization": "0s"}, {"stabilization": "0s", "maxFactor": 1.5}])),
            "scaleDown": {"stabilization": draw(st.sampled_from(["0s", "5m"]))},
            "cooldown": draw(st.sampled_from(["0s", "10m"])),
            "maxActionsPerHour": draw(st.sampled_from([None, 1, 2])),
        },
    )
    lag = draw(st.sampled_from([None, 0.0, 12.0, 4_000.0]))
    analysed = analysis(
        the_policy=the_policy,
        graph=graph,
        deployment=deployment(
            now, graph, slots=Slots(total=draw(st.sampled_from([sum(now.values()), 4000])), available=0)
        ),
        operators=[
            operator(
                name,
                now[name],
                None if load[name] is None else arriving / load[name],
                arriving,
                utilization=known(None if load[name] is None else min(1.0, load[name])),
                backpressure=known(draw(st.sampled_from([0.0, 0.5]))),
                skew=known(draw(st.sampled_from([1.0, 3.2]))),
                capacities=draw(
                    st.sampled_from(
                        [[], [point(now[name], arriving / (load[name] or 1.0))], [point(1, 70.0), point(2, 90.0)]]
                    )
                ),
            )
            for name in names
        ],
        edges=[EdgeAnalysis(source=e.source, target=e.target, selectivity=known(1.0)) for e in graph.edges],
        sources=[
            SourceAnalysis(
                operator=names[0],
                arrival_rate=known(arriving),
                arrival_rate_trend=known(0.0),
                lag_records=known(None if lag is None else lag * arriving),
                lag_growth=known(draw(st.sampled_from([0.0, 123_456.0]))),
                lag_seconds=known(lag),
                expected_latency_seconds=known(lag),
            )
        ],
        arrivals=arriving,
        lag_seconds=lag,
        restart_seconds=draw(st.sampled_from([None, 4.0, 110.0])),
        symptoms=[
            Symptom(code=code, evidence="seen", operator=names[-1])
            for code in draw(
                st.lists(st.sampled_from(["skewed", "catching-up", "restarting", "warming-up"]), max_size=1)
            )
        ],
    )
    before = {name: max(1, p - 1) for name, p in now.items()}
    past = [
        PastAction(id=action(before=before, wanted=now).id, at=after(-60.0 * i), before=before, after=now)
        for i in (9, 5, 1)
    ]
    return request(
        analysed,
        now=NOON + timedelta(seconds=1),
        outcomes=draw(
            st.sampled_from(
                [[], [outcome(action(before=before, wanted=now, requested_at=after(-200), running_at=after(-190)))]]
            )
        ),
        quarantine=draw(
            st.sampled_from(
                [
                    [],
                    [
                        QuarantinedVector(
                            parallelism=dict.fromkeys(names, 8),
                            until=after(900),
                            strikes=1,
                            because="the job restarted 3 times (the rescale itself not counted)",
                        )
                    ],
                ]
            )
        ),
        state=PlanState(
            recommendations=draw(st.sampled_from([[], [recommendation(-400, now), recommendation(-20, now)]])),
            actions=draw(st.sampled_from([[], past])),
        ),
    )


def sentences(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield every sentence of a plan with the place where it stands."""
    yield "sentence", plan.sentence
    yield from (("amendment", each.because) for each in plan.amendments)
    yield from (("infeasible", each.because) for each in plan.infeasible)
    yield from (("alternative", each.because) for each in plan.alternatives)


PLANNERS = st.sampled_from(sorted(installed()))


@examples(600)
@given(data=st.data(), name=PLANNERS)
def test_every_sentence_of_a_plan_fits_a_line(name: str, data: st.DataObject) -> None:
    """Of any planner, load, limit and past; with names of up to 20 characters nothing is cut."""
    plan = plan_offline(data.draw(plausible_requests(name)), name)
    for place, text in sentences(plan):
        assert len(text) <= MAX_SENTENCE, (place, text)
        assert_reads_well(text)
        assert "…" not in text, (place, text)


@examples(200)
@given(data=st.data(), name=PLANNERS)
def test_long_names_are_cut_to_fit(name: str, data: st.DataObject) -> None:
    """Names of a hundred characters, as Flink gives chained operators."""
    plan = plan_offline(data.draw(plausible_requests(name, tuple(f"{LONG_NAME} #{i}" for i in range(1, 7)))), name)
    for place, text in sentences(plan):
        assert len(text) <= MAX_SENTENCE, (place, text)
        assert_reads_well(text)


@examples(200)
@given(data=st.data(), name=PLANNERS)
def test_odd_numbers_and_missing_readings_fit_as_well(name: str, data: st.DataObject) -> None:
    """Numbers of any size, operators that were not analysed, a malformed memory."""
    plan = plan_offline(data.draw(requests(name, **REQUIRED_PARAMETERS.get(name, {}))), name)
    for place, text in sentences(plan):
        assert len(text) <= MAX_SENTENCE, (place, text)
        assert_reads_well(text)


def test_an_amended_plan_says_the_change_once() -> None:
    """The change that will be made, what the planner proposed and which guard limited it, the reason: each once."""
    slow = policy(behavior={"scaleUp": {"stabilization": "0s", "maxStep": 2}})
    plan = plan_offline(request(of={"arrivals": 4000.0, "work": 4, "the_policy": slow}), "rate")
    assert plan.sentence.startswith(
        "work 4 → 6 (the planner proposed 12; limited by step-limits): 4,000 records/s arrive at work, "
        "4 subtasks process 2,000; lag peaks at "
    )
    assert plan.sentence.count("→") == 1


@pytest.mark.parametrize(
    "wrong",
    [
        "1 slots exceed the 0 of the budget",
        "0% less than a static peak",
        "held (rolled back (too late))",
        "1 pod are ready",
    ],
)
def test_what_reads_wrong_is_found(wrong: str) -> None:
    """The check itself."""
    assert len(faults(wrong)) == 1

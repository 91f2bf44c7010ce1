"""Predictions for a nearly idle operator: its lower bound can show that it keeps up, never that it does not."""

import pytest

from tests.unit.planner.build import SOURCE, WORK, analysis, known, operator, policy, request, topology
from weir_analyzer.core import AnalysisSettings, advance
from weir_contracts import Analysis, Parallelism, WhatIf
from weir_predictor import Assumptions, NotYet, Scenario, lower_bounds_of, parse_load, scenario_of, what_if
from weir_replay.simulator import Observer, Simulation, chain
from weir_sdk.request import Request

ORDERS = "Source: orders"


@pytest.fixture(scope="module")
def simulated() -> Analysis:
    """The simulator's chain with two subtasks each, after ten minutes at 800 records/s: its source is busy for 0.8 % of
    the time."""
    simulation = Simulation(chain(2), lambda _: 800.0)
    observer, memory, found = Observer(simulation), None, None
    while simulation.now < 600:
        simulation.advance(simulation.now + 5)
        for observation in observer.scrape(policy()):
            memory, found = advance(memory, observation, AnalysisSettings())
    assert found is not None
    return found


def at_rest(*, minimum: float | None = 16_000.0, source: int = 2, partitions: int = 12, work: int = 40) -> Analysis:
    """800/s at a source of unknown capacity that does at least 16,000 with two subtasks, before 40 of 500/s."""
    bound = None if minimum is None else known(minimum, 0.7)
    orders = operator(SOURCE, source, None, 800.0, min_processing_rate=bound)
    wide = policy(bounds={"min": 1, "max": 64})
    found = analysis(
        work=work, the_policy=wide, operators=[orders, operator(WORK, work, 500.0 * work, 800.0)]
    ).model_copy(update={"topology": topology(partitions=partitions)})
    assert found.deployment is not None
    running = found.deployment.model_copy(update={"observed": {SOURCE: source, WORK: work}})
    return found.model_copy(update={"deployment": running})


def ask(found: Analysis, load: str = "x1", **parallelism: int) -> WhatIf:
    return what_if(found, parallelism, parse_load(load), 600)


def test_twice_the_load_on_six(simulated: Analysis) -> None:
    """`weir what-if shop/orders -p enrich=6 --load x2`: a verdict, the lag's curve and where it breaks; the source's
    load stays within its lower bound."""
    answer = ask(simulated, "x2", enrich=6)
    assert (answer.keeps_up, answer.bottleneck, answer.unknown) == (True, "enrich", [])
    assert answer.throughput == pytest.approx(1600, rel=0.01)
    assert answer.breaks_at_rate == pytest.approx(2680, abs=1)
    assert answer.prediction is not None
    assert len(answer.prediction.points) == 121
    assert "it keeps up, with enrich at 60% of its capacity; lag peaks at 8.2 s" in answer.sentence
    assert "It breaks beyond x3.34 (2,680 records/s), where enrich is full." in answer.sentence
    note = f"{ORDERS} carries at least 16,000 records/s with 2: the prediction assumes no more"
    assert note in answer.notes


def test_a_bound_is_shown_as_no_capacity(simulated: Analysis) -> None:
    """A lower bound gives neither a utilization nor a sufficient parallelism."""
    row = ask(simulated, "x2").operators[0]
    assert (row.operator, row.capacity, row.utilization, row.min_parallelism) == (ORDERS, None, None, None)
    assert (row.seen_at, row.confidence) == ([], None)


def test_as_it_is_it_keeps_up(simulated: Analysis) -> None:
    """The present load at the present parallelism."""
    answer = ask(simulated)
    assert (answer.keeps_up, answer.breaks_at_load) == (True, pytest.approx(1.22, abs=0.01))


def test_a_load_beyond_the_bound_is_not_known() -> None:
    """Whether it keeps up is unknown; the load that it certainly sustains is reported as that."""
    answer = ask(at_rest(), "17600/s")
    assert (answer.keeps_up, answer.throughput, answer.prediction) == (None, None, None)
    assert (answer.breaks_at_load, answer.breaks_at_rate) == (None, None)
    assert (
        f"it is unknown whether it keeps up: the capacity of {SOURCE} is unknown (it carries at least 16,000 records/s, "
        "and was never measured at 17,600)" in answer.sentence
    )
    assert f"It carries at least x20 (16,000 records/s): {SOURCE} was never measured beyond that" in answer.sentence
    assert answer.notes == []


def test_where_the_bound_is_reached_first_it_breaks_there_at_the_earliest() -> None:
    """`work` is full at 20,000/s; the source was never observed at that rate, so no breaking point is reported."""
    answer = ask(at_rest(), "x2")
    assert (answer.keeps_up, answer.breaks_at_load, answer.breaks_at_rate) == (True, None, None)
    assert answer.sentence.endswith(
        f"It carries at least x20 (16,000 records/s): {SOURCE} was never measured beyond that."
    )


def test_the_breaking_point_of_an_unmeasured_operator_is_not_reported() -> None:
    """It carries the present load, and may break a little above it: where `work` is full says nothing of the
    application."""
    answer = ask(at_rest(minimum=None, work=2))
    assert (answer.keeps_up, answer.bottleneck, answer.unknown) == (True, WORK, [])
    assert (answer.breaks_at_load, answer.breaks_at_rate) == (None, None)
    assert "breaks beyond" not in answer.sentence


def test_an_overload_of_another_operator_is_reported_beyond_the_bound_too() -> None:
    """Two subtasks of `work` break at 1,000/s, whatever the source does beyond its 16,000."""
    answer = ask(at_rest(work=2), "17600/s")
    assert (answer.keeps_up, answer.throughput, answer.breaks_at_rate) == (False, None, 1000.0)


@pytest.mark.parametrize(
    ("parallelism", "carried"),
    [({}, 16_000), ({SOURCE: 1}, 8_000), ({SOURCE: 4}, 16_000)],
)
def test_fewer_subtasks_carry_less_and_more_no_more(parallelism: Parallelism, carried: float) -> None:
    """One of two does half of it; that four do twice as much was never seen."""
    assert ask(at_rest(), f"{carried}/s", **parallelism).keeps_up
    beyond = ask(at_rest(), f"{carried + 1}/s", **parallelism)
    assert beyond.keeps_up is None
    assert f"it carries at least {carried:,.0f} records/s" in beyond.unknown[0].because


def test_subtasks_without_a_partition_carry_nothing() -> None:
    """The bound counts on all eight being as idle as the mean; only two of them have something to do."""
    found = at_rest(source=8, partitions=2)
    assert ask(found, "4000/s").keeps_up
    assert ask(found, "4001/s").keeps_up is None
    assert ask(found, "4000/s", **{SOURCE: 2}).keeps_up


def test_a_backlog_is_drained_no_faster_than_the_bound() -> None:
    """32,000 wait and 8,000/s arrive: with 16,000/s that takes 4 s; `work` alone would need 2.7. The share of a bound
    is no utilization."""
    found = at_rest()
    waiting = found.sources[0].model_copy(update={"lag_records": known(32_000.0), "lag_seconds": known(40.0)})
    prediction = what_if(found.model_copy(update={"sources": [waiting]}), {}, parse_load("8000/s"), 120).prediction
    assert prediction is not None
    left = {point.at_seconds: point.backlog_records for point in prediction.points}
    assert (left[3.0], left[4.0]) == (8_000, 0)
    assert (prediction.max_utilization, prediction.bottleneck) == (0.4, WORK)


def test_bounds_alone_are_an_answer() -> None:
    """All operators are nearly idle: it keeps up; which is full first is unknown. Without any bound it is too early."""
    idle = [
        operator(name, p, None, 800.0, min_processing_rate=known(minimum))
        for name, p, minimum in ((SOURCE, 1, 20_000.0), (WORK, 2, 16_000.0))
    ]
    answer = ask(analysis(operators=idle), "x10")
    assert (answer.keeps_up, answer.bottleneck, answer.throughput) == (True, None, 8000.0)
    assert "it keeps up; lag peaks at 0.0 s, within the objective of 30 s. It carries at least x20" in answer.sentence
    without_rate = [operator(SOURCE, 1, None, 800.0), operator(WORK, 2, None, 800.0)]
    with pytest.raises(NotYet, match="no operator's capacity is known yet"):
        ask(analysis(operators=without_rate))


def test_what_is_carried_now_can_be_carried() -> None:
    """Neither capacity nor bound of the source, and a little less was counted going in than arriving: nothing waits, so
    it suffices for this load; not for more, not with fewer subtasks, and not where something waits."""
    orders = operator(SOURCE, 2, None, 799.0)
    found = at_rest(minimum=None)
    found = found.model_copy(update={"operators": [orders, found.operators[1]]})
    waiting = found.sources[0].model_copy(update={"lag_records": known(5_000.0)})
    assert ask(found).keeps_up
    assert ask(found, "x1.01").keeps_up is None
    assert ask(found, **{SOURCE: 1}).keeps_up is None
    assert ask(found.model_copy(update={"sources": [waiting]})).keeps_up is None


def test_what_is_carried_now_is_no_less_for_a_bound() -> None:
    """The load has just risen to 800/s, and the bound is of the time before; nothing waits, so no lag is predicted from
    the bound."""
    answer = ask(at_rest(minimum=200.0))
    assert answer.keeps_up and answer.prediction is not None
    assert answer.prediction.max_lag_seconds == 0
    assert "It carries at least x1 (800 records/s)" in answer.sentence
    assert ask(at_rest(minimum=200.0), "x1.1").keeps_up is None


def test_an_unknown_lag_takes_the_trajectory_and_leaves_the_bound() -> None:
    """The verdict and its note do not rest on what waits."""
    found = at_rest()
    lost = found.sources[0].model_copy(update={"lag_records": known(None)})
    answer = ask(found.model_copy(update={"sources": [lost]}), "x2")
    assert (answer.keeps_up, answer.throughput, answer.prediction) == (True, 1600.0, None)
    assert [note for note in answer.notes if "16,000 records/s with 2" in note]


def test_the_planner_counts_on_the_same() -> None:
    """An operator with a curve has no bound."""
    found = at_rest()
    case = scenario_of(Request.of(request(found)), Assumptions())
    assert isinstance(case, Scenario)
    bounds = lower_bounds_of(found.operators, case.model.curves, topology())
    assert {name: bound.records_per_second for name, bound in bounds.items()} == case.lower_bounds == {SOURCE: 16_000.0}
    assert (
        lower_bounds_of([operator(WORK, 2, 1000.0, 1.0, min_processing_rate=known(20.0))], {WORK: None}, topology())
        == {}
    )

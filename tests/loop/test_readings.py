"""Stories of readings that are missing, partial or contradictory: the loop acts on what is known."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.loop.world import SOURCE, WORK, Load, World, job
from weir_contracts import Observation, PartitionReading
from weir_replay.simulator import Application, Link, OperatorSpec, SourceSpec

RULES = "Source: rules"


def _without_a_position(observation: Observation) -> Observation:
    """The source has read nothing of the last partition, which holds five old records and gets no more."""

    def changed(p: PartitionReading) -> PartitionReading:
        if p.partition != 11:
            return p
        offsets = {"log_end_offset": 5, "log_start_offset": 0}
        return p.model_copy(update={**offsets, **dict.fromkeys(("current_offset", "committed_offset", "committed_at"))})

    return observation.model_copy(update={"partitions": [changed(p) for p in observation.partitions]})


def test_a_partition_that_was_never_read_does_not_stop_growth() -> None:
    """A partition without new records has no position, for KEDA an invalid offset
    (github.com/kedacore/keda/issues/5274). The load of the others doubles: one step, as with every position known."""
    world = World(job(2), lambda t: 700.0 if t < 50 else 1500.0)
    world.edit = _without_a_position
    world.live(80)
    assert world.moves() == [(2, 4)]
    assert world.worst() < 15
    grown = next(plan for plan in world.plans if plan.kind == "scale")
    assert "known in part: at least" in grown.sentence
    assert len(world.plans[-1].sentence) <= 160


@pytest.mark.thorough
def test_a_partition_that_was_never_read_lets_nothing_shrink() -> None:
    """The load falls to a fifth: what waits in the twelfth partition is unknown, so everything stays."""
    world = World(job(4), lambda t: 1500.0 if t < 60 else 300.0)
    world.edit = _without_a_position
    world.live(180)
    assert world.moves() == []
    assert world.plans[-1].code == "metric-missing"


def _two_sources(rules_share: float) -> Application:
    """`work` reads orders, and rules of which a share of the load comes."""
    rules = SourceSpec(topic="rules", share=rules_share, partitions=1)
    return Application(
        operators=(
            OperatorSpec(name=SOURCE, service_seconds=20e-6, source=SourceSpec(topic="orders", share=1.0)),
            OperatorSpec(name=RULES, service_seconds=20e-6, source=rules),
            OperatorSpec(name=WORK, service_seconds=2e-3, contention=0.02, parallelism=2),
        ),
        links=(Link(source=SOURCE, target=WORK, ship="hash"), Link(source=RULES, target=WORK, ship="rebalance")),
    )


@pytest.mark.thorough
def test_a_source_that_brings_nothing_adds_nothing_whatever_its_selectivity() -> None:
    """Of the second topic nothing has come since the job started, so that its selectivity is unknown. A load that doubles is
    answered in one step, by `rate` as by `ds2`."""
    for planner in ("rate", "ds2"):
        world = World(_two_sources(1e-9), lambda t: 700.0 if t < 100 else 1500.0, planner={"name": planner}).live(200)
        assert world.moves() == [(2, 4)], planner
        assert world.worst() < 15, planner


def _rules_finished(observation: Observation) -> Observation:
    """The source of rules has read its 1,000 and is FINISHED."""
    final = {
        "finished": True,
        "records_in": 1000,
        "records_out": 1000,
        "busy_ms": None,
        "idle_ms": 0.0,
        "pending_records": None,
        **dict.fromkeys(("busy_share_mean", "busy_share_max", "backpressure_share_mean", "backpressure_share_max")),
    }
    return _of_rules(observation, final)


def _of_rules(observation: Observation, changes: dict[str, Any]) -> Observation:
    """Change the reading of the source of rules, and leave out its partitions."""
    operators = [o.model_copy(update=changes if o.operator == RULES else {}) for o in observation.operators]
    partitions = [p for p in observation.partitions if p.operator != RULES]
    return observation.model_copy(update={"operators": operators, "partitions": partitions})


SHORT_WINDOW = {"metrics_window_minutes": 1, "stabilization_interval_minutes": 0}
"""For `flink-autoscaler`, which looks back 15 minutes by default."""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("planner", "parameters", "worst_seconds"),
    [("rate", {}, 15), ("ds2", {}, 15), ("flink-autoscaler", SHORT_WINDOW, 30)],
)
def test_a_finished_source_does_not_stop_the_others(
    planner: str, parameters: dict[str, Any], worst_seconds: float
) -> None:
    """A bounded source has finished, as Flink allows since 1.14, and the load of the other doubles: one step, by
    `flink-autoscaler` too, whose original counts a finished vertex as one without load
    (github.com/apache/flink-kubernetes-operator/pull/628)."""
    chosen = {"name": planner, "parameters": parameters}
    world = World(_two_sources(1e-9), lambda t: 700.0 if t < 100 else 1500.0, planner=chosen)
    world.edit = _rules_finished
    world.live(200)
    assert world.moves() == [(2, 4)]
    assert world.worst() < worst_seconds


@pytest.mark.thorough
def test_a_source_without_offsets_does_not_stop_the_others() -> None:
    """Change data brings 5 % of the load, and reports neither partitions nor `pendingRecords`
    (github.com/delta-io/delta/issues/2740): the job grows with the load, and shrinks with it."""
    world = World(_two_sources(0.05), lambda t: 700.0 if t < 100 else 1500.0 if t < 240 else 500.0)
    world.edit = lambda observation: _of_rules(observation, {"pending_records": None})
    world.live(200)
    assert world.moves() == [(2, 4)]
    world.live(400)
    assert world.p() == 2


@pytest.mark.thorough
def test_a_topic_in_two_clusters_of_which_one_is_known_does_not_make_the_job_flap() -> None:
    """Half of the partitions are at the brokers that the policy names. Demand is not half: no rescale in ten minutes, where
    it went down and up every three."""

    def half(observation: Observation) -> Observation:
        waiting = sum((p.log_end_offset or 0) - (p.current_offset or 0) for p in observation.partitions)
        known = [p.model_copy(update={"current_offset": None}) for p in observation.partitions if p.partition < 6]
        sources = {o.operator: {"pending_records": waiting} for o in observation.operators if o.operator == SOURCE}
        operators = [o.model_copy(update=sources.get(o.operator, {})) for o in observation.operators]
        return observation.model_copy(update={"partitions": known, "operators": operators})

    world = World(job(4), 1500.0)
    world.edit = half
    world.live(600)
    assert world.moves() == []


def _of_change_data(changes: dict[str, Any]) -> Callable[[Observation], Observation]:
    """Return observations of a job whose only source no broker knows, with changes to the source's reading."""

    def edit(observation: Observation) -> Observation:
        operators = [o.model_copy(update=changes if o.operator == SOURCE else {}) for o in observation.operators]
        topology = observation.topology
        assert topology is not None
        vertices = [o.model_copy(update={"source_partitions": None}) for o in topology.operators]
        topology = topology.model_copy(update={"operators": vertices})
        return observation.model_copy(update={"operators": operators, "partitions": [], "topology": topology})

    return edit


DAY: Load = lambda t: 700.0 if t < 100 else 1500.0 if t < 400 else 500.0  # noqa: E731 - a load is a function


@pytest.mark.thorough
def test_a_source_of_change_data_alone_is_followed_by_lower_bounds() -> None:
    """Without offsets and `pendingRecords` a saturated job shows a lower bound of its load: enough to grow, to what 1,500
    records/s take and not beyond. What it takes in after a rescale is more, as it catches up; that is no load."""
    world = World(job(2), DAY)
    world.edit = _of_change_data({"pending_records": None})
    world.live(700)
    assert world.moves() == [(2, 3), (3, 4), (4, 2)]
    assert world.worst() < 30
    grown = next(plan for plan in world.plans if plan.kind == "scale")
    assert "known in part: at least" in grown.sentence


LYING = {"busy_share_mean": 1.0, "busy_share_max": 1.0, "busy_ms": None, "idle_ms": None}
"""Of a source that waits in its poll, busy by its counters."""


@pytest.mark.thorough
@pytest.mark.parametrize("changes", [{}, LYING], ids=["honest", "lying"])
def test_waiting_records_tell_the_load_whatever_the_busy_time_of_the_source(changes: dict[str, Any]) -> None:
    """With `pendingRecords` the job follows its load up and down, and a source that is always busy stays as it is."""
    world = World(job(2), DAY)
    world.edit = _of_change_data(changes)
    world.live(700)
    assert world.p() == 2
    assert world.worst() < 20
    assert {after for _, after in world.moves(SOURCE)} == {1}


@pytest.mark.thorough
def test_a_source_that_is_always_busy_does_not_grow_for_ever() -> None:
    """Without `pendingRecords` a busy share of 100 % is believed once: with two subtasks it takes in as much as with one, so
    that it has two and no more. It had sixteen."""
    world = World(job(2), 700.0)
    world.edit = _of_change_data({**LYING, "pending_records": None})
    world.live(600)
    assert world.moves(SOURCE) == [(1, 2)]
    assert world.analysis is not None
    lie = next(s for s in world.analysis.symptoms if s.code == "contradiction")
    assert "with 2 subtasks as at" in lie.evidence


@pytest.mark.thorough
def test_refused_waiting_records_let_nothing_shrink_and_the_loop_goes_on() -> None:
    """-3 waiting records: the load falls to a fifth, and everything stays, with the reason; a load that rises is followed."""
    world = World(job(4), lambda t: 1500.0 if t < 100 else 300.0 if t < 400 else 2500.0)
    world.edit = _of_change_data({"pending_records": None, "pending_refused": "are negative or not a number"})
    world.live(400)
    assert world.moves() == []
    assert world.plans[-1].code == "metric-missing"
    assert world.analysis is not None
    assert "its pendingRecords are negative or not a number" in world.analysis.arrival_rate.basis
    world.live(200)
    assert world.p() > 4


@pytest.mark.thorough
def test_waiting_records_that_jump_about_move_nothing() -> None:
    """Every third reading has 10⁹ waiting records more: no plan follows from them."""
    world = World(job(2), 700.0)
    count = 0

    def edit(observation: Observation) -> Observation:
        nonlocal count
        count += 1
        waiting = next((o.pending_records for o in observation.operators if o.operator == SOURCE), None)
        wrong = {} if waiting is None or count % 3 else {"pending_records": waiting + 10**9}
        return _of_change_data(wrong)(observation)

    world.edit = edit
    world.live(400)
    assert world.moves() == []
    assert {plan.code for plan in world.plans[-3:]} <= {"metric-missing", "objective-held"}

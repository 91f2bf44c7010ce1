"""Cost of a rescale by direction: the same for both of a job, and by the tasks that move of a consumer group."""

from datetime import timedelta
from typing import Any

import pytest

from tests.unit.planner.build import NOON, SOURCE, WORK, action, analysis, deployment, outcome
from tests.unit.predictor.test_trajectory import model
from weir_contracts import (
    Analysis,
    Group,
    Instance,
    ManagerChange,
    Operator,
    Outcome,
    RescaleSettings,
    RestartTimes,
    Run,
    Topology,
    policy_of,
)
from weir_predictor import Restart, growth_seconds, judged, parse_load, restart_of, restarts_of, what_if
from weir_predictor.restarts import USUAL_START_SECONDS, serving_of
from weir_predictor.trajectory import outlooks


def grouped(*, standbys: int | None = 0, protocol: str = "classic", assignor: str = "stream", **times: Any) -> Analysis:
    """Return an analysis of a group of two instances."""
    group = Group(id="orders", protocol=protocol, assignor=assignor, state="Stable", members=2)  # type: ignore[arg-type]
    instances = [Instance(id=name, threads=1, active_tasks=2, standby_tasks=standbys) for name in "ab"]
    found = deployment({SOURCE: 1, WORK: 2}, group=group, instances=instances)
    return analysis(deployment=found, restart_times=RestartTimes(samples=1, **{"seconds": 3.0, **times}))


def rescaled(before: int, after: int, seconds: float, minutes_ago: float = 0.0) -> Outcome:
    """Return the outcome of a rescale that ran after so many seconds."""
    at = NOON - timedelta(minutes=minutes_ago)
    return outcome(
        action(
            before={WORK: before}, wanted={WORK: after}, requested_at=at, running_at=at + timedelta(seconds=seconds)
        ),
        at=at,
        plan_id=f"00000000-0000-0000-0000-{before:04}{after:04}{int(minutes_ago):04}",
        before={WORK: before},
        wanted={WORK: after},
        restart_seconds=seconds,
    )


def test_a_job_costs_the_same_in_both_directions() -> None:
    """All of it is away, and capacity counts as soon as it runs: as before there were directions."""
    found, past = analysis(), [rescaled(2, 4, 5.0), rescaled(4, 2, 9.0, 10)]
    costs = restarts_of(found, found.deployment, past)
    assert costs.up == costs.down == restart_of(found, found.deployment, past)
    assert costs.of({WORK: 2}, {WORK: 4}) == costs.up
    assert (costs.up.away_share, costs.up.settled_seconds) == (1.0, costs.up.seconds)


def test_a_job_that_is_started_again_is_priced_higher_until_it_was_measured() -> None:
    """Its pods start, from a savepoint; then its measured time counts."""
    found = analysis(deployment=deployment({SOURCE: 1, WORK: 2}), restart_times=RestartTimes(samples=0))
    again = deployment({SOURCE: 1, WORK: 2}, rescale=RescaleSettings(by_restart=True))
    assert restart_of(found, found.deployment).seconds < restart_of(found, again).seconds == 60.0
    assert restart_of(found, again, usual_seconds=90.0).seconds == 90.0
    past = [rescaled(2, 4, 25.0)]
    assert restart_of(found, again, past).seconds == restart_of(found, found.deployment, past).seconds == 25.0


MANAGED = policy_of(
    "shop/orders",
    application={"flink": {"url": "http://jobmanager:8081", "job": "orders"}},
    target={"flink": {"taskManagers": {"kubernetes": {"kind": "Deployment", "name": "tm"}, "slots": 2, "max": 8}}},
    objective={"maxLag": "30s"},
)


def test_task_managers_cost_time_before_a_growth_and_none_before_a_shrink() -> None:
    """Assumed until an action brought some: then their time until they registered counts. The job runs on meanwhile."""
    found = analysis().model_copy(update={"policy": MANAGED})
    assumed, job = restarts_of(found, found.deployment), restart_of(found, found.deployment)
    assert assumed.up.capacity_after_seconds == USUAL_START_SECONDS + job.seconds
    assert (assumed.up.seconds, assumed.down) == (job.seconds, job)
    past = [rescaled(2, 4, 5.0), rescaled(4, 8, 5.0, 5)]
    for i, (each, seconds) in enumerate(zip(past, (12.0, 20.0), strict=True)):
        change = ManagerChange(before=1, wanted=2, brought_at=NOON, ready_at=NOON + timedelta(seconds=seconds))
        assert each.action is not None
        past[i] = each.model_copy(
            update={"action": each.action.model_copy(update={"id": each.plan_id, "managers": change})}
        )
    learned = restarts_of(found, found.deployment, past)
    assert learned.up.capacity_after_seconds == 16.0 + learned.up.seconds
    assert found.topology is not None
    whole = [each.model_copy(update={"before": {SOURCE: 1, WORK: 2}, "wanted": {SOURCE: 1, WORK: 4}}) for each in past]
    assert growth_seconds(whole, found.topology) == 21.0, "from the request for them until the job processes"


def test_a_group_learns_each_direction_from_its_outcomes() -> None:
    """Growing, tasks stand still for one rebalance and capacity counts once the instances run; shrinking, they stand still
    until the group has noticed. From two to four, half of the tasks move."""
    past = [rescaled(2, 4, 60.0), rescaled(4, 2, 45.0, 4), rescaled(2, 4, 80.0, 20), rescaled(2, 4, 70.0, 30)]
    found = grouped()
    costs = restarts_of(found, found.deployment, past)
    assert (costs.up.seconds, costs.up.capacity_after_seconds) == (3.0, 70.0)
    assert (costs.down.seconds, costs.down.capacity_after_seconds, costs.down.measured) == (45.0, 0.0, True)
    assert costs.of({WORK: 2}, {WORK: 4}).away_share == 0.5
    assert costs.of({WORK: 4}, {WORK: 3}).away_share == 0.25
    assert costs.settled_seconds == 70.0


@pytest.mark.parametrize(("minutes", "seconds"), [(5, 45.0), (10, 22.5), (30, 1.4)])
def test_the_time_of_a_shrink_is_worth_less_with_its_age(minutes: int, seconds: float) -> None:
    """One that was long by chance would otherwise prevent the next one, which measures it again."""
    found = grouped()
    costs = restarts_of(found, found.deployment, [rescaled(4, 2, 45.0, minutes)])
    assert costs.down.seconds == pytest.approx(seconds, abs=0.1)
    assert costs.down.measured


def test_growths_are_no_measure_of_a_shrink() -> None:
    """A rebalance while instances start lasts longer: it is a guess, and a guess prevents no shrink."""
    found = grouped(seconds=12.0)
    costs = restarts_of(found, found.deployment, [rescaled(2, 4, 60.0)])
    assert (costs.up.measured, costs.down.measured) == (True, False)


@pytest.mark.parametrize(
    ("standbys", "seconds"),
    [(0, 33.0), (1, 3.0), (None, 33.0)],
)
def test_without_standbys_shrinking_pays_for_the_restore(standbys: int | None, seconds: float) -> None:
    """With a copy of the state on another instance nothing is restored; growing warms the state up first."""
    found = grouped(standbys=standbys, restore_seconds=30.0, warm_up_seconds=600.0)
    costs = restarts_of(found, found.deployment)
    assert (costs.down.seconds, costs.up.seconds, costs.up.settled_seconds) == (seconds, 3.0, 600.0)


def test_the_newer_protocol_restores_in_both_directions() -> None:
    """Brokers that assign tasks do not wait for warm-ups."""
    found = grouped(protocol="streams", restore_seconds=30.0, warm_up_seconds=600.0)
    costs = restarts_of(found, found.deployment)
    assert (costs.up.seconds, costs.up.settled_seconds, costs.down.seconds) == (33.0, 33.0, 33.0)


def test_an_eager_assignor_stops_all_tasks() -> None:
    """A plain consumer's default takes all partitions from all members."""
    found = grouped(assignor="range")
    assert restarts_of(found, found.deployment).of({WORK: 2}, {WORK: 4}).away_share == 1.0


def test_answers_name_the_restore() -> None:
    """A what-if and a judgement say that a stateful application without standbys restores."""
    found = grouped(restore_seconds=30.0)
    note = "33% of it restores state for 30 s: it has no standby tasks"
    assert note in what_if(found, {WORK: 1}, parse_load("x0.1"), 600).notes
    smaller = judged(found, {WORK: 1})
    assert note in smaller.notes
    assert smaller.restart.seconds == 33.0 and 0 < smaller.restart.away_share < 1


def test_added_capacity_counts_later() -> None:
    """150/s arrive, one subtask takes 100/s: until second 20 lag grows as if nothing was changed, then two take 200/s. The
    1,000 records left are gone after another 20 s."""
    later = Restart(0.0, capacity_after_seconds=20.0)
    (found,) = outlooks(
        model(150),
        [{SOURCE: 1, WORK: 2}],
        [later],
        horizon_seconds=60,
        objective_seconds=None,
        present={SOURCE: 1, WORK: 1},
    )
    left = found.arrived - found.processed
    assert float(left.max()) == pytest.approx(1000, abs=1)
    assert float(found.lag[found.times > 40.6].max()) == 0
    # Where capacity is taken away, the smaller one counts at once.
    (less,) = outlooks(
        model(150),
        [{SOURCE: 1, WORK: 1}],
        [later],
        horizon_seconds=60,
        objective_seconds=None,
        present={SOURCE: 1, WORK: 2},
    )
    assert float((less.arrived - less.processed)[-1]) == pytest.approx(3000, abs=1)


def test_what_is_not_away_goes_on() -> None:
    """A quarter stands still for 8 s: it alone lags by 8 s, and 200 of the 800 records wait."""
    (part,) = outlooks(
        model(100), [{SOURCE: 1, WORK: 3}], [Restart(8.0, away_share=0.25)], horizon_seconds=24, objective_seconds=None
    )
    left = part.arrived - part.processed
    assert float(left.max()) == pytest.approx(200, abs=1)
    assert part.max_lag_seconds == pytest.approx(8.0, abs=0.2)
    (none,) = outlooks(
        model(100), [{SOURCE: 1, WORK: 3}], [Restart(8.0, away_share=0.0)], horizon_seconds=24, objective_seconds=None
    )
    assert none.max_lag_seconds == 0


@pytest.mark.parametrize(
    ("active", "due", "serving"), [((6, 6, 0), True, 2), ((4, 4, 4), True, None), ((6, 6, 0), False, None)]
)
def test_the_instance_with_the_most_tasks_sets_the_pace_until_they_have_moved(
    active: tuple[int, ...], due: bool, serving: int | None
) -> None:
    """Twelve tasks on three threads: six on each of the first two do as much as two threads. Four have to move, two at a
    time, each ten minutes."""
    began, probing = NOON - timedelta(seconds=60), NOON + timedelta(seconds=540)
    group = Group(id="orders", state="Stable", members=3, probing_rebalance_at=probing if due else None)
    instances = [
        Instance(id=f"{n}", threads=1, active_tasks=count, standby_tasks=2 * (count == 0))
        for n, count in enumerate(active)
    ]
    job = deployment({"orders": 3}, group=group, instances=instances)
    topology = Topology(operators=[Operator(name="orders", id="orders", source_partitions=12)])
    found = analysis(deployment=job, run=Run(running_since=began))
    moving = serving_of(found, job, topology)
    if serving is None:
        assert moving is None
    else:
        assert moving is not None
        assert (moving.parallelism, moving.next_seconds, moving.seconds) == ({"orders": serving}, 540.0, 1140.0)

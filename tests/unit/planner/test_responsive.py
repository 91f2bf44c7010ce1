"""The planner `responsive`: each diagnoser by itself, their order, and when none is asked."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given

from tests.effort import examples
from tests.unit.planner.build import (
    NOON,
    SOURCE,
    WORK,
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
from tests.unit.planner.requests import is_whole, requests
from weir_contracts import PlanReply, PlanRequest, Run, SourceAnalysis, Symptom
from weir_sdk import InvalidParameters
from weir_sdk.installed import ask, parse_parameters

PROCESSING_UP = {"type": "PROCESSING_RATE_SCALE_UP", "rate": 300, "window_seconds": 15}
PROCESSING_DOWN = {"type": "PROCESSING_RATE_SCALE_DOWN", "rate": 100, "window_seconds": 15}
ARRIVAL_UP = {"type": "ARRIVAL_RATE_SCALE_UP", "rate": 300, "window_seconds": 15}
LAG = {"type": "LAG_SCALE_UP"}
LATENCY = {"type": "EXPECTED_LATENCY", "projection_seconds": 0}
SATURATION = {"type": "THREAD_SATURATION", "window_seconds": 15, "num_windows": 2}


def plan_request(
    diagnosers: list[dict[str, Any]],
    *,
    at: float = 0.0,
    work: int = 4,
    taken: float = 800.0,
    arriving: float | None = 800.0,
    lag: float | None = 0.0,
    growth: float | None = 0.0,
    busy: float | None = 0.7,
    full: float | None = 1000.0,
    skew: float = 1.0,
    run_age: float = 9999.0,
    codes: tuple[Any, ...] = (),
    memory: dict[str, Any] | None = None,
    **parameters: Any,
) -> PlanRequest:
    """`at` seconds after noon; `full` is what `work` sustains with all its subtasks."""
    found = analysis(
        at=after(at),
        the_policy=policy(planner={"name": "responsive", "parameters": {"diagnosers": diagnosers, **parameters}}),
        deployment=deployment({SOURCE: 1, WORK: work}),
        run=Run(running_since=after(at - run_age)),
        operators=[
            operator(SOURCE, 1, 100_000.0, taken, utilization=known(0.01)),
            operator(WORK, work, full, taken, utilization=known(busy), skew=known(skew)),
        ],
        sources=[
            SourceAnalysis(
                operator=SOURCE,
                arrival_rate=known(arriving),
                arrival_rate_trend=known(0.0),
                lag_records=known(lag),
                lag_growth=known(growth),
                lag_seconds=known(0.0),
                expected_latency_seconds=known(0.0),
            )
        ],
        symptoms=[Symptom(code=code, evidence="seen") for code in codes],
    )
    return request(found, now=after(at), memory=memory or {})


def answer(diagnosers: list[dict[str, Any]], *, cycles: int = 1, **of: Any) -> PlanReply:
    """The answer of the last of `cycles` cycles, 15 s apart, with the memory of the one before."""
    memory: dict[str, Any] = {}
    for cycle in range(cycles):
        reply = ask(plan_request(diagnosers, at=15.0 * cycle, memory=memory, **of), "responsive")
        memory = reply.memory
    return reply


def test_a_node_that_processes_too_much_adds_a_replica() -> None:
    """1,600/s on 4 are 400 each, above 300: 4 → 5, once a window of readings covers it."""
    assert answer([PROCESSING_UP], taken=1600.0).code == "no-diagnosis"
    reply = answer([PROCESSING_UP], taken=1600.0, cycles=2)
    assert reply.parallelism == {SOURCE: 5, WORK: 5}
    assert "400 records/s over 15 s, and the limit 300" in reply.sentence


def test_any_node_counts_upwards_and_all_of_them_downwards() -> None:
    """80 each are below 100, but with one that does twice the mean not all are."""
    assert answer([PROCESSING_DOWN], taken=320.0, cycles=2).parallelism == {SOURCE: 1, WORK: 3}
    assert answer([PROCESSING_DOWN], taken=320.0, skew=2.0, cycles=2).code == "no-diagnosis"
    assert answer([PROCESSING_UP], taken=800.0, skew=2.0, cycles=2).parallelism == {SOURCE: 5, WORK: 5}


def test_arrivals_count_before_they_are_processed() -> None:
    """Only 800/s are taken in, but 1,600/s arrive."""
    assert answer([ARRIVAL_UP], arriving=1600.0, cycles=2).parallelism == {SOURCE: 5, WORK: 5}


def test_lag_that_grows_adds_one() -> None:
    """By more than noise: 5 % of the arrivals."""
    assert answer([LAG], growth=41.0).parallelism == {SOURCE: 5, WORK: 5}
    assert answer([LAG], growth=39.0).code == "no-diagnosis"


@pytest.mark.parametrize(
    ("strategy", "wanted"),
    [
        ({"type": "FIXED_REPLICA", "replicas": 3}, 7),
        # 4 · (800 + (60,000 − 30 · 800) / 60) / 1000 = 5.6
        ({"type": "RATE_BASED"}, 6),
        ({"type": "SCALE_TO_MAX"}, 12),
    ],
)
def test_expected_latency_is_answered_by_its_strategy(strategy: dict[str, Any], wanted: int) -> None:
    """60,000 records at 1,000/s are 60 s, above the objective of 30."""
    reply = answer([{**LATENCY, "scale_up_strategy": strategy}], lag=60_000.0)
    assert reply.parallelism == {SOURCE: wanted, WORK: wanted}
    assert "expected to wait 60 s" in reply.sentence


def test_lag_is_thought_on() -> None:
    """Nothing waits yet; at 2,000/s against 1,000 it will be 60 s in a minute."""
    assert answer([LATENCY], arriving=2000.0).code == "no-diagnosis"
    assert answer([{**LATENCY, "projection_seconds": 60}], arriving=2000.0).parallelism == {SOURCE: 8, WORK: 8}


def test_no_more_than_the_policy_adds_at_a_time() -> None:
    """maxScaleUpReplicas."""
    reply = answer([{**LATENCY, "projection_seconds": 60}], arriving=2000.0, max_scale_up_replicas=2)
    assert reply.parallelism == {SOURCE: 6, WORK: 6}


def test_it_waits_between_two_recommendations_with_a_stagger() -> None:
    """staggerSeconds: none 15 s after the last recommendation, one again after 30 s."""
    latency = {**LATENCY, "projection_seconds": 60, "stagger_seconds": 20}
    kinds = [answer([latency], arriving=2000.0, cycles=count).kind for count in (1, 2, 3)]
    assert kinds == ["scale", "hold", "scale"]


def test_threads_that_are_mostly_blocked_give_one_up() -> None:
    """Blocked for 80 % of two windows in a row, above 65 %: 4 → 3. One window is not enough."""
    assert answer([SATURATION], busy=0.2, cycles=2).code == "no-diagnosis"
    assert answer([SATURATION], busy=0.2, cycles=3).parallelism == {SOURCE: 1, WORK: 3}
    assert answer([SATURATION], busy=0.4, cycles=3).code == "no-diagnosis"


def test_nothing_is_removed_while_it_restores() -> None:
    """A restoring thread looks idle."""
    assert answer([SATURATION], busy=0.2, cycles=3, codes=("catching-up",)).code == "restoring"


def test_the_first_in_order_wins() -> None:
    """One diagnoser wants more and one fewer: the first in the list wins."""
    both = {"busy": 0.2, "taken": 1600.0, "cycles": 3}
    assert answer([PROCESSING_UP, SATURATION], **both).code == "overloaded"
    assert answer([SATURATION, PROCESSING_UP], **both).code == "over-provisioned"


def test_lag_that_grows_under_idle_threads_is_no_matter_of_replicas() -> None:
    """Look at brokers and network."""
    reply = answer([LAG, SATURATION], growth=100.0, busy=0.1)
    assert (reply.kind, reply.code) == ("hold", "blocked-but-late")
    assert "brokers and network" in reply.sentence


@pytest.mark.parametrize(
    ("diagnoser", "of", "message"),
    [
        (LATENCY, {"arriving": None}, "the arrival rate is unknown"),
        (LATENCY, {"lag": None}, "the lag is unknown"),
        (LAG, {"growth": None}, "the growth of lag is unknown"),
        (SATURATION, {"busy": None, "cycles": 3}, "the busy share of every operator is unknown"),
    ],
)
def test_an_unknown_reading_holds_and_is_named(diagnoser: dict[str, Any], of: dict[str, Any], message: str) -> None:
    """A diagnoser without readings has not reported that all is well."""
    reply = answer([diagnoser], **of)
    assert (reply.kind, reply.code) == ("hold", "metric-missing")
    assert message in reply.sentence


def test_nothing_is_removed_while_another_diagnoser_lacks_a_reading() -> None:
    """Threads idle, but lag is unknown."""
    assert answer([LATENCY, SATURATION], busy=0.2, lag=None, cycles=3).code == "metric-missing"


def test_a_start_and_an_action_are_waited_out() -> None:
    """Both cooldowns, and the grace of a diagnoser."""
    late = [{**LATENCY, "projection_seconds": 60}]
    assert answer(late, arriving=2000.0, run_age=30.0).code == "cooldown"
    assert answer([{**late[0], "grace_seconds": 100}], arriving=2000.0, run_age=90.0).code == "no-diagnosis"
    acted = action(before={SOURCE: 1, WORK: 2}, wanted={SOURCE: 1, WORK: 4}, running_at=after(-10))
    after_action = plan_request(late, arriving=2000.0).model_copy(update={"outcomes": [outcome(acted)]})
    assert ask(after_action, "responsive").code == "cooldown"


def test_readings_of_another_parallelism_do_not_count() -> None:
    """A window begins again with each parallelism."""
    before = answer([PROCESSING_UP], taken=1600.0, cycles=2)
    reply = ask(plan_request([PROCESSING_UP], at=30.0, work=5, taken=1600.0, memory=before.memory), "responsive")
    assert reply.code == "no-diagnosis"


@pytest.mark.thorough
def test_the_memory_stays_small() -> None:
    """However short the interval, an hour's window is kept in a bounded number of readings that still cover it."""
    slow = {**PROCESSING_UP, "window_seconds": 3600}
    memory: dict[str, Any] = {}
    for second in range(0, 4000, 25):
        reply = ask(plan_request([slow], at=float(second), taken=1600.0, memory=memory), "responsive")
        memory = reply.memory
    assert len(memory["readings"]) <= 120
    assert reply.code == "overloaded"


def test_wrong_parameters_are_named() -> None:
    """Which diagnoser, and what is wrong with it."""
    with pytest.raises(InvalidParameters, match=r"diagnosers\.0"):
        parse_parameters("responsive", {"diagnosers": [{"type": "GUESS"}]})
    with pytest.raises(InvalidParameters, match=r"diagnosers\.0.*rate"):
        parse_parameters("responsive", {"diagnosers": [{"type": "ARRIVAL_RATE_SCALE_UP"}]})


EVERY = [PROCESSING_UP, PROCESSING_DOWN, ARRIVAL_UP, LAG, LATENCY, SATURATION]


@examples(25)
@given(requests("responsive", diagnosers=EVERY))
def test_every_request_is_answered(first: PlanRequest) -> None:
    """For any numbers: a complete vector or a hold, with its reason; and again with its memory."""
    reply = ask(first, "responsive")
    assert is_whole(reply, first)
    later = first.model_copy(update={"memory": reply.memory, "now": first.now + timedelta(seconds=60)})
    assert is_whole(ask(later, "responsive"), later)
    assert later.now > NOON

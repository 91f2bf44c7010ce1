"""The planner `flink-autoscaler` in the loop: its window in memory, what it says, and what differs between the
original's versions."""

import base64
import json
import zlib
from collections.abc import Callable
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.effort import examples
from tests.unit.planner.build import (
    NOON,
    SOURCE,
    WORK,
    after,
    analysis,
    deployment,
    known,
    operator,
    policy,
    request,
    topology,
)
from weir_contracts import (
    MEMORY_LIMIT_BYTES,
    Analysis,
    Edge,
    EdgeAnalysis,
    Operator,
    PlanReply,
    PlanRequest,
    Run,
    SourceAnalysis,
    Topology,
)
from weir_planners.flink_autoscaler import FlinkAutoscalerParameters
from weir_planners.flink_autoscaler.decision import (
    Limits,
    Recommendation,
    Rescaled,
    Waiting,
    decide_vertex,
    scalability,
    scale,
)
from weir_planners.flink_autoscaler.evaluation import Evaluated, with_thresholds
from weir_planners.flink_autoscaler.ieee import divide, metric, rounded, whole
from weir_planners.flink_autoscaler.loop import State
from weir_planners.flink_autoscaler.memory import read
from weir_sdk import InvalidParameters
from weir_sdk.installed import ask, parse_parameters

INFINITY = float("inf")
NAN = float("nan")
SHORT = {"metrics_window_minutes": 1, "stabilization_interval_minutes": 0.5, "catch_up_duration_minutes": 5}


class Job:
    """An application that runs since noon, looked at every five seconds: `work` takes what it can, the rest is lag at
    the source, which is held back then. The planner's memory goes from cycle to cycle."""

    def __init__(self, work: int = 2, per_subtask: float = 500.0, **parameters: Any) -> None:
        self.work, self.per_subtask, self.parameters = work, per_subtask, {**SHORT, **parameters}
        self.seconds, self.running, self.backlog, self.interval = 0.0, 0.0, 0.0, 5.0
        self.memory: dict[str, Any] = {}

    def analysis(self, arrivals: float, **changes: Any) -> Analysis:
        capacity = self.work * self.per_subtask
        taken = min(arrivals + self.backlog / 5, capacity)
        self.backlog += 5 * (arrivals - taken)
        held_back = known(0.9 if taken == capacity else 0.0)
        readings: dict[str, Any] = {
            "operators": [
                operator(SOURCE, 1, 100_000.0, taken, backpressure=held_back),
                operator(WORK, self.work, capacity, taken),
            ],
            "run": Run(running_since=after(self.running)),
            **changes,
        }
        chosen = policy(planner={"name": "flink-autoscaler", "parameters": self.parameters})
        at = after(self.seconds)
        return analysis(arrivals=arrivals, backlog=self.backlog, work=self.work, at=at, the_policy=chosen, **readings)

    def cycle(self, arrivals: float, **changes: Any) -> PlanReply:
        """Five seconds later, the reply."""
        self.seconds += self.interval
        found = self.analysis(arrivals, **changes)
        reply = ask(request(found, now=after(self.seconds), memory=self.memory), "flink-autoscaler")
        self.memory = reply.memory
        return reply

    def until(self, code: str, arrivals: float, *, limit: int = 400, **changes: Any) -> PlanReply:
        """Turns until a reply has that code."""
        for _ in range(limit):
            reply = self.cycle(arrivals, **changes)
            if reply.code == code:
                return reply
        raise AssertionError(f"never {code}: {reply.sentence}")

    def restarted(self, work: int) -> None:
        """It runs again, with another parallelism."""
        self.seconds += 10
        self.work, self.running = work, self.seconds


def test_nothing_is_decided_before_the_window_is_full() -> None:
    """Half a minute to settle, then a minute of samples: until then it holds and says how long. Then three times the
    load is answered."""
    job = Job()
    assert job.cycle(2400).code == "stabilizing"
    filling = job.until("window-not-full", 2400)
    assert filling.sentence == "the window of 1 min is full in 60 s"
    reply = job.until("overloaded", 2400)
    assert job.seconds == 90
    # Lag of 126,000 is 420/s in 300 s; a restart of 300 s asks for 2,400, and 2,400 at 70 % are 3,429: 6,249 in all, of
    # 500 each.
    assert reply.evidence["catch_up_data_rate[work]"] == 420
    assert reply.evidence["target_data_rate[work]"] == 2400
    assert reply.evidence["true_processing_rate[work]"] == 1000
    assert reply.parallelism == {SOURCE: 1, WORK: 12}
    assert reply.evidence["expected_processing_rate[work]"] == 6000
    assert reply.sentence == "work 2 → 12: work can process 1,000 records/s, less than the 2,820 it takes"
    (note,) = reply.infeasible
    assert (note.operator, note.wanted, note.limit, note.code) == (WORK, 13, 12, "bounds")


def test_what_is_within_its_thresholds_stays() -> None:
    """A busy share of 80 % is within 0.7 ± 0.3, although 4 subtasks would fit better."""
    job = Job()
    reply = job.until("within-thresholds", 800)
    assert reply.kind == "hold"
    assert "within its thresholds" in reply.sentence
    assert reply.evidence["scale_up_threshold[work]"] == 800


def test_fewer_subtasks_wait_for_the_interval() -> None:
    """100/s on 8 subtasks: a scale-down waits for two minutes, then at most 60 % are taken away at once."""
    job = Job(work=8, scale_down_interval_minutes=2)
    waiting = job.until("scale-down-delayed", 100)
    assert waiting.sentence == "work has wanted fewer subtasks for 0 of 2 min"
    began = job.seconds
    reply = job.until("over-provisioned", 100)
    assert job.seconds - began == 120
    assert reply.parallelism == {SOURCE: 1, WORK: 4}
    assert "fewer subtasks were wanted for as long as" in reply.sentence


def test_the_max_recommendation_of_the_interval_is_taken() -> None:
    """In two minutes of little load there was one with more: what that minute wanted is what it goes down to."""
    job = Job(work=8, scale_down_interval_minutes=5, restart_time_minutes=0, scale_down_max_factor=1)
    job.until("scale-down-delayed", 100)
    job.until("scale-down-delayed", 1750, max=1)
    for _ in range(30):
        job.cycle(1750)
    reply = job.until("over-provisioned", 100)
    assert reply.parallelism == {SOURCE: 1, WORK: 5}


def test_a_rescale_becomes_history_once_it_is_seen() -> None:
    """It went from 2 to 12 and gained nothing: with detection on it gets no more, and the sentence says why."""
    job = Job(scaling_effectiveness_detection_enabled=True, catch_up_duration_minutes=0)
    assert job.until("overloaded", 2400).parallelism == {SOURCE: 1, WORK: 7}
    job.restarted(7)
    assert job.cycle(4000).code == "stabilizing"
    assert [h[1:3] for h in job.memory["history"]["1"]] == [[2, 7]]
    assert job.memory["decided"] is None
    job.per_subtask = 170.0
    reply = job.until("ineffective", 4000)
    assert reply.sentence == "work gained too little by its last scale-up, so it gets no more"


def test_a_decision_that_was_not_carried_out_is_not_history() -> None:
    """A policy may advise only, or a guard hold it: the planner says the same again and learns nothing from it."""
    job = Job()
    first = job.until("overloaded", 2400)
    again = job.cycle(2400)
    assert again.parallelism == first.parallelism
    assert job.memory["history"] == {}
    job.running = job.seconds  # it restarted for another reason, with the old parallelism
    job.cycle(2400)
    assert job.memory["history"] == {}
    assert job.memory["decided"] is None


def test_another_parallelism_without_a_new_run_begins_anew() -> None:
    """Samples of two parallelisms in one window would be nonsense, however it came to the second."""
    job = Job()
    job.until("overloaded", 2400)
    job.work = 6
    assert job.cycle(2400).code == "stabilizing"
    assert job.cycle(2400).code == "stabilizing"
    assert job.memory["history"]["1"][0][1:3] == [2, 6]
    began = job.seconds
    job.until("within-thresholds", 2400)
    assert job.seconds - began == 85


def test_the_time_of_a_restart_is_measured_if_enabled() -> None:
    """From the decision to the run that has it: 10 s here, taken instead of the usual five minutes."""
    job = Job(restart_time_tracking_enabled=True)
    job.until("overloaded", 2400)
    job.restarted(12)
    assert job.cycle(2400).evidence["restart_seconds"] == 10


def test_a_guard_that_lets_less_through_is_remembered_as_that() -> None:
    """12 were wanted and 6 run: the history has 6, and expects of 6 what 6 can do."""
    job = Job(version="1.16.0")
    job.until("overloaded", 2400)
    job.restarted(6)
    job.cycle(2400)
    ((_, before, now, rate, expected),) = job.memory["history"]["1"]
    assert (before, now, rate, expected) == (2, 6, 1000, 3000)


def wide(count: int) -> Topology:
    """A chain of many."""
    return topology([f"operator-{i}" for i in range(count)])


@pytest.mark.thorough
def test_the_window_fits_the_memory_and_stays_true() -> None:
    """20 operators, every 30 seconds, a window of 15 minutes: neighbouring samples are put together, and the rates stay
    right."""
    graph = wide(20)
    job = Job(metrics_window_minutes=15)
    job.interval = 30
    for i in range(45):
        arrivals = 1000.0 + 10 * (i % 7)
        of_all: dict[str, Any] = {
            "graph": graph,
            "deployment": deployment(dict.fromkeys(graph.names, 2), graph),
            "operators": [operator(name, 2, 4000.0, arrivals) for name in graph.names],
            "edges": [EdgeAnalysis(source=e.source, target=e.target, selectivity=known(1.0)) for e in graph.edges],
            "sources": [source(graph.names[0])],
        }
        reply = job.cycle(arrivals, **of_all)
        assert len(json.dumps(reply.memory, separators=(",", ":"))) <= MEMORY_LIMIT_BYTES
    assert reply.evidence["target_data_rate[operator-19]"] == pytest.approx(1030, rel=0.01)
    assert reply.evidence["true_processing_rate[operator-19]"] == pytest.approx(4000, rel=0.01)
    assert reply.code == "within-thresholds"
    assert 900 <= float(str(reply.evidence["window_seconds"])) < 1050


def source(name: str, lag: float | None = 0.0) -> SourceAnalysis:
    """A source without lag."""
    return SourceAnalysis(
        operator=name,
        arrival_rate=known(1000.0),
        arrival_rate_trend=known(0.0),
        lag_records=known(lag),
        lag_growth=known(0.0),
        lag_seconds=known(0.0),
        expected_latency_seconds=known(0.0),
    )


def large_job(count: int, cycles: int, capacity: Callable[[], float]) -> PlanReply:
    """The reply for a chain of many operators with long names, after some cycles."""
    graph = topology([f"operator-{i}: {'Join ' * 70}" for i in range(count)])
    job = Job()
    job.interval = 15
    for _ in range(cycles):
        reply = job.cycle(
            1000.0,
            graph=graph,
            deployment=deployment(dict.fromkeys(graph.names, 2), graph),
            operators=[operator(name, 2, 1000.0 + capacity(), 1000.0 + capacity()) for name in graph.names],
            edges=[EdgeAnalysis(source=e.source, target=e.target, selectivity=known(1.0)) for e in graph.edges],
            sources=[source(graph.names[0])],
        )
        assert len(json.dumps(reply.memory, separators=(",", ":"))) <= MEMORY_LIMIT_BYTES
    return reply


@pytest.mark.parametrize("count", [100, pytest.param(300, marks=pytest.mark.thorough)])
def test_a_large_job_is_decided(count: int) -> None:
    """The window of 100 and of 300 operators is kept packed, and rates stay right. As plain JSON 80 were too many."""
    reply = large_job(count, 10, lambda: 0.0)
    assert "packed" in reply.memory
    assert reply.code == "within-thresholds"
    rates = [value for name, value in reply.evidence.items() if name.startswith("true_processing_rate[operator-2:")]
    assert rates == [pytest.approx(1000.0, rel=0.01)]


def test_a_window_that_does_not_fit_is_a_hold_that_names_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few samples it has, as of about 400 operators."""
    monkeypatch.setattr("weir_planners.flink_autoscaler.memory.MAX_BYTES", 300)
    reply = large_job(20, 10, Random(1).random)
    assert (reply.kind, reply.code) == ("hold", "too-many-operators")
    assert "choose another planner, such as rate" in reply.sentence
    assert len(reply.sentence) <= 160


@pytest.mark.parametrize("memory", [{"packed": "0"}, {"packed": ""}, {"packed": "Wp^}T3IG5B"}, {"packed": 7}])
def test_a_packed_memory_that_cannot_be_read_is_an_empty_one(memory: dict[str, Any]) -> None:
    """Also one whose few bytes stand for gigabytes: it comes from a topic."""
    bomb = {"packed": base64.b85encode(zlib.compress(b"[" * 6_000_000)).decode()}
    for each in (memory, bomb):
        assert read({"graph": "g", **each}, "g", ["a"]) == State(graph="g")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"operators": [operator(SOURCE, 1, 1000.0, None)]}, "input rate of orders"),
        ({"sources": []}, "lag of orders"),
        ({"run": None}, "the start of the application is unknown"),
        ({"operators": []}, "orders was not analysed"),
        ({"topology": None}, "graph or parallelism"),
    ],
)
def test_a_missing_reading_holds_and_is_named(changes: dict[str, Any], message: str) -> None:
    """Unknown is not 0: nothing shrinks because its load could not be read."""
    reply = Job(work=8).cycle(800.0, **changes)
    assert (reply.kind, reply.code) == ("hold", "metric-missing")
    assert message in reply.sentence


def test_readings_of_another_parallelism_hold() -> None:
    """Busy time of 2 subtasks, counted as that of the 8 that run, would give a quarter of the capacity."""
    reply = Job(work=8).cycle(
        800.0, operators=[operator(SOURCE, 1, 100_000.0, 800.0), operator(WORK, 2, 1000.0, 800.0)]
    )
    assert (reply.kind, reply.code) == ("hold", "metric-missing")
    assert "work runs with 8 subtasks and was analysed at 2" in reply.sentence


def test_an_unknown_lag_is_not_none() -> None:
    """The original takes an absent lag for 0; here it is a reading that is missing."""
    reply = Job(work=8).cycle(800.0, sources=[source(SOURCE, None)])
    assert (reply.kind, reply.code) == ("hold", "metric-missing")
    assert "lag of orders is unknown: no reading yet" in reply.sentence


def test_while_it_does_not_run_nothing_is_decided() -> None:
    """It is restarting: the memory is kept for the cycle in which it runs again."""
    job = Job()
    kept = job.cycle(800).memory
    reply = job.cycle(800, status="not_running", run=None)
    assert (reply.code, reply.memory) == ("not-running", kept)


def test_an_unknown_busy_time_leaves_an_operator_alone() -> None:
    """Without it there is no capacity: that is said, and the others are decided all the same."""
    job = Job()
    without_rate = {"operators": [operator(SOURCE, 1, 100_000.0, 100.0), operator(WORK, 2, None, 100.0)]}
    for _ in range(30):
        reply = job.cycle(100.0, **without_rate)
    assert (reply.kind, reply.code) == ("hold", "metric-missing")
    assert reply.sentence == "the busy time of work is unknown, so its capacity is, too"
    assert reply.evidence["true_processing_rate[work]"] is None


def test_the_same_analysis_twice_is_one_sample() -> None:
    """A message that comes twice must not count twice, and gets the same answer."""
    job = Job()
    job.cycle(2400)
    job.cycle(2400)
    memory = job.memory
    job.seconds -= 5
    reply = job.cycle(2400)
    assert reply.memory == memory
    assert reply.code == "stabilizing"


@pytest.mark.parametrize("memory", [{}, {"graph": 3}, {"graph": "x", "samples": [[1]]}, {"anything": [None]}])
def test_a_foreign_memory_is_a_fresh_start(memory: dict[str, Any]) -> None:
    """Another planner's, another graph's or a broken one."""
    job = Job()
    job.memory = memory
    assert job.cycle(800).code == "stabilizing"


def test_operators_may_be_left_out() -> None:
    """An excluded operator keeps its parallelism, whatever its load."""
    job = Job(vertex_exclude=[WORK])
    assert job.until("within-thresholds", 2400).kind == "hold"


# Differences between the versions, from their documentation and source.

ALIGNED = [
    # current, factor, partitions -> 1.10.0, 1.15.0, 1.16.0 BALANCED, EVENLY_SPREAD, OFF, legacy MAXIMIZE_UTILIZATION
    (4, 2.0, 24, (8, 8, 8, 8, 8, 8)),
    (4, 2.25, 24, (12, 12, 12, 12, 9, 12)),
    (8, 1.5, 100, (20, 20, 13, 20, 12, 13)),
    (4, 1.5, 13, (5, 13, 7, 13, 6, 7)),
    (12, 1.2, 13, (13, 13, 15, 15, 15, 13)),
    (12, 0.5, 13, (5, 5, 7, 6, 6, 7)),
    (7, 0.8, 13, (5, 5, 7, 6, 6, 7)),
]


@pytest.mark.parametrize(("current", "factor", "partitions", "wanted"), ALIGNED)
def test_alignment_by_version_and_mode(current: int, factor: float, partitions: int, wanted: tuple[int, ...]) -> None:
    """A divisor, or fewer partitions for each, or nothing; prime counts are where the versions part."""
    kinds: list[dict[str, Any]] = [
        {"version": "1.10.0"},
        {"version": "1.15.0"},
        {"version": "1.16.0"},
        {"version": "1.16.0", "parallelism_alignment_mode": "EVENLY_SPREAD"},
        {"version": "1.16.0", "parallelism_alignment_mode": "OFF"},
        {"version": "1.16.0", "key_group_partitions_adjust_mode": "MAXIMIZE_UTILIZATION"},
    ]
    limits = Limits(1, 200, 720, partitions)
    found = tuple(scale(current, factor, limits, FlinkAutoscalerParameters(**kind)).parallelism for kind in kinds)
    assert found == wanted


MAXIMIZE = {"version": "1.16.0", "key_group_partitions_adjust_mode": "MAXIMIZE_UTILIZATION"}
EVENLY = {"version": "1.16.0", "key_group_partitions_adjust_mode": "EVENLY_SPREAD"}
NEW_EVENLY = {"version": "1.16.0", "parallelism_alignment_mode": "EVENLY_SPREAD"}
OFF = {"version": "1.16.0", "parallelism_alignment_mode": "OFF"}
LARGE = 2**31 - 1.0


@pytest.mark.parametrize(
    ("kind", "current", "factor", "limits", "wanted"),
    [
        ({"version": "1.15.0"}, 16, 1.5, Limits(1, 32768, 128, keyed=True), 32),
        ({"version": "1.15.0"}, 200, 1.3, Limits(1, 32768, 720, keyed=True), 360),
        ({"version": "1.15.0"}, 200, LARGE, Limits(1, 32768, 720, keyed=True), 720),
        ({"version": "1.15.0"}, 6, 0.8, Limits(1, 700, 720, keyed=True), 5),
        ({"version": "1.15.0"}, 8, 0.8, Limits(8, 700, 720, keyed=True), 8),
        ({"version": "1.15.0"}, 200, 2.0, Limits(1, 300, 720, keyed=True), 240),
        ({"version": "1.15.0"}, 200, LARGE, Limits(1, 600, 720, keyed=True), 360),
        ({"version": "1.15.0"}, 10, 2.5, Limits(1, 32768, 128, keyed=True), 32),
        (MAXIMIZE, 10, 2.5, Limits(1, 32768, 128, keyed=True), 26),
        ({"version": "1.16.0"}, 16, 1.5, Limits(1, 32768, 128, keyed=True), 26),
        (NEW_EVENLY, 16, 1.5, Limits(1, 32768, 128, keyed=True), 32),
        (OFF, 16, 1.5, Limits(1, 32768, 128, keyed=True), 24),
        ({"version": "1.16.0"}, 22, 1.12, Limits(20, 30, 128, 35), 25),
        (NEW_EVENLY, 22, 1.12, Limits(20, 30, 128, 35), 25),
        (EVENLY, 22, 1.12, Limits(20, 30, 128, 35), 22),
        (NEW_EVENLY, 5, 1.3, Limits(1, 32768, 8, 12), 7),
        (EVENLY, 5, 1.3, Limits(1, 32768, 8, 12), 6),
        *[
            ({**kind, "version": "1.16.1"}, 100, factor, Limits(1, 32768, 180, 15), 15)
            for kind in ({}, NEW_EVENLY, EVENLY, MAXIMIZE)
            for factor in (1.8, 0.5, 0.16, 0.15)
        ],
        ({**OFF, "version": "1.16.1"}, 100, 1.8, Limits(1, 32768, 180, 15), 180),
        ({**OFF, "version": "1.16.1"}, 100, 0.5, Limits(1, 32768, 180, 15), 50),
        ({**EVENLY, "version": "1.16.1"}, 15, 1.3, Limits(1, 32768, 180, 15), 15),
    ],
)
def test_alignment_as_the_originals_own_tests_have_it(
    kind: dict[str, Any], current: int, factor: float, limits: Limits, wanted: int
) -> None:
    """Situations and results of its test suite, for the versions that cannot be called here."""
    assert scale(current, factor, limits, FlinkAutoscalerParameters(**kind)).parallelism == wanted


def test_a_delayed_scale_down_as_the_originals_own_test_has_it() -> None:
    """100 subtasks of 10/s. In a minute 800, 900, 720, 640 and 700 are asked for: it is 90 then, and it was within its
    thresholds."""
    parameters = FlinkAutoscalerParameters(
        version="1.15.0", utilization_target=1, scale_down_interval_minutes=1, catch_up_duration_minutes=0
    )
    waiting, found = None, None
    for seconds, rate in ((0, 800.0), (10, 900.0), (40, 720.0), (59, 640.0), (60, 700.0)):
        assert found is None or found.parallelism is None
        found = decide_vertex(
            situation(100, rate, 1000.0, parameters),
            Limits(1, 200, 720),
            (),
            waiting,
            parameters,
            restart_seconds=300,
            now_ms=1000 * seconds,
        )
        waiting = found.waiting
    assert found is not None
    assert (found.parallelism, found.outside) == (90, False)


@pytest.mark.parametrize(("rates", "wanted"), [((200, 100, 400), 10), ((160, 96, 240), 15)])
def test_observed_scalability_as_the_originals_own_test_has_it(rates: tuple[int, ...], wanted: int) -> None:
    """It went from 4 to 2 to 8 and now needs five times what 2 can do: 10 subtasks if it scaled linearly so far, 15 if
    by 0.69."""
    parameters = FlinkAutoscalerParameters(
        utilization_target=0.5, observed_scalability_enabled=True, catch_up_duration_minutes=0, scale_up_max_factor=1e9
    )
    history = [Rescaled(at, p, p + 1, rate, rate) for at, (p, rate) in enumerate(zip((4, 2, 8), rates, strict=True))]
    found = decide_vertex(
        situation(2, 100.0, 40.0, parameters),
        Limits(1, 200, 720),
        history,
        None,
        parameters,
        restart_seconds=0,
        now_ms=9,
    )
    assert (found.parallelism, found.outside) == (wanted, True)


def test_a_kept_target_is_bounded_by_the_partitions_since_1_16_1() -> None:
    """1.16.0 may ask for more subtasks than there are partitions."""
    limits = Limits(1, 200, 720, 13)
    for version, wanted in (("1.16.0", 18), ("1.16.1", 13)):
        parameters = FlinkAutoscalerParameters.model_validate({"version": version})
        assert scale(12, 1.5, limits, parameters).parallelism == wanted


def test_1_15_moves_what_fits_but_is_not_aligned() -> None:
    """Five subtasks of 24 partitions, and the load asks for five: 1.15 takes one away, later versions leave it."""
    limits = Limits(1, 200, 720, 24)
    assert scale(7, 1.0, limits, FlinkAutoscalerParameters(version="1.15.0")).parallelism == 6
    assert scale(7, 1.0, limits, FlinkAutoscalerParameters(version="1.16.0")).parallelism == 7


def situation(parallelism: int, rate: float, capacity: float, parameters: FlinkAutoscalerParameters) -> Evaluated:
    """An operator without lag."""
    return with_thresholds(Evaluated("v", parallelism, rate, 0.0, capacity), parameters, 0, behind=False)


@pytest.mark.parametrize(("version", "expected"), [("1.10.0", 1428.0), ("1.15.0", 1428.0), ("1.16.0", 1500.0)])
def test_the_expected_rate_is_of_the_factor_or_of_what_is_taken(version: str, expected: float) -> None:
    """1,000/s at 70 % need 1,429; three subtasks of 500 each can do 1,500."""
    parameters = FlinkAutoscalerParameters.model_validate({"version": version, "restart_time_minutes": 0})
    known_of = situation(2, 1000.0, 999.0, parameters)
    found = decide_vertex(known_of, Limits(1, 200, 720), (), None, parameters, restart_seconds=0, now_ms=0)
    assert found.parallelism == 3
    assert found.expected_processing_rate == pytest.approx(expected, abs=2)


def test_until_1_10_a_waiting_scale_down_goes_with_another_change() -> None:
    """It was optional until its time had come; later it waits by itself, whatever the others do."""
    for version, wanted in (("1.10.0", 1), ("1.16.0", None)):
        parameters = FlinkAutoscalerParameters.model_validate({"version": version, "scale_down_max_factor": 1})
        found = decide_vertex(
            situation(8, 10.0, 4000.0, parameters),
            Limits(1, 200, 720),
            (),
            None,
            parameters,
            restart_seconds=0,
            now_ms=0,
        )
        assert (found.parallelism, found.outside) == (wanted, found.outside and wanted is None)
        assert found.waiting is not None


def test_the_max_recommendation_decides_on_its_thresholds() -> None:
    """The head of what waits is the decision, and whether it was outside the thresholds then."""
    parameters = FlinkAutoscalerParameters(scale_down_max_factor=1, restart_time_minutes=0)
    waiting = Waiting(0, (Recommendation(0, 6, True), Recommendation(1_000_000, 5, False)))
    found = decide_vertex(
        situation(8, 10.0, 4000.0, parameters),
        Limits(1, 200, 720),
        (),
        waiting,
        parameters,
        restart_seconds=0,
        now_ms=3_600_001,
    )
    assert (found.parallelism, found.outside) == (5, False)


def point(before: int, rate: float) -> Rescaled:
    """A rescale of an operator with that capacity."""
    return Rescaled(0, before, before + 1, rate, rate)


@pytest.mark.parametrize(
    ("history", "share"),
    [
        ([], 1.0),
        ([point(1, 100), point(2, 200)], 1.0),  # too few
        ([point(1, 100), point(2, 200), point(4, 400)], 1.0),
        ([point(1, 100), point(2, 160), point(4, 280)], 0.74),  # (100 + 320 + 1120) / (21 · 100) = 0.7333, rounded up
        ([point(2, 200), point(4, 200), point(8, 200)], 0.5),  # less than half is not believed
        ([point(2, 200), point(4, NAN), point(8, 800)], 1.0),
        ([point(1, INFINITY), point(2, 200), point(4, 400)], 1.0),
        ([point(1, 0.0), point(2, 0.0), point(4, 0.0)], 1.0),
    ],
)
def test_observed_scalability(history: list[Rescaled], share: float) -> None:
    """The share of linear scaling in the history; 1 where it is unknown."""
    parameters = FlinkAutoscalerParameters(observed_scalability_enabled=True)
    assert scalability(history, parameters) == share


def test_arithmetic_is_the_originals() -> None:
    """Halves go up, division by zero is infinite, NaN is 0 as an integer, and what would be rounded to 0 stays."""
    assert [rounded(x) for x in (0.5, 2.5, -0.5, -1.5, 0.49999999999999994, NAN)] == [1, 3, 0, -1, 0, 0]
    assert rounded(INFINITY) == 2.0**63
    assert [divide(1.0, 0.0), divide(-1.0, 0.0)] == [INFINITY, -INFINITY]
    assert str(divide(0.0, 0.0)) == "nan"
    assert [metric(x) for x in (0.0005, 0.0004, 1.0005, 1e300, INFINITY)] == [0.001, 0.0004, 1.001, 1e300, INFINITY]
    assert [whole(x) for x in (NAN, INFINITY, 3.9, -3.9)] == [0, 2**31 - 1, 3, -3]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"version": "1.9.0"}, "version"),
        ({"utilization_target": 1.5}, "utilization_target"),
        ({"utilization_target": 0.7, "utilization_max": 0.6}, "utilization_max"),
        ({"version": "1.10.0", "parallelism_alignment_mode": "OFF"}, "parallelism_alignment_mode"),
        ({"version": "1.10.0", "observed_scalability_enabled": True}, "observed_scalability_enabled"),
        ({"metrics_window": "15m"}, "metrics_window"),
        ({"busy_time_aggregator": "MIN"}, "busy_time_aggregator"),
    ],
)
def test_wrong_parameters_are_named(parameters: dict[str, Any], message: str) -> None:
    """Parameters that the chosen version does not have are refused, too."""
    with pytest.raises(InvalidParameters, match=message):
        parse_parameters("flink-autoscaler", parameters)


def test_the_defaults_are_the_originals() -> None:
    """Without a word one gets what the original does without a word."""
    found = FlinkAutoscalerParameters()
    assert (found.utilization_target, found.scale_down_interval_minutes, found.restart_time_minutes) == (0.7, 60, 5)
    with pytest.raises(ValidationError):
        FlinkAutoscalerParameters(scale_up_max_factor=INFINITY)


# Whatever it is asked, it answers.

estimates = st.one_of(
    st.none(),
    st.sampled_from([0.0, 1.0, 1e-9, 1e15, 1.7e308]),
    st.floats(min_value=-10, max_value=1e9, allow_nan=False),
)
JOIN = Topology(
    operators=[
        Operator(name="left", id="a", max_parallelism=120, source_partitions=13),
        Operator(name="right", id="b", source_partitions=4),
        Operator(name="join", id="c", max_parallelism=97),
        Operator(name="sink", id="d"),
    ],
    edges=[
        Edge(source="left", target="join", ship_strategy="HASH"),
        Edge(source="right", target="join", ship_strategy="HASH"),
        Edge(source="left", target="sink"),
        Edge(source="join", target="sink"),
    ],
)


@st.composite
def requests(draw: st.DrawFn) -> list[PlanRequest]:
    """A few cycles of an application whose readings are anything."""
    parameters = {
        "version": draw(st.sampled_from(["1.10.0", "1.15.0", "1.16.0", "1.16.1"])),
        "metrics_window_minutes": draw(st.sampled_from([0.01, 1, 15])),
        "stabilization_interval_minutes": draw(st.sampled_from([0, 5])),
        "scale_down_interval_minutes": draw(st.sampled_from([0, 1])),
        "catch_up_duration_minutes": draw(st.sampled_from([0, 30])),
        "utilization_target": draw(st.sampled_from([0.0, 0.7])),
        "busy_time_aggregator": draw(st.sampled_from(["MAX", "AVG"])),
        "scaling_effectiveness_detection_enabled": draw(st.booleans()),
    }
    the_policy = policy(planner={"name": "flink-autoscaler", "parameters": parameters})
    sentences, seconds = [], 0.0
    for _ in range(draw(st.integers(1, 5))):
        seconds += draw(st.sampled_from([0.0, 1.0, 60.0, 4000.0]))
        running = {name: draw(st.integers(1, 40)) for name in JOIN.names}
        found = analysis(
            at=after(seconds),
            the_policy=the_policy,
            graph=JOIN,
            deployment=deployment(running, JOIN),
            run=Run(running_since=NOON - timedelta(seconds=draw(st.sampled_from([0, 3600, -30])))),
            operators=[
                operator(
                    name,
                    running[name],
                    100.0,
                    draw(estimates),
                    output_rate=known(draw(estimates)),
                    utilization=known(draw(estimates)),
                    backpressure=known(draw(estimates)),
                    skew=known(draw(estimates)),
                )
                for name in JOIN.names
            ],
            sources=[source(name, draw(estimates)) for name in JOIN.sources],
        )
        sentences.append(request(found, now=after(seconds)))
    return sentences


@examples(20)
@given(requests())
def test_any_turns_get_a_reply(cycles: list[PlanRequest]) -> None:
    """A complete vector within the bounds' direction, or a hold; a sentence either way, and a memory that fits."""
    memory: dict[str, Any] = {}
    for cycle in cycles:
        reply = ask(cycle.model_copy(update={"memory": memory}), "flink-autoscaler")
        again = ask(cycle.model_copy(update={"memory": memory}), "flink-autoscaler")
        assert reply == again
        PlanReply.model_validate_json(reply.model_dump_json())
        if reply.parallelism is not None:
            assert set(reply.parallelism) == set(JOIN.names)
        memory = json.loads(json.dumps(reply.memory))


@examples(30)
@given(
    st.dictionaries(
        st.sampled_from(["graph", "running_ms", "samples", "history", "waiting", "restarts", "decided"]),
        st.recursive(
            st.one_of(st.none(), st.booleans(), st.integers(-10, 2**40), st.text(max_size=5)),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
            max_leaves=8,
        ),
    )
)
def test_any_memory_gets_a_reply(memory: dict[str, Any]) -> None:
    """Memory comes back from a topic: whatever stands in it, the planner goes on."""
    job = Job()
    job.cycle(800)
    job.memory = {**job.memory, **memory}
    assert job.cycle(800).kind == "hold"

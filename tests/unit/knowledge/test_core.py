"""The state of an application: times of the newest messages, a bounded history, and joined cycles."""

import itertools
from datetime import timedelta

import pytest

from tests.unit.knowledge.builders import APP, NOON, action, analysis, at, documents, observation, outcome, plan, policy
from weir_contracts import (
    Application,
    Deployment,
    LoopResult,
    PlanState,
    Problem,
    ScaleAction,
    Score,
    ScoredCourse,
    Signals,
    Subject,
    Target,
)
from weir_engines.registry import claims, rival
from weir_knowledge.core import (
    MAX_OPEN_CYCLES,
    End,
    HistoryLimits,
    State,
    history_at,
    history_entries,
    remember,
    with_ends,
)
from weir_knowledge.newest import Event, Newest
from weir_knowledge.summary import summarise

LIMITS = HistoryLimits()


def after(*events: Event, limits: HistoryLimits = LIMITS, start: State | None = None) -> State:
    """The state after these, in this order."""
    state = start or State(application=APP)
    for event in events:
        state = remember(state, event, limits)
    return state


def history(*events: Event) -> list[LoopResult]:
    """Return the history lines of these events, newest first."""
    state, lines, ends = State(application=APP), list[LoopResult](), {}
    for event in events:
        state = remember(state, event, LIMITS)
        for application, entry in history_entries(event, state):
            assert application == APP
            if isinstance(entry, End):
                ends[entry.plan_id] = entry.phase
            else:
                lines.insert(0, entry)
    return with_ends(lines, ends)


def cycle(n: float, wanted: int | None = None) -> list[Event]:
    """Return the messages of one cycle."""
    return [observation(n), analysis(n), plan(n, wanted)]


@pytest.mark.parametrize(
    "event", [observation(3), analysis(3), plan(3), outcome(plan(3), "intended")], ids=lambda e: type(e).__name__
)
def test_what_comes_twice_changes_nothing(event: Event) -> None:
    """The very same state comes back, so that nothing is stored or published again."""
    state = after(event)
    assert remember(state, event, LIMITS) is state


def test_a_state_has_seen_its_newest() -> None:
    """The stored times equal those of the messages."""
    end = outcome(plan(2, 4), "verified")
    newest = Newest(application=APP, observation=observation(3), analysis=analysis(2), plan=plan(2, 4), outcome=end)
    assert after(observation(3), analysis(2), plan(2, 4), end).times == newest.times()
    assert Newest.read(APP, documents(observation(3), analysis(2), plan(2, 4), end)) == newest
    assert Newest.read(APP, {}).times() == State(application=APP).times


def test_what_is_older_changes_nothing() -> None:
    """After a replay of the topics everything is as it was."""
    events = [*cycle(1), outcome(plan(1), "intended"), *cycle(2, 4), outcome(plan(2, 4), "applying")]
    state = after(*events)
    for event in events:
        assert remember(state, event, LIMITS) is state, event


def test_outcomes_of_one_instant_are_each_remembered_once() -> None:
    """Two transitions may carry the same time; a replay of both must not add them again."""
    scale = plan(1, 4)
    both = [outcome(scale, "intended", sequence=1), outcome(scale, "applying", sequence=2)]
    state = after(*cycle(1, 4), *both)
    assert [o.phase for o in state.cycles[0].outcomes] == ["intended", "applying"]
    assert after(*both, start=state) == state


def test_a_cycle_is_one_story() -> None:
    """Observation, analysis, plan and outcomes of one correlation id form one cycle; the history has one line of it."""
    scale = plan(2, 4)
    with_problem = observation(2, message="all well", problems=[Problem(where="GET /jobs", what="500")])
    events = (*cycle(1), with_problem, analysis(2), scale, outcome(scale, "intended"), outcome(scale, "verified", 9))
    state, lines = after(*events), history(*events)
    story = state.cycles[0]
    assert story.correlation_id == with_problem.id
    assert story.reading is not None and story.reading.problems == ["GET /jobs: 500"]
    assert story.analysis is not None and story.analysis.arrival_rate.value == 200.0
    assert story.plan == scale
    assert [o.phase for o in story.outcomes] == ["intended", "verified"]
    line = lines[0]
    assert (line.kind, line.approved, line.arrival_rate, line.lag_seconds) == ("scale", {"work": 4}, 200.0, None)
    assert line.outcome == "verified"
    assert lines[1].outcome is None


def test_a_plan_that_comes_after_the_next_reading_is_still_joined() -> None:
    """The analyzer may take longer than the interval: a plan is joined with its own reading, not with the newest."""
    events = (observation(1), observation(2), analysis(1), observation(3), plan(1), analysis(2), plan(2))
    state = after(*events)
    assert [story.plan for story in state.cycles] == [plan(2)]
    assert state.cycles[0].reading is not None and state.cycles[0].reading.observed_at == at(2)
    assert state.cycles[0].analysis is not None and state.cycles[0].analysis.arrival_rate.value == 200.0
    assert [line.arrival_rate for line in history(*events)] == [200.0, 100.0]


def test_a_cycle_is_complete_in_any_order_of_its_parts() -> None:
    """Topics are read side by side, so that a plan may arrive before its analysis."""
    wholes = [after(*order).cycles for order in itertools.permutations(cycle(1, 4))]
    assert all(whole == wholes[0] for whole in wholes)
    assert wholes[0][0].reading is not None and wholes[0][0].analysis is not None


def test_readings_that_never_get_a_plan_do_not_pile_up() -> None:
    """A planner that is away for a day costs a few lines."""
    state = after(*(observation(n) for n in range(200)))
    assert len(state.open_cycles) == MAX_OPEN_CYCLES
    assert state.open_cycles[0].correlation_id == observation(199).id


def test_holds_for_the_same_reason_are_one_cycle() -> None:
    """An hour of `within-objective` is one cycle, the latest; another reason or a scale plan starts a new one."""
    short = plan(4, code="metric-missing", sentence="lag is unknown")
    events = (plan(1), plan(2), plan(3), short, plan(5), plan(6, 4), plan(7, 4), plan(8), plan(9))
    state = after(*events)
    assert [(t.plan.kind, t.plan.code, t.plan.observed_at) for t in state.cycles if t.plan] == [
        ("hold", "within-objective", at(9)),
        ("scale", "capacity-short", at(7)),
        ("scale", "capacity-short", at(6)),
        ("hold", "within-objective", at(5)),
        ("hold", "metric-missing", at(4)),
        ("hold", "within-objective", at(3)),
    ]
    assert len(history(*events)) == 9


def test_the_past_is_bounded_by_count() -> None:
    """The newest stay."""
    limits, plans = HistoryLimits(history_count=3, cycles_count=2), [plan(n, 4) for n in range(10)]
    state = after(*plans, limits=limits)
    shown = history_at(history(*plans), plans[-1].created_at, limits)
    assert [line.at for line in shown] == [plan(n).created_at for n in (9, 8, 7)]
    assert [t.plan for t in state.cycles] == [plan(9, 4), plan(8, 4)]


def test_the_past_of_a_large_application_is_bounded_by_bytes() -> None:
    """60 explained cycles of a megabyte each, for one application that only advises, took the memory of all."""
    current = {f"{i:04}" + "x" * 250: 4 for i in range(1000)}
    plans = [plan(n, 4, current=current, action=ScaleAction(parallelism=current)) for n in range(30)]
    kept = after(*plans).cycles
    assert [cycle.plan for cycle in kept] == plans[::-1][: len(kept)]
    assert 1 <= len(kept) < 30
    assert sum(len(cycle.model_dump_json()) for cycle in kept) <= 4_000_000


def test_the_past_is_bounded_by_age() -> None:
    """Exactly at the limit a line is still kept."""
    plans = [plan(n) for n in range(10)]
    shown = history_at(history(*plans), plans[-1].created_at, HistoryLimits(history_age_seconds=10.0))
    assert [line.at for line in shown] == [plan(n).created_at for n in (9, 8, 7)]


def test_an_outcome_of_a_forgotten_plan_is_still_the_newest() -> None:
    """It belongs to no stored cycle, and is kept nevertheless."""
    late = outcome(plan(1, 4), "verified", 60)
    state = after(plan(5), late)
    assert state.times.outcome == late.order
    assert state.cycles[0].outcomes == []


def test_a_repeated_cycle_is_one_line() -> None:
    """Two replicas may have published it; the line has the outcome, whichever was first."""
    scale = plan(1, 4)
    (line,) = history(scale)
    assert with_ends([line, line], {scale.id: "verified"}) == [line.model_copy(update={"outcome": "verified"})]
    assert with_ends([line.model_copy(update={"outcome": "verified"})], {})[0].outcome == "verified"


def test_a_summary_of_nothing_knows_nothing() -> None:
    """Unknown is None, and every stage is silent."""
    summary = summarise(State(application=APP), policy(), None, NOON)
    assert summary.lag_seconds is None and summary.arrival_rate is None and summary.observed is None
    assert summary.ages_seconds.monitor is None
    assert summary.silent == ["monitor", "analyzer", "planner"]


def test_a_summary_names_the_problems_of_the_newest_observation() -> None:
    """With their place, and ten at most."""
    problems = [Problem(where=f"topic {n}", what="is not there") for n in range(12)]
    summary = summarise(after(observation(1, problems=problems)), policy(), None, at(1))
    assert summary.problems == [f"topic {n}: is not there" for n in range(10)]


def test_a_summary_has_the_scores_of_the_newest_plan() -> None:
    """Also of a plan in which no planner was asked: its state keeps them."""
    score = Score(
        label="hpa", planner="hpa", since=NOON, seconds=60.0, late_seconds=5.0, slot_seconds=240.0, restarts=1
    )
    course = ScoredCourse(score=score, basis_id="a", until=at(1), parallelism={"work": 4})
    summary = summarise(after(plan(1, state=PlanState(courses=[course]))), policy(), None, at(1))
    assert summary.scores == [score]


def test_a_summary_has_plan_requested_and_observed_side_by_side() -> None:
    """Three facts with three names, and the decision as a sentence."""
    deployment = Deployment(
        job_id="a" * 32,
        job_name="orders",
        graph_hash="b" * 16,
        state="RUNNING",
        requested={"work": 3},
        observed={"work": 2},
    )
    scale = plan(1, 4)
    state = after(observation(1, deployment=deployment), analysis(1), scale)
    summary = summarise(state, policy(mode="act"), action(scale), at(1) + timedelta(seconds=2))
    assert (summary.planned, summary.requested, summary.observed) == ({"work": 4}, {"work": 3}, {"work": 2})
    assert (summary.decision, summary.decision_code) == ("work needs 4", "capacity-short")
    assert (summary.action_phase, summary.mode, summary.status) == ("applying", "act", "running")
    assert summary.ages_seconds.planner == 2.0
    assert summary.silent == []


@pytest.mark.parametrize(
    ("interval", "seconds", "silent"),
    [
        (None, 15.0, False),
        ("5s", 15.0, False),
        ("5s", 15.1, True),
        ("2s", 15.0, False),
        ("60s", 180.0, False),
        ("60s", 180.1, True),
    ],
)
def test_silence_is_three_intervals(interval: str | None, seconds: float, silent: bool) -> None:
    """And at least 15 s: exactly at the limit it still counts as heard of."""
    written = None if interval is None else policy(interval=interval)
    summary = summarise(after(observation(0)), written, None, NOON + timedelta(seconds=seconds))
    assert ("monitor" in summary.silent) is silent
    assert "planner" in summary.silent


def test_a_summary_is_made_of_the_newest_messages_alone() -> None:
    """Whatever order they come in, and also where an older one comes late."""
    end = outcome(plan(2, 4), "verified")
    newest = [observation(3), analysis(3), plan(3), end]
    older = [observation(1), analysis(1), plan(1, 4)]
    expected = after(*newest).glance
    assert expected.outcome == (end.code, end.sentence)
    assert expected.decision == newest[2].sentence  # type: ignore[union-attr]
    for order in itertools.permutations([*newest, *older[:1]]):
        assert after(*order).glance == expected
    assert after(*older, start=after(*newest)).glance == expected


WEB = {"kind": "Deployment", "name": "web"}


@pytest.mark.parametrize(
    ("other", "target", "is_taken"),
    [
        ("shop/b", WEB, True),
        ("shop/b", {**WEB, "apiVersion": "apps/v1"}, True),
        ("pay/b", {**WEB, "namespace": "shop"}, True),
        ("shop/b", {"workloads": [{"kind": "StatefulSet", "name": "db"}, {**WEB, "inputs": ["db"]}]}, True),
        ("pay/b", WEB, False),
        ("shop/b", {**WEB, "kind": "StatefulSet"}, False),
    ],
)
def test_a_workload_belongs_to_one_policy(other: str, target: dict[str, object], is_taken: bool) -> None:
    """Whatever way a policy names it."""
    first = policy("shop/a", target={"kubernetes": WEB})
    second = policy(other, target={"kubernetes": target})
    assert (rival(claims(second.subject), {"shop/a": claims(first.subject)}) == "shop/a") is is_taken


def test_a_flink_jobs_pods_and_a_service_are_rivals() -> None:
    """One would scale the other's TaskManagers."""
    job = {"flink": {"url": "http://jm:8081", "job": "a"}}
    target = Target.model_validate({"kubernetes": WEB})
    first = Subject("shop/a", Application.model_validate(job), target, Signals())
    second = policy("shop/b", target={"kubernetes": {**WEB, "apiVersion": "apps/v1"}})
    assert rival(claims(second.subject), {"shop/a": claims(first)}) == "shop/a"


@pytest.mark.parametrize(
    ("application", "servers", "is_taken"),
    [
        ({"consumerGroup": {"groupId": "orders"}}, "KAFKA-1:9092,kafka-0:9092", True),
        ({"kafkaStreams": {"applicationId": "other"}}, "kafka-0:9092", False),
        ({"kafkaStreams": {"applicationId": "orders"}}, "elsewhere:9092", False),
    ],
)
def test_a_group_belongs_to_one_policy(application: dict[str, object], servers: str, is_taken: bool) -> None:
    """An application id that two policies share is refused, however they name its brokers."""

    def subject(name: str, runs: dict[str, object], brokers: str) -> Subject:
        target = Target.model_validate({"kubernetes": {**WEB, "name": name}})
        signals = Signals.model_validate({"kafka": {"bootstrapServers": brokers}})
        return Subject(f"shop/{name}", Application.model_validate(runs), target, signals)

    first = subject("a", {"kafkaStreams": {"applicationId": "orders"}}, "kafka-1:9092")
    found = rival(claims(subject("b", application, servers)), {"shop/a": claims(first)})
    assert (found == "shop/a") is is_taken

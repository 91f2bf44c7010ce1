"""Shadows: simulated applications with their own planners, and their scores in retrospect."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from weir_contracts import (
    CandidateScore,
    Observation,
    PartitionReading,
    PlanReply,
    PlanRequest,
    Shadows,
    Slots,
    observation_id,
)

from services.planner.core.shadows import begin, finish, has_shadows
from tests.effort import examples
from tests.unit.planner.build import (
    APP,
    SOURCE,
    WORK,
    action,
    after,
    analysis,
    deployment,
    outcome,
    policy,
    request,
    scale,
    topology,
)

HOLD = PlanReply(kind="hold", code="objective-held", sentence="as it should be")
BOLD: list[dict[str, Any]] = [{"name": "rate", "label": "bold", "parameters": {"target_utilization": 0.5}}]


def vector(work: int) -> dict[str, int]:
    return {SOURCE: 1, WORK: work}


def question(
    seconds: float, *, shadows: list[dict[str, Any]] | None = None, spec: Any = None, **of: Any
) -> PlanRequest:
    """Return a request for the real application, `seconds` after noon."""
    changes = {name: of.pop(name) for name in ("outcomes", "quarantine", "observations") if name in of}
    the_policy = policy(shadows=BOLD if shadows is None else shadows, **(spec or {}))
    found = analysis(at=after(seconds), the_policy=the_policy, **of)
    return request(found, now=after(seconds), **changes)


class Simulation:
    """A sequence of cycles; the reply of each label is `wanted`, else a hold."""

    def __init__(self) -> None:
        self.shadows: Shadows | None = None
        self.requests: dict[str, PlanRequest] = {}

    def cycle(self, seconds: float, wanted: Mapping[str, Mapping[str, int]] = {}, **of: Any) -> Shadows:
        plan_request = question(seconds, **of)
        moved, asks = begin(self.shadows, plan_request)
        assert moved is not None
        self.requests = {ask.label: ask.request for ask in asks}
        answers = [(ask, scale(wanted[ask.label]) if ask.label in wanted else HOLD) for ask in asks]
        self.shadows = finish(moved, answers)
        return self.shadows

    def candidate(self, label: str) -> Any:
        assert self.shadows is not None
        return next(c for c in self.shadows.candidates if c.label == label)

    def score(self, label: str) -> CandidateScore:
        assert self.shadows is not None
        return next(s for s in self.shadows.hours[-1].scores if s.label == label)


def test_only_where_a_policy_lists_them() -> None:
    """Not while the policy is paused."""
    assert has_shadows(question(0))
    assert not has_shadows(question(0, shadows=[]))
    assert not has_shadows(question(0, spec={"mode": "paused"}))


def test_simulations_start_from_the_application() -> None:
    """The chosen planner, the shadow and the real application; both planners are called with their own parameters."""
    simulation = Simulation()
    simulation.cycle(0, backlog=100, lag_seconds=0.5)
    assert simulation.shadows is not None
    assert [(c.label, c.role) for c in simulation.shadows.candidates] == [
        ("rate", "chosen"),
        ("bold", "shadow"),
        ("observed", "observed"),
    ]
    assert all(dict(c.parallelism) == vector(2) for c in simulation.shadows.candidates)
    assert {
        label: plan_request.policy.spec.planner.parameters for label, plan_request in simulation.requests.items()
    } == {
        "rate": {},
        "bold": {"target_utilization": 0.5},
    }
    source = simulation.requests["bold"].analysis.sources[0]
    assert (source.lag_records.value, source.lag_seconds.value) == (100, 0.5)


def test_a_simulated_application_follows_its_own_decisions() -> None:
    """800/s arrive. The shadow scales to 4: it stops for 4 s, then does 1,907/s. The real application stays at 2."""
    simulation = Simulation()
    simulation.cycle(0, {"bold": vector(4)})
    simulation.cycle(5)
    bold = simulation.requests["bold"]
    assert bold.deployment is not None
    assert dict(bold.deployment.observed) == vector(4)
    assert bold.analysis.sources[0].lag_records.value == pytest.approx(800 * 4 + 0.5 * 800 + 800 - 2000, rel=0.05)
    assert bold.analysis.has("warming-up")
    assert simulation.requests["rate"].analysis.sources[0].lag_records.value == 0
    simulation.cycle(10)
    assert simulation.requests["bold"].analysis.sources[0].lag_records.value == 0
    work = simulation.requests["bold"].analysis.operator(WORK)
    assert work is not None
    assert (work.parallelism, work.true_processing_rate.value) == (4, pytest.approx(1907, abs=1))
    assert work.utilization.value is not None


def test_records_are_conserved() -> None:
    """Arrived + waiting before = processed + waiting after, through an overload of a minute."""
    simulation = Simulation()
    simulation.cycle(0, arrivals=1500)
    for i in range(1, 13):
        simulation.cycle(5 * i, arrivals=1500)
    assert simulation.candidate("bold").backlogs[SOURCE].records == pytest.approx(60 * 500, rel=0.01)
    # The oldest waiting record arrived when 1,000/s · 60 s had arrived.
    assert simulation.candidate("bold").backlogs[SOURCE].age_seconds == pytest.approx(60 - 60_000 / 1500, rel=0.05)


def test_a_restart_in_flight_delays_the_next() -> None:
    """The guards get the simulated actions only: no second one while the first is in flight."""
    simulation = Simulation()
    simulation.cycle(0, {"bold": vector(4)}, restart_seconds=8.0)
    simulation.cycle(5, {"bold": vector(6)}, restart_seconds=8.0)
    assert dict(simulation.candidate("bold").parallelism) == vector(4)
    newest = simulation.requests["bold"].outcomes[0].newest_action
    assert newest is not None
    assert (newest.phase, dict(newest.wanted)) == ("applying", vector(4))
    assert simulation.requests["rate"].outcomes == []
    simulation.cycle(10, {"bold": vector(6)}, restart_seconds=8.0)
    assert dict(simulation.candidate("bold").parallelism) == vector(6)
    assert simulation.score("bold").rescales == 2


def test_real_actions_do_not_affect_the_simulation() -> None:
    """The real action, its rollback and its quarantine are left out; the restart times are passed on."""
    real = outcome(action("rolled-back", before=vector(2), wanted=vector(4)), restarts_seconds=[7.0, 7.0])
    simulation = Simulation()
    simulation.cycle(0, outcomes=[real])
    about = simulation.requests["bold"]
    assert about.quarantine == []
    assert [o.newest_action for o in about.outcomes] == [None]
    assert list(about.outcomes[0].restarts_seconds) == [7.0, 7.0]


def test_the_guards_count_simulated_actions() -> None:
    """One action an hour is allowed and the real application has used it: the simulated one still grows once, with its
    own history for budget, reversals and growth without effect."""
    behavior = {**policy().to_document()["spec"]["behavior"], "maxActionsPerHour": 1}
    real = outcome(
        action("verified", before=vector(2), wanted=vector(4), requested_at=after(-55), running_at=after(-50))
    )
    simulation = Simulation()
    for seconds, wanted in ((0, 4), (10, 4), (20, 4), (30, 6)):
        simulation.cycle(seconds, {"bold": vector(wanted)}, outcomes=[real], spec={"behavior": behavior})
        assert dict(simulation.candidate("bold").parallelism) == vector(4)
    [done] = simulation.candidate("bold").state.actions
    assert (done.id, done.after) == (simulation.candidate("bold").rescales[0].id, {WORK: 4})
    assert simulation.candidate("rate").state.actions == []


def test_slots_follow_the_simulated_parallelism() -> None:
    """20 are free while the real application holds 2: a simulated one of 4 has 18."""
    simulation = Simulation()
    simulation.cycle(0, {"bold": vector(4)})
    simulation.cycle(5)
    slots = simulation.requests["bold"].deployment.slots if simulation.requests["bold"].deployment else None
    assert slots == Slots(total=32, available=18)


def scrape(seconds: float, end: int) -> Observation:
    """Return two partitions of the real application: read to the end, committed up to 50 records before it."""
    partitions = [
        PartitionReading(
            operator=SOURCE,
            topic="orders",
            partition=i,
            log_end_offset=end,
            current_offset=end,
            committed_offset=end - 50,
            next_record_offset=end,
        )
        for i in range(2)
    ]
    return Observation(
        id=observation_id(APP, after(seconds)),
        application=APP,
        observed_at=after(seconds),
        policy=policy(),
        status="running",
        partitions=partitions,
    )


def test_raw_observations_are_simulated() -> None:
    """`keda-kafka` reads offsets. 1,500/s arrive, 1,000/s are processed: after 10 s 5,000 wait, half in each partition;
    counters grow by the processed records."""
    shadows = [{"name": "keda-kafka"}]
    simulation, scrapes = Simulation(), [scrape(5 * i, 100_000 + 3750 * i) for i in range(3)]
    for i in range(3):
        simulation.cycle(5 * i, arrivals=1500, shadows=shadows, observations=scrapes[: i + 1])
    about = simulation.requests["keda-kafka"].observations
    assert [o.observed_at for o in about] == [after(5), after(10)]
    assert [p.current_offset for p in about[-1].partitions] == [pytest.approx(107_500 - 2500, abs=2)] * 2
    assert [p.committed_offset for p in about[-1].partitions] == [pytest.approx(107_500 - 2550, abs=2)] * 2
    assert {p.next_record_offset for p in about[-1].partitions} == {None}, "looked up at the real position"
    work = next(o for o in about[-1].operators if o.operator == WORK)
    assert (work.parallelism, work.records_in) == (2, pytest.approx(10_000, rel=0.01))
    assert work.busy_ms == pytest.approx(2 * 10_000, rel=0.01)
    # A planner that does not read them gets none.
    assert simulation.requests["rate"].observations == []


def test_each_planner_has_its_own_memory() -> None:
    """A planner's memory is only in its own next request."""
    simulation = Simulation()
    plan_request = question(0)
    moved, asks = begin(None, plan_request)
    assert moved is not None
    replies = [(ask, HOLD.model_copy(update={"memory": {"of": ask.label}})) for ask in asks]
    simulation.shadows = finish(moved, replies)
    simulation.cycle(5)
    assert {label: about.memory for label, about in simulation.requests.items()} == {
        "rate": {"of": "rate"},
        "bold": {"of": "bold"},
    }


@pytest.mark.parametrize(
    "lost",
    [
        {"arrivals": None},
        {"backlog": None},
        {"topology": None},
        {"deployment": None},
        {"status": "unreachable"},
        {"deployment": deployment(vector(2), state="FAILED")},
    ],
)
def test_unknown_inputs_stop_the_simulation(lost: dict[str, Any]) -> None:
    """Likewise after the job's end: the simulation does not change, and the time is in no score."""
    simulation = Simulation()
    before = simulation.cycle(0)
    assert begin(before, question(5, **lost)) == (before, [])


def test_an_unknown_capacity_pauses_a_simulated_application() -> None:
    """Fewer subtasks than run, of unknown capacity: no guess; it continues once the capacity is measured."""
    simulation = Simulation()
    simulation.cycle(0, {"bold": vector(1)}, arrivals=400)
    about = simulation.score("bold").simulated_seconds
    simulation.cycle(5, arrivals=400, per_subtask=None)
    assert "bold" not in simulation.requests
    assert simulation.score("bold").simulated_seconds == about
    simulation.cycle(10, arrivals=400)
    assert simulation.score("bold").simulated_seconds == about + 5


def test_a_gap_is_not_simulated() -> None:
    """No analysis for a minute: the simulation continues from its state, and the minute does not count."""
    simulation = Simulation()
    simulation.cycle(0, {"bold": vector(4)})
    simulation.cycle(5)
    simulation.cycle(65)
    assert simulation.score("bold").simulated_seconds == 5
    assert dict(simulation.candidate("bold").parallelism) == vector(4)


@pytest.mark.parametrize(
    ("seconds", "changes"),
    [
        (1000, {}),
        (10, {"shadows": [{**BOLD[0], "parameters": {"target_utilization": 0.6}}]}),
        (10, {"deployment": deployment(vector(2), job_id="c" * 32)}),
        (10, {"graph": topology(keyed=True), "deployment": deployment(vector(2), graph_hash="other")}),
    ],
)
def test_another_job_or_parameter_restarts_the_simulation(seconds: float, changes: dict[str, Any]) -> None:
    """After ten minutes of silence, new parameters, another job or graph: from the real application; sums stay."""
    simulation = Simulation()
    simulation.cycle(0, {"bold": vector(4)})
    simulation.cycle(5)
    before = simulation.score("bold").slot_seconds
    simulation.cycle(seconds, **changes)
    assert dict(simulation.candidate("bold").parallelism) == vector(2)
    assert simulation.shadows is not None
    kept = [s.slot_seconds for hour in simulation.shadows.hours for s in hour.scores if s.label == "bold"]
    assert before in kept


def test_a_replay_changes_nothing() -> None:
    """The same analysis again or an older one is skipped."""
    simulation = Simulation()
    simulation.cycle(0)
    now = simulation.cycle(5)
    assert begin(now, question(5)) == (now, [])
    assert begin(now, question(3)) == (now, [])


# -- scores ----------------------------------------------------------------------------------------------------------


def test_scoring_uses_the_demand_found_later() -> None:
    """1,700/s need 4 subtasks of 500/s and a source. `work` stays at 2 for three minutes: two of five are missing;
    scores end two minutes ago."""
    simulation = Simulation()
    for i in range(37):
        simulation.cycle(5 * i, arrivals=1700)
    score = simulation.score("bold")
    assert score.judged_seconds == 60
    assert score.short == pytest.approx(60 * 2 / 5)
    assert (score.short_seconds, score.spare_seconds) == (60, 0)
    assert score.needed_slot_seconds == 4 * 60


def test_overprovisioning_is_counted_in_slots() -> None:
    """800/s need 2 and it scaled to 4 at once: twice the slots in all the time scored."""
    simulation = Simulation()
    simulation.cycle(0, {"bold": vector(4)})
    for i in range(1, 37):
        simulation.cycle(5 * i)
    score = simulation.score("bold")
    assert score.spare == pytest.approx(score.judged_seconds)
    assert score.spare_seconds == score.judged_seconds == 60
    assert (score.short, score.slot_seconds) == (0, 4 * 180)


def test_capacities_measured_later_score_earlier_cycles() -> None:
    """A subtask first measures 500/s and a minute later 1,000/s: 2 were enough for 1,700/s."""
    simulation = Simulation()
    for i in range(37):
        simulation.cycle(5 * i, arrivals=1700, per_subtask=500 if i < 12 else 1000)
    assert simulation.score("observed").short_seconds == 0


def test_noise_is_no_demand() -> None:
    """Arrivals vary around 1,000/s from scrape to scrape, the demand does not: a steady vector is not unstable."""
    simulation = Simulation()
    for i in range(60):
        simulation.cycle(5 * i, arrivals=980 + 60 * (i % 2), per_subtask=520)
    assert simulation.score("bold").unstable_seconds <= 10


def test_moving_unlike_the_demand_is_unstable() -> None:
    """The demand is constant, the simulated parallelism goes up and down."""
    simulation = Simulation()
    for i in range(60):
        simulation.cycle(5 * i, {"bold": vector(4 if i % 12 < 6 else 2)})
    assert simulation.score("bold").unstable_seconds > 0
    assert simulation.score("rate").unstable_seconds == 0


def test_the_objective_defines_a_violation() -> None:
    """1,500/s on 2 subtasks: the lag exceeds 30 s after about 90 s. An objective of 70 % is violated at once."""
    simulation = Simulation()
    for i in range(25):
        simulation.cycle(5 * i, arrivals=1500)
    assert simulation.score("bold").violation_seconds == pytest.approx(30, abs=3)
    tight = Simulation()
    for i in range(3):
        tight.cycle(5 * i, spec={"objective": {"utilization": 0.7}})
    assert tight.score("bold").violation_seconds == 10


def test_the_real_application_is_scored() -> None:
    """With its measured parallelism, rescales and lag."""
    simulation = Simulation()
    simulation.cycle(0)
    simulation.cycle(5, lag_seconds=45.0)
    simulation.cycle(10, work=3)
    score = simulation.score("observed")
    assert (score.simulated_seconds, score.violation_seconds, score.rescales) == (10, 5, 1)
    assert score.slot_seconds == 20


def test_the_simulation_is_compared_with_the_real_application() -> None:
    """Both run 2 subtasks at 80 % without lag: no error. A real lag of half the objective, without a simulated one, is
    an error of a sixth."""
    simulation = Simulation()
    simulation.cycle(0)
    simulation.cycle(5)
    assert (simulation.score("rate").compared_seconds, simulation.score("rate").error) == (
        5,
        pytest.approx(0, abs=0.01),
    )
    simulation.cycle(10, lag_seconds=15.0)
    assert simulation.score("rate").error == pytest.approx(5 / 6, rel=0.05)
    assert simulation.score("bold").compared_seconds == 0


def test_in_mode_advise_comparison_ends_when_the_vectors_differ() -> None:
    """In mode advise no plan is applied: once the simulated vector differs, the two are not comparable."""
    simulation = Simulation()
    simulation.cycle(0, spec={"mode": "advise"})
    simulation.cycle(5, {"rate": vector(4)}, spec={"mode": "advise"})
    simulation.cycle(10, spec={"mode": "advise"})
    assert simulation.score("rate").compared_seconds == 5


@pytest.mark.parametrize("code", ["planner-timeout", "planner-failed", "planner-invalid"])
def test_a_missing_reply_is_counted(code: str) -> None:
    """It is a hold and is counted."""
    moved, asks = begin(None, question(0))
    assert moved is not None
    reply = PlanReply(kind="hold", code=code, sentence="it said nothing")
    done = finish(moved, [(ask, reply if ask.label == "bold" else HOLD) for ask in asks])
    assert {s.label: (s.unanswered, s.cycles) for s in done.hours[0].scores} == {
        "rate": (0, 1),
        "bold": (1, 1),
        "observed": (0, 0),
    }


def test_a_reply_that_misses_an_operator_is_unanswered() -> None:
    """The check is the guards'."""
    moved, asks = begin(None, question(0))
    assert moved is not None
    done = finish(moved, [(asks[1], scale({WORK: 4}))])
    assert next(s for s in done.hours[0].scores if s.label == "bold").unanswered == 1


def test_two_hours_are_published() -> None:
    """Each hour has its own sums; the knowledge service keeps earlier hours."""
    simulation = Simulation()
    for seconds in (0, 5, 3600, 3605, 7200, 7205):
        simulation.cycle(seconds)
    assert simulation.shadows is not None
    assert [hour.hour for hour in simulation.shadows.hours] == [after(3600), after(7200)]


@pytest.mark.thorough
def test_the_message_stays_small() -> None:
    """Five shadows at an interval of 4 s that rescale all the time: below 60 kB and no longer growing."""
    shadows = [{"name": "rate", "label": f"r{i}", "parameters": {"drain_seconds": 10.0 + i}} for i in range(5)]
    simulation, sizes = Simulation(), []
    for i in range(65):
        wanted = {f"r{j}": vector(2 + (i // 3 + j) % 6) for j in range(5)}
        message = simulation.cycle(4 * i, wanted, shadows=shadows, restart_seconds=1.0, spec={"interval": "4s"})
        sizes.append(len(message.model_dump_json()))
    assert sizes[-1] < 60_000
    assert sizes[-1] < 1.15 * sizes[-25]


RATES = st.floats(0, 1e7, allow_nan=False)


@examples(30)
@given(
    cycles=st.lists(
        st.tuples(
            st.floats(0.5, 20),
            RATES,
            st.one_of(st.none(), st.floats(0.1, 1e6)),
            st.integers(1, 12),
            st.one_of(st.none(), st.integers(1, 12)),
        ),
        min_size=2,
        max_size=12,
    )
)
def test_any_inputs_give_a_readable_message(
    cycles: list[tuple[float, float, float | None, int, int | None]],
) -> None:
    """Any arrivals, capacities, parallelism and recommendations: finite numbers of at least 0, and no error."""
    shadows, at = None, 0.0
    for seconds, arrivals, per_subtask, work, recommended in cycles:
        at += seconds
        shadows, asks = begin(shadows, question(at, arrivals=arrivals, per_subtask=per_subtask, work=work))
        if shadows is not None:
            shadows = finish(
                shadows, [(ask, HOLD if recommended is None else scale(vector(recommended))) for ask in asks]
            )
    assert shadows is not None
    again = Shadows.model_validate_json(shadows.model_dump_json())
    for score in again.hours[-1].scores:
        assert score.short_seconds <= score.judged_seconds + 0.01
        assert score.violation_seconds <= score.simulated_seconds + 0.01

"""Shadows: simulated copies that live by their own planners, and what is found out of it afterwards."""

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
    """The real application, `seconds` after noon."""
    changes = {name: of.pop(name) for name in ("outcomes", "quarantine", "observations") if name in of}
    the_policy = policy(shadows=BOLD if shadows is None else shadows, **(spec or {}))
    found = analysis(at=after(seconds), the_policy=the_policy, **of)
    return request(found, now=after(seconds), **changes)


class Life:
    """Turn after turn; the answers are `wanted` of each label, else a hold."""

    def __init__(self) -> None:
        self.shadows: Shadows | None = None
        self.asked: dict[str, PlanRequest] = {}

    def turn(self, seconds: float, wanted: Mapping[str, Mapping[str, int]] = {}, **of: Any) -> Shadows:
        asked = question(seconds, **of)
        moved, asks = begin(self.shadows, asked)
        assert moved is not None
        self.asked = {ask.label: ask.request for ask in asks}
        answers = [(ask, scale(wanted[ask.label]) if ask.label in wanted else HOLD) for ask in asks]
        self.shadows = finish(moved, answers)
        return self.shadows

    def copy(self, label: str) -> Any:
        assert self.shadows is not None
        return next(c for c in self.shadows.candidates if c.label == label)

    def score(self, label: str) -> CandidateScore:
        assert self.shadows is not None
        return next(s for s in self.shadows.hours[-1].scores if s.label == label)


def test_only_where_a_policy_lists_them() -> None:
    """And not while it is paused."""
    assert has_shadows(question(0))
    assert not has_shadows(question(0, shadows=[]))
    assert not has_shadows(question(0, spec={"mode": "paused"}))


def test_all_begin_where_the_application_is() -> None:
    """The chosen planner, the shadow and what really runs; both planners are asked, with their own parameters."""
    life = Life()
    life.turn(0, backlog=100, lag_seconds=0.5)
    assert life.shadows is not None
    assert [(c.label, c.role) for c in life.shadows.candidates] == [
        ("rate", "chosen"),
        ("bold", "shadow"),
        ("observed", "observed"),
    ]
    assert all(dict(c.parallelism) == vector(2) for c in life.shadows.candidates)
    assert {label: asked.policy.spec.planner.parameters for label, asked in life.asked.items()} == {
        "rate": {},
        "bold": {"target_utilization": 0.5},
    }
    source = life.asked["bold"].analysis.sources[0]
    assert (source.lag_records.value, source.lag_seconds.value) == (100, 0.5)


def test_a_copy_lives_by_its_own_decisions() -> None:
    """800/s arrive. The shadow goes to 4: for 4 s its copy takes nothing in, then it works off 2,000/s. The real one stays at 2."""
    life = Life()
    life.turn(0, {"bold": vector(4)})
    life.turn(5)
    bold = life.asked["bold"]
    assert bold.deployment is not None
    assert dict(bold.deployment.observed) == vector(4)
    assert bold.analysis.sources[0].lag_records.value == pytest.approx(800 * 4 + 0.5 * 800 + 800 - 2000, rel=0.05)
    assert bold.analysis.has("warming-up")
    assert life.asked["rate"].analysis.sources[0].lag_records.value == 0
    life.turn(10)
    assert life.asked["bold"].analysis.sources[0].lag_records.value == 0
    work = life.asked["bold"].analysis.operator(WORK)
    assert work is not None
    assert (work.parallelism, work.true_processing_rate.value) == (4, 2000)
    assert work.utilization.value is not None


def test_work_is_neither_lost_nor_made() -> None:
    """Arrived + waiting before = taken in + waiting after, through an overload of a minute."""
    life = Life()
    life.turn(0, arrivals=1500)
    for i in range(1, 13):
        life.turn(5 * i, arrivals=1500)
    assert life.copy("bold").backlogs[SOURCE].records == pytest.approx(60 * 500, rel=0.01)
    # Who waits longest came when 1,000/s · 60 s had been taken in.
    assert life.copy("bold").backlogs[SOURCE].age_seconds == pytest.approx(60 - 60_000 / 1500, rel=0.05)


def test_a_restart_in_flight_holds_the_next_back() -> None:
    """The guards know the copy's own actions: no second one while the first is under way, and none of the real application's."""
    life = Life()
    life.turn(0, {"bold": vector(4)}, restart_seconds=8.0)
    life.turn(5, {"bold": vector(6)}, restart_seconds=8.0)
    assert dict(life.copy("bold").parallelism) == vector(4)
    newest = life.asked["bold"].outcomes[0].newest_action
    assert newest is not None
    assert (newest.phase, dict(newest.wanted)) == ("applying", vector(4))
    assert life.asked["rate"].outcomes == []
    life.turn(10, {"bold": vector(6)}, restart_seconds=8.0)
    assert dict(life.copy("bold").parallelism) == vector(6)
    assert life.score("bold").rescales == 2


def test_what_really_happened_to_the_application_is_not_the_copys() -> None:
    """The real action, its rollback and its quarantine stay out; what a restart takes is told."""
    real = outcome(action("rolled-back", before=vector(2), wanted=vector(4)), restarts_seconds=[7.0, 7.0])
    life = Life()
    life.turn(0, outcomes=[real])
    seen = life.asked["bold"]
    assert seen.quarantine == []
    assert [o.newest_action for o in seen.outcomes] == [None]
    assert list(seen.outcomes[0].restarts_seconds) == [7.0, 7.0]


def test_the_guards_count_the_copys_own_actions() -> None:
    """One action an hour is allowed, and the real application had it: the copy grows all the same, once. What the guards look back on
    (budget, reversals, growth without effect) is the copy's past."""
    behavior = {**policy().to_document()["spec"]["behavior"], "maxActionsPerHour": 1}
    real = outcome(
        action("verified", before=vector(2), wanted=vector(4), requested_at=after(-55), running_at=after(-50))
    )
    life = Life()
    for seconds, wanted in ((0, 4), (10, 4), (20, 4), (30, 6)):
        life.turn(seconds, {"bold": vector(wanted)}, outcomes=[real], spec={"behavior": behavior})
        assert dict(life.copy("bold").parallelism) == vector(4)
    [done] = life.copy("bold").state.actions
    assert (done.id, done.after) == (life.copy("bold").rescales[0].id, {WORK: 4})
    assert life.copy("rate").state.actions == []


def test_the_slots_are_those_the_copy_would_find() -> None:
    """20 are free while the real one holds 2: a copy of 4 finds 18."""
    life = Life()
    life.turn(0, {"bold": vector(4)})
    life.turn(5)
    slots = life.asked["bold"].deployment.slots if life.asked["bold"].deployment else None
    assert slots == Slots(total=32, available=18)


def scrape(seconds: float, end: int) -> Observation:
    """Two partitions of the real application, which has read all and committed it 50 records ago."""
    partitions = [
        PartitionReading(
            operator=SOURCE,
            topic="orders",
            partition=i,
            log_end_offset=end,
            current_offset=end,
            committed_offset=end - 50,
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


def test_raw_readings_are_the_copys_too() -> None:
    """`keda-kafka` reads offsets. 1,500/s arrive at 1,000/s of the copy: after 10 s 5,000 wait, half of them in each partition, and
    it is told so in the broker's own numbers; counters grow by what the copy took in."""
    shadows = [{"name": "keda-kafka"}]
    life, scrapes = Life(), [scrape(5 * i, 100_000 + 3750 * i) for i in range(3)]
    for i in range(3):
        life.turn(5 * i, arrivals=1500, shadows=shadows, observations=scrapes[: i + 1])
    seen = life.asked["keda-kafka"].observations
    assert [o.observed_at for o in seen] == [after(5), after(10)]
    assert [p.current_offset for p in seen[-1].partitions] == [pytest.approx(107_500 - 2500, abs=2)] * 2
    assert [p.committed_offset for p in seen[-1].partitions] == [pytest.approx(107_500 - 2550, abs=2)] * 2
    work = next(o for o in seen[-1].operators if o.operator == WORK)
    assert (work.parallelism, work.records_in) == (2, pytest.approx(10_000, rel=0.01))
    assert work.busy_ms == pytest.approx(2 * 10_000, rel=0.01)
    # Who does not look at them is sent none.
    assert life.asked["rate"].observations == []


def test_memory_is_each_copys_own() -> None:
    """What a planner hands back comes with its next request, and with no other."""
    life = Life()
    asked = question(0)
    moved, asks = begin(None, asked)
    assert moved is not None
    replies = [(ask, HOLD.model_copy(update={"memory": {"of": ask.label}})) for ask in asks]
    life.shadows = finish(moved, replies)
    life.turn(5)
    assert {label: seen.memory for label, seen in life.asked.items()} == {
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
def test_on_what_is_unknown_nothing_is_simulated(lost: dict[str, Any]) -> None:
    """Nor where the job has ended: the copies stay as they are, and the time is in nobody's score."""
    life = Life()
    before = life.turn(0)
    assert begin(before, question(5, **lost)) == (before, [])


def test_where_a_capacity_is_unknown_a_copy_stands_still() -> None:
    """Fewer subtasks than really run, of which nobody knows what they do: no guess; it goes on once it is known."""
    life = Life()
    life.turn(0, {"bold": vector(1)}, arrivals=400)
    seen = life.score("bold").simulated_seconds
    life.turn(5, arrivals=400, per_subtask=None)
    assert "bold" not in life.asked
    assert life.score("bold").simulated_seconds == seen
    life.turn(10, arrivals=400)
    assert life.score("bold").simulated_seconds == seen + 5


def test_a_gap_is_not_simulated() -> None:
    """Nothing was heard for a minute: the copies go on from where they were, and the minute does not count."""
    life = Life()
    life.turn(0, {"bold": vector(4)})
    life.turn(5)
    life.turn(65)
    assert life.score("bold").simulated_seconds == 5
    assert dict(life.copy("bold").parallelism) == vector(4)


@pytest.mark.parametrize(
    ("seconds", "changes"),
    [
        (1000, {}),
        (10, {"shadows": [{**BOLD[0], "parameters": {"target_utilization": 0.6}}]}),
        (10, {"deployment": deployment(vector(2), job_id="c" * 32)}),
        (10, {"graph": topology(keyed=True), "deployment": deployment(vector(2), graph_hash="other")}),
    ],
)
def test_what_is_another_begins_anew(seconds: float, changes: dict[str, Any]) -> None:
    """After ten minutes of silence, with other parameters, for another job or another graph: from the real application; sums stay."""
    life = Life()
    life.turn(0, {"bold": vector(4)})
    life.turn(5)
    before = life.score("bold").slot_seconds
    life.turn(seconds, **changes)
    assert dict(life.copy("bold").parallelism) == vector(2)
    assert life.shadows is not None
    kept = [s.slot_seconds for hour in life.shadows.hours for s in hour.scores if s.label == "bold"]
    assert before in kept


def test_a_replay_changes_nothing() -> None:
    """The same analysis again, or an older one."""
    life = Life()
    life.turn(0)
    now = life.turn(5)
    assert begin(now, question(5)) == (now, [])
    assert begin(now, question(3)) == (now, [])


# -- scores -------------------------------------------------------------------------------------------------------------


def test_what_was_needed_is_known_afterwards() -> None:
    """1,700/s need 4 subtasks of 500 and a source. For three minutes the copy holds at 2: two of five were missing all the time, and
    it is judged only up to two minutes ago."""
    life = Life()
    for i in range(37):
        life.turn(5 * i, arrivals=1700)
    score = life.score("bold")
    assert score.judged_seconds == 60
    assert score.short == pytest.approx(60 * 2 / 5)
    assert (score.short_seconds, score.spare_seconds) == (60, 0)
    assert score.needed_slot_seconds == 4 * 60


def test_too_much_is_counted_in_slots() -> None:
    """800/s need 2; the copy went to 4 at once: twice the slots, all the time that was judged."""
    life = Life()
    life.turn(0, {"bold": vector(4)})
    for i in range(1, 37):
        life.turn(5 * i)
    score = life.score("bold")
    assert score.spare == pytest.approx(score.judged_seconds)
    assert score.spare_seconds == score.judged_seconds == 60
    assert (score.short, score.slot_seconds) == (0, 4 * 180)


def test_capacities_known_later_judge_what_was_before() -> None:
    """At first a subtask seems to do 500/s; a minute later it turns out to do 1,000: 2 of them were enough for 1,700/s."""
    life = Life()
    for i in range(37):
        life.turn(5 * i, arrivals=1700, per_subtask=500 if i < 12 else 1000)
    assert life.score("observed").short_seconds == 0


def test_noise_is_no_demand() -> None:
    """Arrivals jump about 1,000/s from scrape to scrape: what is needed does not, so a steady copy is not unstable."""
    life = Life()
    for i in range(60):
        life.turn(5 * i, arrivals=980 + 60 * (i % 2), per_subtask=520)
    assert life.score("bold").unstable_seconds <= 10


def test_moving_unlike_the_demand_is_unstable() -> None:
    """The demand stands still, the copy goes up and down."""
    life = Life()
    for i in range(60):
        life.turn(5 * i, {"bold": vector(4 if i % 12 < 6 else 2)})
    assert life.score("bold").unstable_seconds > 0
    assert life.score("rate").unstable_seconds == 0


def test_late_is_what_the_objective_says() -> None:
    """1,500/s on 2 subtasks: the lag passes 30 s after about 90 s. A utilization objective of 70 % is missed at once."""
    life = Life()
    for i in range(25):
        life.turn(5 * i, arrivals=1500)
    assert life.score("bold").violation_seconds == pytest.approx(30, abs=3)
    tight = Life()
    for i in range(3):
        tight.turn(5 * i, spec={"objective": {"utilization": 0.7}})
    assert tight.score("bold").violation_seconds == 10


def test_what_really_ran_is_watched() -> None:
    """Not simulated: its own parallelism, rescales and lag; without a lag the time does not count."""
    life = Life()
    life.turn(0)
    life.turn(5, lag_seconds=45.0)
    life.turn(10, work=3)
    score = life.score("observed")
    assert (score.simulated_seconds, score.violation_seconds, score.rescales) == (10, 5, 1)
    assert score.slot_seconds == 20


def test_the_simulation_is_held_beside_what_happened() -> None:
    """The chosen planner's copy holds 2 subtasks at 80 % without lag, and so does the application: no error. A lag that the copy does
    not have, of half the objective, is an error of a sixth."""
    life = Life()
    life.turn(0)
    life.turn(5)
    assert (life.score("rate").compared_seconds, life.score("rate").error) == (5, pytest.approx(0, abs=0.01))
    life.turn(10, lag_seconds=15.0)
    assert life.score("rate").error == pytest.approx(5 / 6, rel=0.05)
    assert life.score("bold").compared_seconds == 0


def test_one_that_only_advises_is_compared_while_it_runs_what_is_wanted() -> None:
    """In mode advise nobody carries the plans out: as soon as the copy has gone another way there is nothing to hold it beside."""
    life = Life()
    life.turn(0, spec={"mode": "advise"})
    life.turn(5, {"rate": vector(4)}, spec={"mode": "advise"})
    life.turn(10, spec={"mode": "advise"})
    assert life.score("rate").compared_seconds == 5


@pytest.mark.parametrize("code", ["planner-timeout", "planner-failed", "planner-invalid"])
def test_no_answer_is_counted(code: str) -> None:
    """A hold, as the guards make of it, and a count."""
    moved, asks = begin(None, question(0))
    assert moved is not None
    reply = PlanReply(kind="hold", code=code, sentence="it said nothing")
    done = finish(moved, [(ask, reply if ask.label == "bold" else HOLD) for ask in asks])
    assert {s.label: (s.unanswered, s.turns) for s in done.hours[0].scores} == {
        "rate": (0, 1),
        "bold": (1, 1),
        "observed": (0, 0),
    }


def test_an_answer_that_misses_an_operator_is_none() -> None:
    """The guards' own check."""
    moved, asks = begin(None, question(0))
    assert moved is not None
    done = finish(moved, [(asks[1], scale({WORK: 4}))])
    assert next(s for s in done.hours[0].scores if s.label == "bold").unanswered == 1


def test_two_hours_are_told() -> None:
    """Each hour's sums stand by themselves, and the one before the last is knowledge's."""
    life = Life()
    for seconds in (0, 5, 3600, 3605, 7200, 7205):
        life.turn(seconds)
    assert life.shadows is not None
    assert [hour.hour for hour in life.shadows.hours] == [after(3600), after(7200)]


def test_the_message_stays_small() -> None:
    """Five shadows at an interval of 4 s, each rescaling all the time: some tens of kilobytes, and no longer growing."""
    shadows = [{"name": "rate", "label": f"r{i}", "parameters": {"drain_seconds": 10.0 + i}} for i in range(5)]
    life, sizes = Life(), []
    for i in range(65):
        wanted = {f"r{j}": vector(2 + (i // 3 + j) % 6) for j in range(5)}
        told = life.turn(4 * i, wanted, shadows=shadows, restart_seconds=1.0, spec={"interval": "4s"})
        sizes.append(len(told.model_dump_json()))
    assert sizes[-1] < 60_000
    assert sizes[-1] < 1.15 * sizes[-25]


RATES = st.floats(0, 1e7, allow_nan=False)


@examples(30)
@given(
    turns=st.lists(
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
def test_whatever_comes_the_message_can_be_read(
    turns: list[tuple[float, float, float | None, int, int | None]],
) -> None:
    """Any arrivals, capacities, parallelism and wishes: no number that JSON cannot say, none below 0, and never an error."""
    shadows, at = None, 0.0
    for seconds, arrivals, per_subtask, work, wish in turns:
        at += seconds
        shadows, asks = begin(shadows, question(at, arrivals=arrivals, per_subtask=per_subtask, work=work))
        if shadows is not None:
            shadows = finish(shadows, [(ask, HOLD if wish is None else scale(vector(wish))) for ask in asks])
    assert shadows is not None
    again = Shadows.model_validate_json(shadows.model_dump_json())
    for score in again.hours[-1].scores:
        assert score.short_seconds <= score.judged_seconds + 0.01
        assert score.violation_seconds <= score.simulated_seconds + 0.01

"""The trial's figures and verdict, on hand-made series."""

from testbed.trial.report import ActionRecord, Decision, Sample, closing_lines, judge, load_steps, summary

OBJECTIVE_SECONDS = 30.0
UP = {"enrich": 4}
ONE = {"enrich": 1}


def _sample(t: float, rate: float = 100.0, probe: float | None = 1.0, slots: int | None = 2) -> Sample:
    return Sample(
        t=t,
        target_rate=rate,
        input_rate=rate,
        lag_records=0,
        lag_seconds=0.5,
        probe_lag_seconds=probe,
        parallelism=UP,
        slots=slots,
    )


def _action(requested_at: float, verified_at: float | None = None) -> ActionRecord:
    return ActionRecord(
        plan_id="p",
        requested_at=requested_at,
        running_at=requested_at + 3,
        verified_at=verified_at,
        before=ONE,
        wanted=UP,
        outcome="verified" if verified_at else "verifying",
        sentence="enrich 1 → 4",
    )


DECISION = Decision(plan_id="p", time=1, current=ONE, approved=UP, reason_code="up", sentence="up")


def test_a_step_is_answered_by_the_first_request_after_it_and_over_when_lag_stays_within() -> None:
    """Load triples at 10 s; Flink accepts a rescale at 14 s; lag is above the objective until 30 s."""
    series = [_sample(t, 100 if t < 10 else 300, probe=40 if 14 <= t <= 30 else 2) for t in range(0, 60, 2)]
    (step,) = load_steps(series, [_action(14.0)], OBJECTIVE_SECONDS)
    assert (step.at, step.from_rate, step.to_rate) == (10, 100, 300)
    assert step.reaction_seconds == 4.0
    assert step.recovered_seconds == 22.0


def test_an_unanswered_step_has_no_reaction() -> None:
    """None, not 0: an unanswered step must not look like an instant reaction."""
    series = [_sample(t, 100 if t < 10 else 300, probe=99) for t in range(0, 30, 2)]
    (step,) = load_steps(series, [], OBJECTIVE_SECONDS)
    assert step.reaction_seconds is None
    assert step.recovered_seconds is None


def test_a_ramp_is_one_step() -> None:
    """A rise over several samples counts once, from where it began to where it ended."""
    series = [_sample(0, 100), _sample(2, 150), _sample(4, 220), _sample(6, 300), _sample(8, 300)]
    (step,) = load_steps(series, [], OBJECTIVE_SECONDS)
    assert (step.from_rate, step.to_rate) == (100, 300)


def test_a_missing_probe_reading_counts_as_violated() -> None:
    """A pipeline that delivers nothing is not a healthy one."""
    figures = summary([_sample(0), _sample(2, probe=None), _sample(4, probe=31), _sample(6)], [], OBJECTIVE_SECONDS)
    assert figures["violation_share"] == 0.5
    assert figures["slot_seconds"] == 12.0


def test_a_load_without_results_yet_is_late_once_it_is_older_than_the_objective() -> None:
    """Records take a moment from the topic to the sink; a job that never delivers is late after 30 s all the same."""
    begun = [_sample(0, probe=None), _sample(2, probe=None), *(_sample(t, probe=10) for t in range(4, 60, 2))]
    assert summary(begun, [], OBJECTIVE_SECONDS)["violation_share"] == 0
    never = [_sample(t, probe=None) for t in range(0, 62, 2)]
    assert summary(never, [], OBJECTIVE_SECONDS)["violation_share"] == round(15 / 31, 4)


def test_the_closing_figures_have_names_and_units() -> None:
    """Lag at the sink, slot-hours and rescales, as a user reads them."""
    series = [_sample(t, 100 if t < 10 else 300, probe=31 if t == 20 else 10) for t in range(0, 1802, 2)]
    assert closing_lines(summary(series, [_action(14.0)], OBJECTIVE_SECONDS)) == [
        "lag at the sink: at most 31.0 s, 0.1% of the time above the objective of 30 s",
        "slots: 1.00 slot-hours",
        "rescales: 1, accepted 4.0 s after the load rose",
    ]
    assert closing_lines(summary([], [], OBJECTIVE_SECONDS))[0] == "lag at the sink: no result was seen"


def test_the_verdict_needs_a_verified_rescale_and_a_fresh_end() -> None:
    """Each missing half fails with its own sentence."""
    fresh = [_sample(t) for t in (0, 2, 4)]
    stale = [_sample(0), _sample(2), _sample(4, probe=31)]
    silent = [_sample(0), _sample(2), _sample(4, probe=None)]
    done = [_action(1, verified_at=5)]
    assert judge(fresh, done, [DECISION], OBJECTIVE_SECONDS, "act").passed
    for series, actions, expected in (
        (fresh, [_action(1)], "no rescale was verified"),
        (stale, done, "above the objective"),
        (silent, done, "no results"),
    ):
        answer = judge(series, actions, [DECISION], OBJECTIVE_SECONDS, "act")
        assert not answer.passed
        assert expected in answer.sentence


def test_advice_must_leave_the_job_alone() -> None:
    """An action in mode advise fails the trial, decisions without one pass it."""
    fresh = [_sample(t) for t in (0, 2, 4)]
    assert judge(fresh, [], [DECISION], OBJECTIVE_SECONDS, "advise").passed
    assert not judge(fresh, [_action(1)], [DECISION], OBJECTIVE_SECONDS, "advise").passed
    assert not judge(fresh, [], [], OBJECTIVE_SECONDS, "advise").passed


def test_the_report_has_from_and_to() -> None:
    """Names of the report's file, not of the code."""
    document = _action(1).to_document()
    assert document["from"] == ONE
    assert document["to"] == UP
    assert "before" not in document

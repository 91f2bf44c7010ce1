"""Values that outlive runs: restart times, and the seed of a lost state."""

import pytest

from tests.unit.analyzer.story import Job, Loop
from weir_analyzer.core import AnalyzerState, seed
from weir_contracts import Analysis, Imported, Observation, imported_observation


def imported(learned: dict[str, object], like: Observation) -> Observation:
    """Return the observation of an import at the time of another one."""
    return imported_observation(like.policy, like.observed_at, Imported(learned=learned))


def _rescaled(loop: Loop, p: int, down_seconds: float) -> Analysis:
    """Rescale, scraping every 2 s while it is down."""
    loop.job.status, loop.job.state = "not_running", "RESTARTING"
    for _ in range(round(down_seconds / 2)):
        loop.job.run_for(2)
        loop.see(loop.job.observe())
    loop.job.restart({"enrich": p}, down_seconds=0)
    return loop.watch(2)


def test_a_rescale_teaches_its_downtime() -> None:
    """Down for 8 s, scraped every 2 s: exact to one interval."""
    loop = Loop()
    loop.watch(20)
    analysis = _rescaled(loop, 2, 8)
    assert analysis.restart_times.last_seconds == pytest.approx(8, abs=2)
    assert analysis.restart_times.samples == 1


def test_downtimes_are_smoothed() -> None:
    """The second, longer one moves the estimate half-way."""
    loop = Loop()
    loop.watch(20)
    first = _rescaled(loop, 2, 8).restart_times.seconds
    loop.watch(20)
    times = _rescaled(loop, 3, 16).restart_times
    assert first is not None
    assert times.last_seconds is not None
    assert times.seconds == pytest.approx((first + times.last_seconds) / 2, abs=0.01)


def test_an_outage_is_no_restart_time() -> None:
    """Twenty minutes without slots do not predict the next rescale."""
    loop = Loop(Job(interval=10))
    loop.watch(60)
    loop.job.status = "not_running"
    loop.watch(1200)
    loop.job.restart({}, down_seconds=0)
    assert loop.watch(10).restart_times.seconds is None


def test_a_gap_in_the_observations_is_no_restart_time() -> None:
    """For five minutes the brokers were away, and the job restarted at an unknown time: no measurement of a rescale."""
    loop = Loop()
    loop.watch(20)
    loop.job.run_for(300)
    loop.job.restart({}, down_seconds=2)
    assert loop.watch(20).restart_times.seconds is None


def test_the_first_run_seen_teaches_nothing() -> None:
    """Without an earlier observation there is no downtime."""
    assert Loop().watch(20).restart_times.seconds is None


def test_a_lost_state_is_seeded_from_the_latest_analysis() -> None:
    """Capacities, selectivities and restart times come back; a replay of what was analysed is ignored."""
    loop = Loop()
    loop.watch(60)
    _rescaled(loop, 2, 8)
    last = loop.watch(60)
    replayed = loop.job.observe()
    loop.memory = seed(Analysis.model_validate_json(last.model_dump_json()))
    assert loop.see(replayed) is None
    analysis = loop.watch(4)
    enrich, before = analysis.operator("enrich"), last.operator("enrich")
    assert enrich is not None
    assert before is not None
    assert [(p.parallelism, p.saturated, p.job_id) for p in enrich.capacities] == [
        (p.parallelism, p.saturated, p.job_id) for p in before.capacities
    ]
    assert [p.records_per_second for p in enrich.capacities] == pytest.approx(
        [p.records_per_second for p in before.capacities]
    )
    assert analysis.restart_times == last.restart_times
    assert analysis.edges[0].selectivity.value == pytest.approx(1, rel=0.01)
    assert analysis.dropped_observations == 1


@pytest.mark.parametrize(
    "learned",
    [{}, {"version": 99}, {"version": 1}, {"version": 1, "capacities": {"enrich": [[1, -5.0, 1, True, 1, 0.0, ""]]}}],
)
def test_an_unreadable_seed_keeps_the_time_only(learned: dict[str, object]) -> None:
    """An analysis of another version, or none of ours: start empty, but do not analyse the past again."""
    last = Loop().watch(20)
    memory = seed(last.model_copy(update={"learned": learned}))
    assert memory == AnalyzerState(observed_at=last.observed_at.timestamp())


def test_an_ended_application_is_not_brought_back() -> None:
    """Its last analysis marks its end."""
    loop = Loop()
    loop.watch(20)
    loop.job.run_for(2)
    ended = loop.see(loop.job.observe(status="ended", run=None, operators=[], partitions=[]))
    assert ended is not None
    assert seed(ended) is None


def test_the_learned_part_is_compact() -> None:
    """The learned part of each analysis stays small: a few hundred bytes for three operators."""
    last = Loop().watch(120)
    size = len(str(last.learned))
    assert size < 1000
    assert len(last.model_dump_json()) < 12_000


def test_what_another_weir_learned_counts_at_once() -> None:
    """The job is the same: its capacities, selectivities and restart times are known in the second reading."""
    there, here = Loop(), Loop()
    there.watch(60)
    _rescaled(there, 2, 8)
    last = there.watch(60)
    here.job = there.job
    assert here.see(imported(last.learned, there.job.observe())) is None, "it is no reading"
    analysis = here.watch(4)
    enrich, before = analysis.operator("enrich"), last.operator("enrich")
    assert enrich is not None
    assert before is not None
    assert [(p.parallelism, p.records_per_second) for p in enrich.capacities] == [
        (p.parallelism, pytest.approx(p.records_per_second)) for p in before.capacities
    ]
    assert analysis.restart_times == last.restart_times
    assert analysis.edges[0].selectivity.value == pytest.approx(1, rel=0.01)


def test_what_was_measured_here_stays() -> None:
    """An import adds parallelisms that were not measured here, once, also if its clock is behind."""
    there, here = Loop(), Loop()
    there.watch(60)
    learned = _rescaled(there, 2, 8).learned
    learned = {**there.watch(60).learned, "restarts": learned["restarts"]}
    first = there.job.observe()
    own = here.watch(60).learned["capacities"]["enrich"]
    here.see(imported(learned, first))
    once = here.memory
    here.see(imported(learned, first))
    assert here.memory == once
    curve = here.watch(2).learned["capacities"]["enrich"]
    theirs = [point for point in learned["capacities"]["enrich"] if point[0] != own[0][0]]
    assert len(own) == 1
    assert [point[0] for point in curve] == sorted([own[0][0], *(point[0] for point in theirs)])
    assert next(point for point in curve if point[0] == own[0][0])[1] == pytest.approx(own[0][1], rel=0.01)


def test_what_was_learned_of_another_job_counts_half() -> None:
    """Perhaps it runs other code."""
    there, here = Loop(), Loop()
    learned = there.watch(60).learned
    here.see(imported({**learned, "job_id": "another"}, there.job.observe()))
    enrich = here.watch(4).operator("enrich")
    assert enrich is not None
    assert [p.confidence for p in enrich.capacities] == [
        pytest.approx(point[2] / 2, abs=0.001) for point in learned["capacities"]["enrich"]
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 99},
        {"capacities": {"enrich": [[1, 1e300, 1, True, 1, 0.0, "", 0, None]]}},
        {"capacities": {"enrich": [[1, 5.0, 7, True, 1, 0.0, "", 0, None]]}},
        {"capacities": {"enrich": [[1, 5.0, 1, True, 1, 1e300, "", 0, None]]}},
        {"capacities": {"enrich" * 1000: [[1, 5.0, 1, True, 1, 0.0, "", 0, None]]}},
        {"selectivities": {"a\nb": [float("nan"), 1, 0.0]}},
        {"restarts": [-1.0, None, 1]},
        {"forecasts": 7, "capacities": []},
    ],
)
def test_an_import_that_holds_anything_adds_nothing(changes: dict[str, object]) -> None:
    """Wrong numbers, names without end and other versions must not reach an analysis."""
    there, here = Loop(), Loop()
    learned = {**there.watch(60).learned, **changes}
    here.watch(4)
    before = here.memory
    here.see(imported(learned, there.job.observe()))
    assert here.memory == before

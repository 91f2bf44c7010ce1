"""What a replica keeps of applications: bounded, and small until somebody looks at it."""

import pickle
from datetime import timedelta

from bench.advance import observation
from services.planner.request_cache import RequestCache, Samples
from tests.unit.planner.build import NOON, analysis

APP = "fleet/app"


def test_samples_are_small_until_they_are_looked_at_and_then_as_they_came() -> None:
    """The newest so many, oldest first; what is older than the newest is ignored. Looking changes nothing but their size."""
    samples, plain = Samples(5), [observation(n, application=APP, start=NOON) for n in range(12)]
    for each in (*plain[:9], plain[3]):
        samples.add(each)
    packed = len(pickle.dumps(samples))
    assert packed < 0.5 * len(pickle.dumps(plain[4:9]))
    assert samples.all() == plain[4:9]
    assert len(pickle.dumps(samples)) > packed
    for each in plain[9:]:
        samples.add(each)
    assert samples.all() == plain[7:12]
    assert samples.newest == plain[-1]


def test_a_request_without_samples_has_the_newest_signals() -> None:
    """And with them nothing that is newer than its analysis."""
    known = RequestCache(30, 20)
    for n in range(3):
        known.observed(observation(n, application=APP, start=NOON).model_copy(update={"signals": {"queue": float(n)}}))
    times = [
        o.observed_at
        for o in known.request(
            analysis(at=NOON + timedelta(days=1)).model_copy(update={"application": APP}), NOON
        ).observations
    ]
    assert len(times) == 3
    asked = analysis(at=times[1]).model_copy(update={"application": APP})
    lean = known.request(asked, NOON, with_observations=False)
    assert (lean.observations, lean.signals) == ([], {"queue": 2.0})
    assert [o.observed_at for o in known.request(asked, NOON).observations] == times[:2]


def test_what_is_newer_than_an_end_is_kept() -> None:
    """An application that ended and began again: samples of before are forgotten, later ones are not."""
    known = RequestCache(30, 20)
    times = []
    for n in range(4):
        sample = observation(n, application=APP, start=NOON)
        times.append(sample.observed_at)
        known.observed(sample)
    known.ended(analysis(at=times[1]).model_copy(update={"application": APP}))
    later = analysis(at=times[3]).model_copy(update={"application": APP})
    assert [o.observed_at for o in known.request(later, NOON).observations] == times[2:]
    known.ended(later)
    assert known.request(later, NOON).observations == []

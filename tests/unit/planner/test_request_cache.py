"""A replica's cache of applications: bounded, and compressed until it is read."""

import pickle
from datetime import timedelta

from bench.cost import observation
from tests.unit.planner.build import NOON, analysis
from weir_planner.request_cache import RequestCache, Samples

APP = "fleet/app"


def test_samples_are_compressed_until_they_are_read() -> None:
    """The newest 5, oldest first; a sample older than the newest is ignored. Reading changes only their size."""
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
    """With samples, none is newer than the analysis."""
    cache = RequestCache(30, 20)
    for n in range(3):
        cache.observed(observation(n, application=APP, start=NOON).model_copy(update={"signals": {"queue": float(n)}}))
    times = [
        o.observed_at
        for o in cache.request(
            analysis(at=NOON + timedelta(days=1)).model_copy(update={"application": APP}), NOON
        ).observations
    ]
    assert len(times) == 3
    first_two = analysis(at=times[1]).model_copy(update={"application": APP})
    lean = cache.request(first_two, NOON, with_observations=False)
    assert (lean.observations, lean.signals) == ([], {"queue": 2.0})
    assert [o.observed_at for o in cache.request(first_two, NOON).observations] == times[:2]


def test_samples_newer_than_an_end_are_kept() -> None:
    """An application ended and started again: earlier samples are dropped, later ones are kept."""
    cache = RequestCache(30, 20)
    times = []
    for n in range(4):
        sample = observation(n, application=APP, start=NOON)
        times.append(sample.observed_at)
        cache.observed(sample)
    cache.ended(analysis(at=times[1]).model_copy(update={"application": APP}))
    later = analysis(at=times[3]).model_copy(update={"application": APP})
    assert [o.observed_at for o in cache.request(later, NOON).observations] == times[2:]
    cache.ended(later)
    assert cache.request(later, NOON).observations == []

"""The simulated service of the Kubernetes benchmark, and the metrics that it serves."""

import httpx
import pytest

from bench.kubernetes.load import (
    CAPACITY,
    DURATION_SECONDS,
    Sample,
    ServiceQueue,
    needed_replica_seconds,
    rate_at,
    summary,
)
from bench.kubernetes.metric_servers import prometheus
from weir_monitor.adapters.prometheus import value_of


@pytest.mark.parametrize(
    ("seconds", "rate"),
    [(0, 160), (239, 160), (240, 720), (540, 240), (840, 200), (975, 900), (1110, 200), (1380, 160), (9999, 160)],
)
def test_the_load_has_steps_and_a_wave(seconds: float, rate: float) -> None:
    assert rate_at(seconds) == pytest.approx(rate)
    assert DURATION_SECONDS == 1500


def test_a_queue_grows_without_enough_replicas_and_is_emptied_in_order() -> None:
    """Two replicas, then none, then four: records wait for as long as the oldest one does."""
    queue = ServiceQueue()
    queue.step(1.0, 1.0, 100.0, ready=2)
    assert (queue.waiting, queue.age_seconds(1.0), queue.busy_share) == (0.0, 0.0, 0.5)
    for now in (2.0, 3.0, 4.0):
        queue.step(now, 1.0, 100.0, ready=0)
    assert (queue.waiting, queue.age_seconds(4.0), queue.busy_share) == (300.0, 2.0, 0.0)
    queue.step(5.0, 1.0, 100.0, ready=2)
    assert (queue.waiting, queue.age_seconds(5.0), queue.busy_share) == (200.0, 1.0, 1.0)
    queue.step(6.0, 1.0, 100.0, ready=4)
    assert (queue.waiting, queue.age_seconds(6.0), queue.processed) == (0.0, 0.0, 600.0)


def test_late_time_and_cost_are_counted_by_the_length_of_each_step() -> None:
    """Samples are not exactly a second apart on a busy machine."""
    ages, existing, requested = (0.0, 31.0, 31.0, 5.0), (2, 2, 4, 4), (2, 4, 4, 4)
    samples = [
        Sample(at, CAPACITY * 2.5, age, wanted, pods, pods)
        for at, age, wanted, pods in zip((0.0, 1.0, 3.0, 10.0), ages, requested, existing, strict=True)
    ]
    found = summary(samples, 30.0)
    assert found["late_share"] == 0.3
    assert found["replica_seconds"] == 2 + 2 * 4 + 7 * 4
    assert (found["max_age_seconds"], found["changes_of_replicas"], found["replicas_each_minute"]) == (31.0, 1, [2])
    assert needed_replica_seconds(samples) == 30


def test_the_monitor_reads_the_simulated_prometheus() -> None:
    """One value for a known name, no series for another."""
    with prometheus(lambda: {"weir_waiting": 12.5}) as url, httpx.Client(trust_env=False) as client:
        known = client.get(f"{url}/api/v1/query", params={"query": "weir_waiting"})
        assert value_of(known.content) == 12.5
        assert client.get(f"{url}/api/v1/query", params={"query": "other"}).json()["data"]["result"] == []

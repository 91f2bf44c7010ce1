"""The same stream on a real standalone cluster: a master, two workers, and then only one of them."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest

from testbed.process import free_port, wait_until
from testbed.service import WeirService
from tests.integration.analyzer.conftest import SLOW_MACHINE_SECONDS, Bench
from tests.integration.analyzer.spark_cluster import SparkCluster
from tests.integration.analyzer.test_stream import observations
from weir_analyzer.adapters.session import code_name
from weir_contracts import Analysis

APPLICATIONS = [f"shop/cluster-{n}" for n in range(12)]
SPLIT = 4
BURST = 120
"""Observations of each application that are sent at once: a batch that takes one worker seconds."""


class OnCluster:
    """The analyzer on a cluster, with Spark's own account of who did what."""

    def __init__(self, bench: Bench, cluster: SparkCluster) -> None:
        self.cluster = cluster
        self._ui = free_port()
        self.service: WeirService = bench.service(
            checkpoint="cluster",
            shuffle_partitions=SPLIT,
            WEIR_ANALYZER_SPARK_MASTER=cluster.url,
            WEIR_ANALYZER_EXECUTOR_MEMORY_MEGABYTES="512",
            WEIR_ANALYZER_SPARK_CONF=f'{{"spark.ui.enabled": "true", "spark.ui.port": "{self._ui}"}}',
            **cluster.environment,
        )

    def _ask(self, path: str) -> Any:
        base = f"http://127.0.0.1:{self._ui}/api/v1/applications"
        application = httpx.get(base, timeout=20, trust_env=False).json()[0]["id"]
        return httpx.get(f"{base}/{application}/{path}", timeout=20, trust_env=False).json()

    def executors(self) -> Mapping[str, Mapping[str, Any]]:
        """Those that are there now, by id."""
        return {e["id"]: e for e in self._ask("executors") if e["id"] != "driver"}

    def keyed(self) -> Mapping[str, int]:
        """How many tasks that took in shuffled records, which are those that keep the state, each executor has
        finished."""
        done: dict[str, int] = {}
        for stage in self._ask("stages?status=complete"):
            if not stage["shuffleReadRecords"]:
                continue
            for task in self._ask(f"stages/{stage['stageId']}/{stage['attemptId']}/taskList?length={SPLIT}"):
                if task["status"] == "SUCCESS" and task["taskMetrics"]["shuffleReadMetrics"]["recordsRead"]:
                    done[task["executorId"]] = done.get(task["executorId"], 0) + 1
        return done


@pytest.fixture(scope="module")
def on_cluster(bench: Bench) -> Iterator[OnCluster]:
    """The analyzer and its cluster; the workers have 1 core each."""
    with SparkCluster(bench.folder / "spark", workers=2, cores=1) as cluster:
        made = OnCluster(bench, cluster)
        with made.service as service:
            service.wait_ready(2 * SLOW_MACHINE_SECONDS)
            yield made


def _complete(analyses: list[Analysis], sent: list[Any]) -> bool:
    return {a.observation_id for a in analyses} >= {o.id for o in sent}


def test_keyed_work_is_done_by_both_workers(bench: Bench, on_cluster: OnCluster) -> None:
    """Twelve applications: each one's analyses are complete and in order, and both executors keep state."""
    bench.wait(lambda: len(on_cluster.executors()) == 2)
    sent = {name: observations(name, 20) for name in APPLICATIONS}
    for several in zip(*sent.values(), strict=True):
        bench.send(several)
    bench.wait(lambda: all(_complete(bench.of(name), sent[name]) for name in APPLICATIONS))
    for name in APPLICATIONS:
        assert [a.observation_id for a in bench.of(name)] == [o.id for o in sent[name]]
    assert not bench.letters
    assert len(on_cluster.executors()) == 2
    bench.wait(lambda: set(on_cluster.keyed()) == set(on_cluster.executors()))  # reported when its batch is over
    assert [len(worker.executors()) for worker in on_cluster.cluster.workers] == [1, 1]


def test_executors_run_the_code_that_the_driver_sent(on_cluster: OnCluster) -> None:
    """Each got it into its own folder; that Python took it from there is looked at before the analyzer says that it is
    ready."""
    for worker in on_cluster.cluster.workers:
        assert list(worker.folder.glob(f"work/app-*/*/{code_name()}"))


def test_the_loss_of_a_worker_loses_nothing(bench: Bench, on_cluster: OnCluster) -> None:
    """Killed in the middle of the work: the other takes over all state, and every observation is analysed, in order.

    What comes twice is the same analysis, by its id: its readers have it already.
    """
    before = {name: len(bench.of(name)) for name in APPLICATIONS}
    later = {name: observations(name, 60)[10:] for name in APPLICATIONS}
    rounds = list(zip(*later.values(), strict=True))
    killed_at = time.monotonic()
    for n, several in enumerate(rounds):
        if n == len(rounds) // 3:
            on_cluster.cluster.workers[0].kill()
            killed_at = time.monotonic()
        bench.send(several)
    bench.wait(lambda: all(_complete(bench.of(name), later[name]) for name in APPLICATIONS), 2 * SLOW_MACHINE_SECONDS)
    assert time.monotonic() - killed_at < 2 * SLOW_MACHINE_SECONDS
    for name in APPLICATIONS:
        came = bench.of(name)[before[name] :]
        once = list({a.id: a for a in came}.values())
        assert [a.observation_id for a in once] == [o.id for o in later[name]]
        assert all(a.dropped_observations == 0 for a in once)
    assert not bench.letters
    wait_until(lambda: len(on_cluster.executors()) == 1 or None, timeout_seconds=60, what="the lost executor given up")
    on_cluster.cluster.wait_for_workers(1, 180)


def test_a_worker_that_comes_takes_its_share(bench: Bench, on_cluster: OnCluster) -> None:
    """A new machine: the master gives it an executor, and the state that it gets is read from the checkpoint.

    State waits half a second for the executor that has it, and Spark looks every second whether another is free: a
    batch that is done before that stays where it was, so the work comes in bursts.
    """
    on_cluster.cluster.add_worker()
    wait_until(lambda: len(on_cluster.executors()) == 2 or None, timeout_seconds=120, what="a second executor")
    newest = max(on_cluster.executors(), key=int)
    observed = 30
    deadline = time.monotonic() + SLOW_MACHINE_SECONDS

    def burst() -> None:
        sent = {name: observations(name, 2 * (observed + BURST))[observed:] for name in APPLICATIONS}
        bench.send([one for several in zip(*sent.values(), strict=True) for one in several])
        bench.wait(lambda: all(_complete(bench.of(name), sent[name]) for name in APPLICATIONS))

    while not on_cluster.keyed().get(newest, 0):
        assert time.monotonic() < deadline, f"nothing for executor {newest}: {on_cluster.keyed()}"
        burst()
        observed += BURST
    enrich = bench.of(APPLICATIONS[0])[-1].operator("enrich")
    assert enrich is not None
    assert enrich.true_processing_rate.value == pytest.approx(600, rel=0.02)

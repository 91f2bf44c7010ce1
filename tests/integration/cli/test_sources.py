"""One process of Weir at a real Flink whose jobs read no Kafka, or one whose brokers Weir may not read: generator, files and
change data with and without `pendingRecords`, by policies without `signals`."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.flink import FlinkCluster
from testbed.kafka import KafkaBroker
from tests.integration.monitor.conftest import RealJob
from tests.loop.test_one_process import one_process, until
from weir_cli.single import OneProcess

MAIN = "dev.weir.sample.SourcesJob"
WORK = "work"
WORK_RATE = 100.0
"""Records/s of one subtask of `work`: few, so that a busy machine has the time for them."""
Documents = dict[str, Any]


class ChangeLog:
    """The log of changes of a table: the rate at which rows change, from now on."""

    def __init__(self, file: Path, rate: float) -> None:
        self.file = file
        self.set(rate)

    def set(self, rate: float) -> None:
        with self.file.open("a") as file:
            file.write(f"{time.time() * 1000:.0f};{rate}\n")


Start = Callable[..., str]


@pytest.fixture
def start(flink_cluster: FlinkCluster, sample_job: Path) -> Iterator[Start]:
    """Starts the job of sources, under a name; it is cancelled at the end."""
    jobs: list[str] = []

    def run(name: str, sources: str, *arguments: str) -> str:
        cost = f"{1e6 / WORK_RATE:.0f}"
        fixed = ["--sources", sources, "--job-name", name, "--service-time-us", cost]
        job = flink_cluster.submit(sample_job, [*fixed, *arguments], parallelism=1, entry_class=MAIN)
        jobs.append(job)
        flink_cluster.wait_running(job)
        return job

    yield run
    for job in jobs:
        flink_cluster.cancel(job)
        flink_cluster.wait_ended(job)


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[OneProcess]:
    async with one_process(tmp_path) as running:
        yield running


async def _put(one: OneProcess, cluster: FlinkCluster, job: str, **spec: Any) -> None:
    document = {
        "apiVersion": "weir.dev/v1alpha1",
        "kind": "ScalingPolicy",
        "metadata": {"namespace": "shop", "name": job},
        "spec": {
            "application": {"flink": {"url": cluster.rest_url, "job": job}},
            "objective": {"maxLag": "20s"},
            "bounds": {"max": 6},
            "behavior": {"cooldown": "10s"},
            "interval": "2s",
            **spec,
        },
    }
    assert await one.api.put(f"shop/{job}", document) is None


def _of(analysis: Documents, source: str) -> Documents:
    return next(each for each in analysis["sources"] if each["operator"] == source)


def _near(value: float | None, expected: float, share: float = 0.12) -> bool:
    return value is not None and abs(value - expected) <= share * expected


async def test_a_generator_and_files_in_one_job_need_no_signals(
    start: Start, one: OneProcess, flink_cluster: FlinkCluster, tmp_path: Path
) -> None:
    """A generator brings 30 records/s; 300 lines in files are read, and their source finishes while the job goes on. The
    job is advised on: it holds, with an arrival rate and a lag of 0."""
    folder = tmp_path / "lines"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.txt").write_text("a line\n" * 100)
    await asyncio.to_thread(start, "mixed", "generator,files", "--rate", "30", "--folder", f"file://{folder}")
    await _put(one, flink_cluster, "mixed")
    held = await until(one, "/v1/applications/shop/mixed/plan", lambda plan: plan["code"] == "objective-held", 120)
    assert held["mode"] == "advise"
    analysis = await until(
        one,
        "/v1/applications/shop/mixed/analysis",
        lambda a: _near(_of(a, "Source: generator")["arrival_rate"]["value"], 30),
        60,
    )
    assert _of(analysis, "Source: generator")["arrival_rate"]["basis"].startswith("throughput of a source that is")
    files = _of(analysis, "Source: files")
    assert files["arrival_rate"] == {**files["arrival_rate"], "value": 0, "basis": "all its subtasks have finished"}
    assert analysis["lag_records"]["value"] == 0
    assert "metric-missing" not in [symptom["code"] for symptom in analysis["symptoms"]]


class TestAlone:
    """Rates of a real job, which other work on the machine would change."""

    async def test_change_data_is_followed(
        self, start: Start, one: OneProcess, flink_cluster: FlinkCluster, tmp_path: Path
    ) -> None:
        """With `pendingRecords` and without them."""
        await asyncio.gather(
            *(self._is_followed(start, one, flink_cluster, tmp_path, pending) for pending in (True, False))
        )

    async def _is_followed(
        self, start: Start, one: OneProcess, flink_cluster: FlinkCluster, folder: Path, pending: bool
    ) -> None:
        """Rows change at 40 a second, then at 170, which `work` needs two subtasks for: with `pendingRecords` the demand is
        known, without them a lower bound while the source is held back, and the job grows either way. It has caught up when the
        source has a demand of 170 records/s and no lag."""
        name = f"changes-{pending}".lower()
        log = ChangeLog(folder / f"{name}.log", 40)
        given = ("--change-log", str(log.file), "--pending", str(pending).lower())
        job = await asyncio.to_thread(start, name, "changes", *given)
        await _put(one, flink_cluster, name, mode="act")
        application = f"/v1/applications/shop/{name}"
        await until(one, f"{application}/plan", lambda plan: plan["code"] == "objective-held", 120)
        log.set(170)
        if pending:
            plan = await until(one, f"{application}/plan", lambda plan: plan["kind"] == "scale", 60)
            assert "known in part" not in plan["sentence"], plan["sentence"]
        else:
            behind = await until(one, f"{application}/analysis", lambda a: a["arrival_rate"]["value"] is None, 60)
            assert behind["arrival_rate"]["lower_bound"] > 40
        settled = await until(
            one,
            f"{application}/analysis",
            lambda a: _near(a["arrival_rate"]["value"], 170) and (a["lag_seconds"]["value"] or 0) < 1,
            180,
        )
        now = flink_cluster.observed(job)
        assert 2 <= now[WORK] <= 4, now
        assert now["Source: changes"] == 1
        assert settled["lag_seconds"]["value"] is not None

    async def test_waiting_records_of_change_data_have_an_age(
        self, start: Start, one: OneProcess, flink_cluster: FlinkCluster, tmp_path: Path
    ) -> None:
        """160 rows a second for a job that does 100: what waits grows by 60 a second, and is the older the more it is."""
        log = ChangeLog(tmp_path / "changes.log", 160)
        await asyncio.to_thread(start, "late", "changes", "--change-log", str(log.file), "--pending", "true")
        await _put(one, flink_cluster, "late")
        analysis = await until(
            one,
            "/v1/applications/shop/late/analysis",
            lambda a: (a["lag_seconds"]["value"] or 0) > 20 and _near(a["arrival_rate"]["value"], 160),
            120,
        )
        source = _of(analysis, "Source: changes")
        assert source["lag_seconds"]["basis"] == "pendingRecords ÷ throughput"
        assert _near(source["lag_records"]["value"], source["lag_seconds"]["value"] * WORK_RATE, 0.15)
        assert _near(source["lag_growth"]["value"], 60, 0.25)

    async def test_a_source_that_waits_in_its_poll_is_not_taken_for_saturated(
        self, start: Start, one: OneProcess, flink_cluster: FlinkCluster, tmp_path: Path
    ) -> None:
        """With `pendingRecords` and without them."""
        await asyncio.gather(
            *(self._is_recognized(start, one, flink_cluster, tmp_path, pending) for pending in (True, False))
        )

    async def _is_recognized(
        self, start: Start, one: OneProcess, flink_cluster: FlinkCluster, folder: Path, pending: bool
    ) -> None:
        """Flink counts the wait as busy time: 100 % at 15 rows a second as at 60. Recognised since nothing waits, or once the
        rate rises."""
        name = f"poll-{pending}".lower()
        log = ChangeLog(folder / f"{name}.log", 15)
        given = ("--change-log", str(log.file), "--pending", str(pending).lower(), "--waits-in-poll", "true")
        await asyncio.to_thread(start, name, "changes", *given)
        await _put(one, flink_cluster, name)
        application = f"/v1/applications/shop/{name}"
        analysis = await until(one, f"{application}/analysis", lambda a: a["window"]["samples"] >= 8, 120)
        if not pending:
            assert analysis["arrival_rate"]["value"] is None
            assert _near(analysis["arrival_rate"]["lower_bound"], 15)
            log.set(60)
        analysis = await until(
            one, f"{application}/analysis", lambda a: "contradiction" in [s["code"] for s in a["symptoms"]], 120
        )
        evidence = next(s["evidence"] for s in analysis["symptoms"] if s["code"] == "contradiction")
        assert ("while nothing waits" if pending else "records/s as at") in evidence
        source = next(each for each in analysis["operators"] if each["operator"] == "Source: changes")
        assert source["utilization"]["value"] is None
        assert source["true_processing_rate"]["value"] is None

    async def test_kafka_without_access_to_its_brokers(
        self, one: OneProcess, flink_cluster: FlinkCluster, kafka: KafkaBroker, sample_job: Path
    ) -> None:
        """The sample job with 60,000 records and `enrich` at 250/s: what waits is what the source says, and parallelism of the
        source is bounded by the partitions that it names."""
        costs = ("--service-time-us", "parse=0,enrich=4000,aggregate=0,sink=0")
        job = await asyncio.to_thread(RealJob, flink_cluster, kafka, sample_job, costs)
        try:
            await asyncio.to_thread(flink_cluster.wait_running, job.id)
            await asyncio.to_thread(job.process, 60_000)
            await _put(one, flink_cluster, job.name)
            analysis = await until(
                one,
                f"/v1/applications/shop/{job.name}/analysis",
                lambda a: (a["lag_seconds"]["value"] or 0) > 5 and a["lag_growth"]["value"] is not None,
                120,
            )
            source = _of(analysis, "Source: orders")
            assert source["lag_records"]["basis"] == "pendingRecords of the source"
            assert 5_000 < source["lag_records"]["value"] <= 60_000
            topology = analysis["topology"]["operators"]
            assert next(each["source_partitions"] for each in topology if each["name"] == "Source: orders") == 4
        finally:
            await asyncio.to_thread(job.end)

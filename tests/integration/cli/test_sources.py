"""One process of Weir at a real Flink whose jobs read no Kafka, by policies without `signals`."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.flink import FlinkCluster
from tests.loop.test_one_process import one_process, until
from weir_cli.single import OneProcess

MAIN = "dev.weir.sample.SourcesJob"
WORK_RATE = 100.0
"""Records/s of one subtask of `work`: few, so that a busy machine has the time for them."""
Documents = dict[str, Any]


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

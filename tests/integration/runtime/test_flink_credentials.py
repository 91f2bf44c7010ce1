"""Monitor and executor at a Flink cluster whose REST API demands TLS and the client's certificate."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from testbed.flink import FlinkCluster
from testbed.kafka import KafkaBroker
from testbed.kubernetes_access import Authority
from tests.integration.monitor.conftest import RealJob
from tests.unit.engines.driver_suite import OPEN
from weir_contracts import ScalingPolicy, parse_policy
from weir_engines.driver import Accepted, Rejected
from weir_engines.flink.collector import FlinkCollector
from weir_engines.flink.driver import FlinkDriver
from weir_runtime.clock import SystemClock
from weir_runtime.policy_credentials import HttpCredential, read_credentials

SECONDS = 60
TIMEOUT_SECONDS = 5.0


@pytest.fixture(scope="module")
def cluster(run_folder: Path) -> Iterator[FlinkCluster]:
    """A cluster that answers no client without a certificate."""
    with FlinkCluster(run_folder / "flink-tls", slots=2, tls=True) as started:
        yield started


@pytest.fixture(scope="module")
def job(cluster: FlinkCluster, kafka: KafkaBroker, sample_job: Path) -> Iterator[RealJob]:
    started = RealJob(cluster, kafka, sample_job, ())
    cluster.wait_running(started.id)
    yield started
    started.end()


def credentials(cluster: FlinkCluster, **changes: Any) -> Mapping[str, HttpCredential]:
    """Return the entries of a file as WEIR_FLINK_CREDENTIALS_FILE names it."""
    client = cluster.tls_client
    files = {"ca_file": cluster.tls_authority, "certificate_file": client.certificate, "key_file": client.key}
    entry = {
        "namespaces": "*",
        "origin": cluster.rest_url,
        **{name: str(path) for name, path in files.items()},
        **changes,
    }
    return read_credentials(json.dumps({"prod": {name: value for name, value in entry.items() if value is not None}}))


def policy_of(job: RealJob, credentials: str | None) -> ScalingPolicy:
    document = job.policy().to_document()
    document["spec"]["application"] = {
        "flink": {"url": job.cluster.rest_url, "job": job.name, "credentials": credentials}
    }
    return parse_policy(document)


async def test_a_job_is_read_and_rescaled_over_tls(job: RealJob) -> None:
    """The collector's graph and the driver's request, both with the same entry."""
    subject, entries = policy_of(job, "prod").subject, credentials(job.cluster)
    collector = FlinkCollector(subject.flink, TIMEOUT_SECONDS, credentials=entries)
    driver = FlinkDriver(SystemClock(), entries)
    try:
        readings = await collector.read()
        assert readings.reachable and (await collector.scrape()).topology is not None
        found = await driver.observe(subject)
        assert found.reachable and found.deployment is not None and await driver.slots(subject) == 2
        before = found.deployment.observed
        wanted = {name: 2 if name == "enrich" else p for name, p in before.items()}
        answer = await driver.request(subject, job.id, wanted, before, OPEN)
        assert isinstance(answer, Accepted)
        assert await driver.trigger_checkpoint(subject, job.id) is None
        async with asyncio.timeout(SECONDS):
            while (there := (await driver.observe(subject)).deployment) is None or there.observed != wanted:  # noqa: ASYNC110
                await asyncio.sleep(0.5)
    finally:
        await collector.close()
        await driver.close()


@pytest.mark.parametrize(
    ("entry", "named", "reason"),
    [
        ({}, None, "CERTIFICATE_VERIFY_FAILED"),
        ({"certificate_file": None, "key_file": None}, "prod", "GET /jobs/overview: "),
        ({"ca_file": None}, "prod", "CERTIFICATE_VERIFY_FAILED"),
        ({"origin": "https://127.0.0.1:1"}, "prod", "application.flink.credentials: "),
    ],
)
async def test_both_services_name_why_the_cluster_is_unreachable(
    job: RealJob, entry: dict[str, Any], named: str | None, reason: str
) -> None:
    """No credentials, no certificate of the client, an unknown authority, an entry for another origin."""
    subject, entries = policy_of(job, named).subject, credentials(job.cluster, **entry)
    collector, driver = (
        FlinkCollector(subject.flink, TIMEOUT_SECONDS, credentials=entries),
        FlinkDriver(SystemClock(), entries),
    )
    try:
        readings = await collector.read()
        found = await driver.observe(subject)
        assert not readings.reachable and not found.reachable
        assert reason in readings.message and reason in found.reason
    finally:
        await collector.close()
        await driver.close()


async def test_a_certificate_of_another_authority_is_refused(job: RealJob, tmp_path: Path) -> None:
    """The request is never accepted, and says where it failed."""
    other = Authority(tmp_path)
    other.create()
    own = other.issue("client")
    entries = credentials(job.cluster, certificate_file=str(own.certificate), key_file=str(own.key))
    driver = FlinkDriver(SystemClock(), entries)
    try:
        found = await driver.observe(policy_of(job, "prod").subject)
        assert not found.reachable and "GET /jobs/overview: " in found.reason
    finally:
        await driver.close()


async def test_a_request_with_the_entry_of_another_origin_is_rejected(job: RealJob) -> None:
    driver = FlinkDriver(SystemClock(), credentials(job.cluster, origin="https://127.0.0.1:1"))
    try:
        answer = await driver.request(policy_of(job, "prod").subject, job.id, {"enrich": 2}, {"enrich": 1}, OPEN)
        assert isinstance(answer, Rejected) and "is for another origin" in answer.reason
    finally:
        await driver.close()

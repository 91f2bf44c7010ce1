"""Responses of Flink about jars and savepoints, requests to it, and the collector of a job that goes on in successors."""

from typing import Any

import pytest

from tests.unit.executor.builders import TOPOLOGY, deployment
from weir_contracts import Resubmission, ResubmitTarget
from weir_engines.flink.rest import Unreadable
from weir_engines.flink_resubmit import responses
from weir_engines.flink_resubmit.engine import LineageCollector
from weir_engines.scrape import Scrape

TARGET = ResubmitTarget.model_validate({"jar": "orders.jar", "savepointDirectory": "s3://state/savepoints/"})
JOB = Resubmission(
    stopped_job="5f6d1e2b0c9a4f3e8d7c6b5a49382716",
    successor="5f6d1e2b0c9a4f3e0b1a6f2c77d05e11",
    restored="5f6d1e2b0c9a4f3e9c3d41e80a6b5f72",
    jar="1_orders.jar",
    parallelism=3,
    vertices={"orders": "v1", "enrich": "v2"},
    savepoint="s3://state/savepoints/weir-0b1a6f2c77d05e11/savepoint-5f6d1e-2bd9d1a0c1b7",
)


@pytest.mark.parametrize(
    ("version", "each"),
    [("1.18.1", False), ("1.19.0", True), ("1.20-SNAPSHOT", True), ("1.20.5", True), ("1.2", False), ("2.2.1", False)],
)
def test_versions_that_give_each_operator_its_own_parallelism(version: str, each: bool) -> None:
    """Read in the code of 1.18.1, 1.19.1, 1.20.1, 2.2.1 and 2.3.0: before, overrides of the cluster count alone, and after, a jar
    submits what no overrides are applied to. An unknown version gets one parallelism."""
    assert responses.sets_each_operator({"flink-version": version}) is each
    assert not responses.sets_each_operator({})


def test_jars_come_oldest_first_and_without_unreadable_ones() -> None:
    """The newest of a name counts; other users' entries cost nothing."""
    files = [
        {"id": "2_orders.jar", "name": "orders.jar", "uploaded": 2_000},
        {"id": 7, "name": "broken.jar"},
        "text",
        {"id": "1_orders.jar", "name": "orders.jar", "uploaded": 1_000},
        {"id": "0_orders.jar", "name": "orders.jar", "uploaded": None},
    ]
    assert [jar.id for jar in responses.jars({"files": files})] == ["0_orders.jar", "1_orders.jar", "2_orders.jar"]
    with pytest.raises(Unreadable, match="/jars files: expected a list"):
        responses.jars({"files": None})


@pytest.mark.parametrize(
    ("jar", "is_it"), [("1_orders.jar", True), ("orders.jar", True), ("1_other-orders.jar", False)]
)
def test_a_jar_is_named_by_its_id_or_its_name(jar: str, is_it: bool) -> None:
    """Flink puts a random id and an underscore before the name."""
    assert responses.is_jar(jar, TARGET) is is_it


@pytest.mark.parametrize(
    ("document", "location", "failure"),
    [
        ({"status": {"id": "IN_PROGRESS"}, "operation": None}, None, None),
        (
            {"status": {"id": "COMPLETED"}, "operation": {"location": "file:/s/savepoint-1"}},
            "file:/s/savepoint-1",
            None,
        ),
        (
            {
                "status": {"id": "COMPLETED"},
                "operation": {
                    "failure-cause": {"stack-trace": "x.CheckpointException: Checkpoint expired before completing."}
                },
            },
            None,
            "it did not complete within Flink's checkpoint timeout",
        ),
        ({"status": {"id": "COMPLETED"}, "operation": {"failure-cause": {}}}, None, "see the JobManager's log"),
    ],
)
def test_the_status_of_a_savepoint(document: Any, location: str | None, failure: str | None) -> None:
    """A failure comes with status 200, too."""
    found = responses.savepoint_status(document)
    assert (found.location, found.failure) == (location, failure)


@pytest.mark.parametrize(
    "document", [{}, {"status": {"id": "COMPLETED"}}, {"status": {"id": "COMPLETED"}, "operation": {}}]
)
def test_a_status_of_another_form_is_unreadable(document: Any) -> None:
    """It is neither a savepoint nor the failure of one."""
    with pytest.raises(Unreadable, match="savepoints/:trigger"):
        responses.savepoint_status(document)


def test_the_bodies_of_stop_and_run() -> None:
    """The folder shows whose savepoint it is. The graph is made as it was, and overrides change its vertices; without them the
    parallelism is that of all."""
    folder = "s3://state/savepoints/weir-0b1a6f2c77d05e11"
    assert responses.stop_body(TARGET, JOB, "t1") == {"targetDirectory": folder, "drain": False, "triggerId": "t1"}
    each = responses.run_body(TARGET, JOB, JOB.successor, {"orders": 1, "enrich": 4}, each_operator=True)
    assert each["flinkConfiguration"] == {"pipeline.jobvertex-parallelism-overrides": "v1:1,v2:4"}
    assert (each["parallelism"], each["jobId"], each["savepointPath"]) == (3, JOB.successor, JOB.savepoint)
    even = responses.run_body(TARGET, JOB, JOB.restored, {"orders": 2, "enrich": 2}, each_operator=False)
    assert even["parallelism"] == 2 and not {"flinkConfiguration", "entryClass"} & even.keys()


class _Collector:
    def __init__(self, scrape: Scrape) -> None:
        self._scrape = scrape

    async def close(self) -> None:
        return None

    async def scrape(self) -> Scrape:
        return self._scrape


async def test_a_job_and_its_successor_are_observed_as_one_deployment() -> None:
    """By what their ids have in common; a job that a user submits is another one."""
    found = []
    for job_id in (JOB.stopped_job, JOB.successor, "77" * 16):
        there = deployment(job_id=job_id, requested=None)
        scrape = await LineageCollector(_Collector(Scrape("running", "", deployment=there, topology=TOPOLOGY))).scrape()
        assert scrape.deployment is not None and scrape.deployment.rescale.by_restart
        assert scrape.deployment.requested == scrape.deployment.observed
        found.append(scrape.deployment.job_id)
    assert found == ["5f6d1e2b0c9a4f3e", "5f6d1e2b0c9a4f3e", "7777777777777777"]
    nothing = Scrape("unreachable", "connection refused")
    assert await LineageCollector(_Collector(nothing)).scrape() == nothing

"""The collector of a job that the operator runs: the job's readings as those of the resource, and why it does not run."""

import pytest

from tests.unit.engines.flink_operator.rig import OperatorRig, SessionRig, deployment_spec
from weir_engines.flink_operator.collector import FlinkResourceCollector
from weir_engines.flink_operator.resource import FLINK_DEPLOYMENT
from weir_engines.scrape import Scrape


class MemoryJobs:
    """Collector of the rig's job by its id."""

    def __init__(self, rig: OperatorRig) -> None:
        self._rig = rig
        self.job = "orders"

    async def close(self) -> None:
        return None

    async def scrape(self) -> Scrape:
        flink = self._rig.subject.flink.model_copy(update={"job": self.job})
        application = self._rig.subject.application.model_copy(update={"flink": flink})
        subject = type(self._rig.subject)(
            "shop/orders", application, self._rig.subject.target, self._rig.subject.signals
        )
        found = await self._rig.jobs.observe(subject)
        if found.deployment is None:
            return Scrape("unreachable", found.reason)
        status = "running" if found.all_running else "not_running"
        return Scrape(status, found.deployment.state, deployment=found.deployment, topology=found.topology)  # type: ignore[arg-type]


def collector(rig: OperatorRig) -> FlinkResourceCollector:
    return FlinkResourceCollector(MemoryJobs(rig), rig.subject, rig.objects, frozenset({"shop", "away"}))


@pytest.fixture(params=[OperatorRig, SessionRig])
async def rig(request: pytest.FixtureRequest) -> OperatorRig:
    rig: OperatorRig = await request.param().begin()
    return rig


async def test_both_sides_see_one_deployment(rig: OperatorRig) -> None:
    """The monitor and the executor, whose plan names it: id, request and how it is rescaled."""
    await rig.ask(rig.wanted)
    scrape, seen = await collector(rig).scrape(), await rig.driver.observe(rig.subject)
    assert scrape.status == "running" and scrape.deployment is not None and seen.deployment is not None
    assert scrape.deployment.ref() == seen.deployment.ref()
    assert scrape.deployment.job_id == rig.job_id
    assert scrape.deployment.requested == rig.wanted
    assert scrape.deployment.rescale == seen.deployment.rescale


async def test_a_restarted_job_is_followed_by_its_new_id() -> None:
    """The operator gives the job another id, and the deployment remains."""
    rig = await OperatorRig(deployment_spec(flinkConfiguration={}), scheduler="default").begin()
    made, first = collector(rig), rig.job.job_id
    assert (await made.scrape()).status == "running"
    await rig.ask(rig.wanted)
    rig.clock.advance(1)
    away = await made.scrape()
    assert (away.status, away.message) == ("not_running", "the operator restarts the job of FlinkDeployment orders")
    await rig.until(lambda s: s.runs(rig.wanted))
    scrape = await made.scrape()
    assert rig.job.job_id != first and scrape.deployment is not None
    assert scrape.deployment.job_id == rig.job_id and scrape.deployment.observed == rig.wanted


async def test_a_resource_that_does_not_run_says_why(rig: OperatorRig) -> None:
    """Also as a problem, so that it is seen while the job runs on."""
    rig.objects.edit(rig.kind, "orders", job={"state": "suspended"})
    scrape = await collector(rig).scrape()
    sentence = f"{rig.kind.kind} orders is suspended: set spec.job.state to running"
    assert (scrape.status, scrape.message) == ("not_running", sentence)
    assert [problem.what for problem in scrape.problems] == [sentence]


async def test_a_contested_resource_is_a_problem_of_a_running_job() -> None:
    """The readings are as good as ever."""
    rig = await OperatorRig().begin()
    rig.edit(flinkConfiguration={"job.autoscaler.enabled": "true"})
    scrape = await collector(rig).scrape()
    assert scrape.status == "running" and scrape.deployment is not None
    assert ["autoscaler" in problem.what for problem in scrape.problems] == [True]


@pytest.mark.parametrize(
    ("break_it", "status", "what"),
    [
        (lambda rig: rig.objects.delete(rig.kind, "orders"), "not_found", "orders does not exist in namespace shop"),
        (lambda rig: setattr(rig.objects, "away", "connection refused"), "unreachable", "connection refused"),
        (lambda rig: setattr(rig.objects, "defined", False), "unreachable", "install the Flink Kubernetes Operator"),
    ],
)
async def test_what_cannot_be_read_is_named(rig: OperatorRig, break_it: object, status: str, what: str) -> None:
    """With the field of the policy."""
    break_it(rig)  # type: ignore[operator]
    scrape = await collector(rig).scrape()
    assert scrape.status == status and what in scrape.message
    assert scrape.problems[0].where == f"target.{rig.subject.target.field}"


async def test_another_namespace_names_the_setting(rig: OperatorRig) -> None:
    """Which the policy's author cannot change."""
    made = FlinkResourceCollector(MemoryJobs(rig), rig.subject, rig.objects, frozenset({"other"}))
    assert "WEIR_MONITOR_KUBERNETES_NAMESPACES" in (await made.scrape()).message


async def test_a_failed_job_is_named() -> None:
    """By the operator's own error, where Flink does not answer."""
    rig = await OperatorRig().begin()
    rig.operator.paused = True
    rig.objects.report(FLINK_DEPLOYMENT, "orders", lifecycleState="FAILED", error="the JobManager is missing")
    rig.jobs.away[str(rig.subject.flink.url).rstrip("/")] = "connection refused"
    scrape = await collector(rig).scrape()
    assert (scrape.status, scrape.message) == (
        "not_running",
        "FlinkDeployment orders is FAILED: the JobManager is missing",
    )

"""A FlinkDeployment and its job, for the suite and the stories of the operator's driver."""

from collections.abc import Callable
from typing import Any

from tests.unit.engines.flink_operator.memory_objects import MemoryObjects
from tests.unit.engines.flink_operator.operator import Operator
from tests.unit.engines.memory_jobs import MemoryDriver, MemoryJob
from tests.unit.executor.builders import BEFORE, NOON, WANTED
from weir_contracts import Parallelism, RescaleSettings, Subject, policy_of
from weir_engines.driver import Fence, Snapshot, Unfenced
from weir_engines.flink_operator.driver import Answer, FlinkOperatorDriver
from weir_engines.flink_operator.resource import FLINK_DEPLOYMENT, FLINK_SESSION_JOB
from weir_runtime.clock import FakeClock


def operated_subject(
    name: str = "orders", *, namespace: str = "shop", field: str = "flinkDeployment", **spec: Any
) -> Subject:
    """The application `shop/orders`, whose target is a resource of the operator."""
    own = {} if namespace == "shop" else {"namespace": namespace}
    given = {"objective": {"maxLag": "30s"}, "target": {field: {"name": name, **own}}, **spec}
    return policy_of("shop/orders", **given).subject


def deployment_spec(**changes: Any) -> dict[str, Any]:
    """The spec of a FlinkDeployment whose job is rescaled in place."""
    return {
        "image": "example/orders:1",
        "flinkVersion": "v1_20",
        "flinkConfiguration": {"taskmanager.numberOfTaskSlots": "2", "jobmanager.scheduler": "adaptive"},
        "jobManager": {"resource": {"memory": "1024m", "cpu": 1}},
        "taskManager": {"resource": {"memory": "1024m", "cpu": 1}},
        "podTemplate": {"spec": {"containers": [{"name": "main", "env": [{"name": "A", "value": "1"}]}]}},
        "job": {"jarURI": "local:///orders.jar", "parallelism": 1, "upgradeMode": "savepoint"},
        **changes,
    }


STANDALONE: dict[str, Any] = {"mode": "standalone", "taskManager": {"replicas": 1}}
DEFAULT_SCHEDULER: dict[str, Any] = {"flinkConfiguration": {"taskmanager.numberOfTaskSlots": "2"}}


class OperatorRig:
    """A resource in memory, in virtual time."""

    kind = FLINK_DEPLOYMENT

    def __init__(
        self, spec: dict[str, Any] | None = None, *, scheduler: str = "adaptive", clock: FakeClock | None = None
    ) -> None:
        self.clock = clock or FakeClock(NOON)
        settings = RescaleSettings(
            scheduler=scheduler, cooldown_seconds=1, stabilization_seconds=1, max_trigger_delay_seconds=0
        )
        self.jobs = MemoryDriver(self.clock, settings)
        self.operator = Operator(self.jobs, self.clock)
        self.objects = MemoryObjects(self.operator)
        self.driver = self.new_driver()
        self.subject = operated_subject()
        self.by_id = self.subject
        self.nobody, self.away = operated_subject("nobody"), operated_subject(namespace="away")
        self.before, self.wanted, self.too_much = BEFORE, WANTED, {**WANTED, "enrich": 121}
        self.job_id = ""
        self.spec = deployment_spec() if spec is None else spec

    def new_driver(self) -> FlinkOperatorDriver:
        """Return a driver that has seen nothing."""
        return FlinkOperatorDriver(self.clock, self.jobs, self.objects, ["shop", "away"], checkpoint_seconds=0.01)

    async def begin(self) -> "OperatorRig":
        """Create the resource and wait until its job runs."""
        self.objects.subjects["orders"] = self.subject
        self.objects.put(self.kind, "orders", self.spec)
        found = await self.until(lambda s: s.runs(self.before) and s.refusal is None)
        assert found.deployment is not None
        self.job_id = found.deployment.job_id
        self.clock.advance(60)
        await self.until(lambda s: s.all_running)
        return self

    @property
    def job(self) -> MemoryJob:
        """The job that runs now."""
        return self.jobs.jobs[str(self.subject.flink.url).rstrip("/"), "orders"]

    async def until(self, condition: Callable[[Snapshot], bool]) -> Snapshot:
        for _ in range(100):
            there = await self.driver.observe(self.subject)
            if condition(there):
                return there
            self.clock.advance(0.5)
        raise AssertionError(f"not within 50 s: {there}")

    async def ask(self, wanted: Parallelism, fence: Fence | None = None) -> Answer:
        """Send one request on the condition of the version that is there."""
        found = await self.driver.observe(self.subject)
        assert found.deployment is not None and found.deployment.requested is not None, found.reason
        requested, job_id = found.deployment.requested, found.deployment.job_id
        return await self.driver.request(
            self.subject, job_id, wanted, requested, fence or Unfenced(), version=found.version
        )

    def edit(self, manager: str = "kubectl", **spec: Any) -> None:
        """Change the spec as another client does."""
        self.objects.edit(self.kind, "orders", manager, **spec)


class SessionRig(OperatorRig):
    """A FlinkSessionJob of a session cluster."""

    kind = FLINK_SESSION_JOB

    def __init__(self) -> None:
        super().__init__()
        url = "http://session-rest.shop.svc:8081"
        self.subject = self.by_id = operated_subject(
            field="flinkSessionJob", application={"flink": {"url": url, "job": "orders"}}
        )
        self.nobody = operated_subject(
            "nobody", field="flinkSessionJob", application={"flink": {"url": url, "job": "nobody"}}
        )
        cluster = {key: each for key, each in deployment_spec().items() if key != "job"}
        self.objects.put(FLINK_DEPLOYMENT, "session", cluster)
        self.spec = {
            "deploymentName": "session",
            "job": deployment_spec()["job"],
            "flinkConfiguration": {"jobmanager.scheduler": "adaptive"},
        }

"""FlinkDeployments of a real API server: the operator's released definitions, and the small reconciler that stands for it."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from testbed.kubernetes import KubernetesCluster
from testbed.kubernetes_access import Access as UserAccess
from tests.kubernetes.rigs import DEADLINE_SECONDS, WithAway, api, unanswered, until_observed
from tests.kubernetes.workers import Controller
from tests.unit.engines.flink_operator.operator import Operator
from tests.unit.engines.flink_operator.rig import deployment_spec, operated_subject
from tests.unit.engines.memory_jobs import MemoryDriver, MemoryJob
from tests.unit.executor.builders import BEFORE, WANTED
from weir_contracts import Parallelism, RescaleSettings, Subject
from weir_engines.driver import Fence, Snapshot, TargetChanged, Unfenced
from weir_engines.flink_operator.driver import Answer, ApiObjects, FlinkOperatorDriver
from weir_runtime.clock import SystemClock

KINDS = {"apiGroups": ["flink.apache.org"], "resources": ["flinkdeployments", "flinksessionjobs"]}
RULES: list[dict[str, Any]] = [{**KINDS, "verbs": ["get", "patch"]}]
"""Rights of the executor in a namespace of resources."""


class ApiOperator(Operator):
    """Reconciles the FlinkDeployments of a namespace until it is closed."""

    def __init__(self, cluster: KubernetesCluster, namespace: str, *, scheduler: str = "adaptive") -> None:
        settings = RescaleSettings(
            scheduler=scheduler, cooldown_seconds=0, stabilization_seconds=0, max_trigger_delay_seconds=0
        )
        clock = SystemClock()
        super().__init__(MemoryDriver(clock, settings), clock, upgrade_seconds=1.0)
        path = f"/apis/flink.apache.org/v1beta1/namespaces/{namespace}/flinkdeployments"
        self._namespace = namespace
        self.controller = Controller(cluster, path, self._keep)

    async def _keep(self, resource: dict[str, Any]) -> None:
        name = resource["metadata"]["name"]
        status = self.reconcile(resource, operated_subject(name, namespace=self._namespace))
        if status != resource.get("status"):
            await self.controller.write_status(name, status, "flink-operator")


class Elsewhere(WithAway, FlinkOperatorDriver):
    """The driver, with an API server that does not answer for the namespace `away`."""

    def __init__(self, access: UserAccess, jobs: MemoryDriver, namespace: str) -> None:
        clock = SystemClock()
        super().__init__(clock, jobs, ApiObjects(api(access)), [namespace])
        self._other = FlinkOperatorDriver(clock, jobs, ApiObjects(unanswered(access)), ["away"])

    async def trigger_checkpoint(self, subject: Subject, job_id: str) -> str | None:
        if subject.namespace == "away":
            return await self._other.trigger_checkpoint(subject, job_id)
        return await super().trigger_checkpoint(subject, job_id)


class ApiRig:
    """One FlinkDeployment."""

    def __init__(
        self,
        cluster: KubernetesCluster,
        access: UserAccess,
        namespace: str,
        name: str,
        *,
        spec: dict[str, Any] | None = None,
        scheduler: str = "adaptive",
    ) -> None:
        self.cluster, self.access, self.namespace, self.name = cluster, access, namespace, name
        self.operator = ApiOperator(cluster, namespace, scheduler=scheduler)
        self.driver = self.new_driver()
        self.subject = self.by_id = operated_subject(name, namespace=namespace)
        self.nobody = operated_subject("nobody", namespace=namespace)
        self.away = operated_subject(name, namespace="away")
        self.before, self.wanted, self.too_much = BEFORE, WANTED, {**WANTED, "enrich": 121}
        self.job_id = ""
        self.spec = deployment_spec() if spec is None else spec

    def new_driver(self) -> Elsewhere:
        """Return a driver that has seen nothing."""
        return Elsewhere(self.access, self.operator.jobs, self.namespace)

    def create(self) -> None:
        kind = {"apiVersion": "flink.apache.org/v1beta1", "kind": "FlinkDeployment"}
        made = {**kind, "metadata": {"name": self.name}, "spec": self.spec}
        self.cluster.apply(made, namespace=self.namespace)

    async def begin(self) -> "ApiRig":
        """Create the resource and wait until its job runs stably."""
        await asyncio.to_thread(self.create)
        found = await self.until(lambda s: s.runs(self.before) and s.refusal is None)
        assert found.deployment is not None
        self.job_id = found.deployment.job_id
        await self.until_lifecycle("STABLE")
        return self

    @property
    def job(self) -> MemoryJob:
        """The job that runs now."""
        return self.operator.jobs.jobs[str(self.subject.flink.url).rstrip("/"), self.name]

    async def close(self) -> None:
        """Delete the resource, which the next test's operator would take for its own."""
        await self.operator.controller.close()
        await self.driver.close()
        await asyncio.to_thread(self.kubectl, "delete", "flinkdeployment", self.name, "--ignore-not-found")

    async def until(self, condition: Callable[[Snapshot], bool], *, seconds: float = DEADLINE_SECONDS) -> Snapshot:
        return await until_observed(self.driver, self.subject, condition, seconds)

    async def until_lifecycle(self, state: str) -> None:
        """Wait until the operator reports this state of the newest generation."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                found = await asyncio.to_thread(self.document)
                status, generation = found.get("status", {}), found["metadata"]["generation"]
                if status.get("lifecycleState") == state and status.get("observedGeneration") == generation:
                    return
                await asyncio.sleep(0.1)

    async def ask(self, wanted: Parallelism, fence: Fence | None = None) -> Answer:
        """Send one request. Without a fence it is decided again, as by the executor, while the operator writes the status."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                found = await self.driver.observe(self.subject)
                assert found.deployment is not None and found.deployment.requested is not None, found.reason
                requested, job_id = found.deployment.requested, found.deployment.job_id
                answer = await self.driver.request(
                    self.subject, job_id, wanted, requested, fence or Unfenced(), version=found.version
                )
                if fence is not None or not isinstance(answer, TargetChanged):
                    return answer

    def document(self) -> dict[str, Any]:
        return self.cluster.request("GET", f"{self.operator.controller.path}/{self.name}")  # type: ignore[no-any-return]

    def configuration(self) -> dict[str, str]:
        return dict(self.document()["spec"]["flinkConfiguration"])

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self.cluster.kubectl("-n", self.namespace, *arguments, stdin=stdin)

    def edit(self, **spec: Any) -> None:
        """Change the spec as a person does."""
        self.kubectl("patch", "flinkdeployment", self.name, "--type=merge", "-p", json.dumps({"spec": spec}))

    def replace(self, **changes: Any) -> None:
        """Replace the resource by its manifest, as a GitOps tool may: what the manifest does not have goes."""
        metadata = {"name": self.name, "namespace": self.namespace}
        document = {"apiVersion": "flink.apache.org/v1beta1", "kind": "FlinkDeployment", "metadata": metadata}
        self.kubectl("replace", "-f", "-", stdin=json.dumps({**document, "spec": {**self.spec, **changes}}))

    def writes(self) -> list[int]:
        """Return the status of each write by the executor, oldest first."""
        user = f"system:serviceaccount:{self.namespace}:weir-executor"
        return [e.code for e in self.cluster.audit(user) if e.verb == "patch" and e.name == self.name]

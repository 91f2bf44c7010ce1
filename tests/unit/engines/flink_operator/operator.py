"""A small reconciler that stands for the Flink Kubernetes Operator: it does to jobs in memory what the operator does to real ones,
and writes the status as the operator does."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from tests.unit.engines.memory_jobs import MemoryDriver, MemoryJob
from tests.unit.executor.builders import TOPOLOGY
from weir_contracts import Parallelism, Subject, Topology
from weir_engines.flink_operator.spec import OVERRIDES
from weir_runtime.clock import Clock


@dataclass
class Case:
    """One resource in one reconciliation."""

    called: str
    generation: int
    spec: dict[str, Any]
    status: dict[str, Any]
    subject: Subject

    @property
    def record(self) -> dict[str, Any]:
        return self.status.setdefault("reconciliationStatus", {})  # type: ignore[no-any-return]

    @property
    def before(self) -> dict[str, Any] | None:
        """The spec that was deployed last."""
        text = self.record.get("lastReconciledSpec")
        return None if text is None else json.loads(text)["spec"]


class Operator:
    """Reconciles resources, whose jobs run in `jobs`. `upgrade_seconds` pass between the end of a job and its next start."""

    def __init__(
        self, jobs: MemoryDriver, clock: Clock, *, upgrade_seconds: float = 3.0, topology: Topology = TOPOLOGY
    ) -> None:
        self.jobs, self.clock, self.upgrade_seconds, self.topology = jobs, clock, upgrade_seconds, topology
        self.fails: set[str] = set()
        """Images with which no job starts."""
        self.slots = 1000
        """Slots of the clusters that it starts."""
        self.paused = False
        self._changes: dict[str, float] = {}

    def reconcile(self, document: Mapping[str, Any], subject: Subject) -> dict[str, Any]:
        """Return the status after one reconciliation. `subject` names the REST API at which the job is served."""
        status = json.loads(json.dumps(document.get("status") or {}))
        if self.paused:
            return status
        metadata = document["metadata"]
        case = Case(metadata["name"], metadata.get("generation", 1), document["spec"], status, subject)
        if case.before is None or case.record["state"] in ("UPGRADING", "ROLLING_BACK"):
            self._deploy(case)
        elif _without_ignored(case.before) != _without_ignored(case.spec):
            self._change(case, case.before)
        else:
            status["observedGeneration"] = case.generation
            self._observe(case)
        return status

    def parallelism(self, spec: Mapping[str, Any]) -> Parallelism:
        """Return what the job would run with."""
        overrides = dict(part.split(":") for part in spec["flinkConfiguration"].get(OVERRIDES, "").split(",") if part)
        default = spec["job"].get("parallelism", 1)
        return {o.name: int(overrides.get(o.id, default)) for o in self.topology.operators}

    def _change(self, case: Case, before: dict[str, Any]) -> None:
        job, is_suspended = self._job(case), case.spec["job"].get("state") == "suspended"
        if job is not None and not is_suspended and _scales_in_place(before, case.spec):
            job.requested = self.parallelism(case.spec)
            self._record(case, case.spec, "DEPLOYED")
            return
        if job is not None:
            job.state = "FINISHED"
        if is_suspended:
            self._record(case, case.spec, "DEPLOYED")
            case.status["lifecycleState"], case.status["jobStatus"]["state"] = "SUSPENDED", "FINISHED"
            return
        self._record(case, before, "UPGRADING")
        case.status["lifecycleState"] = "UPGRADING"
        self._changes[case.called] = self.clock.now().timestamp() + self.upgrade_seconds

    def _deploy(self, case: Case) -> None:
        now, before, runs = self.clock.now().timestamp(), case.before, case.spec
        if case.spec["job"].get("state") == "suspended" or now < self._changes.get(case.called, 0.0):
            return
        if before is not None and case.spec.get("image") in self.fails:
            if case.record["state"] == "UPGRADING":
                case.record["state"] = case.status["lifecycleState"] = "ROLLING_BACK"
                self._changes[case.called] = now + self.upgrade_seconds
                return
            runs = before
        kept = (
            case.status.get("jobStatus", {}).get("jobId") if case.spec["job"]["upgradeMode"] == "last-state" else None
        )
        job_id = kept or uuid4().hex
        job = self.jobs.add(case.subject, self.topology, self.parallelism(runs), job_id)
        job.slots = self.slots
        job.observed = job.attainable()
        if runs is case.spec:
            self._record(case, case.spec, "DEPLOYED")
        else:
            case.record["state"] = case.status["lifecycleState"] = "ROLLED_BACK"
        case.status["jobStatus"] = {"jobId": job_id, "jobName": case.called, "state": "RECONCILING"}

    def _observe(self, case: Case) -> None:
        job = self._job(case)
        if job is None:
            return
        case.status["jobStatus"]["state"] = job.state
        if job.state == "FAILED":
            case.status["lifecycleState"] = "FAILED"
        elif job.state == "RUNNING" and case.record["state"] == "DEPLOYED":
            case.record["lastStableSpec"] = case.record["lastReconciledSpec"]
            case.status["lifecycleState"] = "STABLE"

    def _record(self, case: Case, spec: dict[str, Any], state: str) -> None:
        # The operator's record has fields that the spec lacks.
        full = {**spec, "restartNonce": None, "job": {"args": [], "state": "running", **spec["job"]}}
        case.record["lastReconciledSpec"] = json.dumps({"spec": full, "resource_metadata": {"firstDeployment": False}})
        case.record["state"] = state
        case.record["reconciliationTimestamp"] = round(self.clock.now().timestamp() * 1000)
        case.status |= {"observedGeneration": case.generation, "lifecycleState": "DEPLOYED"}

    def _job(self, case: Case) -> MemoryJob | None:
        url = str(case.subject.flink.url).rstrip("/")
        return self.jobs._find(url, case.status.get("jobStatus", {}).get("jobId", ""))


def _without_ignored(spec: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: each for key, each in spec.items() if each is not None}
    ignored = ("job.autoscaler", "kubernetes.operator")
    found["flinkConfiguration"] = {
        k: str(v) for k, v in spec["flinkConfiguration"].items() if not k.startswith(ignored)
    }
    found["job"] = {"args": [], "state": "running", **spec["job"]}
    return found


def _scales_in_place(before: Mapping[str, Any], spec: Mapping[str, Any]) -> bool:
    """Whether only the overrides of a job in native mode differ, whose scheduler can rescale it."""

    def rest(of: Mapping[str, Any]) -> dict[str, Any]:
        found = _without_ignored(of)
        found["flinkConfiguration"] = {k: v for k, v in found["flinkConfiguration"].items() if k != OVERRIDES}
        return found

    configuration = spec["flinkConfiguration"]
    adaptive = configuration.get("jobmanager.scheduler") == "adaptive"
    kept = OVERRIDES in configuration or OVERRIDES not in before["flinkConfiguration"]
    return rest(before) == rest(spec) and adaptive and kept and spec.get("mode", "native") == "native"

"""A FlinkDeployment or FlinkSessionJob as the API server reports it: what it wants, what the operator has done, and what Weir
writes into it. Pure.

The operator deploys `spec`, and keeps in its status what it deployed last and what ran stably last. Weir writes the parallelism
of each vertex as `pipeline.jobvertex-parallelism-overrides`; in standalone mode also the number of TaskManagers, which Flink
starts itself in native mode.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json, to_json

from weir_contracts import Deployment, Parallelism, Topology, bounded
from weir_contracts.base import MAX_NAME
from weir_engines.driver import Refusal
from weir_engines.flink.rescale import UNLIMITED_SLOTS
from weir_engines.kubernetes.discovery import Kind
from weir_engines.kubernetes.state import MANAGER
from weir_engines.kubernetes.values import count, mapping, name, sequence, text

from .spec import (
    MAX_SPEC_CHARACTERS,
    OVERRIDES,
    deployed_part,
    differences,
    options_of,
    overrides_of,
    recorded_spec,
    small_number,
)

FLINK_DEPLOYMENT = Kind("flink.apache.org", "v1beta1", "FlinkDeployment", "flinkdeployments")
FLINK_SESSION_JOB = Kind("flink.apache.org", "v1beta1", "FlinkSessionJob", "flinksessionjobs", is_scalable=False)
SLOTS, SCHEDULER, SCHEDULER_MODE = "taskmanager.numberOfTaskSlots", "jobmanager.scheduler", "scheduler-mode"
IN_PLACE = "kubernetes.operator.job.upgrade.inplace-scaling.enabled"
AUTOSCALER, AUTOSCALER_SCALES = "job.autoscaler.enabled", "job.autoscaler.scaling.enabled"
_FORMER = "kubernetes.operator."
"""Beginning of the autoscaler's former keys, which count where the present one is not set."""
_OPTIONS = (
    *(SLOTS, SCHEDULER, SCHEDULER_MODE, IN_PLACE, AUTOSCALER, AUTOSCALER_SCALES),
    *(_FORMER + AUTOSCALER, _FORMER + AUTOSCALER_SCALES),
)
MANAGERS = "taskManager.replicas"
"""Path, in the spec, of the number of TaskManagers."""
MIN_VERSION, MAX_MAJOR = (1, 18), 2
"""Versions of Flink whose REST API and options are known."""
_VERSION = re.compile(r"v(\d{1,3})_(\d{1,3})")
_MAX_REASON = 70


@dataclass(frozen=True, slots=True)
class FlinkResource:
    """One resource. Texts are empty, and counts None, where the field is missing or malformed."""

    kind: Kind
    name: str
    namespace: str
    uid: str
    version: str
    """resourceVersion."""
    mode: str
    flink_version: str
    deployment_name: str
    """FlinkDeployment of a session job."""
    has_job: bool
    """Whether the spec has a job; a FlinkDeployment without one is a session cluster."""
    desired_state: str
    """State that the spec wants of the job."""
    upgrade_mode: str
    """`spec.job.upgradeMode`: from what the operator restarts the job."""
    replicas: int | None
    """TaskManagers that the spec names; None: the operator derives them from the parallelism."""
    options: Mapping[str, str]
    """Those of `spec.flinkConfiguration` that matter here, in lower case."""
    overrides: Mapping[str, int] | None
    """Parallelism by vertex id; empty without the option, None if it is unreadable."""
    is_nested: bool
    """Whether `flinkConfiguration` has the overrides as nested maps."""
    fingerprint: str
    """Hash of what the operator deploys of the spec, without the parallelism."""
    job_id: str
    job_name: str
    job_state: str
    """State of the job as the operator observed it last."""
    lifecycle: str
    """`lifecycleState`, such as STABLE."""
    reconciliation: str
    """`reconciliationStatus.state`: DEPLOYED, UPGRADING, ROLLING_BACK or ROLLED_BACK."""
    error: str
    is_observed: bool
    """Whether the operator has acted on the newest generation."""
    is_deployed: bool
    """Whether the operator has deployed it at least once."""
    is_deleted: bool
    """Whether it is being deleted."""
    is_starting: bool
    """Whether its job has not run stably yet since its first deployment, or since it was resumed."""
    deployed_overrides: Mapping[str, int] | None
    """Overrides that the operator deployed last; None: unknown."""
    changed_field: str
    """Path of the first field of the spec, besides the parallelism, that differs from what ran stably last; empty: none does, so
    that a change under way is of the parallelism alone."""
    owners: Mapping[str, str] = field(default_factory=dict)
    """Manager by the path, in the spec, of a field that Weir writes."""
    cluster: "FlinkResource | None" = None
    """FlinkDeployment of a session job's cluster; None: it is missing, or this is no session job."""

    @property
    def label(self) -> str:
        """Kind and name for sentences."""
        return f"{self.kind.kind} {self.name}"

    @property
    def _host(self) -> "FlinkResource":
        """The resource that has the cluster's mode and Flink's version."""
        return self.cluster or self

    @property
    def is_standalone(self) -> bool:
        """Whether the operator starts the TaskManagers; else Flink does, as many as it needs."""
        return self._host.mode == "standalone"

    @property
    def is_suspended(self) -> bool:
        """Whether the job is suspended, or will be; not if it is about to be resumed."""
        return self.desired_state == "suspended"

    @property
    def is_changing(self) -> bool:
        """Whether the operator is about to deploy, deploys or waits for the job, which therefore may be absent."""
        if self.is_suspended or self.lifecycle == "FAILED":
            return False
        waits = self.job_state in ("", "RECONCILING", "CREATED", "INITIALIZING", "SUSPENDED")
        moves = self.lifecycle == "SUSPENDED" or self.reconciliation in ("UPGRADING", "ROLLING_BACK")
        return not self.is_observed or waits or moves

    @property
    def sets_managers(self) -> bool:
        """Whether Weir writes the number of TaskManagers, which the operator uses in standalone mode only."""
        return self.is_standalone and self.kind is FLINK_DEPLOYMENT

    @property
    def slots(self) -> int:
        """Slots of one TaskManager."""
        return small_number(self._host.options.get(SLOTS)) or 1

    def in_place(self, scheduler: str | None) -> bool:
        """Return whether the operator rescales the running job, by the scheduler of its cluster; else it restarts it."""
        if self.is_standalone or self._option(IN_PLACE) == "false":
            return False
        return (scheduler or self._option(SCHEDULER)) == "adaptive"

    def requested(self, topology: Topology, deployment: Deployment) -> Parallelism:
        """Return the parallelism that the spec requests, of an operator without an entry that of the running job.

        In standalone mode it is what the TaskManagers of the spec have slots for.
        """
        overrides, otherwise = self.overrides or {}, deployment.requested or deployment.observed
        found = {o.name: overrides.get(o.id, otherwise[o.name]) for o in topology.operators}
        if self.sets_managers and overrides and self.replicas is not None:
            slots = self.replicas * self.slots
            if slots < topology.slots(found):
                found = {called: min(p, slots) for called, p in found.items()}
        return found

    def task_managers(self, topology: Topology, parallelism: Parallelism) -> int | None:
        """Return the TaskManagers that give a parallelism its slots; None where Weir does not set their number."""
        if not self.sets_managers:
            return None
        return -(-topology.slots(parallelism) // self.slots)

    def adapted(self, deployment: Deployment, topology: Topology) -> Deployment:
        """Return the job's deployment as that of the resource, which outlives the operator's restarts of the job."""
        rescale: dict[str, object] = {"by_restart": not self.in_place(deployment.rescale.scheduler)}
        if deployment.rescale.scheduler == "reactive":
            rescale = {}
        if self.sets_managers:
            rescale["max_slots"] = UNLIMITED_SLOTS  # the operator starts what the spec names
        return deployment.model_copy(
            update={
                "job_id": self.uid,
                "requested": self.requested(topology, deployment),
                "rescale": deployment.rescale.model_copy(update=rescale),
            }
        )

    def patch(self, topology: Topology, parallelism: Parallelism) -> dict[str, Any]:
        """Return the merge patch that requests a parallelism of this version. Entries of vertices that the job does not have
        stay."""
        merged = {**(self.overrides or {}), **{o.id: parallelism[o.name] for o in topology.operators}}
        value: Any = ",".join(f"{vertex}:{p}" for vertex, p in merged.items())
        for part in reversed(OVERRIDES.split(".", 1) if self.is_nested else [OVERRIDES]):
            value = {part: value}
        spec: dict[str, Any] = {"flinkConfiguration": value}
        managers = self.task_managers(topology, parallelism)
        if managers is not None:
            spec["taskManager"] = {"replicas": managers}
        return {"metadata": {"resourceVersion": self.version}, "spec": spec}

    @property
    def writer(self) -> str | None:
        """Client that last set the overrides, with the field, empty for Weir; None: they are not set, or no client is recorded."""
        owners = {place: each for place, each in self.owners.items() if self.sets_managers or place != MANAGERS}
        if not owners or self.overrides == {}:
            return None
        place, manager = next((each for each in owners.items() if each[1] != MANAGER), ("", ""))
        return f"{bounded(manager, MAX_NAME - len(place) - 4)} in {place}" if manager else ""

    def refusal(self) -> Refusal | None:
        """Return why no request may be written, or None."""
        return self._unsupported() or self._contested() or self._stopped() or self._moving()

    def _unsupported(self) -> Refusal | None:
        host = self._host
        if not self.has_job:
            return Refusal(
                "unsupported", f"{self.label} is a session cluster: name one of its jobs in target.flinkSessionJob"
            )
        if self.kind is FLINK_SESSION_JOB and self.cluster is None:
            return Refusal(
                "unsupported",
                f"{self.label} runs in FlinkDeployment {self.deployment_name or '?'}, which does not exist",
            )
        found = _VERSION.fullmatch(host.flink_version)
        numbers = None if found is None else (int(found[1]), int(found[2]))
        if numbers is None or numbers < MIN_VERSION or numbers[0] > MAX_MAJOR:
            return Refusal(
                "unsupported",
                f"{host.label} has flinkVersion {host.flink_version or 'unset'}, supported is v1_18 to v2_x",
            )
        if host.mode not in ("", "native", "standalone"):
            return Refusal("unsupported", f"{host.label} has the unknown mode {host.mode}")
        if self._option(SCHEDULER_MODE) == "reactive":
            return Refusal(
                "unsupported",
                f"{self.label} is in reactive mode: name it in target.kubernetes, with slots of a TaskManager",
            )
        if self.overrides is None:
            return Refusal("unsupported", f"{self.label}: {OVERRIDES} cannot be read: correct or remove it")
        return None

    def _contested(self) -> Refusal | None:
        """Return whether the operator's own autoscaler scales the job: by an option of the resource, or of the operator, which
        then deploys overrides that the spec does not have."""
        enabled = self._present(AUTOSCALER) == "true" and self._present(AUTOSCALER_SCALES) != "false"
        settled = self.is_observed and self.reconciliation == "DEPLOYED" and not self.error
        if enabled or (settled and self.deployed_overrides and self.deployed_overrides != self.overrides):
            return Refusal(
                "contested", f"the operator's autoscaler scales {self.label}, too: set {AUTOSCALER} to false"
            )
        return None

    def _stopped(self) -> Refusal | None:
        if self.is_deleted:
            return Refusal("job-gone", f"{self.label} is being deleted")
        if self.is_suspended:
            return Refusal("suspended", f"{self.label} is suspended: set spec.job.state to running")
        if self.lifecycle == "FAILED":
            return Refusal("resource-failed", f"{self.label} is FAILED{self._why}")
        return None

    def _moving(self) -> Refusal | None:
        """Return which change of another client is under way. A change of the parallelism alone may be Weir's own, which has to
        be undone where the operator does not get it to run."""
        changed = self.changed_field
        if not self.is_deployed:
            return Refusal("upgrade", f"the operator has not deployed {self.label} yet{self._why}")
        if self.is_starting and self.lifecycle not in ("STABLE", ""):
            return Refusal("upgrade", f"the operator starts the job of {self.label}, wait until it is STABLE")
        if self.error and not self.is_observed and self.overrides == self.deployed_overrides:
            return Refusal("operator-error", f"the operator does not accept a change of {self.label}{self._why}")
        if not changed:
            return None
        if self.reconciliation == "ROLLING_BACK":
            return Refusal("upgrade", f"the operator rolls {self.label} back ({changed} changed)")
        if self.reconciliation == "ROLLED_BACK":
            return Refusal("rolled-back", f"the operator rolled {self.label} back: correct or restore {changed}")
        if self.error:
            return Refusal("operator-error", f"the operator reports an error of {self.label}{self._why}")
        if self.lifecycle != "STABLE" or not self.is_observed:
            return Refusal(
                "upgrade", f"the operator upgrades {self.label} ({changed} changed), wait until it is STABLE"
            )
        return None

    @property
    def _why(self) -> str:
        return f": {bounded(self.error, _MAX_REASON)}" if self.error else ""

    def _option(self, key: str) -> str:
        """Return an option in lower case, of the job itself or its cluster; empty: unset."""
        return self.options.get(key, self._host.options.get(key, ""))

    def _present(self, key: str) -> str:
        """Return an option of the autoscaler by its present key, else by its former one."""
        return self._option(key) or self._option(_FORMER + key)


def resource_of(document: Any, kind: Kind) -> FlinkResource | None:
    """Return the reading of a resource; None for an object without name or uid."""
    document = mapping(document)
    metadata, spec, status = (mapping(document.get(key)) for key in ("metadata", "spec", "status"))
    called, uid = name(metadata.get("name")), name(metadata.get("uid"), 100)
    if not called or not uid:
        return None
    job, reconciliation = mapping(status.get("jobStatus")), mapping(status.get("reconciliationStatus"))
    configuration, wanted = options_of(spec.get("flinkConfiguration")), deployed_part(spec)
    deployed = recorded_spec(reconciliation.get("lastReconciledSpec"))
    is_deployed = bool(reconciliation.get("lastReconciledSpec"))
    stable = recorded_spec(reconciliation.get("lastStableSpec"))
    last_state = mapping((stable or {}).get("job")).get("state")
    group, _, option = OVERRIDES.partition(".")
    generation, observed = count(metadata.get("generation")), count(status.get("observedGeneration"))
    return FlinkResource(
        kind=kind,
        name=called,
        namespace=name(metadata.get("namespace"), 63),
        uid=uid,
        version=name(metadata.get("resourceVersion"), 100),
        mode=text(spec.get("mode"), 30),
        flink_version=text(spec.get("flinkVersion"), 30),
        deployment_name=name(spec.get("deploymentName"), 63),
        has_job=isinstance(spec.get("job"), dict),
        desired_state=text(mapping(spec.get("job")).get("state"), 30),
        upgrade_mode=text(mapping(spec.get("job")).get("upgradeMode"), 30),
        replicas=count(mapping(spec.get("taskManager")).get("replicas")) or None,
        options={key: text(configuration[key], 100).lower() for key in _OPTIONS if key in configuration},
        overrides=overrides_of(configuration.get(OVERRIDES)),
        is_nested=option in mapping(mapping(spec.get("flinkConfiguration")).get(group)),
        fingerprint=hashlib.sha256(to_json(wanted, serialize_unknown=True)).hexdigest()[:16],
        job_id=_job_id(job.get("jobId")),
        job_name=text(job.get("jobName"), 300),
        job_state=text(job.get("state"), 30),
        lifecycle=text(status.get("lifecycleState"), 30),
        reconciliation=text(reconciliation.get("state"), 30),
        error=_message(status.get("error")),
        is_observed=generation is None or observed is None or observed >= generation,
        is_deployed=is_deployed,
        is_deleted=metadata.get("deletionTimestamp") is not None,
        is_starting=is_deployed and (not reconciliation.get("lastStableSpec") or last_state == "suspended"),
        deployed_overrides=None
        if deployed is None
        else overrides_of(options_of(deployed.get("flinkConfiguration")).get(OVERRIDES)),
        changed_field=text(_changed_field(stable or deployed, deployed, wanted), 60),
        owners=_owners(metadata.get("managedFields")),
    )


def _changed_field(
    before: Mapping[str, Any] | None, deployed: Mapping[str, Any] | None, wanted: Mapping[str, Any]
) -> str:
    """Return the path of the first field of the spec that differs from what ran stably last; empty: none does, or it is unknown.

    That a field was removed shows by the operator's records of what it deployed before and last, since these have all fields.
    """
    if before is None or deployed is None:
        return "" if before is None else next(differences(deployed_part(before), wanted, "spec"), "")
    ran, runs = deployed_part(before), deployed_part(deployed)
    return next(differences(ran, wanted, "spec"), "") or next(differences(ran, runs, "spec", of_records=True), "")


def _job_id(value: Any) -> str:
    """Return a job's id, which goes into paths."""
    return value if isinstance(value, str) and re.fullmatch(r"[0-9a-f]{32}", value) else ""


def _message(value: Any) -> str:
    """Return the message of an error, which the operator writes as JSON with a stack trace."""
    found: Any = value
    if isinstance(value, str) and value.startswith("{") and len(value) <= MAX_SPEC_CHARACTERS:
        try:
            found = mapping(from_json(value)).get("message") or value
        except ValueError:
            found = value
    return text(found)


def _owners(value: Any) -> Mapping[str, str]:
    """Return the managers of the fields that Weir writes."""
    found: dict[str, str] = {}
    for each in map(mapping, sequence(value)[:100]):
        manager, spec = text(each.get("manager"), 128), mapping(mapping(each.get("fieldsV1")).get("f:spec"))
        if not manager:
            continue
        configuration = mapping(spec.get("f:flinkConfiguration"))
        group, _, option = OVERRIDES.partition(".")
        if f"f:{OVERRIDES}" in configuration or f"f:{option}" in mapping(configuration.get(f"f:{group}")):
            found["flinkConfiguration"] = _of_both(found.get("flinkConfiguration"), manager)
        if "f:replicas" in mapping(spec.get("f:taskManager")):
            found[MANAGERS] = _of_both(found.get(MANAGERS), manager)
    return found


def _of_both(first: str | None, other: str) -> str:
    """Return the manager of a field that two may own: then both set the same value, and Weir's counts."""
    return MANAGER if MANAGER in (first, other) else other

"""Kubernetes workloads in memory, whose controllers act in virtual time. It passes the suite that the API server
passes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.unit.engines.kubernetes.memory_cluster import MemoryCluster
from tests.unit.engines.kubernetes.pod_groups import PodProcess
from tests.unit.engines.memory_jobs import MemoryDriver
from weir_contracts import Subject
from weir_contracts.target import WorkloadRef
from weir_engines.kubernetes.api import ApiFailed, Call
from weir_engines.kubernetes.discovery import Kind
from weir_engines.kubernetes.state import MANAGER, Found
from weir_runtime.clock import Clock

WORKER = Kind("shop.example", "v1", "Worker", "workers")
NAMESPACE = "shop"


@dataclass
class Pods:
    """Behaviour of one workload's pods. Each state: what a pod is instead of ready."""

    ready_seconds: float = 2.0
    waiting: dict[str, str] = field(default_factory=dict)
    """Reason of the waiting container by pod; `*`: of every pod that is not ready."""
    unschedulable: str = ""
    killed: bool = False
    restarts: int = 0
    quota: int | None = None
    """Maximum number of pods."""
    budget: bool = False
    """Whether a disruption budget allows no eviction."""
    made: int = 0
    names: list[str] = field(default_factory=list)
    born: dict[str, float] = field(default_factory=dict)


class MemoryKubernetes:
    """Objects of one namespace. `away` makes the API server unreachable, `denied[verb resource]` takes a right away."""

    def __init__(self, clock: Clock) -> None:
        self.objects = MemoryCluster([WORKER])
        self.pods: dict[str, Pods] = {}
        self.writes: list[tuple[str, int]] = []
        self.costs: dict[str, list[str]] = {}
        self.evicted: list[str] = []
        self.away = ""
        self.denied: set[str] = set()
        self.autoscalers: dict[str, str] = {}
        self.lost_answers = 0
        self._clock = clock

    async def close(self) -> None:
        return None

    # -- what others do -------------------------------------------------------------------------------------------

    def add(self, kind: str, name: str, replicas: int) -> Pods:
        """Create a workload with its pods, all of them ready."""
        self.pods[name] = Pods(ready_seconds=0.0)
        document = {
            "kind": kind,
            "metadata": {"name": name, "namespace": NAMESPACE, "managedFields": [_owner("kubectl", self._at)]},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": {"v": 1}},
            "status": {"observedGeneration": 1},
        }
        self.objects.put(document)
        self._control(kind, name)
        self.pods[name].ready_seconds = 2.0
        return self.pods[name]

    def delete(self, kind: str, name: str) -> None:
        """Delete a workload with its pods."""
        for pod in self.pods.pop(name).names:
            self.objects.delete("Pod", NAMESPACE, pod)
        self.objects.delete(kind, NAMESPACE, name)

    def change(self, kind: str, name: str, *, manager: str = "kubectl", **spec: Any) -> None:
        """Change an object's spec as another client does."""
        found = self.objects.document(kind, NAMESPACE, name)
        metadata = dict(found["metadata"])
        if "replicas" in spec:
            metadata["managedFields"] = [_owner(manager, self._at)]
        self.objects.put({**found, "metadata": metadata, "spec": {**found["spec"], **spec}})

    def report(self, kind: str, name: str, **status: Any) -> None:
        """Change an object's status as its controller does; the value stays."""
        found = self.objects.document(kind, NAMESPACE, name)
        self.objects.put({**found, "status": {**found["status"], **status}, "fixed": status})

    def restart(self, kind: str, name: str, pod: str) -> None:
        """Delete a pod; its controller makes another one, of the same name in a StatefulSet."""
        pods = self.pods[name]
        pods.names.remove(pod)
        self.objects.delete("Pod", NAMESPACE, pod)
        if kind == "StatefulSet":
            pods.names.append(pod)
            pods.born[pod] = self._at

    def processes(self) -> list[PodProcess]:
        """Return the processes of ready pods."""
        found = []
        for (kind, _, name), each in self.objects._objects.items():
            if kind == "Pod" and each["status"]["phase"] == "Running":
                found.append(PodProcess(str(each["metadata"]["uid"]), name, each["status"]["podIP"]))
        return found

    def names(self, name: str) -> list[str]:
        """Return the pods of a workload."""
        return list(self.pods[name].names)

    # -- the port ---------------------------------------------------------------------------------------------------

    async def read(self, namespace: str, refs: Sequence[WorkloadRef]) -> Mapping[str, Found]:
        if self.away or namespace == "away":
            call = Call("get", "workloads", namespace)
            raise ApiFailed(call, f"cannot {call}: {self.away or 'connection refused'}")
        self._deny("get workloads", namespace)
        for ref in refs:
            if ref.name in self.pods and (ref.kind, NAMESPACE, ref.name) in self.objects._objects:
                self._control(ref.kind, ref.name)
        read = await self.objects.read(namespace, refs)
        return {name: Found(each, self.autoscalers.get(name, "")) for name, each in read.found.items()}

    async def scale(self, found: Found, replicas: int) -> None:
        kind, name = found.reading.kind.kind, found.name
        call = Call("update", f"{found.reading.kind.resource}/scale", NAMESPACE, name)
        if self.away:
            raise ApiFailed(call, f"cannot {call}: {self.away}")
        self._deny(f"update {found.reading.kind.resource}/scale", NAMESPACE, name)
        there = self.objects.document(kind, NAMESPACE, name)
        if there["metadata"]["resourceVersion"] != found.reading.version:
            raise ApiFailed(call, f"cannot {call} (409): the object has been modified", 409, "Conflict")
        self.change(kind, name, manager=MANAGER, replicas=replicas)
        self.writes.append((name, replicas))
        if self.lost_answers:
            self.lost_answers -= 1
            raise ApiFailed(call, f"cannot {call}: no answer within 5 s")

    async def evict_pod(self, namespace: str, pod: str, uid: str) -> None:
        call = Call("create", "pods/eviction", namespace, pod)
        if self.away:
            raise ApiFailed(call, f"cannot {call}: {self.away}")
        self._deny("create pods/eviction", namespace, pod)
        there = self._pod_uids(namespace)
        if pod not in there:
            raise ApiFailed(call, f"cannot {call} (404): not found", 404, "NotFound")
        if there[pod] != uid:
            raise ApiFailed(call, f"cannot {call} (409): Precondition failed: UID in precondition", 409, "Conflict")
        workload = next(name for name, each in self.pods.items() if pod in each.names)
        if self.pods[workload].budget:
            text = "Cannot evict pod as it would violate the pod's disruption budget."
            raise ApiFailed(call, f"cannot {call} (429): {text}", 429, "TooManyRequests")
        kind = next(kind for kind, _, name in self.objects._objects if name == workload and kind != "Pod")
        self.restart(kind, workload, pod)
        self.evicted.append(pod)
        if self.lost_answers:
            self.lost_answers -= 1
            raise ApiFailed(call, f"cannot {call}: no answer within 5 s")

    def _pod_uids(self, namespace: str) -> dict[str, str]:
        return {
            name: str(each["metadata"]["uid"])
            for (kind, at, name), each in self.objects._objects.items()
            if (kind, at) == ("Pod", namespace)
        }

    async def ended(self, namespace: str, pods: Mapping[str, str | None]) -> frozenset[str]:
        if self.away:
            call = Call("list", "pods", namespace)
            raise ApiFailed(call, f"cannot {call}: {self.away}")
        there = self._pod_uids(namespace)
        return frozenset(name for name, uid in pods.items() if name not in there or uid not in (None, there[name]))

    async def lower_cost(self, found: Found, pod: str) -> None:
        self._deny("patch pods", NAMESPACE)
        self.costs.setdefault(found.name, []).append(pod)

    # -- controllers ------------------------------------------------------------------------------------------------

    def _deny(self, right: str, namespace: str, name: str = "") -> None:
        if right in self.denied:
            verb, resource = right.split(" ")
            call = Call(verb, resource, namespace, name)
            raise ApiFailed(call, f"may not {call} (403): forbidden", 403, "Forbidden")

    @property
    def _at(self) -> float:
        return self._clock.now().timestamp()

    def _control(self, kind: str, name: str) -> None:
        """Do what the workload's controller, the scheduler and the kubelets do."""
        document, pods = self.objects.document(kind, NAMESPACE, name), self.pods[name]
        wanted = document["spec"]["replicas"]
        allowed = wanted if pods.quota is None else min(wanted, max(pods.quota, 0))
        while len(pods.names) < allowed:
            pods.names.append(f"{name}-{pods.made if kind != 'StatefulSet' else len(pods.names)}")
            pods.made += 1
            pods.born[pods.names[-1]] = self._at
        if len(pods.names) > wanted:
            cheap = self.costs.get(name, []) if kind == "Deployment" else []
            going = [*(pod for pod in cheap if pod in pods.names), *reversed(pods.names)]
            for pod in list(dict.fromkeys(going))[: len(pods.names) - wanted]:
                pods.names.remove(pod)
                self.objects.delete("Pod", NAMESPACE, pod)
        ready = 0
        for pod in pods.names:
            made = self._pod(name, pod, pods)
            ready += made["status"]["conditions"][-1]["status"] == "True"
            self.objects.put(made)
        denied = [] if allowed == wanted else [_denied(wanted - allowed)]
        status = {
            "observedGeneration": document["metadata"]["generation"],
            **{key: len(pods.names) for key in ("replicas", "updatedReplicas")},
            "readyReplicas": ready,
            "conditions": denied,
            **document.get("fixed", {}),
        }
        if kind == WORKER.kind:
            status = {"replicas": len(pods.names), "selector": f"app={name}", **document.get("fixed", {})}
        if status != document["status"]:
            self.objects.put({**document, "status": status})

    def _pod(self, workload: str, name: str, pods: Pods) -> dict[str, Any]:
        ready = self._at - pods.born[name] >= pods.ready_seconds
        waiting = pods.waiting.get(name) or ("" if ready else pods.waiting.get("*", ""))
        ready = ready and not waiting
        container: dict[str, Any] = {"restartCount": 0 if ready else pods.restarts}
        if waiting:
            container["state"] = {"waiting": {"reason": waiting}}
        if pods.killed and not ready:
            container["lastState"] = {"terminated": {"reason": "OOMKilled"}}
        conditions = [{"type": "Ready", "status": str(ready)}]
        if pods.unschedulable and not ready:
            message = {"reason": "Unschedulable", "message": pods.unschedulable}
            conditions.insert(0, {"type": "PodScheduled", "status": "False", **message})
        return {
            "kind": "Pod",
            "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app": workload}},
            "spec": {},
            "status": {
                "phase": "Running" if ready else "Pending",
                "startTime": _time(pods.born[name]),
                "podIP": f"10.0.{sum(name.encode()) % 250}.{int(pods.born[name]) % 250}",
                "containerStatuses": [container],
                "conditions": conditions,
            },
        }


class TaskManagers(MemoryDriver):
    """Cluster whose job takes the slots of the ready pods (one slot-sharing group)."""

    kubernetes: MemoryKubernetes

    async def observe(self, subject: Subject) -> Any:
        slots = await self.slots(subject)
        for job in self.jobs.values():
            job.slots = slots or 1
            job.requested = job.topology.uniform(32768)
        return await super().observe(subject)

    async def slots(self, subject: Subject) -> int | None:
        """Slots that are registered."""
        target = subject.target.kubernetes
        if target is None or str(subject.flink.url).rstrip("/") in self.away or self.kubernetes.away:
            return None
        found = await self.kubernetes.read(NAMESPACE, target.refs)
        return target.slots * sum(each.own.ready for each in found.values())


def _owner(manager: str, at: float) -> dict[str, Any]:
    return {"manager": manager, "time": _time(at), "fieldsV1": {"f:spec": {"f:replicas": {}}}}


def _time(at: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at, UTC).isoformat()


def _denied(number: int) -> dict[str, str]:
    message = (
        f'pods "x" is forbidden: exceeded quota: pods, requested: pods=1, used: pods={number}, limited: pods={number}'
    )
    return {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message}

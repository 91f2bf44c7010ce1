"""A real Flink session cluster on the loopback interface, driven through its REST API."""

import itertools
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import httpx

from weir_contracts import Parallelism
from weir_engines.flink.jobs import Jobs
from weir_engines.flink.rescale import request_body
from weir_engines.flink.rest import CallFailed, Unreadable
from weir_engines.flink.topology import TERMINAL, Job, job

from .jars import class_path, java
from .kubernetes_access import Authority, write_java_stores
from .process import Launcher, ManagedProcess, TestbedError, claim_port, free_port, stop_all, wait_until

_OPENS = [
    *(
        f"--add-opens=java.base/java.{package}=ALL-UNNAMED"
        for package in (
            "lang",
            "lang.reflect",
            "net",
            "io",
            "nio",
            "text",
            "time",
            "util",
            "util.concurrent",
            "util.concurrent.atomic",
            "util.concurrent.locks",
        )
    ),
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.rmi/sun.rmi.registry=ALL-UNNAMED",
    "--add-exports=java.base/sun.net.util=ALL-UNNAMED",
]

_JOB_MANAGER_MEMORY = {
    "jobmanager.memory.heap.size": "512mb",
    "jobmanager.memory.off-heap.size": "128mb",
    "jobmanager.memory.jvm-metaspace.size": "256mb",
    "jobmanager.memory.jvm-overhead.min": "192mb",
    "jobmanager.memory.jvm-overhead.max": "192mb",
}

_TASK_MANAGER_MEMORY = {
    "taskmanager.cpu.cores": "2",
    "taskmanager.memory.framework.heap.size": "128mb",
    "taskmanager.memory.framework.off-heap.size": "128mb",
    "taskmanager.memory.task.heap.size": "512mb",
    "taskmanager.memory.task.off-heap.size": "0",
    "taskmanager.memory.managed.size": "128mb",
    "taskmanager.memory.network.min": "128mb",
    "taskmanager.memory.network.max": "128mb",
    "taskmanager.memory.jvm-metaspace.size": "256mb",
    "taskmanager.memory.jvm-overhead.min": "192mb",
    "taskmanager.memory.jvm-overhead.max": "192mb",
}

TRIAL_OPTIONS: Mapping[str, str] = {
    "jobmanager.scheduler": "adaptive",
    # The default of 10 s would be most of a reaction time.
    "metrics.fetcher.update-interval": "1000",
    "web.refresh-interval": "1000",
    # Rescale as soon as it is wished: these protect long-lived clusters from churn, which Weir's own guards do here.
    "jobmanager.adaptive-scheduler.executing.cooldown-after-rescaling": "1 s",
    "jobmanager.adaptive-scheduler.executing.resource-stabilization-timeout": "1 s",
    "jobmanager.adaptive-scheduler.submission.resource-stabilization-timeout": "1 s",
    # Small buffers hold little in flight, so that lag shows where it can be measured: in the source's topic.
    "taskmanager.memory.segment-size": "4kb",
    "taskmanager.network.memory.floating-buffers-per-gate": "4",
    "taskmanager.network.memory.buffer-debloat.enabled": "true",
    "taskmanager.network.memory.buffer-debloat.target": "200 ms",
    "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "1000000",
    "restart-strategy.fixed-delay.delay": "1 s",
    "rest.flamegraph.enabled": "false",
}
"""What a small cluster for minutes-long runs needs beside Flink's defaults."""


class FlinkError(CallFailed, TestbedError):
    """A REST call failed."""


class FlinkApi(Jobs):
    """REST calls of the testbed, to its own cluster or another. A failed call is a `FlinkError`."""

    def __init__(self, rest_url: str, tls: ssl.SSLContext | None = None) -> None:
        self.rest_url = rest_url.rstrip("/")
        once = httpx.Limits(max_keepalive_connections=0)  # nothing to close afterwards
        verify = True if tls is None else tls
        super().__init__(
            httpx.Client(base_url=self.rest_url, timeout=30.0, trust_env=False, limits=once, verify=verify)
        )

    def call(self, method: str, path: str, **arguments: Any) -> Any:
        try:
            return super().call(method, path, **arguments)
        except CallFailed as error:
            raise FlinkError(f"flink: {error.where}", error.what, error.status) from None

    def answers(self) -> bool:
        """Whether the cluster can be reached."""
        try:
            self.call("GET", "/overview", timeout=2.0)
        except FlinkError:
            return False
        return True

    def job(self, job_id: str) -> Job:
        """Return the job's graph and counters; `FlinkError` also while it restarts, when its plan is incomplete."""
        try:
            return job(self.get(f"/jobs/{job_id}"))
        except Unreadable as error:
            raise FlinkError(f"flink: {error.where}", error.what) from None

    def observed(self, job_id: str) -> dict[str, int]:
        """Return the running parallelism by operator; empty while the job restarts."""
        try:
            return job(self.get(f"/jobs/{job_id}")).observed()
        except Unreadable:
            return {}

    def job_state(self, job_id: str) -> str:
        """RUNNING only if all tasks run too; else Flink's own name of the state."""
        entry = self.find(job_id)
        if entry is None:
            raise FlinkError(f"flink: job {job_id}", "not found", 404)
        return "DEPLOYING" if entry.state == "RUNNING" and not entry.all_running else entry.state

    def set_parallelism(self, job_id: str, parallelism: Parallelism) -> None:
        """Ask for a parallelism of every vertex, by name, and for the checkpoint that a rescale waits for."""
        body = request_body(self.job(job_id).topology(), parallelism)
        self.call("PUT", f"/jobs/{job_id}/resource-requirements", json=body)
        self.call("POST", f"/jobs/{job_id}/checkpoints", json={"checkpointType": "CONFIGURED"})

    def wait_running(self, job_id: str, timeout_seconds: float = 60.0) -> None:
        """Wait until every task runs; raises `TestbedError` with the job's exception if it fails or the time passes."""

        def running() -> bool:
            state = self.job_state(job_id)
            if state in TERMINAL:
                raise TestbedError(f"job {job_id} is {state}: {self._exception(job_id)}")
            return state == "RUNNING"

        wait_until(running, timeout_seconds=timeout_seconds, what=f"job {job_id} running")

    def wait_ended(self, job_id: str, timeout_seconds: float = 30.0) -> str:
        """Wait until the job has ended and released its slots; returns its last state."""

        def ended() -> str | None:
            state = self.job_state(job_id)
            return state if state in TERMINAL else None

        return wait_until(ended, timeout_seconds=timeout_seconds, what=f"end of job {job_id}")

    def latest_checkpoint(self, job_id: str) -> str | None:
        """Where the newest completed checkpoint is kept, for `submit(savepoint=…)`; None if there is none yet."""
        latest = self.get(f"/jobs/{job_id}/checkpoints")["latest"]["completed"]
        return None if latest is None else str(latest["external_path"])

    def _exception(self, job_id: str) -> str:
        return str(self.get(f"/jobs/{job_id}/exceptions").get("root-exception", "unknown"))[:500]


class TaskManagerInstance:
    """A TaskManager that a supervisor starts and ends, ready once its slots are registered."""

    metrics_url: str | None = None

    def __init__(self, cluster: "FlinkCluster") -> None:
        self._cluster, self._process = cluster, cluster.new_task_manager()
        self.id = self._process.name

    def start(self) -> None:
        self._process.start()

    def stop(self) -> None:
        self._process.stop()

    @property
    def running(self) -> bool:
        return self._process.running

    def ready(self) -> bool:
        try:
            found = self._cluster.call("GET", "/taskmanagers", timeout=1.0)["taskmanagers"]
        except FlinkError:
            return False
        return any(each["id"] == self.id for each in found)


def _tls_options(authority: Authority) -> dict[str, str]:
    """Return the options of a REST API that demands TLS of both sides."""
    server, password = authority.issue("server", names=["IP:127.0.0.1"]), uuid4().hex
    keys, trusted = write_java_stores(server, authority.certificate, authority.folder, password)
    stores = {"keystore": keys, "truststore": trusted}
    rest = "security.ssl.rest"
    return {
        # Flink's defaults are for RSA, and the authority's keys are of an elliptic curve.
        "security.ssl.algorithms": "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        f"{rest}.enabled": "true",
        f"{rest}.authentication-enabled": "true",
        f"{rest}.key-password": password,
        **{f"{rest}.{name}": str(path.resolve()) for name, path in stores.items()},
        **{f"{rest}.{name}-password": password for name in stores},
        **{f"{rest}.{name}-type": "PKCS12" for name in stores},
    }


class FlinkCluster(FlinkApi, Launcher):
    """A JobManager and `task_managers` TaskManagers with `slots` each.

    With `tls` the REST API demands TLS and a certificate of `tls_authority`, as `tls_client` has one (needs openssl).
    """

    def __init__(
        self,
        folder: Path,
        *,
        task_managers: int = 1,
        slots: int = 8,
        options: Mapping[str, str] | None = None,
        tls: bool = False,
    ) -> None:
        self._port = port = free_port()
        self.folder = folder
        context, options = None, dict(options or {})
        if tls:
            authority = Authority(folder / "tls")
            authority.create()
            self.tls_authority, self.tls_client = authority.certificate, authority.issue("client")
            options |= _tls_options(authority)
            context = ssl.create_default_context(cafile=authority.certificate)
            context.load_cert_chain(self.tls_client.certificate, self.tls_client.key)
        super().__init__(f"{'https' if tls else 'http'}://127.0.0.1:{port}", context)
        self._slots = slots
        self._rpc_port = free_port()
        self._options = {
            "jobmanager.rpc.address": "127.0.0.1",
            "jobmanager.rpc.port": str(self._rpc_port),
            "jobmanager.bind-host": "127.0.0.1",
            "taskmanager.bind-host": "127.0.0.1",
            "taskmanager.host": "127.0.0.1",
            "rest.address": "127.0.0.1",
            "rest.bind-address": "127.0.0.1",
            "rest.port": str(port),
            "blob.server.port": "0",
            "execution.checkpointing.dir": f"file://{folder.resolve()}/checkpoints",
            "web.upload.dir": f"{folder.resolve()}/upload",
            "io.tmp.dirs": f"{folder.resolve()}/scratch",
            **TRIAL_OPTIONS,
            **options,
        }
        self.job_manager = self._job_manager()
        self.task_managers: list[ManagedProcess] = []
        self._names = itertools.count(1)
        self._wanted_task_managers = task_managers

    def start(self, timeout_seconds: float = 90.0) -> Self:
        """Start all processes and wait until every slot has registered."""
        (self.folder / "conf").mkdir(parents=True, exist_ok=True)
        # An empty file: every option is on the command line, where `ps` shows it.
        (self.folder / "conf" / "config.yaml").touch()
        for name in ("upload", "scratch", "checkpoints"):
            (self.folder / name).mkdir(exist_ok=True)
        claim_port("flink", self._port)
        claim_port("flink", self._rpc_port)
        try:
            self.job_manager.start()
            for _ in range(self._wanted_task_managers):
                self.add_task_manager()
            self.job_manager.wait_ready(self.answers, timeout_seconds=timeout_seconds)
            self.wait_slots(self._wanted_task_managers * self._slots, timeout_seconds)
        except BaseException:
            self.stop()
            raise
        return self

    def add_task_manager(self) -> ManagedProcess:
        """Start one more TaskManager; returns at once (see `wait_slots`)."""
        process = self.new_task_manager().start()
        self.task_managers.append(process)
        return process

    def new_task_manager(self) -> ManagedProcess:
        """Return a TaskManager that is to be started, whose name is its resource id too."""
        name = f"taskmanager-{next(self._names)}"
        options = {
            **_TASK_MANAGER_MEMORY,
            "taskmanager.numberOfTaskSlots": str(self._slots),
            "taskmanager.resource-id": name,
            **self._options,
        }
        return ManagedProcess(
            name,
            self._command(
                "org.apache.flink.runtime.taskexecutor.TaskManagerRunner",
                ["-Xmx640m", "-XX:MaxDirectMemorySize=256m"],
                options,
            ),
            self.folder,
        )

    def kill_task_manager(self) -> None:
        """End the newest TaskManager as a crash would."""
        self.task_managers.pop().kill()

    def restart_job_manager(self, timeout_seconds: float = 90.0) -> None:
        """Start it again after a crash. Its jobs are lost; the TaskManagers reconnect by themselves."""
        claim_port("flink", self._port)
        claim_port("flink", self._rpc_port)
        self.job_manager.start_ready(self.answers, timeout_seconds=timeout_seconds)
        self.wait_slots(len(self.task_managers) * self._slots, timeout_seconds)

    def kept_checkpoint(self) -> str | None:
        """The newest complete checkpoint on disk, of whichever job: what is left of it after the JobManager's end."""
        found = list(self.folder.glob("checkpoints/*/chk-*/_metadata"))
        return f"file://{max(found, key=lambda path: path.stat().st_mtime).parent.resolve()}" if found else None

    def wait_slots(self, count: int, timeout_seconds: float = 60.0) -> None:
        """Wait until `count` slots have registered."""

        def registered() -> bool:
            for process in self.processes:
                process.check()
            return (self.slots_total() or 0) >= count

        wait_until(registered, timeout_seconds=timeout_seconds, what=f"{count} Flink slots")

    @property
    def processes(self) -> list[ManagedProcess]:
        return [self.job_manager, *self.task_managers]

    def stop(self) -> None:
        stop_all(self.processes)
        self.task_managers.clear()

    def _job_manager(self) -> ManagedProcess:
        return ManagedProcess(
            "jobmanager",
            self._command(
                "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint",
                ["-Xmx512m"],
                {**_JOB_MANAGER_MEMORY, **self._options},
            ),
            self.folder,
        )

    def _command(self, main: str, heap: Sequence[str], options: Mapping[str, str]) -> list[str]:
        settings = [part for key, value in options.items() for part in ("-D", f"{key}={value}")]
        return [
            *java(),
            *_OPENS,
            *heap,
            "-XX:MaxMetaspaceSize=256m",
            "-cp",
            class_path("flink"),
            main,
            "--configDir",
            str(self.folder / "conf"),
            *settings,
        ]

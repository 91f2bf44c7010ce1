"""Campaign on a real Flink: all five services around the sample job of a trial."""

import itertools
import json
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from confluent_kafka import Message

from bench.running import TopicFollower
from testbed.flink import FlinkCluster
from testbed.process import ManagedProcess, TestbedError, free_port
from testbed.service import WeirService
from testbed.trial.options import TrialOptions, short_behavior
from testbed.trial.stack import LOOP_PARTITIONS, SERVICES, TrialStack
from weir_contracts import Parallelism, parse_policy
from weir_contracts.topics import PLANS
from weir_runtime.bus import partition_of
from workloads.sample_job import SLOWEST, capacity

from .campaign import Campaign, behind
from .faults import faults_of, points_of
from .judge import PublishedPlan
from .proxy import Exchange, RecordingProxy
from .service import FOLDER

LOW, HIGH = 400.0, 1200.0
OBJECTIVE_SECONDS = 30.0
RESTART_SECONDS = 5.0
"""The longest that a rescale of the sample job usually takes."""
FAULTS = faults_of(
    kill=(*SERVICES, "kafka", "redis", "jobmanager", "taskmanager"),
    stop=("executor", "knowledge", "planner", "monitor"),
    state_lost=("analyzer",),
    emptied=("redis",),
    clock=("executor", "knowledge", "planner", "monitor"),
)
POINTS = points_of(
    ("flink", "GET", "/jobs/overview"),
    ("flink", "GET", "/resource-requirements"),
    ("flink", "PUT", "/resource-requirements"),
    ("flink", "POST", "/checkpoints"),
)


def right(rate: float) -> range:
    """The parallelisms that are right for a rate: enough for it, and no more than the planner's margins ask for."""
    # `rate` sizes for arrivals a tenth higher at 80 %, and for what a restart leaves to be worked off in 30 s.
    margins = rate * 1.1 / 0.8 + rate * RESTART_SECONDS / 30
    smallest = next(p for p in itertools.count(1) if capacity(p) >= rate)
    biggest = next(p for p in itertools.count(1) if capacity(p) >= margins)
    return range(smallest, biggest + 1)


def rescale_of(exchange: Exchange, names: Mapping[str, str]) -> tuple[str, Parallelism] | None:
    """Return the job and the parallelism by operator that a request to Flink asks for, or None if it is another request.
    `names`: operators by the ids of their vertices."""
    parts = exchange.path.strip("/").split("/")
    if exchange.method != "PUT" or parts[::2] != ["jobs", "resource-requirements"]:
        return None
    return parts[1], {names[vertex]: each["parallelism"]["upperBound"] for vertex, each in exchange.body.items()}


class PlansFollower:
    """Plans to scale as they are at the brokers, for the judge."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.plans: list[PublishedPlan] = []
        self.newest_code = ""
        """Code of the newest plan, a hold too."""
        self._follower = TopicFollower(bootstrap_servers, [PLANS.name], LOOP_PARTITIONS, self._take)

    def _take(self, message: Message) -> None:
        plan = json.loads(message.value() or b"")
        self.newest_code = plan["code"]
        if plan["kind"] != "scale" or plan["mode"] != "act":
            return
        # A planner's clock may be wrong, and this process may be slow: the earlier of the two is certain.
        at = min(time.time(), message.timestamp()[1] / 1000)
        expires_at = datetime.fromisoformat(plan["expires_at"]).timestamp()
        wanted = plan["action"]["parallelism"]
        self.plans.append(PublishedPlan(at, plan["id"], plan["application"], wanted, expires_at))

    def stop(self) -> None:
        self._follower.stop()


class FlinkStack(TrialStack):
    """A trial whose services reach Flink and knowledge through the proxy, and whose clocks can be set."""

    def __init__(self, folder: Path, proxy: RecordingProxy) -> None:
        options = TrialOptions(peak_rate=HIGH, objective_seconds=OBJECTIVE_SECONDS, port=free_port())
        super().__init__(options, folder)
        self.kafka, self.redis, self._redis_url = behind(proxy, folder)
        document = self.policy.to_document()
        document["spec"]["application"]["flink"]["url"] = proxy.in_front_of("flink", self.flink.rest_url)
        document["spec"]["behavior"] = short_behavior(12, 5)
        document["spec"]["signals"]["kafka"]["bootstrapServers"] = self.kafka.bootstrap_servers
        self.policy = parse_policy(document)
        self._knowledge = proxy.in_front_of("knowledge", self.api_url)

    def _environment(self) -> dict[str, str]:
        addresses = {"WEIR_KNOWLEDGE_URL": self._knowledge, "WEIR_KNOWLEDGE_REDIS_URL": self._redis_url}
        return {**super()._environment(), **addresses, FOLDER: str(self.folder)}

    def _service(self, name: str, environment: dict[str, str], port: int | None) -> WeirService:
        # The analyzer's clock is Spark's, in another program.
        runner = None if name == "analyzer" else "bench.chaos.service"
        return WeirService(name, self.folder, environment, port=port, runner=runner)


class FlinkCampaign(Campaign):
    """The sample job on Flink's adaptive scheduler."""

    faults, points = FAULTS, POINTS
    stack: FlinkStack

    def start(self) -> None:
        self._plans = PlansFollower(self.stack.kafka.bootstrap_servers)
        self.policies = [self.stack.policy]
        application = self.stack.policy.application
        self.record.partitions = {application: partition_of(application, LOOP_PARTITIONS)}
        self.record.plans = self._plans.plans
        self._rate = LOW
        self.stack.set_load(rate=LOW)
        self._note_job()

    def _note_job(self) -> None:
        """Let the judge know the job that runs now."""
        job = self.cluster.job(str(self.stack.job_id))
        self._names = {vertex.id: vertex.name for vertex in job.vertices}
        self.record.applications[job.id] = self.stack.policy.application
        self.record.at_start |= self.requirements()  # of a job that was submitted again, those of its program

    @property
    def cluster(self) -> FlinkCluster:
        if self.stack.cluster is None:
            raise TestbedError("the campaign needs a dedicated cluster")
        return self.stack.cluster

    def process(self, victim: str) -> ManagedProcess:
        match victim:
            case "jobmanager":
                return self.cluster.job_manager
            case "taskmanager":
                return self.cluster.task_managers[-1]
            case _:
                return super().process(victim)

    def kill(self, victim: str) -> None:
        if victim == "taskmanager":
            self.cluster.kill_task_manager()
        else:
            super().kill(victim)

    def restart(self, victim: str) -> None:
        match victim:
            case "jobmanager":
                self.cluster.restart_job_manager()
                self.stack.submit_job(savepoint=self.cluster.kept_checkpoint())
                self._note_job()
            case "taskmanager":
                self.cluster.add_task_manager()
            case _:
                super().restart(victim)

    def change_load(self) -> None:
        """Three times as much, or a third."""
        self._rate = HIGH if self._rate == LOW else LOW
        self.stack.set_load(rate=self._rate)

    def target_troubles(self) -> list[str]:
        found, fits = [], right(self._rate)
        if self._plans.newest_code == "swings-ridden":
            # The rounds change the load every minute: `rate` may hold what the high load needs.
            fits = range(fits.start, right(HIGH).stop)
        try:
            now = self.cluster.job(str(self.stack.job_id)).observed()[SLOWEST]
        except (TestbedError, KeyError) as error:
            return [f"Flink does not show {SLOWEST}: {error}"]
        if now not in fits:
            found.append(f"{SLOWEST} runs at {now}, right for {self._rate:g}/s is {fits}")
        lag = self.stack.probe.lag_seconds() if self.stack.probe else None
        if lag is None or lag > OBJECTIVE_SECONDS:
            found.append(f"the probe's lag is {lag}")
        return found

    def requirements(self) -> dict[str, Parallelism]:
        job_id = str(self.stack.job_id)
        body: dict[str, Any] = self.cluster.get(f"/jobs/{job_id}/resource-requirements")
        return {job_id: {self._names[vertex]: each["parallelism"]["upperBound"] for vertex, each in body.items()}}

    def request_of(self, exchange: Exchange) -> tuple[str, Parallelism] | None:
        return rescale_of(exchange, self._names)

    def stop(self) -> None:
        self._plans.stop()

"""Campaigns: rounds of another load, faults at a fail point of the action that answers it, and a recovery."""

import random
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx
from confluent_kafka import Consumer, TopicPartition

from bench.results_file import distribution, log
from testbed.kafka import KafkaBroker
from testbed.process import ManagedProcess, NotInTime, free_port, wait_until
from testbed.service import RedisServer, WeirService
from weir_contracts import Parallelism, ScalingPolicy
from weir_contracts.topics import DEAD_LETTERS, PLANS
from weir_engines.driver import lineage_of
from weir_engines.kafka.group_requests import close_admin, open_admin

from .faults import Blow, Fault, RoundPlan, UserDoes
from .judge import LIES, Finding, GroupReading, PolicyChange, Record, Request, judge
from .proxy import KAFKA, REDIS, Exchange, FailPoint, RecordingProxy, Trap

GROUP = "weir-executor"
READ_GROUP_SECONDS = 0.25
READ_SECONDS = 2.0
POINT_SECONDS = 12.0
"""The longest wait for a fail point; then the faults strike wherever the action is."""
NEVER = float("inf")


@dataclass(frozen=True)
class Round:
    """One round and what came of it."""

    plan: RoundPlan
    blows: tuple[str, ...]
    point_reached: bool
    recovered_seconds: float | None
    """From the end of the last fault until every service was ready and the application ran what its load needs. None:
    not within its time."""
    reason: str = ""

    def __str__(self) -> str:
        point = f"{self.plan.point}{'' if self.point_reached else ' (not reached)'}"
        user = "" if self.plan.user == "nothing" else f", the user {self.plan.user}"
        end = (
            f"not well: {self.reason}" if self.recovered_seconds is None else f"well after {self.recovered_seconds:g} s"
        )
        return f"{' and '.join(self.blows)} {point}{user}: {end}"


class GroupFollower:
    """Reads who owns which partition from the group's coordinator, on a separate thread, until stopped.

    Through kafka-python: librdkafka 2 ends the process by an assertion if the broker goes away during this request.
    """

    def __init__(self, bootstrap_servers: str, readings: list[GroupReading]) -> None:
        self._servers = [bootstrap_servers]
        self._readings = readings
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="group-follower", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(10)

    def _follow(self) -> None:
        admin = None
        while not self._stopped.wait(READ_GROUP_SECONDS):
            try:
                if admin is None:
                    admin = open_admin(self._servers, "chaos", READ_SECONDS)
                at = time.time()
                self._readings.append(GroupReading(at, _owners(admin.describe_groups([GROUP])[GROUP])))
            except Exception:  # noqa: BLE001 - whatever a broker that goes away leads to
                if admin is not None:
                    close_admin(admin)
                admin = None
        if admin is not None:
            close_admin(admin)


def _owners(group: Mapping[str, Any]) -> dict[int, str]:
    """Return the name of each partition's owner by a description of the group."""
    found: dict[int, str] = {}
    for member in group["members"]:
        assignment = member["member_assignment"]
        for topic in assignment["assigned_partitions"] if isinstance(assignment, Mapping) else ():
            if topic["topic"] == PLANS.name:
                found |= dict.fromkeys(topic["partitions"], member["client_id"].removeprefix(f"{GROUP}-"))
    return found


class Stack(Protocol):
    """Parts that a campaign starts and strikes: Weir's services, their broker and Redis, and a target."""

    folder: Path
    kafka: KafkaBroker
    redis: RedisServer
    services: dict[str, WeirService]

    @property
    def api_url(self) -> str: ...

    def start(self, report: Callable[[str], None]) -> None: ...

    def stop(self) -> None: ...


def behind(proxy: RecordingProxy, folder: Path) -> tuple[KafkaBroker, RedisServer, str]:
    """Return brokers and a Redis behind the proxy, and Redis' address at the proxy. The brokers advertise the proxy's
    port, so each client connects to the proxy."""
    port, redis = free_port(), RedisServer(folder / "redis")
    advertised = proxy.in_front_of_port("kafka", port, KAFKA)
    redis_port = proxy.in_front_of_port("redis", redis.port, REDIS, sender="knowledge")
    kafka = KafkaBroker(folder / "kafka", port=port, advertised_port=advertised)
    return kafka, redis, f"redis://127.0.0.1:{redis_port}/0"


class Campaign(ABC):
    """A stack under fire. A subclass knows its target."""

    faults: tuple[Fault, ...]
    points: tuple[FailPoint, ...]
    executors: tuple[str, ...] = ("executor",)
    """Names of the executors among the services."""
    recovery_seconds = 240.0

    def __init__(self, stack: Stack, proxy: RecordingProxy, seed: int) -> None:
        self.stack = stack
        self.proxy = proxy
        self.random = random.Random(seed)
        self.record = Record()
        self.policies: list[ScalingPolicy] = []
        """As the user last put them; known once the stack has started."""
        self.versions: dict[str, int] = {}
        """Version of each application's policy, as last answered."""

    @abstractmethod
    def start(self) -> None:
        """Look at the started stack, and set `policies` and what `record` needs beforehand."""

    def stop(self) -> None:  # noqa: B027 - most have nothing to end
        """End what `start` began."""

    # -- what a target is -----------------------------------------------------------------------------------------

    @abstractmethod
    def change_load(self) -> None:
        """Change the load, so that another parallelism is needed."""

    @abstractmethod
    def target_troubles(self) -> list[str]:
        """Return the current problems of the applications, by the target; empty if there are none."""

    @abstractmethod
    def requirements(self) -> dict[str, Parallelism]:
        """Return each job's requirements, read from the target without the proxy."""

    @abstractmethod
    def request_of(self, exchange: Exchange) -> tuple[str, Parallelism] | None:
        """Return the job and the parallelism that a recorded request asks for, or None if it is another request."""

    # -- parts that are struck ------------------------------------------------------------------------------------

    @property
    def folder(self) -> Path:
        return self.stack.folder

    def process(self, victim: str) -> ManagedProcess:
        """Return the process of a part."""
        parts = {"kafka": self.stack.kafka, "redis": self.stack.redis, **self.stack.services}
        return parts[victim].process

    def kill(self, victim: str) -> None:
        """SIGKILL, as a crash or the kernel would."""
        self.process(victim).kill()

    def restart(self, victim: str) -> None:
        """Start it again, as a supervisor would."""
        match victim:
            case "kafka":
                self.stack.kafka.restart()
            case "redis":
                self.stack.redis.restart()
            case _:
                self.stack.services[victim].start()

    def pids(self) -> Mapping[str, int]:
        """Return the executors' processes, whose requests are the ones that count."""
        services = self.stack.services
        return {
            name: services[name].pid for name in self.executors if name in services and services[name].process.started
        }

    # -- rounds ---------------------------------------------------------------------------------------------------

    def round(self, plan: RoundPlan) -> Round:
        """Change the load, strike at the fail point, mend, wait."""
        trap = self.proxy.arm(plan.point)
        self.change_load()
        reached = trap.reached.wait(POINT_SECONDS)
        blows = [Blow(fault.how, self._victim(fault, trap), self, self.random) for fault in plan.faults]
        for blow in blows:
            blow.strike()
        until = time.monotonic() + self.random.uniform(3.0, 6.0)
        if plan.user != "nothing":
            self.put_policies(self._changed(plan.user))
        trap.release()
        for blow in sorted(blows, key=lambda blow: blow.seconds):
            time.sleep(max(0.0, blow.struck_at + blow.seconds - time.time()))
            blow.mend()
        if plan.user != "nothing":
            time.sleep(max(0.0, until - time.monotonic()))
            wait_until(lambda: self.put_policies(self.policies), timeout_seconds=60, what="the policy put again")
        self.record.outages += [(b.struck_at, b.ended_at) for b in blows if b.victim == "kafka"]
        mended, reason = time.monotonic(), ""
        recovered: float | None = None
        try:
            wait_until(
                lambda: not self.troubles(), timeout_seconds=self.recovery_seconds, what="well", poll_seconds=0.5
            )
            recovered = round(time.monotonic() - mended, 1)
        except NotInTime:
            reason = "; ".join(self.troubles())
        return Round(plan, tuple(map(str, blows)), reached, recovered, reason)

    def _victim(self, fault: Fault, trap: Trap) -> str:
        """Return the part: of several executors the one that was held at the fail point, or the other."""
        if fault.victim not in ("executor", "other-executor") or len(self.executors) == 1:
            return fault.victim
        held = trap.sender if trap.sender in self.executors else self.random.choice(self.executors)
        return held if fault.victim == "executor" else next(name for name in self.executors if name != held)

    def _changed(self, user: UserDoes) -> list[ScalingPolicy]:
        """Return the policies as a user changes them for a moment."""
        changed = []
        for policy in self.policies:
            document = policy.to_document()
            document["metadata"].pop("version", None)
            if user == "pauses":
                document["spec"]["mode"] = "paused"
            else:
                document["spec"]["bounds"] = {"min": 1, "max": 1}
            changed.append(ScalingPolicy.model_validate(document))
        return changed

    def put_policies(self, policies: Sequence[ScalingPolicy]) -> bool:
        """Put policies as a user would; return whether all were accepted. Others may be in force all the same."""
        accepted = True
        for policy in policies:
            sent_at, answered_at = time.time(), NEVER
            url = f"{self.stack.api_url}/v1/policies/{policy.application}"
            with suppress(httpx.HTTPError):
                answer = httpx.put(url, json=policy.to_document(), timeout=2.0, trust_env=False)
                if answer.is_success:
                    answered_at, self.versions[policy.application] = time.time(), answer.json()["metadata"]["version"]
            accepted = accepted and answered_at < NEVER
            min_parallelism, max_parallelism = policy.spec.bounds.of("")
            bounds = range(min_parallelism, max_parallelism + 1)
            self.record.policies.append(
                PolicyChange(sent_at, answered_at, policy.application, policy.spec.mode, bounds)
            )
        return accepted

    def troubles(self) -> list[str]:
        """Return the current problems; empty if there are none."""
        return [
            s.name + " is not ready" for s in self.stack.services.values() if not s.ready()
        ] or self.target_troubles()

    def requests(self) -> Iterator[Request]:
        """Yield the recorded requests for another parallelism."""
        stopped_at: dict[str, float] = {}
        for exchange in list(self.proxy.exchanges):
            accepted = exchange.status is not None and exchange.status < 300
            stopped = stop_of(exchange)
            if stopped is not None and accepted:
                stopped_at.setdefault(stopped, exchange.at)
            requested = self.request_of(exchange)
            if requested is not None:
                yield Request(exchange.at, exchange.sender, *requested, accepted, stopped_at.pop(requested[0], None))

    def findings(self) -> list[Finding]:
        """Return all lies so far."""
        self.record.requests = list(self.requests())
        return judge(self.record)


def stop_of(exchange: Exchange) -> str | None:
    """Return what the ids of a Flink job and its successors have in common, if a request stops the job."""
    parts = exchange.path.strip("/").split("/")
    return lineage_of(parts[1]) if (exchange.method, parts[::2]) == ("POST", ["jobs", "stop"]) else None


def dead_letters(bootstrap_servers: str, partitions: int) -> int:
    """Return the number of records that services could not read."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "chaos", "log_level": 0})
    try:
        places = [TopicPartition(DEAD_LETTERS.name, partition) for partition in range(partitions)]
        return sum(consumer.get_watermark_offsets(place, timeout=10.0)[1] for place in places)
    finally:
        consumer.close()


def run(campaign: Campaign, plans: Sequence[RoundPlan], seed: int, max_minutes: float) -> dict[str, Any]:
    """Start the campaign's stack, carry out the rounds, and return the results."""
    stack, record = campaign.stack, campaign.record
    rounds: list[Round] = []
    reported = 0
    try:
        stack.start(log)
        group = GroupFollower(stack.kafka.bootstrap_servers, record.readings)
        group.start()
        campaign.start()
        record.at_start = campaign.requirements()
        wait_until(lambda: campaign.put_policies(campaign.policies), timeout_seconds=120, what="the policies put")
        wait_until(lambda: not campaign.troubles(), timeout_seconds=400, what="the loop at rest", poll_seconds=0.5)
        begun = time.monotonic()
        for number, plan in enumerate(plans, 1):
            if time.monotonic() - begun > max_minutes * 60:
                break
            rounds.append(campaign.round(plan))
            log(f"{number}/{len(plans)} {rounds[-1]}")
            found = campaign.findings()
            for finding in found[reported:]:
                log(f"FOUND {finding.kind} {finding.application}: {finding.sentence}")
            reported = len(found)
        record.at_end = campaign.requirements()
        group.stop()
        campaign.stop()
        letters = dead_letters(stack.kafka.bootstrap_servers, len(set(record.partitions.values())))
    finally:
        stack.stop()
    return _results(rounds, campaign.findings(), seed, letters, record)


def _results(rounds: list[Round], findings: list[Finding], seed: int, letters: int, record: Record) -> dict[str, Any]:
    recovered: dict[str, list[float]] = defaultdict(list)
    for each in rounds:
        struck = {fault.victim.removeprefix("other-") for fault in each.plan.faults}
        if each.recovered_seconds is not None:
            recovered["two at once" if len(each.plan.faults) > 1 else struck.pop()].append(each.recovered_seconds)
    by_kind = Counter(finding.kind for finding in findings)
    failed = [str(each) for each in rounds if each.recovered_seconds is None]
    return {
        "seed": seed,
        "rounds": len(rounds),
        "rounds_with_two_faults": sum(len(each.plan.faults) > 1 for each in rounds),
        "fail_points_reached": sum(each.point_reached for each in rounds),
        "rescale_requests": len(record.requests),
        "requests_of_unknown_sender": sum(request.sender is None for request in record.requests),
        "lies": {kind: by_kind[kind] for kind in LIES},
        "findings": [asdict(finding) for finding in findings],
        "dead_letters": letters,
        "not_recovered": failed,
        "passed": not (failed or findings or letters),
        "recovered_seconds": {part: distribution(seconds) for part, seconds in sorted(recovered.items())},
        "each_round": [str(each) for each in rounds],
    }

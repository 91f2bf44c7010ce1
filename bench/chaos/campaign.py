"""Campaigns: rounds of a load change, a kill in a phase of the action that answers it, and a recovery."""

import itertools
import random
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import httpx
from weir_contracts import ActionState, ScalingPolicy, parse_policy
from weir_contracts.topics import OBSERVATIONS

from bench.results_file import distribution, log
from runtime.event_feed import EventFollower
from testbed.flink import FlinkCluster
from testbed.kafka import KafkaBroker
from testbed.process import NotInTime, TestbedError, wait_until
from testbed.redis import RedisServer
from testbed.service import WeirService
from testbed.trial.options import TrialOptions, short_behavior
from testbed.trial.stack import LOOP_PARTITIONS, SERVICES, TrialStack
from workloads.sample_job import SLOWEST, capacity

from .ledger import Ledger, LedgerSummary, follow

LOW, HIGH = 400.0, 1200.0
VICTIMS = (*SERVICES, "analyzer-state", "kafka", "redis", "redis-emptied", "jobmanager", "taskmanager")
"""Processes; `analyzer-state` and `redis-emptied` lose what they keep on disk as well."""
OUTAGES = ("pauses", "goes on")
"""What the load does while the brokers are away."""
MOMENTS = ("load-changed", "planned", "intended", "applying", "verifying", "verified")
OBJECTIVE_SECONDS = 30.0
RESTART_SECONDS = 5.0
"""The longest that a rescale of the sample job usually takes."""
RECOVERY_SECONDS = 240.0
MOMENT_SECONDS = 60.0
START_SECONDS = 180.0


def right(rate: float) -> range:
    """The parallelisms that are right for a rate: enough for it, and no more than the planner's margins ask for."""
    # `rate` sizes for arrivals a tenth higher at 80 %, and for what a restart leaves to be worked off in 30 s.
    margins = rate * 1.1 / 0.8 + rate * RESTART_SECONDS / 30
    smallest = next(p for p in itertools.count(1) if capacity(p) >= rate)
    biggest = next(p for p in itertools.count(1) if capacity(p) >= margins)
    return range(smallest, biggest + 1)


@dataclass(frozen=True)
class Round:
    """One kill and what came of it. Times in seconds; None: not within its time."""

    victim: str
    moment: str
    moment_seen: bool
    down_seconds: float
    recovered_seconds: float | None
    parallelism: int | None
    because: str = ""


@dataclass(frozen=True)
class Outage:
    """The brokers were away for a while."""

    load: str
    """`goes on`: the generator sends what it owes in bursts once they are back. `pauses` with them: only its new rate
    comes."""
    seconds: float
    requests_during: int
    recovered_seconds: float | None
    requests_after: int
    asked_for: list[dict[str, Any]]
    """Each request since the brokers went away: seconds since they came back, parallelisms, and its plan's sentence."""
    because: str = ""


class Stack(Protocol):
    """Parts that a campaign starts and kills: Weir's services, their broker and Redis, and a target."""

    folder: Path
    kafka: KafkaBroker
    redis: RedisServer
    services: dict[str, WeirService]
    policy: ScalingPolicy

    @property
    def api_url(self) -> str: ...

    @property
    def application_url(self) -> str: ...

    def start(self, report: Callable[[str], None]) -> None: ...

    def stop(self) -> None: ...


class Campaign(ABC):
    """A stack under fire. A subclass knows its target."""

    rates: tuple[float, float]
    """The low and the high load in records/s."""

    def __init__(self, stack: Stack, seed: int) -> None:
        self.stack = stack
        self.random = random.Random(seed)
        self.events = EventFollower(f"{stack.api_url}/v1/events")
        self.rate = self.rates[0]

    @abstractmethod
    def set_load(self, **changes: Any) -> None:
        """Change the load: `rate` in records/s, `paused`."""

    @abstractmethod
    def running(self) -> int | None:
        """Return the current parallelism; None while it is unknown."""

    @abstractmethod
    def target_troubles(self) -> list[str]:
        """Return the current problems of the application; empty if there are none."""

    def set_rate(self, rate: float) -> None:
        self.rate = rate
        self.set_load(rate=rate)

    def _other_rate(self) -> float:
        low, high = self.rates
        return high if self.rate == low else low

    def round(self, victim: str, moment: str) -> Round:
        """Change the load, kill at the moment, mend, wait."""
        before = len(self.events.events())
        self.set_rate(self._other_rate())
        reached = self._await(moment, before)
        time.sleep(self.random.uniform(0.0, 0.4))
        down = round(self.random.uniform(0.5, 3.0), 2)
        self.kill(victim)
        killed = time.monotonic()
        time.sleep(down)
        self.mend(victim)
        reason = ""
        try:
            wait_until(self.well, timeout_seconds=RECOVERY_SECONDS, what="well again", poll_seconds=1.0)
            recovered = round(time.monotonic() - killed, 1)
        except NotInTime:
            recovered, reason = None, "; ".join(self.troubles())
        return Round(victim, moment, reached, down, recovered, self.running(), reason)

    def _await(self, moment: str, before: int) -> bool:
        def happened() -> bool:
            for event in self.events.events()[before:]:
                if moment == "planned" and event.kind == "plan" and event.data["kind"] == "scale":
                    return True
                if event.kind == "outcome" and event.data["phase"] == moment:
                    return True
            return False

        if moment == "load-changed":
            return True
        try:
            return wait_until(happened, timeout_seconds=MOMENT_SECONDS, what=moment, poll_seconds=0.02)
        except NotInTime:
            return False

    def kill(self, victim: str) -> None:
        """SIGKILL, as a crash or the kernel would."""
        stack = self.stack
        match victim:
            case "kafka":
                stack.kafka.kill()
            case "redis" | "redis-emptied":
                stack.redis.kill()
            case _:
                stack.services[victim.removesuffix("-state")].process.kill()
        if victim == "redis-emptied":
            for kept in stack.redis.folder.glob("appendonly*"):  # a file, or from Redis 7 on a folder
                shutil.rmtree(kept) if kept.is_dir() else kept.unlink()
        if victim == "analyzer-state":
            shutil.rmtree(stack.folder / "spark")

    def mend(self, victim: str) -> None:
        """Start it again, as a supervisor would."""
        stack = self.stack
        match victim:
            case "kafka":
                stack.kafka.restart()
            case "redis" | "redis-emptied":
                stack.redis.restart()
            case _:
                stack.services[victim.removesuffix("-state")].start()

    def outage(self, seconds: float, load: str) -> Outage:
        """The brokers are away for long, and the load is another when they come back: hold, then decide once."""
        wait_until(self.well, timeout_seconds=RECOVERY_SECONDS, what="well before the outage", poll_seconds=1.0)
        before = set(self._requests())
        if load == "pauses":
            self.set_load(paused=True)
        self.kill("kafka")
        time.sleep(seconds)
        during = len(set(self._requests()) - before)
        self.mend("kafka")
        restored, back_at = time.monotonic(), datetime.now(UTC)
        self.set_rate(self._other_rate())
        self.set_load(paused=False)
        try:
            wait_until(self.well, timeout_seconds=RECOVERY_SECONDS, what="well again", poll_seconds=1.0)
            recovered, reason = round(time.monotonic() - restored, 1), ""
            time.sleep(20.0)  # a second decision would come now
        except NotInTime:
            recovered, reason = None, "; ".join(self.troubles())
        asked_for = self._asked_for(before, back_at)
        return Outage(load, seconds, during, recovered, len(asked_for) - during, asked_for, reason)

    def _requests(self) -> dict[str, ActionState]:
        """Actions that the engine accepted so far, by id."""
        actions_published = [event.data["action"] for event in self.events.events() if event.kind == "outcome"]
        actions = [ActionState.model_validate(action) for action in actions_published if action]
        return {str(action.id): action for action in actions if action.requested_at}

    def _asked_for(self, before: set[str], back_at: datetime) -> list[dict[str, Any]]:
        sentences = {event.data["id"]: event.data["sentence"] for event in self.events.events() if event.kind == "plan"}
        return [
            {
                "seconds_after": round((action.requested_at - back_at).total_seconds(), 1)
                if action.requested_at
                else None,
                "before": action.before,
                "wanted": action.wanted,
                "plan": sentences.get(str(action.plan_id)),
                "end": action.sentence,
            }
            for id, action in self._requests().items()
            if id not in before
        ]

    def troubles(self) -> list[str]:
        """Return the current problems; empty if there are none."""
        found = [s.name + " is not ready" for s in self.stack.services.values() if not s.ready()]
        return [*found, *self.target_troubles()] or self._unknown_policy() or self.in_flight()

    def _unknown_policy(self) -> list[str]:
        try:
            answer = httpx.get(f"{self.stack.api_url}/v1/policies/{self.stack.policy.application}", timeout=3)
        except httpx.HTTPError as error:
            return [f"the API does not answer: {error}"]
        return [] if answer.status_code == 200 else [f"the policy: {answer.status_code} {answer.text[:200]}"]

    def in_flight(self) -> list[str]:
        """The action that has not ended yet, if there is one."""
        try:
            answer = httpx.get(f"{self.stack.application_url}/action", timeout=3)
            if answer.status_code == 404:
                return []
            answer.raise_for_status()
        except httpx.HTTPError as error:
            return [f"the API does not answer: {error}"]
        action = ActionState.model_validate_json(answer.content)
        return [] if action.terminal else [f"an action is {action.phase}: {action.sentence}"]

    def well(self) -> bool:
        return not self.troubles()


class FlinkCampaign(Campaign):
    """A trial: the sample job on Flink's adaptive scheduler."""

    rates = LOW, HIGH
    stack: TrialStack

    def set_load(self, **changes: Any) -> None:
        self.stack.set_load(**changes)

    @property
    def cluster(self) -> FlinkCluster:
        if self.stack.cluster is None:
            raise TestbedError("the campaign needs a dedicated cluster")
        return self.stack.cluster

    def kill(self, victim: str) -> None:
        match victim:
            case "jobmanager":
                self.cluster.job_manager.kill()
            case "taskmanager":
                self.cluster.kill_task_manager()
            case _:
                super().kill(victim)

    def mend(self, victim: str) -> None:
        match victim:
            case "jobmanager":
                self.cluster.restart_job_manager()
                self.stack.submit_job(savepoint=self.cluster.kept_checkpoint())
            case "taskmanager":
                self.cluster.add_task_manager()
            case _:
                super().mend(victim)

    def running(self) -> int | None:
        """Return the current parallelism of `enrich`; None while it is unknown."""
        try:
            return self.stack.flink.job(str(self.stack.job_id)).observed()[SLOWEST]
        except (TestbedError, KeyError):
            return None

    def target_troubles(self) -> list[str]:
        found, now = [], self.running()
        if now not in right(self.rate):
            found.append(f"{SLOWEST} runs at {now}, right for {self.rate:g}/s is {right(self.rate)}")
        lag = self.stack.probe.lag_seconds() if self.stack.probe else None
        if lag is None or lag > OBJECTIVE_SECONDS:
            found.append(f"the probe's lag is {lag}")
        return found


def plan_of(kills: int, seed: int, victims: Sequence[str] = VICTIMS) -> list[tuple[str, str]]:
    """Every victim at every moment in a random order, again and again until there are enough; a short campaign kills
    each victim as often as any other."""
    order = random.Random(seed)
    pairs: list[tuple[str, str]] = []
    while len(pairs) < kills:
        moments = {victim: order.sample(MOMENTS, len(MOMENTS)) for victim in victims}
        for number in range(len(MOMENTS)):
            pairs += [(victim, moments[victim][number]) for victim in order.sample(victims, len(victims))]
    return pairs[:kills]


def flink_campaign(kills: list[tuple[str, str]], seed: int, outage_seconds: float, folder: Path) -> dict[str, Any]:
    """Run a trial under fire; return the results."""
    stack = TrialStack(TrialOptions(peak_rate=HIGH, objective_seconds=OBJECTIVE_SECONDS), folder)
    document = stack.policy.to_document()
    document["spec"]["behavior"] = short_behavior(12, 5)
    stack.policy = parse_policy(document)
    return run(FlinkCampaign(stack, seed), kills, seed, outage_seconds)


def run(fire: Campaign, kills: list[tuple[str, str]], seed: int, outage_seconds: float) -> dict[str, Any]:
    """Start the campaign's stack, carry out the kills and outages, and return the results."""
    stack, ledger = fire.stack, Ledger()
    rounds: list[Round] = []
    outages: list[Outage] = []
    try:
        stack.start(log)
        fire.events.start()
        follower = follow(stack.kafka.bootstrap_servers, ledger, LOOP_PARTITIONS)
        fire.set_rate(fire.rates[0])
        wait_until(fire.well, timeout_seconds=START_SECONDS, what="the loop at rest", poll_seconds=1.0)
        for number, (victim, moment) in enumerate(kills, 1):
            rounds.append(fire.round(victim, moment))
            log(f"{number}/{len(kills)} {rounds[-1]}")
        for load in OUTAGES if outage_seconds else ():
            outages.append(fire.outage(outage_seconds, load))
            log(f"{outages[-1]}")
        last = ledger.of(OBSERVATIONS.name)[-1]["id"]
        time.sleep(15.0)  # what was observed last is to have been analysed, and its plan ended
        wait_until(lambda: not fire.in_flight(), timeout_seconds=120, what="the last action's end", poll_seconds=0.5)
        follower.stop()
        summary = ledger.summary(settled_observation=last)
    finally:
        fire.events.stop()
        stack.stop()
    return _results(rounds, outages, seed, summary)


def _results(rounds: list[Round], outages: list[Outage], seed: int, summary: LedgerSummary) -> dict[str, Any]:
    by_victim = {
        victim: distribution([r.recovered_seconds for r in rounds if r.victim == victim and r.recovered_seconds])
        for victim in dict.fromkeys(r.victim for r in rounds)
    }
    failed = [asdict(r) for r in rounds if r.recovered_seconds is None]
    waited_out = all(outage.recovered_seconds is not None and outage.requests_during == 0 for outage in outages)
    return {
        "seed": seed,
        "kills": len(rounds),
        "moments_missed": sum(1 for r in rounds if not r.moment_seen),
        "not_recovered": failed,
        "passed": not failed and waited_out and summary.clean,
        "account": asdict(summary),
        "kafka_outages": [asdict(outage) for outage in outages],
        "recovered_seconds": by_victim,
        "rounds": [asdict(r) for r in rounds],
    }

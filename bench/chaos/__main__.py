"""`make chaos`: kills every part in every phase of an action; results in bench/results/chaos.json.

Each round changes the load, waits for a moment of the action that answers it, kills one process with SIGKILL, starts it
again as a supervisor would, and waits until the job runs at the right parallelism, fresh, with nothing in flight.
Nothing else is done by hand, except that a job whose JobManager died is submitted again from its last checkpoint: the
cluster has no high availability (it needs ZooKeeper or Kubernetes), and Weir is to find the job again by its name.
"""

import argparse
import itertools
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from weir_contracts import ActionState, parse_policy
from weir_contracts.topics import OBSERVATIONS

from bench.results_file import distribution, log, write
from runtime.event_feed import EventFollower
from testbed.flink import FlinkCluster
from testbed.process import NotInTime, TestbedError, wait_until
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


class Campaign:
    """The stack under fire."""

    def __init__(self, stack: TrialStack, seed: int) -> None:
        self.stack = stack
        self.random = random.Random(seed)
        self.events = EventFollower(f"{stack.api_url}/v1/events")
        self.rate = LOW

    def set_rate(self, rate: float) -> None:
        self.rate = rate
        self._set_load(rate=rate)

    def _set_load(self, **changes: Any) -> None:
        httpx.put(f"{self.stack.load_url}/load", json=changes, timeout=5).raise_for_status()

    def round(self, victim: str, moment: str) -> Round:
        """Change the load, kill at the moment, mend, wait."""
        before = len(self.events.events())
        self.set_rate(HIGH if self.rate == LOW else LOW)
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

    @property
    def cluster(self) -> FlinkCluster:
        if self.stack.cluster is None:
            raise TestbedError("the campaign needs a dedicated cluster")
        return self.stack.cluster

    def kill(self, victim: str) -> None:
        """SIGKILL, as a crash or the kernel would."""
        stack = self.stack
        match victim:
            case "kafka":
                stack.kafka.kill()
            case "redis" | "redis-emptied":
                stack.redis.kill()
            case "jobmanager":
                self.cluster.job_manager.kill()
            case "taskmanager":
                self.cluster.kill_task_manager()
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
            case "jobmanager":
                self.cluster.restart_job_manager()
                stack.submit_job(savepoint=self.cluster.kept_checkpoint())
            case "taskmanager":
                self.cluster.add_task_manager()
            case _:
                stack.services[victim.removesuffix("-state")].start()

    def outage(self, seconds: float, load: str) -> Outage:
        """The brokers are away for long, and the load is another when they come back: hold, then decide once."""
        wait_until(self.well, timeout_seconds=RECOVERY_SECONDS, what="well before the outage", poll_seconds=1.0)
        before = set(self._requests())
        if load == "pauses":
            self._set_load(paused=True)
        self.kill("kafka")
        time.sleep(seconds)
        during = len(set(self._requests()) - before)
        self.mend("kafka")
        restored, back_at = time.monotonic(), datetime.now(UTC)
        self.set_rate(HIGH if self.rate == LOW else LOW)
        self._set_load(paused=False)
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

    def running(self) -> int | None:
        """Return the current parallelism of `enrich`; None while it is unknown."""
        try:
            return self.stack.flink.job(str(self.stack.job_id)).observed()[SLOWEST]
        except (TestbedError, KeyError):
            return None

    def troubles(self) -> list[str]:
        """Return the current problems; empty if there are none."""
        found = [s.name + " is not ready" for s in self.stack.services.values() if not s.ready()]
        now = self.running()
        if now not in right(self.rate):
            found.append(f"{SLOWEST} runs at {now}, right for {self.rate:g}/s is {right(self.rate)}")
        lag = self.stack.probe.lag_seconds() if self.stack.probe else None
        if lag is None or lag > OBJECTIVE_SECONDS:
            found.append(f"the probe's lag is {lag}")
        return found or self._unknown_policy() or self.in_flight()

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


def plan_of(kills: int, seed: int, victims: Sequence[str] = VICTIMS) -> list[tuple[str, str]]:
    """Every victim at every moment in a random order, again and again until there are enough."""
    order = random.Random(seed)
    pairs: list[tuple[str, str]] = []
    while len(pairs) < kills:
        again = list(itertools.product(victims, MOMENTS))
        order.shuffle(again)
        pairs += again
    return pairs[:kills]


def campaign(kills: list[tuple[str, str]], seed: int, outage_seconds: float, folder: Path) -> dict[str, Any]:
    """Run it; returns the results."""
    stack = TrialStack(TrialOptions(peak_rate=HIGH, objective_seconds=OBJECTIVE_SECONDS), folder)
    document = stack.policy.to_document()
    document["spec"]["behavior"] = short_behavior(12, 5)
    stack.policy = parse_policy(document)
    fire = Campaign(stack, seed)
    ledger = Ledger()
    rounds: list[Round] = []
    outages: list[Outage] = []
    try:
        stack.start(log)
        fire.events.start()
        follower = follow(stack.kafka.bootstrap_servers, ledger, LOOP_PARTITIONS)
        fire.set_rate(LOW)
        wait_until(fire.well, timeout_seconds=180, what="the loop at rest", poll_seconds=1.0)
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
        for victim in VICTIMS
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--kills",
        type=int,
        default=66,
        help="how many (default 66: everything at every moment; about an hour; 0: the outages alone, into chaos_outage.json)",
    )
    parser.add_argument("--seed", type=int, default=1, help="order and timing of the kills")
    parser.add_argument(
        "--outage-seconds", type=float, default=300.0, help="how long Kafka is away at the end, twice; 0: not"
    )
    parser.add_argument(
        "--victims", nargs="*", choices=VICTIMS, default=None, help="only these; the results are printed, not kept"
    )
    arguments = parser.parse_args()
    kills = plan_of(arguments.kills, arguments.seed, arguments.victims or VICTIMS)
    folder = Path(tempfile.mkdtemp(prefix="weir-chaos-"))
    results = campaign(kills, arguments.seed, arguments.outage_seconds, folder)
    if results["passed"]:
        shutil.rmtree(folder)
    else:
        log(f"every log is in {folder}")
    if arguments.victims is not None:
        print(json.dumps(results, indent=2))
    else:
        command = f'make chaos ARGS="--kills {arguments.kills} --seed {arguments.seed}"'
        log(f"written: {write('chaos' if kills else 'chaos_outage', command, results)}")
    return 0 if results["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())

"""A Flink job that runs on a cluster: load, flow, checkpoints, rescales and failures, in simulated seconds from 0."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from weir_contracts import Health

from .flow import Flow
from .log import Topic
from .spec import Application
from .world import CALM_SECONDS, CALM_UTILIZATION, FOREVER, Conditions, World

_HEALTH: dict[str, Health] = {
    "RUNNING": "running",
    "RESTARTING": "restarting",
    "FAILED": "failed",
    "CANCELED": "ended",
    "FINISHED": "ended",
}
"""By Flink's job state."""
CRASHES_AFTER_SECONDS = 1.0
"""Uptime of a job in a crash loop."""
GAUGE_SECONDS, GAUGE_STEP_SECONDS = 60.0, 5.0
"""The engine's own busy and backpressured gauges: a mean of a minute, in steps."""


@dataclass(frozen=True)
class Snapshot:
    """State that a restart begins from: positions by source, windows by operator index."""

    positions: Mapping[str, list[float]]
    held: Mapping[int, float] = field(default_factory=dict)
    due: Mapping[int, float] = field(default_factory=dict)


class Simulation(World):
    """One job and its load."""

    def __init__(
        self,
        application: Application,
        arrivals: Callable[[float], float],
        *,
        step_seconds: float = 0.5,
        calm_seconds: float = CALM_SECONDS,
        job_id: str = "5" * 32,
    ) -> None:
        super().__init__(arrivals, step_seconds, calm_seconds)
        self.application = application
        self.topology = application.topology()
        self.graph_hash = self.topology.graph_hash()
        self.conditions = Conditions(slots=application.cluster.slots)
        self.job_id = job_id
        self.started_at = 0.0
        self._rate = 0.0
        self.topics = {
            o.name: Topic(o.source.shares(), o.source.fetch_records) for o in application.operators if o.source
        }
        self._shares = {o.name: o.source.share for o in application.operators if o.source}
        self.state = "RUNNING"
        self.observed = dict(application.parallelism)
        self.requested = dict(self.observed)
        self.restarts = 0
        self.running_since = 0.0
        self.flow = Flow(application, self.topics, self.observed, 0.0)
        self.checkpoints_completed = self.checkpoints_failed = 0
        self.checkpoint_completed_at: float | None = None
        self.checkpoint_seconds: float | None = None
        self.checkpoints_triggered = 0
        self._snapshot = Snapshot({name: topic.positions() for name, topic in self.topics.items()})
        self._pending: tuple[float, float, Snapshot] | None = None
        self._next_checkpoint = application.cluster.checkpoint_interval_seconds or FOREVER
        self._requested_at = 0.0
        self._triggered = False
        """Whether a checkpoint has completed since a rescale could begin."""
        self._restarted_at = 0.0
        self._restart_seconds = 0.0
        self.gauges: list[tuple[float, list[float], list[float]]] = []

    def request(self, parallelism: Mapping[str, int]) -> str | None:
        """Request a parallelism of every operator; returns None, or the reason of a refusal."""
        if self.health in ("failed", "ended"):
            return f"Could not find Flink job ({self.job_id})"
        if set(parallelism) != set(self.observed):
            odd = sorted(set(self.observed) ^ set(parallelism))
            return f"the job and the request differ in operators: {', '.join(odd[:5])}"
        for operator in self.application.operators:
            wanted = parallelism[operator.name]
            if not 1 <= wanted <= operator.max_parallelism:
                return f"{operator.name}: {wanted} exceeds its maximum parallelism {operator.max_parallelism}"
        if self.conditions.refuses is not None:
            return self.conditions.refuses
        if dict(parallelism) != self.requested:
            self._requested_at, self._triggered = self.now, False
        self.requested = dict(parallelism)
        return None

    def trigger_checkpoint(self) -> str | None:
        """Trigger a checkpoint now; returns None, or the reason of a refusal."""
        if self.state != "RUNNING":
            return f"the job is {self.state}"
        self.checkpoints_triggered += 1
        self._begin_checkpoint()
        return None

    @property
    def health(self) -> Health:
        """Its state in the words of every engine."""
        return _HEALTH[self.state]

    def end(self, state: str = "FAILED") -> None:
        """End the job in a final state."""
        self.state = state

    def resubmit(self, application: Application, job_id: str) -> None:
        """Replace the job by another one with the same sources, restored from the last checkpoint."""
        topics = {
            o.name: self.topics.get(o.name) or Topic(o.source.shares(), o.source.fetch_records)
            for o in application.operators
            if o.source
        }
        self.application, self.topology, self.topics = application, application.topology(), topics
        self._shares = {o.name: o.source.share for o in application.operators if o.source}
        self.graph_hash = self.topology.graph_hash()
        self.job_id, self.started_at, self.restarts = job_id, self.now, 0
        self.observed, self.requested = dict(application.parallelism), dict(application.parallelism)
        self._snapshot = Snapshot(self._snapshot.positions)
        self.state = "RUNNING"
        self._fail(restart_counts=False)

    def fail(self) -> None:
        """Restart the job from the last checkpoint, as after the failure of a task."""
        self._fail(restart_counts=True)

    def attainable(self) -> dict[str, int]:
        """Return the requested parallelism as far as the slots allow; the largest operators are reduced first."""
        wanted = dict(self.requested)
        groups = {o.slot_sharing_group for o in self.application.operators}
        if len(groups) == 1:
            return {name: min(p, max(1, self.conditions.slots)) for name, p in wanted.items()}
        while self.topology.slots(wanted) > max(len(groups), self.conditions.slots):
            widest = max(wanted, key=lambda name: wanted[name])
            wanted[widest] -= 1
        return wanted

    @property
    def checkpoint_in_progress(self) -> bool:
        return self._pending is not None

    @property
    def slots_used(self) -> int:
        """Slots that the running or restarting job holds, and those that start for it."""
        if self.health in ("failed", "ended"):
            return 0
        held = self.topology.slots(self.observed)
        return max(held, self.topology.slots(self.attainable())) if self._new_slots_wait() > 0 else held

    @property
    def warmth(self) -> float:
        """Share of full speed that a restarted job has reached."""
        cluster = self.application.cluster
        if self._restarted_at == 0 or cluster.warm_up_seconds <= 0:
            return 1.0
        risen = min(1.0, (self.now - self.running_since) / cluster.warm_up_seconds)
        return cluster.cold_share + (1 - cluster.cold_share) * risen

    @property
    def appended(self) -> float:
        """Records appended to all topics."""
        return sum(topic.curve.total for topic in self.topics.values())

    @property
    def backlog(self) -> float:
        """Records not yet read."""
        return sum(topic.backlog for topic in self.topics.values())

    @property
    def lag_seconds(self) -> float:
        """Age of the oldest unprocessed record, from the position where processing stands or would resume."""
        return max(topic.lag_seconds(self.now) for topic in self.topics.values())

    @property
    def latency_seconds(self) -> float:
        """Age of the oldest record that has not reached the sinks: the lag and the time in queues."""
        return self.lag_seconds + (self.flow.delay_seconds() if self.state == "RUNNING" else 0.0)

    def _next_event(self) -> float:
        if self.state == "RESTARTING":
            return FOREVER if self.conditions.hangs else self._restarted_at + self._restart_seconds
        if self.state != "RUNNING":
            return FOREVER
        instants = [self._next_checkpoint]
        if self._pending is not None:
            instants.append(self._pending[1])
        if self.requested != self.observed:
            instants += (self._ready_at(), self._ready_at() + self.application.cluster.trigger_delay_seconds)
        if self.conditions.crash_above is not None:
            instants.append(self.running_since + CRASHES_AFTER_SECONDS)
        return min([instant for instant in instants if instant > self.now + 1e-9], default=FOREVER)

    def _calm_rate(self) -> float | None:
        if self.state != "RUNNING" or self.warmth < 1:
            return None
        headroom = self.flow.headroom() * CALM_UTILIZATION
        return None if headroom < 1 else headroom * self._rate

    def _elapse(self, seconds: float) -> None:
        before, self.now = self.now, self.now + seconds
        rate = self._rate = self.arrivals(before + seconds / 2)
        for name, topic in self.topics.items():
            topic.curve.append(self.now, max(0.0, rate * self._shares[name] * seconds))
        if self.state == "RUNNING":
            self.flow.step(self.now, seconds, self.warmth * self.conditions.capacity_factor)
            if not self.gauges or self.now >= self.gauges[-1][0] + GAUGE_STEP_SECONDS - 1e-9:
                self._note_gauges()

    def _note_gauges(self) -> None:
        flow = self.flow
        self.gauges.append((self.now, list(flow.busy_ms), list(flow.blocked_ms)))
        while self.gauges[0][0] < self.now - GAUGE_SECONDS - 1e-9:
            del self.gauges[0]

    def _run_events(self) -> None:
        now = self.now + 1e-9
        if self.state == "RESTARTING":
            if not self.conditions.hangs and now >= self._restarted_at + self._restart_seconds:
                self._run_again()
            return
        if self.state != "RUNNING":
            return
        if self._pending is not None and now >= self._pending[1]:
            self._complete_checkpoint()
        if now >= self._next_checkpoint:
            self._next_checkpoint += self.application.cluster.checkpoint_interval_seconds or FOREVER
            if self._pending is None:
                self._begin_checkpoint()
        if self._crashes() or (self.requested != self.observed and self._may_rescale()):
            self.fail()

    def _crashes(self) -> bool:
        conditions, now = self.conditions, self.now + 1e-9
        if now < self.running_since + CRASHES_AFTER_SECONDS:
            return False
        if conditions.crash_above is not None and max(self.observed.values()) > conditions.crash_above:
            return True
        return conditions.crash_lag_seconds is not None and self.lag_seconds > conditions.crash_lag_seconds

    def _begin_checkpoint(self) -> None:
        cluster = self.application.cluster
        written = (
            max(o.state_bytes / self.observed[o.name] for o in self.application.operators) / cluster.bytes_per_second
        )
        takes = cluster.checkpoint_seconds + written + self.flow.delay_seconds()
        arriving = self.flow.in_flight()
        snapshot = Snapshot(
            {name: topic.positions() for name, topic in self.topics.items()},
            {i: self.flow.held[i] + arriving[i] for i in self.flow.windows},
            {i: self.flow.due[i] for i in self.flow.windows},
        )
        self._pending = (self.now, self.now + takes, snapshot)

    def _complete_checkpoint(self) -> None:
        if self._pending is None:
            return
        begun, ended, snapshot = self._pending
        self._pending = None
        if self.conditions.checkpoints_fail:
            self.checkpoints_failed += 1
            return
        self._snapshot = snapshot
        for name, positions in snapshot.positions.items():
            self.topics[name].committed = list(positions)
        self.checkpoints_completed += 1
        self.checkpoint_completed_at, self.checkpoint_seconds = ended, ended - begun
        if ended >= self._ready_at():
            self._triggered = True
        for topic in self.topics.values():
            topic.forget_read()

    def _ready_at(self) -> float:
        """Return the second from which a rescale may begin: after the cooldown and the wait for missing slots."""
        cluster = self.application.cluster
        ready = max(self._requested_at, self.running_since + cluster.cooldown_seconds if self.restarts else 0.0)
        if self.attainable() != self.requested:
            return ready + cluster.stabilization_seconds
        return max(ready, self._requested_at + self._new_slots_wait())

    def _new_slots_wait(self) -> float:
        """Return the seconds for which a request waits for slots that have to come first; 0: the job holds enough."""
        seconds = self.application.cluster.new_slot_seconds
        if seconds <= 0 or self.requested == self.observed:
            return 0.0
        return seconds if self.topology.slots(self.attainable()) > self.topology.slots(self.observed) else 0.0

    def _may_rescale(self) -> bool:
        if self.attainable() == self.observed or self.now + 1e-9 < self._ready_at():
            return False
        if self.application.cluster.checkpoint_interval_seconds is None:
            return True
        return self._triggered or self.now + 1e-9 >= self._ready_at() + self.application.cluster.trigger_delay_seconds

    def _fail(self, *, restart_counts: bool) -> None:
        self._triggered = False
        self.state = "RESTARTING"
        self.restarts += int(restart_counts)
        cluster, wanted = self.application.cluster, self.attainable()
        restored = max(o.state_bytes / wanted[o.name] for o in self.application.operators) / cluster.bytes_per_second
        self._restarted_at = self.now
        self._restart_seconds = (cluster.restart_seconds + restored) * self.conditions.restart_factor
        self._pending = None
        if cluster.checkpoint_interval_seconds is None:
            # Without checkpoints nothing is replayed, and records in flight are lost.
            self._snapshot = Snapshot({name: topic.positions() for name, topic in self.topics.items()})
        for name, positions in self._snapshot.positions.items():
            if name in self.topics:
                self.topics[name].move_to(positions)

    def _run_again(self) -> None:
        if self.now + 1e-9 >= self._requested_at + self._new_slots_wait():
            self.observed = self.attainable()
        self.state, self.running_since = "RUNNING", self.now
        self.flow = Flow(self.application, self.topics, self.observed, self.now)
        for i, held in self._snapshot.held.items():
            if i in self.flow.windows:
                self.flow.held[i], self.flow.due[i] = held, self._snapshot.due[i]
        self.gauges = []
        if self._next_checkpoint != FOREVER:
            self._next_checkpoint = self.now + (self.application.cluster.checkpoint_interval_seconds or FOREVER)

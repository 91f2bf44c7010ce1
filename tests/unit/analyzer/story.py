"""A toy streaming job for stories: fluid, exact, and scraped like a real one."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from typing import Any

from weir_analyzer.core import AnalysisSettings, AnalyzerState, advance
from weir_contracts import (
    Analysis,
    Deployment,
    Edge,
    Observation,
    Operator,
    OperatorReading,
    PartitionReading,
    Run,
    ScalingPolicy,
    Topology,
    observation_id,
)
from weir_engines.flink.topology import health_of

NOON = datetime(2026, 6, 14, 12, tzinfo=UTC)


@cache
def policy(interval_seconds: float = 2) -> ScalingPolicy:
    """A policy of the application `shop/orders`."""
    return ScalingPolicy.model_validate(
        {
            "apiVersion": "weir.dev/v1alpha1",
            "kind": "ScalingPolicy",
            "metadata": {"namespace": "shop", "name": "orders"},
            "spec": {
                "application": {"flink": {"url": "http://flink:8081", "job": "orders"}},
                "objective": {"maxLag": "30s"},
                "interval": f"{interval_seconds:g}s",
            },
        }
    )


@cache
def _chain(names: tuple[str, ...]) -> Topology:
    return Topology(
        operators=[Operator(name=n, id=f"{i:032x}", max_parallelism=120) for i, n in enumerate(names)],
        edges=[Edge(source=a, target=b) for a, b in pairwise(names)],
    )


@dataclass
class Stage:
    """One operator of the chain: capacity of a subtask in records/s and the share of its input that it passes on."""

    name: str
    subtask_rate: float = 1000.0
    parallelism: int = 1
    selectivity: float = 1.0
    window_seconds: float | None = None
    """Gives out only at multiples of this."""
    taken: float = 0.0
    given: float = 0.0
    held: float = 0.0
    busy_ms: float = 0.0
    blocked_ms: float = 0.0
    idle_ms: float = 0.0
    busy: float = 0.0
    blocked: float = 0.0

    @property
    def capacity(self) -> float:
        """Records/s of all subtasks."""
        return self.subtask_rate * self.parallelism


@dataclass
class Job:
    """A chain of stages behind one Kafka topic, advanced in small steps."""

    stages: list[Stage] = field(
        default_factory=lambda: [Stage("Source: orders", 50_000), Stage("enrich", 600), Stage("sink: Writer", 20_000)]
    )
    rate: float = 300.0
    partitions: int = 4
    interval: float = 2.0
    t: float = 0.0
    running_since: float = 0.0
    attempt: int = 0
    job_id: str = "a" * 32
    ends: list[float] = field(default_factory=list)
    positions: list[float] = field(default_factory=list)
    status: str = "running"
    state: str = "RUNNING"

    def __post_init__(self) -> None:
        self.ends = self.ends or [0.0] * self.partitions
        self.positions = self.positions or [0.0] * self.partitions

    @property
    def backlog(self) -> float:
        """Records that wait."""
        return sum(self.ends) - sum(self.positions)

    def run_for(self, seconds: float) -> None:
        """Let time pass."""
        step = 0.1 if seconds < 5 else 0.5
        for _ in range(round(seconds / step)):
            self._step(step)

    def _step(self, dt: float) -> None:
        self.t = round(self.t + dt, 6)
        for i in range(self.partitions):
            self.ends[i] += self.rate * dt / self.partitions
        if self.status != "running":
            return
        wanted = self.backlog / dt
        ratio, limits = 1.0, []
        for stage in self.stages:
            limits.append(stage.capacity / ratio)
            ratio *= stage.selectivity or 1e-9
        throughput = min(wanted, *limits)
        held_back = limits.index(min(limits)) if min(limits) < wanted else -1
        self._take(throughput * dt)
        for i, stage in enumerate(self.stages):
            stage.taken += throughput * dt
            self._give(stage, throughput * stage.selectivity * dt)
            stage.busy = min(1.0, throughput / stage.capacity)
            stage.blocked = 1 - stage.busy if i < held_back else 0.0
            milliseconds = 1000 * dt * stage.parallelism
            stage.busy_ms += stage.busy * milliseconds
            stage.blocked_ms += stage.blocked * milliseconds
            stage.idle_ms += (1 - stage.busy - stage.blocked) * milliseconds
            throughput *= stage.selectivity

    def _take(self, records: float) -> None:
        waiting = self.backlog
        if waiting <= 0:
            return
        for i in range(self.partitions):
            self.positions[i] += records * (self.ends[i] - self.positions[i]) / waiting

    def _give(self, stage: Stage, records: float) -> None:
        stage.held += records
        if stage.window_seconds is None or (self.t % stage.window_seconds) < 1e-6:
            stage.given += stage.held
            stage.held = 0.0

    def restart(self, parallelism: dict[str, int] | None = None, down_seconds: float = 4.0) -> None:
        """Come back as a new run, perhaps at another parallelism; counters start again."""
        self.status, self.state = "not_running", "RESTARTING"
        self.run_for(down_seconds)
        self.status, self.state = "running", "RUNNING"
        self.running_since = self.t
        self.attempt += 1
        for stage in self.stages:
            stage.parallelism = (parallelism or {}).get(stage.name, stage.parallelism)
            stage.taken = stage.given = stage.held = stage.busy_ms = stage.blocked_ms = stage.idle_ms = 0.0

    def observe(self, **changes: Any) -> Observation:
        """The observation a monitor would make now."""
        at = NOON + timedelta(seconds=self.t)
        running = self.status == "running"
        names = [stage.name for stage in self.stages]
        topology = _chain(tuple(names))
        values: dict[str, Any] = {
            "id": observation_id("shop/orders", at),
            "application": "shop/orders",
            "observed_at": at,
            "policy": policy(self.interval),
            "status": self.status,
            "message": self.state,
            "run": Run(attempt=self.attempt, running_since=NOON + timedelta(seconds=self.running_since))
            if running
            else None,
            "deployment": Deployment(
                job_id=self.job_id,
                job_name="orders",
                graph_hash=topology.graph_hash(),
                health=health_of(self.state),
                state=self.state,
                observed={stage.name: stage.parallelism for stage in self.stages},
            ),
            "topology": topology,
            "operators": [self._reading(i) for i in range(len(self.stages))] if running else [],
            "partitions": [
                PartitionReading(
                    operator=names[0],
                    topic="orders",
                    partition=i,
                    log_start_offset=0,
                    log_end_offset=int(self.ends[i]),
                    current_offset=min(int(self.positions[i] + 1e-6), int(self.ends[i])) if running else None,
                )
                for i in range(self.partitions)
            ],
        }
        return Observation(**{**values, **changes})

    def _reading(self, i: int) -> OperatorReading:
        stage = self.stages[i]
        return OperatorReading(
            operator=stage.name,
            parallelism=stage.parallelism,
            # what is taken in is what the stage before has given out
            records_in=int(stage.taken if i == 0 else self.stages[i - 1].given),
            records_out=int(stage.given),
            busy_ms=stage.busy_ms,
            backpressured_ms=stage.blocked_ms,
            idle_ms=stage.idle_ms,
            busy_share_mean=stage.busy,
            busy_share_max=stage.busy,
            backpressure_share_mean=stage.blocked,
            backpressure_share_max=stage.blocked,
        )


@dataclass
class Loop:
    """Scrapes a job and analyses what it sees; every state goes through its bytes, as in the shell."""

    job: Job = field(default_factory=Job)
    settings: AnalysisSettings = field(default_factory=AnalysisSettings)
    memory: AnalyzerState | None = None
    analyses: list[Analysis] = field(default_factory=list)

    def see(self, observation: Observation) -> Analysis | None:
        """Analyse one observation."""
        self.memory, analysis = advance(self.memory, observation, self.settings)
        if self.memory is not None:
            self.memory = AnalyzerState.from_bytes(self.memory.to_bytes())
        if analysis is not None:
            self.analyses.append(analysis)
        return analysis

    def watch(self, seconds: float) -> Analysis:
        """Scrape for a while; returns the last analysis."""
        last = None
        for _ in range(max(1, round(seconds / self.job.interval))):
            self.job.run_for(self.job.interval)
            last = self.see(self.job.observe())
        assert last is not None
        return last

    def now(self, **changes: Any) -> Analysis:
        """Scrape once more, with changes to what is observed."""
        self.job.run_for(self.job.interval)
        analysis = self.see(self.job.observe(**changes))
        assert analysis is not None
        return analysis

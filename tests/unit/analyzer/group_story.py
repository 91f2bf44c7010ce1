"""A toy consumer group for stories: threads that process partitions and commit, scraped like a real one."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from weir_analyzer.core import AnalyzerState, advance
from weir_contracts import (
    Analysis,
    Deployment,
    Group,
    Instance,
    Observation,
    Operator,
    OperatorReading,
    PartitionReading,
    Run,
    ScalingPolicy,
    Topology,
    observation_id,
)

NOON = datetime(2026, 6, 14, 12, tzinfo=UTC)
NAME = "app"
PARTITIONS = 4


def policy(**application: Any) -> ScalingPolicy:
    return ScalingPolicy.model_validate(
        {
            "apiVersion": "weir.dev/v1alpha1",
            "kind": "ScalingPolicy",
            "metadata": {"namespace": "shop", "name": "orders"},
            "spec": {
                "application": application or {"kafkaStreams": {"applicationId": NAME}},
                "target": {"kubernetes": {"kind": "StatefulSet", "name": "orders"}},
                "signals": {"kafka": {"bootstrapServers": "kafka:9092"}},
                "objective": {"maxLag": "30s"},
                "interval": "5s",
            },
        }
    )


@dataclass
class App:
    """Group of threads, scraped every 5 s, each partition committed every 30 s in one instant."""

    rates: list[float]
    """Arrivals of each partition, records/s."""
    thread_rate: float = 1000.0
    threads: int = 2
    commit_seconds: float = 30.0
    policy: ScalingPolicy = field(default_factory=policy)
    seconds: float = 0.0
    state: AnalyzerState | None = None
    analysis: Analysis | None = None
    group: dict[str, Any] = field(default_factory=dict)
    instances: list[Instance] = field(default_factory=list)
    stuck: set[int] = field(default_factory=set)
    """Partitions that are not processed any more."""
    has_metrics: bool = False
    """Whether its instances count what they process themselves."""
    expired: int = 0
    rewound_at: datetime | None = None
    run_began: datetime = NOON

    def __post_init__(self) -> None:
        self.ends = [0.0] * len(self.rates)
        self.done = [0.0] * len(self.rates)
        self.committed = [0] * len(self.rates)
        self.committed_at = [NOON] * len(self.rates)

    def run_for(self, seconds: float) -> Analysis:
        """Let time pass, scraped; returns the last analysis."""
        for _ in range(int(seconds)):
            self._second()
            if self.seconds % 5 == 0:
                self.state, self.analysis = advance(self.state, self.observe())
        assert self.analysis is not None
        return self.analysis

    def _second(self) -> None:
        self.seconds += 1
        for i, rate in enumerate(self.rates):
            self.ends[i] += rate
        for thread in range(self.threads):
            left = self.thread_rate
            for i in range(thread, len(self.rates), self.threads):
                take = 0.0 if i in self.stuck else min(left, self.ends[i] - self.done[i])
                self.done[i] += take
                left -= take
        if self.commit_seconds and self.seconds % self.commit_seconds == 0:
            for i, done in enumerate(self.done):
                if int(done) != self.committed[i]:
                    self.committed[i], self.committed_at[i] = int(done), self.now

    @property
    def now(self) -> datetime:
        return NOON + timedelta(seconds=self.seconds)

    def observe(self) -> Observation:
        """Return what the monitor sees."""
        partitions = [
            PartitionReading(
                operator=NAME,
                topic="orders",
                partition=i,
                log_start_offset=self.expired if i == 0 else 0,
                log_end_offset=int(self.ends[i]),
                committed_offset=self.committed[i],
                committed_at=self.committed_at[i],
                rewound_at=self.rewound_at if i == 0 else None,
                owner=self.instances[i % len(self.instances)].id if self.instances else "",
            )
            for i in range(len(self.rates))
        ]
        group = Group(**{"id": NAME, "state": "Stable", "members": self.threads, **self.group})
        deployment = Deployment(
            engine="kafka-streams",
            health="running",
            job_id=NAME,
            job_name=NAME,
            graph_hash="0",
            state=group.state,
            observed={NAME: self.threads},
            instances=self.instances,
            group=group,
            commit_interval_seconds=self.commit_seconds or None,
        )
        counted = int(sum(self.done)) if self.has_metrics else sum(self.committed)
        reading = OperatorReading(
            operator=NAME,
            records_at_commits=not self.has_metrics,
            parallelism=self.threads,
            records_in=counted,
            records_out=counted,
            backpressured_ms=0.0,
            backpressure_share_mean=0.0,
            backpressure_share_max=0.0,
        )
        return Observation(
            id=observation_id("shop/orders", self.now),
            application="shop/orders",
            observed_at=self.now,
            policy=self.policy,
            status="running",
            run=Run(key=f"group {self.threads} {self.run_began}", running_since=self.run_began),
            deployment=deployment,
            topology=Topology(operators=[Operator(name=NAME, id=NAME, source_partitions=PARTITIONS)]),
            operators=[reading],
            partitions=partitions,
        )

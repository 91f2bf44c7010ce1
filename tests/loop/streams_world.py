"""World of a Kafka Streams story: the same loop around a simulated group, its brokers and its endpoint."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest

from tests.loop.world import World
from tests.loop.world import policy as flink_policy
from weir_contracts import Observation, ScalingPolicy
from weir_planner.core import guards as chain
from weir_replay.simulator import StreamsApplication, StreamsSimulation, streams
from weir_replay.streams import RECORDS_LAG

GROUP = "orders"
HPA_LAG_TARGET = 5_000
"""Records per instance, as in the King of Scaling's first version."""


def lag_rule(name: str = "hpa", metric: str = "lag_records", target: float = HPA_LAG_TARGET) -> dict[str, Any]:
    """Return the planner of an HPA on lag per instance, which users of Kafka Streams start with."""
    metrics = [{"name": metric, "target": {"type": "AverageValue", "averageValue": target}}]
    return {"name": name, "parameters": {"scope": "application", "behavior": {}, "metrics": metrics}}


class StreamsWorld(World):
    """A loop around one group. `with_metrics` gives its instances a metrics endpoint."""

    def simulated(self, application: StreamsApplication | None) -> StreamsSimulation:
        self._migrating: set[UUID] = set()
        return StreamsSimulation(application or streams(commit_interval_seconds=1.0), self._arriving)

    def default_policy(
        self, *, with_metrics: bool = True, threads: int = 1, restarts: bool = False, **spec: Any
    ) -> ScalingPolicy:
        """Return the stories' policy of a group."""
        queries = {"url": "http://127.0.0.1:9090", "queries": {"records_lag": RECORDS_LAG}}
        described: dict[str, Any] = {"applicationId": GROUP}
        target = {"url": f"http://supervisor.test/scale/{GROUP}", "slots": threads, "restartInstances": restarts}
        if with_metrics:
            described["metrics"] = {"port": 9404}
        return flink_policy(
            **{
                "application": {"kafkaStreams": described},
                "target": {"endpoint": target},
                "signals": {"kafka": {"bootstrapServers": "kafka.test:9092"}, "prometheus": queries},
                **spec,
            }
        )

    def p(self, name: str = GROUP) -> int:
        """Return the number of threads requested."""
        return self.simulation.replicas * self.simulation.application.threads

    def moves(self, name: str = GROUP) -> list[tuple[int, int]]:
        return super().moves(name)

    def acted_while_moving(self) -> int:
        """Return how many actions were planned while a probing rebalance was due."""
        return sum(plan.approved is not None and plan.observation_id in self.migrating for plan in self.plans)

    @property
    def migrating(self) -> set[UUID]:
        """Ids of the observations in which a probing rebalance was due."""
        return self._migrating

    def _carried(self, message: Any) -> Any:
        group = message.deployment.group if isinstance(message, Observation) and message.deployment else None
        if group is not None and group.probing_rebalance_at is not None:
            self._migrating.add(message.id)
        return super()._carried(message)

    def hang(self) -> str:
        """Let the threads of the oldest instance hang; returns its id."""
        stuck = next(iter(self.simulation.group.processes))
        self.simulation.conditions.stuck.add(stuck)
        return str(stuck)

    def restarted(self) -> list[str]:
        """Return the instances whose restart the endpoint accepted, in order."""
        return [each.instance.id for each in self.outcomes if each.instance is not None and each.code == "accepted"]

    def asked(self) -> list[int]:
        """Return the threads that plans asked for, in order."""
        return [plan.approved[GROUP] for plan in self.plans if plan.approved is not None]


@dataclass
class Score:
    """Cost and late time of an application."""

    late_seconds: float = 0.0
    instance_seconds: float = 0.0
    max_lag_seconds: float = 0.0


def scored(world: StreamsWorld, objective_seconds: float, since: float = 0.0) -> Score:
    """Return the score of a world from a second on, kept while it lives."""
    found, noted = Score(), world.simulation.on_step

    def note(seconds: float) -> None:
        noted(seconds)
        if world.simulation.now > since:
            found.late_seconds += seconds * (world.lag > objective_seconds)
            found.instance_seconds += seconds * len(world.simulation.group.processes)
            found.max_lag_seconds = max(found.max_lag_seconds, world.lag)

    world.simulation.on_step = note
    return found


@contextmanager
def no_guards() -> Iterator[None]:
    """The planner's chain without what a rule does not have when it runs alone."""
    kept = ("one-in-flight", "bounds", "one-parallelism", "no-change")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(chain, "GUARDS", {name: guard for name, guard in chain.GUARDS.items() if name in kept})
        yield

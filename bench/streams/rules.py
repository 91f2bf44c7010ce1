"""Rules that scale a consumer group by its lag: KEDA's trigger `kafka`, and an autoscaler with the lag as its metric.

Both set the endpoint's replicas by themselves, as a Deployment's are set: no eviction, no verification.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from weir_planners.autoscaling import v2
from weir_planners.keda_kafka import KedaKafkaParameters, Partition, lag_of, total_of
from weir_runtime.http_client import client

CALL_SECONDS = 2.0


@dataclass
class LagRule:
    """`ceil(lag / threshold)` within a tolerance of 0.1, down by the largest recommendation of a window. Pure."""

    parameters: KedaKafkaParameters
    maximum: int
    window_seconds: float
    _records: v2.Records = field(default_factory=v2.Records)

    def decide(self, now: float, current: int, partitions: Sequence[Partition]) -> int:
        """Return the number of replicas from `now` (seconds) on."""
        limits = v2.Limits(1, self.maximum, window_seconds=self.window_seconds)
        self._records = v2.begun(self._records, current, now)
        outside = v2.outside(limits, current)
        if outside is not None:
            return outside
        total, _ = total_of([lag_of(each, self.parameters) for each in partitions], self.parameters)
        threshold = self.parameters.lag_threshold
        proposal = v2.from_average([1000 * total], 1000 * threshold, current, v2.Tolerance())
        settled, self._records = v2.settle(self._records, limits, current, proposal, now)
        return settled.replicas


class GroupLag:
    """Commits and log ends of a group's partitions."""

    def __init__(self, servers: str, group: str, topics: Sequence[str], partitions: int) -> None:
        settings = {"bootstrap.servers": servers, "log_level": 0}
        self._admin = AdminClient(settings)
        self._consumer = Consumer({**settings, "group.id": group, "enable.auto.commit": False})
        self._places = [TopicPartition(topic, n) for topic in topics for n in range(partitions)]

    def read(self) -> list[Partition]:
        """Return all partitions; `KafkaException` if the broker does not answer."""
        committed = self._consumer.committed(self._places, timeout=CALL_SECONDS)
        latest = self._admin.list_offsets(
            {TopicPartition(p.topic, p.partition): OffsetSpec.latest() for p in self._places},
            request_timeout=CALL_SECONDS,
        )
        ends = {(p.topic, p.partition): int(f.result(CALL_SECONDS).offset) for p, f in latest.items()}
        return [Partition(p.offset if p.offset >= 0 else None, ends[p.topic, p.partition]) for p in committed]


def apply_rule(url: str, lag: GroupLag, rule: LagRule, at: float) -> None:
    """Let a rule decide at `at` (seconds), and set an endpoint's replicas to what was decided."""
    with client(timeout=CALL_SECONDS) as http:
        state = http.get(url).raise_for_status().json()
        wanted = rule.decide(at, state["replicas"], lag.read())
        if wanted != state["replicas"]:
            http.put(url, json={"replicas": wanted, "version": state["version"]}).raise_for_status()

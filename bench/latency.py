"""How long the loop takes from an observation to its plan at the broker, read while it happens: compacted topics forget."""

import json
import threading
from datetime import datetime

from confluent_kafka import Consumer, KafkaException, TopicPartition
from weir_contracts.topics import PLANS


class PlanLatencies:
    """Follows the plans' topic on a thread of its own, from its present end until stopped."""

    def __init__(self, bootstrap_servers: str, partitions: int) -> None:
        self.seconds: list[float] = []
        """From each observation's end of scrape to its plan's timestamp at the broker, in the order of arrival."""
        self._stopped = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": "weir-bench-latency",
                "enable.auto.commit": False,
                "auto.offset.reset": "latest",
            }
        )
        self._consumer.assign([TopicPartition(PLANS.name, p) for p in range(partitions)])
        self._thread = threading.Thread(target=self._follow, name="plan-latencies", daemon=True)
        self._thread.start()

    def stop(self) -> list[float]:
        """All latencies, once the thread has ended."""
        self._stopped.set()
        self._thread.join(10)
        return self.seconds

    def _follow(self) -> None:
        while not self._stopped.is_set():
            try:
                message = self._consumer.poll(0.2)
            except KafkaException:
                continue
            if message is None or message.error() or message.value() is None:
                continue
            observed = datetime.fromisoformat(json.loads(message.value())["observed_at"])
            self.seconds.append(message.timestamp()[1] / 1000 - observed.timestamp())
        self._consumer.close()

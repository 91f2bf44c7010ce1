"""Follows topics of the loop while a benchmark runs, as compaction deletes records."""

import json
import threading
from collections.abc import Callable, Sequence
from datetime import datetime

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaException, Message, TopicPartition

from weir_contracts.topics import PLANS


class TopicFollower:
    """Hands every record that has a value to `take`, on its own thread, through outages, until stopped."""

    def __init__(
        self,
        bootstrap_servers: str,
        topics: Sequence[str],
        partitions: int,
        take: Callable[[Message], None],
        *,
        from_beginning: bool = True,
    ) -> None:
        self._take = take
        self._stopped = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                # Partitions are assigned, never subscribed to; the library wants a name all the same.
                "group.id": "weir-bench",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest" if from_beginning else "latest",
                "log_level": 0,
            }
        )
        begin = OFFSET_BEGINNING if from_beginning else OFFSET_END
        self._consumer.assign([TopicPartition(topic, p, begin) for topic in topics for p in range(partitions)])
        self._thread = threading.Thread(target=self._follow, name="topic-follower", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Returns once the thread has ended."""
        self._stopped.set()
        self._thread.join(10)

    def _follow(self) -> None:
        while not self._stopped.is_set():
            try:
                messages = self._consumer.consume(500, 0.2)
            except KafkaException:
                continue
            for message in messages:
                # A broker that is away is an event for the client, not for the benchmark.
                if not message.error() and message.value() is not None:
                    self._take(message)
        self._consumer.close()


class PlanLatencies:
    """Latencies from an observation to its plan at the broker; follows the plans' topic from its end until stopped."""

    def __init__(self, bootstrap_servers: str, partitions: int) -> None:
        self.seconds: list[float] = []
        """Seconds from the end of a scrape to the plan's timestamp at the broker, in order of arrival."""
        self._follower = TopicFollower(bootstrap_servers, [PLANS.name], partitions, self._take, from_beginning=False)

    def stop(self) -> list[float]:
        """Stop following; returns all latencies."""
        self._follower.stop()
        return self.seconds

    def _take(self, message: Message) -> None:
        observed = datetime.fromisoformat(json.loads(message.value() or b"")["observed_at"])
        self.seconds.append(message.timestamp()[1] / 1000 - observed.timestamp())

"""The analyzer's own requests to the brokers; Spark reads and writes the records."""

from confluent_kafka import Consumer, KafkaException, TopicPartition

from runtime.kafka_thread import connection
from services.analyzer.stream import NotYet


class Brokers:
    """Blocking requests, each with its own deadline; called from the stream's thread."""

    def __init__(self, bootstrap_servers: str, timeout_seconds: float = 10.0) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._timeout_seconds = timeout_seconds

    def look(self, *topics: str) -> tuple[str, dict[str, dict[int, tuple[int, int]]]]:
        """Return the cluster's id, and first and next offset of each partition of `topics`; `NotYet` without a
        response."""
        own = {"group.id": "weir-analyzer-look", "enable.auto.commit": False}
        consumer = Consumer(connection(self._bootstrap_servers, own))
        marks: dict[str, dict[int, tuple[int, int]]] = {}
        try:
            for topic in topics:
                metadata = consumer.list_topics(topic, timeout=self._timeout_seconds)
                marks[topic] = {
                    partition: consumer.get_watermark_offsets(
                        TopicPartition(topic, partition), timeout=self._timeout_seconds, cached=False
                    )
                    for partition in metadata.topics[topic].partitions
                }
        except KafkaException as error:
            raise NotYet(f"{self._bootstrap_servers}: {error.args[0].str()}") from error
        finally:
            consumer.close()
        return str(metadata.cluster_id or "unknown"), marks

"""What the analyzer asks the brokers itself; reading and writing is Spark's."""

from confluent_kafka import Consumer, KafkaException, TopicPartition

from services.analyzer.stream import NotYet


class Brokers:
    """Blocking questions, each with its own deadline; called from the stream's thread."""

    def __init__(self, bootstrap_servers: str, timeout_seconds: float = 10.0) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._timeout_seconds = timeout_seconds

    def identity(self, topic: str) -> tuple[str, dict[int, int]]:
        """The cluster's id, and the first offset that each partition of `topic` still has; `NotYet` otherwise."""
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap_servers,
                "group.id": "weir-analyzer-look",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        try:
            metadata = consumer.list_topics(topic, timeout=self._timeout_seconds)
            starts = {
                partition: consumer.get_watermark_offsets(
                    TopicPartition(topic, partition), timeout=self._timeout_seconds, cached=False
                )[0]
                for partition in metadata.topics[topic].partitions
            }
        except KafkaException as error:
            raise NotYet(f"{self._bootstrap_servers}: {error.args[0].str()}") from error
        finally:
            consumer.close()
        return str(metadata.cluster_id or "unknown"), starts

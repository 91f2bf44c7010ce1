"""How long the loop takes from an observation to its plan at the broker."""

import json
from datetime import datetime

from confluent_kafka import Message
from weir_contracts.topics import PLANS

from bench.follower import TopicFollower


class PlanLatencies:
    """Follows the plans' topic from its present end until stopped."""

    def __init__(self, bootstrap_servers: str, partitions: int) -> None:
        self.seconds: list[float] = []
        """From each observation's end of scrape to its plan's timestamp at the broker, in the order of arrival."""
        self._follower = TopicFollower(bootstrap_servers, [PLANS.name], partitions, self._take, from_beginning=False)

    def stop(self) -> list[float]:
        """All latencies, once nothing is read any more."""
        self._follower.stop()
        return self.seconds

    def _take(self, message: Message) -> None:
        observed = datetime.fromisoformat(json.loads(message.value() or b"")["observed_at"])
        self.seconds.append(message.timestamp()[1] / 1000 - observed.timestamp())

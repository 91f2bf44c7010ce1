"""Clients of consumer groups, with librdkafka's in memory."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException

from weir_contracts import KafkaSignals
from weir_engines.kafka import coordinators
from weir_engines.kafka.coordinators import KafkaGroups
from weir_engines.kafka.members import GroupUnread
from weir_runtime.clock import FakeClock


class StuckClient:
    """The first client lists topics and never describes a group; the next ones do."""

    made = 0

    def __init__(self, _settings: dict[str, Any]) -> None:
        StuckClient.made += 1
        self._is_stuck = StuckClient.made == 1

    def list_topics(self, timeout: float) -> SimpleNamespace:
        return SimpleNamespace(brokers={}, topics={})

    def describe_consumer_groups(self, groups: list[str], request_timeout: float) -> dict[str, Future[Any]]:
        described: Future[Any] = Future()
        if self._is_stuck:
            described.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
        else:
            described.set_result(SimpleNamespace(state=ConsumerGroupState.STABLE, members=[]))
        return dict.fromkeys(groups, described)


async def test_a_client_that_gets_no_answer_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the brokers' restart both executors of a campaign read no group any more, for minutes, though another client
    was answered at once: theirs did not send the request (see confluentinc/librdkafka#4605)."""
    monkeypatch.setattr(coordinators, "AdminClient", StuckClient)
    monkeypatch.setattr(StuckClient, "made", 0)
    groups, kafka = KafkaGroups(FakeClock()), KafkaSignals(bootstrap_servers="127.0.0.1:9092")
    with pytest.raises(GroupUnread, match="_TIMED_OUT"):
        await groups.read(kafka, "orders")
    assert (await groups.read(kafka, "orders")).state == "Stable"
    assert StuckClient.made == 2
    await groups.close()

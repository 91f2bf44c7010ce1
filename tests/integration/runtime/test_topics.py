"""The topics job against a real broker: makes, corrects, refuses, and waits."""

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from runtime.clock import SystemClock
from runtime.records import TopicSpec
from runtime.topics import TopicsError, ensure, ensure_within, main
from testbed.kafka import KafkaBroker
from testbed.process import free_port


@pytest.fixture
def admin(kafka: KafkaBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.bootstrap_servers})


def settings_of(admin: AdminClient, topic: str) -> dict[str, str]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    return {name: entry.value for name, entry in admin.describe_configs([resource])[resource].result(10).items()}


def test_what_is_missing_is_made_and_what_differs_is_set(admin: AdminClient) -> None:
    """An upgrade may bring another retention; a second time there is nothing to do."""
    before = TopicSpec("job-made", 3, {"cleanup.policy": "compact,delete", "retention.ms": "60000"})
    assert ensure(admin, [before]) == ["job-made: made with 3 partitions"]
    after = TopicSpec("job-made", 3, {"cleanup.policy": "delete,compact", "retention.ms": "120000"})
    assert ensure(admin, [after]) == ["job-made: set retention.ms=120000"]
    assert settings_of(admin, "job-made")["retention.ms"] == "120000"
    assert ensure(admin, [after]) == []


def test_a_topic_with_other_partitions_is_refused_and_nothing_made(admin: AdminClient) -> None:
    """Its keys would move: that is not changed by the way, and half of a loop helps nobody."""
    ensure(admin, [TopicSpec("job-narrow", 1, {})])
    with pytest.raises(TopicsError, match=r"job-narrow has 1 partitions and must have 2 \(WEIR_PARTITIONS\)"):
        ensure(admin, [TopicSpec("job-other", 2, {}), TopicSpec("job-narrow", 2, {})])
    assert "job-other" not in admin.list_topics(timeout=10).topics


def test_the_job_as_it_is_run(
    kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An application's own topics beside the loop's, which other tests of this broker may have made already, with four partitions."""
    monkeypatch.setenv("WEIR_KAFKA_BOOTSTRAP_SERVERS", kafka.bootstrap_servers)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    there = admin.list_topics(timeout=10).topics.get("weir.policies.v1alpha1")
    monkeypatch.setenv("WEIR_PARTITIONS", str(len(there.partitions)) if there else "4")
    assert main(["--also", "job-orders:12"]) == 0
    assert "topics: job-orders: made with 12 partitions" in capsys.readouterr().out
    assert main(["--also", "job-orders:12"]) == 0
    assert capsys.readouterr().out == "topics: all are as they should be\n"


def test_brokers_that_never_answer_are_named() -> None:
    """After the time it was given, in one line."""
    nobody = f"127.0.0.1:{free_port()}"
    with pytest.raises(TopicsError, match=nobody):
        ensure_within(nobody, [TopicSpec("t", 1, {})], 0.1, SystemClock())

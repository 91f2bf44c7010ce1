"""The topics job against a real broker: makes, corrects, refuses, and waits."""

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from testbed.kafka import KafkaBroker
from testbed.process import free_port
from weir_runtime.bus import BusError, TopicSpec
from weir_runtime.clock import SystemClock
from weir_runtime.kafka_client import TooFewBrokers
from weir_runtime.topics import ensure, ensure_within, main


@pytest.fixture
def admin(kafka: KafkaBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.bootstrap_servers})


def await_setting(admin: AdminClient, topic: str, name: str, value: str, seconds: float = 20.0) -> None:
    """A broker hears of a change a little after its controller has answered."""
    resource, clock = ConfigResource(ResourceType.TOPIC, topic), SystemClock()
    deadline = clock.monotonic() + seconds
    while (found := admin.describe_configs([resource])[resource].result(10)[name].value) != value:
        assert clock.monotonic() < deadline, f"{topic}: {name} is {found}"
        admin.poll(0.1)


def test_what_is_missing_is_made_and_what_differs_is_set(admin: AdminClient) -> None:
    """An upgrade may bring another retention; a second time there is nothing to do."""
    before = TopicSpec("job-made", 3, {"cleanup.policy": "compact,delete", "retention.ms": "60000"})
    assert ensure(admin, [before], SystemClock()) == ["job-made: made with 3 partitions"]
    after = TopicSpec("job-made", 3, {"cleanup.policy": "delete,compact", "retention.ms": "120000"})
    assert ensure(admin, [after], SystemClock()) == ["job-made: set retention.ms=120000"]
    await_setting(admin, "job-made", "retention.ms", "120000")
    assert ensure(admin, [after], SystemClock()) == []


def test_a_topic_with_other_partitions_is_refused_and_nothing_made(admin: AdminClient) -> None:
    """Its keys would move: that is not changed by the way, and half of a loop is of no use."""
    ensure(admin, [TopicSpec("job-narrow", 1, {})], SystemClock())
    with pytest.raises(BusError, match=r"job-narrow has 1 partition and must have 2 \(WEIR_PARTITIONS,"):
        ensure(admin, [TopicSpec("job-other", 2, {}), TopicSpec("job-narrow", 2, {})], SystemClock())
    assert "job-other" not in admin.list_topics(timeout=10).topics


@pytest.fixture
def late(kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> AdminClient:
    """Its first two listings are of now, as those of a broker that has not yet heard of what is made next."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    ask, stale = admin.list_topics, [admin.list_topics(timeout=10)] * 2
    monkeypatch.setattr(admin, "list_topics", lambda timeout: stale.pop() if stale else ask(timeout=timeout))
    return admin


def test_a_topic_that_a_broker_lists_late_gets_its_settings_too(admin: AdminClient, late: AdminClient) -> None:
    """Making it finds that it is there: it is neither told as made nor left with another's settings."""
    ensure(admin, [TopicSpec("job-late", 3, {"retention.ms": "60000"})], SystemClock())
    done = ensure(late, [TopicSpec("job-late", 3, {"retention.ms": "120000"})], SystemClock())
    assert done == ["job-late: set retention.ms=120000"]
    await_setting(admin, "job-late", "retention.ms", "120000")


def test_a_topic_that_a_broker_lists_late_may_have_other_partitions(admin: AdminClient, late: AdminClient) -> None:
    """Two jobs that start together with different settings: the second is refused."""
    ensure(admin, [TopicSpec("job-first", 1, {})], SystemClock())
    with pytest.raises(BusError, match="job-first has 1 partition and must have 2"):
        ensure(late, [TopicSpec("job-first", 2, {})], SystemClock())


def test_a_topic_that_is_never_listed_is_named(admin: AdminClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where its user may make it and not see it: that is another thing than brokers that do not answer."""
    before = admin.list_topics(timeout=10)
    monkeypatch.setattr(admin, "list_topics", lambda timeout: before)
    with pytest.raises(BusError, match=r"created, but not listed by the broker: job-unseen$"):
        ensure(admin, [TopicSpec("job-unseen", 1, {})], SystemClock(), 0.3)


def test_the_job_as_it_is_run(
    kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An application's own topics and the loop's, which other tests of this broker may have made already, with four
    partitions."""
    monkeypatch.setenv("WEIR_KAFKA_BOOTSTRAP_SERVERS", kafka.bootstrap_servers)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    there = admin.list_topics(timeout=10).topics.get("weir.policies.v1alpha1")
    monkeypatch.setenv("WEIR_PARTITIONS", str(len(there.partitions)) if there else "4")
    assert main(["--also", "job-orders:12"]) == 0
    assert "topics: job-orders: made with 12 partitions" in capsys.readouterr().out
    # No service could hold a lease without it, and those that may not make topics would wait for it for good.
    assert "weir.leases" in admin.list_topics(timeout=10).topics
    assert main(["--also", "job-orders:12"]) == 0
    assert capsys.readouterr().out == "topics: all are as they should be\n"


def test_more_replicas_than_brokers_are_refused_with_the_remedy(admin: AdminClient) -> None:
    """One broker cannot hold three copies; nothing is created with fewer, since the others may just be starting."""
    spec = TopicSpec("job-copies", 1, {}, replicas=3)
    with pytest.raises(TooFewBrokers) as refused:
        ensure(admin, [spec], SystemClock())
    assert str(refused.value).startswith(
        "topic job-copies cannot be created with 3 replicas (WEIR_REPLICATION_FACTOR): start more brokers or lower it; "
    )
    assert "job-copies" not in admin.list_topics(timeout=10).topics


def test_topics_with_fewer_replicas_are_named_and_stay_writable(kafka: KafkaBroker, admin: AdminClient) -> None:
    """Their `min.insync.replicas` is not raised beyond the replicas that they have: the broker would refuse every record."""
    names = ["job-few-a", "job-few-b"]
    ensure(admin, [TopicSpec(name, 1, {}) for name in names], SystemClock())
    asked = [TopicSpec(name, 1, {"min.insync.replicas": "2"}, replicas=3) for name in names]
    assert ensure(admin, asked, SystemClock()) == [
        "job-few-a and 1 more topics have 1 replica, not 3 (WEIR_REPLICATION_FACTOR): kafka-reassign-partitions.sh adds replicas",
        "job-few-a and 1 more topics have min.insync.replicas below 2 (WEIR_MIN_INSYNC_REPLICAS): add replicas first",
    ]
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "acks": "all"})
    refused: list[object] = []
    producer.produce("job-few-a", b"x", on_delivery=lambda error, _message: refused.append(error))
    assert producer.flush(20) == 0
    assert refused == [None]


def test_brokers_that_never_answer_are_named() -> None:
    """After the time it was given, in one line."""
    nobody = f"127.0.0.1:{free_port()}"
    with pytest.raises(BusError, match=nobody):
        ensure_within(nobody, [TopicSpec("t", 1, {})], 0.1, SystemClock())

"""Parts of the Kafka clients without a broker: threads, credentials, errors, topics, and a fatal producer error."""

import argparse
import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import ConfigResource
from pydantic import ValidationError
from structlog.testing import capture_logs

from tests.unit.runtime.test_policy_credentials import written
from weir_contracts.topics import ACTIONS, PLANNERS, POLICIES
from weir_runtime import kafka_bus, kafka_client
from weir_runtime.bus import BusError, Denied, Outgoing, Refused, TopicSpec
from weir_runtime.clock import FakeClock
from weir_runtime.kafka_bus import KafkaBus, Outbox
from weir_runtime.kafka_client import REPEAT_SECONDS, ClientThread, Complaints, java_settings, read_security, shortfalls
from weir_runtime.lease import KafkaLease, Terms, judge
from weir_runtime.service import topic_specs
from weir_runtime.settings import ServiceSettings
from weir_runtime.topics import further, main

RECORD = Outgoing("weir.plans.v1", "shop/orders", b"{}")


async def test_calls_run_one_after_the_other_on_their_own_thread() -> None:
    """A synchronous client is never called from two threads, and never from the event loop's."""
    thread = ClientThread("story")
    names = [await thread.call(lambda: threading.current_thread().name) for _ in range(3)]
    assert names == ["story"] * 3
    thread.close()


async def test_a_clients_error_is_a_bus_error() -> None:
    """With librdkafka's sentence; a bug stays what it is."""
    thread = ClientThread("story")

    def fail() -> None:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT, "connection refused"))

    def bug() -> None:
        raise KeyError("x")

    with pytest.raises(BusError, match="kafka: connection refused"):
        await thread.call(fail)
    with pytest.raises(KeyError):
        await thread.call(bug)
    thread.close()
    thread.close()
    with pytest.raises(BusError, match="story is closed"):
        await thread.call(fail)


@pytest.mark.thorough
async def test_brokers_that_do_not_answer_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """By address and by the setting to look at: `/health/ready` is the only message that many users read."""
    monkeypatch.setattr(kafka_bus, "PING_SECONDS", 0.2)
    monkeypatch.setattr(kafka_client, "METADATA_SECONDS", 0.2)
    bus = KafkaBus("127.0.0.1:9")
    await bus.start()
    for call in (bus.ping, lambda: bus.ensure_topics([])):
        with pytest.raises(BusError, match=r"kafka: 127\.0\.0\.1:9 \(WEIR_KAFKA_BOOTSTRAP_SERVERS\): .*[Ll]ocal: "):
            await call()
    await bus.close()


def test_a_client_cannot_be_given_a_resolver() -> None:
    """docs/explanation/security.md says that brokers' addresses are checked, but not at each connection. The test fails
    with the first confluent-kafka that passes the callback of librdkafka's pull request 4051 on: then pin them."""
    with pytest.raises(KafkaException, match="resolve_cb"):
        Producer({"bootstrap.servers": "127.0.0.1:9", "resolve_cb": lambda *_: []})


def test_a_complaint_is_repeated_once_a_minute() -> None:
    """librdkafka repeats itself at every attempt to reconnect; the log does not."""
    clock = FakeClock()
    complaints = Complaints(clock)
    with capture_logs() as lines:
        for _ in range(100):
            complaints(KafkaError(KafkaError._TRANSPORT, "refused"))
            complaints(KafkaError(KafkaError._ALL_BROKERS_DOWN, "all down"))
            clock.advance(REPEAT_SECONDS / 99)
    assert [line["code"] for line in lines] == ["_TRANSPORT", "_ALL_BROKERS_DOWN"] * 2


class FakeProducer:
    """Reports a delivery at the next poll, as `fate` says."""

    def __init__(self, fate: KafkaError | None) -> None:
        self.fate = fate
        self.waiting: list[Callable[[KafkaError | None, Any], None]] = []
        self.sent: list[dict[str, Any]] = []
        self.purged = threading.Event()

    def produce(self, topic: str, **arguments: Any) -> None:
        if len(self.waiting) > 2:
            raise BufferError("Local: Queue full")
        self.sent.append({"topic": topic, **arguments})
        self.waiting.append(arguments["on_delivery"])

    def poll(self, seconds: float) -> None:
        while self.waiting:
            self.waiting.pop(0)(self.fate, None)
        self.purged.wait(min(seconds, 0.01))

    def flush(self, seconds: float) -> None:
        self.poll(seconds)

    def purge(self) -> None:
        self.purged.set()


async def test_a_producer_that_is_beyond_repair_is_replaced() -> None:
    """A fatal error of idempotence (the brokers lost what they knew of it) fails what is under way; the next message
    goes out through a new producer, without help."""
    fatal = KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "out of order", fatal=True)
    producers = [FakeProducer(fatal), FakeProducer(None)]
    made = iter(producers)
    outbox = Outbox({}, 1.0, lambda _settings: next(made))
    outbox.start()
    with capture_logs() as lines:
        with pytest.raises(BusError, match=r"kafka: weir\.plans\.v1 shop/orders: out of order"):
            await outbox.send(RECORD)
        await outbox.send(RECORD)
    assert [line["event"] for line in lines] == ["producer-replaced"]
    assert len(producers[1].sent) == 1
    assert await asyncio.to_thread(producers[0].purged.wait, 5.0)
    await outbox.close(1.0)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, Refused),
        (KafkaError.INVALID_RECORD, Refused),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, Denied),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, Denied),
        (KafkaError.POLICY_VIOLATION, BusError),
        (KafkaError.INVALID_TIMESTAMP, BusError),
        (KafkaError._MSG_TIMED_OUT, BusError),
        (KafkaError.NOT_ENOUGH_REPLICAS, BusError),
        (KafkaError._ALL_BROKERS_DOWN, BusError),
    ],
)
async def test_a_refusal_for_good_is_no_outage(code: int, kind: type[BusError]) -> None:
    """A caller that repeats it until the brokers are back would do so for ever; a right may be given meanwhile. Reported at
    delivery, or by `produce` itself."""
    late, at_once = FakeProducer(KafkaError(code)), FakeProducer(None)

    def produce(*_record: object, **_of: object) -> None:
        raise KafkaException(KafkaError(code))

    at_once.produce = produce  # type: ignore[method-assign,assignment]
    for producer in (late, at_once):
        outbox = Outbox({}, 1.0, lambda _settings, producer=producer: producer)
        outbox.start()
        with pytest.raises(BusError, match=r"kafka: weir\.plans\.v1 shop/orders: ") as caught:
            await outbox.deliver([RECORD])
        assert type(caught.value) is kind
        await outbox.close(0.1)


@pytest.mark.parametrize("code", [KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE])
async def test_a_record_of_a_refused_batch_is_sent_alone(code: int) -> None:
    """A broker refuses a batch for its size, with the error of a record (librdkafka#488): each is sent once more, with no
    other in its batch, before it counts as refused."""
    made: list[tuple[Any, FakeProducer]] = []

    def make(settings: dict[str, Any]) -> FakeProducer:
        made.append((settings.get("batch.num.messages"), FakeProducer(None if made else KafkaError(code))))
        return made[-1][1]

    outbox = Outbox({}, 1.0, make)  # type: ignore[arg-type]
    outbox.start()
    await outbox.deliver([RECORD, RECORD])
    assert [(in_batch, len(producer.sent)) for in_batch, producer in made] == [(None, 2), (1, 2)]
    await outbox.close(0.1)


async def test_a_full_queue_fails_at_once() -> None:
    """Buffers are bounded: publishing faster than the brokers accept fails."""
    stuck = FakeProducer(None)
    stuck.poll = lambda _seconds: stuck.purged.wait(0.01)  # type: ignore[method-assign,assignment,return-value]
    outbox = Outbox({}, 1.0, lambda _settings: stuck)
    outbox.start()
    reports = [outbox.send(RECORD) for _ in range(4)]
    with pytest.raises(BusError, match="Queue full"):
        await reports[3]
    await outbox.close(0.01)


async def test_what_is_sent_must_be_acknowledged_by_all_and_go_where_java_puts_it() -> None:
    """The producer's settings are part of the design: keys written by Spark and by Weir must meet."""
    given: dict[str, Any] = {}

    def make(settings: dict[str, Any]) -> FakeProducer:
        given.update(settings)
        return FakeProducer(None)

    outbox = Outbox({"bootstrap.servers": "x:1"}, 7.5, make)
    with pytest.raises(BusError, match="not started"):
        outbox.send(RECORD)
    outbox.start()
    await outbox.close(0.1)
    assert given["bootstrap.servers"] == "x:1"
    assert (given["acks"], given["enable.idempotence"]) == ("all", True)
    assert given["max.in.flight.requests.per.connection"] == 1
    assert (given["partitioner"], given["delivery.timeout.ms"]) == ("murmur2_random", 7500)


class FakeMember:
    """A consumer whose membership the test sets; the group accepts every commit, as an empty group does."""

    def __init__(self) -> None:
        self.member_id = "member-1"
        self.commits = 0

    def incremental_assign(self, partitions: object) -> None: ...

    def pause(self, partitions: object) -> None: ...

    def memberid(self) -> str:
        return self.member_id

    def committed(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        return partitions

    def commit(self, offsets: list[TopicPartition], asynchronous: bool) -> None:
        self.commits += 1


@pytest.mark.parametrize("after", ["", "member-2"])
def test_a_commit_that_an_empty_group_accepts_is_no_confirmation(after: str) -> None:
    """The client has lost its membership, and the notice of it has not come yet."""
    clock, terms, member = FakeClock(), Terms("analyzer"), FakeMember()
    consumer: Any = member
    lease = KafkaLease("127.0.0.1:9", clock, terms, "here")
    place = TopicPartition("weir.leases", 0)
    lease._on_assign(consumer, [place])
    lease._confirm(consumer)
    lease._on_commit(member.member_id, None, [place])
    assert judge(lease.state(), clock.monotonic(), terms).kind == "works"
    clock.advance(2.0)
    lease._confirm(consumer)
    member.member_id = after
    lease._on_commit(member.member_id, None, [place])
    decision = judge(lease.state(), clock.monotonic(), terms)
    assert member.commits == 2
    assert decision.kind == "waits"
    assert decision.reason.endswith("it is no longer a member of the group")


class Listed:
    """An admin client of brokers with three topics: replicas and `min.insync.replicas` of each; None: not shown to this user."""

    def __init__(self, topics: dict[str, tuple[int, int | None]]) -> None:
        self._topics = topics

    def list_topics(self, timeout: float) -> SimpleNamespace:
        listed = {
            name: SimpleNamespace(
                partitions={0: SimpleNamespace(replicas=[1, 2, 3]), 1: SimpleNamespace(replicas=[0] * count)}
            )
            for name, (count, _) in self._topics.items()
        }
        return SimpleNamespace(topics=listed)

    def describe_configs(self, resources: list[ConfigResource], request_timeout: float) -> dict[ConfigResource, Any]:
        answers: dict[ConfigResource, Any] = {}
        for resource in resources:
            answers[resource] = answer = Future[Any]()
            number = self._topics[resource.name][1]
            if number is None:
                answer.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
            else:
                answer.set_result({"min.insync.replicas": SimpleNamespace(value=str(number))})
        return answers


@pytest.mark.parametrize(
    ("topics", "sentences"),
    [
        ({"weir.a": (3, 2), "weir.b": (3, 2)}, []),
        ({"weir.a": (3, None), "weir.b": (3, None)}, []),
        (
            {"weir.a": (3, 1), "weir.b": (3, 2)},
            [
                "weir.a has min.insync.replicas below 2 (WEIR_MIN_INSYNC_REPLICAS): python -m weir_runtime.topics sets it"
            ],
        ),
        (
            {"weir.a": (3, 2), "weir.b": (2, 2)},
            ["weir.b has 2 replicas, not 3 (WEIR_REPLICATION_FACTOR): kafka-reassign-partitions.sh adds replicas"],
        ),
        (
            {"weir.a": (1, 1), "weir.b": (2, 1)},
            [
                "weir.a and 1 more topics have 1 replica, not 3 (WEIR_REPLICATION_FACTOR): kafka-reassign-partitions.sh adds replicas",
                "weir.a and 1 more topics have min.insync.replicas below 2 (WEIR_MIN_INSYNC_REPLICAS): add replicas first",
            ],
        ),
    ],
)
def test_what_topics_lack_is_a_sentence(topics: dict[str, tuple[int, int | None]], sentences: list[str]) -> None:
    """By the partition with the fewest replicas; nothing is said of what the broker does not show."""
    asked = [TopicSpec(name, 2, {"min.insync.replicas": "2"}, replicas=3) for name in topics]
    assert shortfalls(Listed(topics), asked) == sentences  # type: ignore[arg-type]
    assert shortfalls(Listed(topics), [TopicSpec(name, 2) for name in topics]) == []  # type: ignore[arg-type]


SASL = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "weir",
    "sasl.password": "pass-word",
}


def test_a_service_reads_its_file(tmp_path: Path) -> None:
    """The settings themselves show the path only."""
    settings = ServiceSettings(kafka_credentials_file=written(tmp_path, SASL))
    assert settings.kafka_security == SASL
    assert "pass-word" not in f"{settings!r} {settings.describe()}"
    assert ServiceSettings().kafka_security == {}


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [
        ("PLAIN", "plain.PlainLoginModule"),
        ("SCRAM-SHA-256", "scram.ScramLoginModule"),
        ("SCRAM-SHA-512", "scram.ScramLoginModule"),
    ],
)
def test_a_login_means_the_same_to_java(mechanism: str, module: str) -> None:
    """Quotes and backslashes of a password stay what they are."""
    found = java_settings({**SASL, "sasl.mechanism": mechanism, "sasl.password": 'a"b\\c'})
    assert found == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f"org.apache.kafka.common.security.{module} required "
        'username="weir" password="a\\"b\\\\c";',
    }


def test_certificates_are_passed_as_their_text(tmp_path: Path) -> None:
    """Spark's executors on other machines have none of the files."""
    paths = {name: tmp_path / f"{name}.pem" for name in ("ca", "certificate", "key")}
    for name, path in paths.items():
        path.write_text(f"PEM of {name}")
    security = {f"ssl.{name}.location": str(path) for name, path in paths.items()}
    assert java_settings({"security.protocol": "SSL", **security, "ssl.key.password": "secret"}) == {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "PEM of ca",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "PEM of certificate",
        "ssl.keystore.key": "PEM of key",
        "ssl.key.password": "secret",
    }


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ("{", "is not JSON"),
        ([], "must be an object of librdkafka's settings"),
        ({**SASL, "plugin.library.paths": "secret"}, "'plugin.library.paths' is not among"),
        ({**SASL, "sasl.password": 7}, "sasl.password must be text"),
        ({**SASL, "sasl.mechanism": "GSSAPI"}, "sasl.mechanism must be one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        ({**SASL, "ssl.ca.location": "/missing.pem"}, "ssl.ca.location: cannot read /missing.pem: FileNotFoundError"),
        ({**SASL, "ssl.ca.location": "/"}, "ssl.ca.location: cannot read /: IsADirectoryError"),
        ({**SASL, "ssl.key.location": "/k.pem"}, "ssl.certificate.location and ssl.key.location belong together"),
        ({}, "security.protocol must be one of SSL, SASL_SSL, SASL_PLAINTEXT"),
        ({**SASL, "security.protocol": "SASL-SSL"}, "security.protocol must be one of SSL, SASL_SSL, SASL_PLAINTEXT"),
        ({**SASL, "security.protocol": "SSL"}, "sasl.mechanism has no effect with security.protocol SSL"),
        (
            {**SASL, "security.protocol": "SASL_PLAINTEXT", "ssl.ca.location": "/ca.pem"},
            "ssl.ca.location has no effect with security.protocol SASL_PLAINTEXT",
        ),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism is required with security.protocol SASL_SSL"),
        (
            {key: value for key, value in SASL.items() if key != "sasl.password"},
            "sasl.password is required with security.protocol SASL_SSL",
        ),
        ({**SASL, "sasl.password": "pass-word\n"}, "sasl.password must not be empty or contain a line break"),
        ({**SASL, "sasl.username": ""}, "sasl.username must not be empty or contain a line break"),
    ],
)
def test_an_invalid_file_ends_the_start_without_its_values(tmp_path: Path, document: Any, sentence: str) -> None:
    path = written(tmp_path, document)
    with pytest.raises(ValueError, match=sentence) as error:
        read_security(path)
    assert str(error.value).startswith("WEIR_KAFKA_CREDENTIALS_FILE: ") and "pass-word" not in str(error.value)
    with pytest.raises(ValidationError, match="WEIR_KAFKA_CREDENTIALS_FILE: "):
        ServiceSettings(kafka_credentials_file=path)


def test_a_certificate_that_is_not_pem_is_named_without_its_bytes(tmp_path: Path) -> None:
    """DER, and a text that is no certificate."""
    for content in (b"0\x82\x03pass-word", b"pass-word"):
        (tmp_path / "ca.der").write_bytes(content)
        path = written(tmp_path, {**SASL, "ssl.ca.location": str(tmp_path / "ca.der")})
        with pytest.raises(ValueError, match=r"ssl.ca.location: .*ca\.der is not PEM") as error:
            read_security(path)
        assert "pass-word" not in str(error.value) and "0x82" not in str(error.value)


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    """Editors of Windows write one."""
    path = written(tmp_path, SASL)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_security(path) == SASL


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot read .*nothing: FileNotFoundError"):
        read_security(tmp_path / "nothing")


def test_a_further_topic() -> None:
    """A name may contain anything but ends before the last colon."""
    assert (further("orders:12").name, further("orders:12").partitions) == ("orders", 12)


@pytest.mark.parametrize("text", ["orders", ":3", "orders:", "orders:0", "orders:x", "orders:513", "orders:-1"])
def test_what_is_no_topic_is_refused(text: str) -> None:
    """In one line that shows the form."""
    with pytest.raises(argparse.ArgumentTypeError, match="is not NAME:PARTITIONS"):
        further(text)


def test_help_lists_the_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    """Like every program of the loop."""
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    assert "--also NAME:PARTITIONS" in capsys.readouterr().out


def test_no_topic_fills_a_disk() -> None:
    """Each deletes its oldest records above 1 GiB a partition, in segments small enough for that. Policies, actions
    and planners keep the newest record of each key for good, and have few keys; leases have no records."""
    bounded = {}
    for spec in topic_specs(partitions=12):
        if "delete" in spec.configs.get("cleanup.policy", "").split(","):
            bounded[spec.name] = int(spec.configs["retention.bytes"])
            assert 4 * int(spec.configs["segment.bytes"]) <= bounded[spec.name] <= 2**30
    kept_for_good = {POLICIES.name, ACTIONS.name, PLANNERS.name, "weir.leases"}
    assert bounded.keys() == {spec.name for spec in topic_specs(partitions=12)} - kept_for_good


@pytest.mark.parametrize(
    "text",
    [
        "SSL handshake failed: Disconnected: connecting to a PLAINTEXT broker listener? (after 0ms in state SSL_HANDSHAKE)",
        "Disconnected: connection reset by peer (after 1ms in state SSL_HANDSHAKE)",
        "Disconnected: SSL connection closed by peer (after 0ms in state SSL_HANDSHAKE)",
    ],
)
def test_a_listener_that_closes_the_handshake_has_no_tls(text: str) -> None:
    """All three are librdkafka's, for the same listener: which one comes depends on how the connection ends."""
    error = KafkaError(KafkaError._TRANSPORT, f"ssl://127.0.0.1:9092/bootstrap: {text}")
    assert kafka_client._refusal([error]).startswith("TLS: this port of the brokers has none")

"""Clients of Kafka: settings of a connection with TLS and SASL, for librdkafka and for Java, sentences for librdkafka's
errors, a dedicated thread for each synchronous client, and the creation of topics."""

import asyncio
import queue
import re
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from weir_contracts import counted

from .bus import BusError, TopicSpec
from .clock import Clock
from .files import read_credentials_file, read_object

LOOP_SETTING = "WEIR_KAFKA_CREDENTIALS_FILE"
ALLOWED = frozenset(
    {
        "security.protocol",
        "sasl.mechanism",
        "sasl.username",
        "sasl.password",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.key.password",
    }
)
"""librdkafka's settings that an entry may have; others could load libraries or switch checks off."""
_PROTOCOLS = ("SSL", "SASL_SSL", "SASL_PLAINTEXT")
FILES = frozenset({"ssl.ca.location", "ssl.certificate.location", "ssl.key.location"})
_LOGIN_MODULES = {
    "PLAIN": "plain.PlainLoginModule",
    "SCRAM-SHA-256": "scram.ScramLoginModule",
    "SCRAM-SHA-512": "scram.ScramLoginModule",
}
T = TypeVar("T")
REPEAT_SECONDS = 60.0
"""Between two logs of the same error: librdkafka repeats it at every attempt to reconnect."""
AWAY = (
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._WAIT_COORD,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
)
"""The brokers cannot be reached: wait."""
_REASON_SECONDS = 3.0
"""Maximum wait after the first error for one that names the reason: librdkafka may report the lost connection first."""
METADATA_SECONDS = 5.0
TOPICS_SECONDS = 15.0
"""For new topics until every broker knows them."""
LISTED_PAUSE_SECONDS = 0.1
MIN_INSYNC = "min.insync.replicas"


def check(entry: Mapping[str, Any], place: str, further: frozenset[str] = frozenset()) -> None:
    """Raise `ValueError` for settings with which no client would log in as meant; it names the field, never a password.

    `further` are fields that are allowed besides.
    """
    for field, value in entry.items():
        if field not in ALLOWED | further:
            raise ValueError(f"{place}: {field[:60]!r} is not among {', '.join(sorted(ALLOWED | further))}")
        if not isinstance(value, str):
            raise ValueError(f"{place}: {field} must be text")  # noqa: TRY004
        if not value or not value.isprintable():
            raise ValueError(f"{place}: {field} must not be empty or contain a line break")
    protocol = str(entry.get("security.protocol", "")).upper()
    if protocol not in _PROTOCOLS:
        # By default clients use no TLS and ignore a login.
        raise ValueError(f"{place}: security.protocol must be one of {', '.join(_PROTOCOLS)}")
    _check_login(entry, protocol, place)
    if ("ssl.certificate.location" in entry) != ("ssl.key.location" in entry):
        raise ValueError(f"{place}: ssl.certificate.location and ssl.key.location belong together")
    for field in sorted(FILES & entry.keys()):
        if b"-----BEGIN " not in read_credentials_file(Path(entry[field]), f"{place}: {field}"):
            raise ValueError(f"{place}: {field}: {entry[field]} is not PEM: it has no line -----BEGIN …-----")


def _check_login(entry: Mapping[str, str], protocol: str, place: str) -> None:
    """Check that the protocol uses what the entry has, and that a login is complete."""
    for part, belongs in (("sasl.", protocol.startswith("SASL_")), ("ssl.", protocol.endswith("SSL"))):
        given = sorted(field for field in entry if field.startswith(part))
        if given and not belongs:
            raise ValueError(f"{place}: {given[0]} has no effect with security.protocol {protocol}")
    if protocol.startswith("SASL_"):
        missing = [field for field in ("sasl.mechanism", "sasl.username", "sasl.password") if field not in entry]
        if missing:
            raise ValueError(f"{place}: {missing[0]} is required with security.protocol {protocol}")
        if entry["sasl.mechanism"] not in _LOGIN_MODULES:
            raise ValueError(f"{place}: sasl.mechanism must be one of {', '.join(_LOGIN_MODULES)}")


def read_security(path: Path | None) -> dict[str, str]:
    """Read `{"security.protocol": "SASL_SSL", …}` for the brokers of the loop; without a file there is none.

    `ValueError` names the setting and the field, never a value.
    """
    if path is None:
        return {}
    found = read_object(path, LOOP_SETTING, "be an object of librdkafka's settings")
    check(found, f"{LOOP_SETTING}: {path}")
    return found


def java_settings(security: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of Kafka's Java client that mean the same, of settings that were checked. Certificates and key
    are passed as their text. Raises `OSError` for a file that cannot be read any more."""
    found = {name: security[name] for name in ("security.protocol", "sasl.mechanism") if name in security}
    if "sasl.mechanism" in security:
        user, password = (_quoted(security[name]) for name in ("sasl.username", "sasl.password"))
        module = f"org.apache.kafka.common.security.{_LOGIN_MODULES[security['sasl.mechanism']]}"
        found["sasl.jaas.config"] = f"{module} required username={user} password={password};"
    if "ssl.ca.location" in security:
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": _text(security["ssl.ca.location"])}
    if "ssl.certificate.location" in security:
        found["ssl.keystore.type"] = "PEM"
        found["ssl.keystore.certificate.chain"] = _text(security["ssl.certificate.location"])
        found["ssl.keystore.key"] = _text(security["ssl.key.location"])
    if "ssl.key.password" in security:
        found["ssl.key.password"] = security["ssl.key.password"]
    return found


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _text(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")


def connection(bootstrap_servers: str, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return librdkafka's settings for one cluster: every Kafka client of every service connects with these.

    librdkafka does not log by itself, since callers get each error; `settings` replace and complete the defaults.
    """
    attempts = {"reconnect.backoff.ms": 100, "reconnect.backoff.max.ms": 2_000}
    return {"bootstrap.servers": bootstrap_servers, **attempts, "log_level": 0, **(settings or {})}


def explain(error: BaseException) -> str:
    """Return the sentence in an exception of confluent-kafka."""
    reason = error.args[0] if error.args else error
    return reason.str() if isinstance(reason, KafkaError) else str(reason) or type(error).__name__


def code_of(error: KafkaException) -> int | None:
    """Return the error code in an exception of confluent-kafka."""
    reason = error.args[0] if error.args else None
    return reason.code() if isinstance(reason, KafkaError) else None


def connection_problem(bootstrap_servers: str, timeout_seconds: float, settings: Mapping[str, str]) -> str:
    """Return why brokers refuse a connection with `settings`, without any one in plain text and without a login; empty if they
    take it, or do not answer. Blocks.

    librdkafka reports this to a callback alone, which an admin client of confluent-kafka 2.16 must not have.
    """
    errors: list[KafkaError] = []
    of_client = {"bootstrap.servers": bootstrap_servers, "error_cb": errors.append, "log_level": 0}
    try:
        client = Producer({**settings, **of_client})
    except KafkaException as error:
        return f"the files of the credentials cannot be used: {error.args[0].str()[:200]}"
    until = time.monotonic() + timeout_seconds
    while not errors and time.monotonic() < until:
        client.poll(0.1)
    until = min(until, time.monotonic() + _REASON_SECONDS)
    while not (reason := _refusal(errors)) and time.monotonic() < until:
        client.poll(0.1)
    if not reason and errors and all(each.code() == KafkaError._ALL_BROKERS_DOWN for each in errors):
        # An attempt that fails has its own error: these connections were opened, and closed by the other side.
        return _CLOSED.get(settings.get("security.protocol", "").upper(), _CLOSED["SASL_SSL"])
    return reason


_CLOSED = {
    "": "the brokers close a connection in plain text without a login: they want TLS, a login, or both",
    "SASL_PLAINTEXT": "the brokers close a connection in plain text: they want TLS (security.protocol SASL_SSL)",
    "SSL": "the brokers close a connection without a login: they want one (security.protocol SASL_SSL)",
    "SASL_SSL": "the brokers close the connection",
}
"""Reason by protocol of a connection that is closed without a word, as a listener does that expects another protocol."""
_MECHANISMS = re.compile(r"broker's supported mechanisms:\s*([A-Z0-9,_ -]*)")


def _refusal(errors: Sequence[KafkaError]) -> str:
    """Return the reason of the first error that names one; empty if none does."""
    for each in errors:
        code, text = each.code(), each.str()
        if code == KafkaError._AUTHENTICATION and (supported := _MECHANISMS.search(text)):
            if names := supported[1].strip():
                return f"the brokers have no such sasl.mechanism: write one of {names}"
            return "the brokers want no login at this port: name another one, or remove the login"
        if code == KafkaError._AUTHENTICATION:
            return "the brokers refuse the credentials: user or password is wrong"
        if code == KafkaError._SSL:
            return f"TLS: {text.partition(': ')[2][:200]}"
        # librdkafka asks "connecting to a PLAINTEXT broker listener?" in some of these errors only.
        if code == KafkaError._TRANSPORT and "Disconnected" in text and "in state SSL_HANDSHAKE" in text:
            return "TLS: this port of the brokers has none: name their TLS port, or a security.protocol without SSL"
        if code == KafkaError._BAD_MSG:
            return "what answers is no broker of Kafka: correct the address"
    return ""


class Complaints:
    """Logs librdkafka's errors, each once a minute. It retries by itself; `ping` and delivery reports show losses."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._logged_at: dict[int, float] = {}
        self._log = structlog.get_logger("kafka")

    def __call__(self, error: KafkaError) -> None:
        now = self._clock.monotonic()
        if now - self._logged_at.get(error.code(), float("-inf")) >= REPEAT_SECONDS:
            self._logged_at[error.code()] = now
            self._log.warning("kafka-error", code=error.name(), reason=error.str())


class ClientThread:
    """Runs a synchronous client's calls in order on one thread, for callers on an event loop.

    A daemon: a call that librdkafka does not return from while the brokers are away must not delay the end of the
    process.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return the result of `function`. `BusError` for errors of the client, and once closed."""
        if self._closed:
            raise BusError(f"kafka: {self.name} is closed")
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
            self._thread.start()
        report = running_future()
        self._calls.put((partial(function, *arguments), report))
        result: T = await asyncio.wrap_future(report)
        return result

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            work, report = call
            try:
                report.set_result(work())
            except (KafkaException, TimeoutError) as error:
                problem = BusError(f"kafka: {explain(error)}")
                problem.__cause__ = error.with_traceback(None)  # its frames would keep the client alive, and connecting
                report.set_exception(problem)
            except Exception as error:  # noqa: BLE001 - belongs to the caller, not to this thread
                report.set_exception(error)
            call = work = report = None  # type: ignore[assignment] # so that its frames do not keep the client alive

    def abandon(self, reason: str, close: Callable[[], None]) -> None:
        """Give up a call that does not return: those that wait behind it fail with `BusError`, and `close` is called if
        it ever returns."""
        with suppress(queue.Empty):
            while (call := self._calls.get_nowait()) is not None:
                call[1].set_exception(BusError(reason))
        self._calls.put((close, running_future()))
        self.close()

    def close(self) -> None:
        """End after the pending calls; further ones are refused."""
        if not self._closed:
            self._closed = True
            self._calls.put(None)


def begun(call: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    """Start a call that goes on when all callers have stopped waiting for it."""
    task = asyncio.ensure_future(call)
    task.add_done_callback(retrieve_error)
    return task


def retrieve_error(future: "asyncio.Future[Any]") -> None:
    """Retrieve the error of a call that all callers have stopped waiting for, which asyncio would log as lost."""
    if not future.cancelled():
        future.exception()


def running_future() -> "Future[Any]":
    """Return a future that a caller on an event loop cannot cancel: its thread settles it in any case."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


class TooFewBrokers(BusError):
    """A topic that needs more brokers than there are; some may still start."""


def replicas_by_topic(admin: AdminClient) -> dict[str, list[int]]:
    """Return the number of replicas of each partition, of each topic that the broker lists."""
    topics = admin.list_topics(timeout=METADATA_SECONDS).topics
    return {
        name: [len(partition.replicas) for partition in topic.partitions.values()]
        for name, topic in topics.items()
        if topic.partitions
    }


def create_missing(admin: AdminClient, specs: Sequence[TopicSpec], clock: Clock, deadline: float) -> list[TopicSpec]:
    """Create missing topics and return those that this call created, once the broker lists all of them.

    `BusError` for a topic with another number of partitions, before anything is created: its keys would move; and for
    one that cannot be created, or is not listed at `deadline` (monotonic seconds).
    """
    listed = replicas_by_topic(admin)
    _expect_partitions(specs, listed)
    missing = [spec for spec in specs if spec.name not in listed]
    created = _create(admin, missing)
    pause = threading.Event()
    while unlisted := {spec.name for spec in missing} - listed.keys():
        listed = replicas_by_topic(admin)
        if unlisted <= listed.keys():
            break
        if clock.monotonic() >= deadline:
            raise BusError(f"created, but not listed by the broker: {', '.join(sorted(unlisted - listed.keys()))}")
        pause.wait(LISTED_PAUSE_SECONDS)
    _expect_partitions(missing, listed)
    return created


def _expect_partitions(specs: Sequence[TopicSpec], listed: Mapping[str, Sequence[int]]) -> None:
    for spec in specs:
        if spec.name in listed and len(listed[spec.name]) != spec.partitions:
            raise BusError(
                f"topic {spec.name} has {counted(len(listed[spec.name]), 'partition')} and must have {spec.partitions} "
                "(WEIR_PARTITIONS, one number for all topics of the loop): its keys would move, so delete it or change the setting"
            )


def _create(admin: AdminClient, specs: Sequence[TopicSpec]) -> list[TopicSpec]:
    """Return the topics that this call created. A broker lists a topic shortly after its creation, so that a missing
    one may exist."""
    wanted = [NewTopic(spec.name, spec.partitions, spec.replicas or -1, config=dict(spec.configs)) for spec in specs]
    results = admin.create_topics(wanted, operation_timeout=TOPICS_SECONDS) if wanted else {}
    created = []
    for spec in specs:
        try:
            results[spec.name].result(timeout=TOPICS_SECONDS + 5.0)
            created.append(spec)
        except KafkaException as error:
            if error.args[0].retriable():
                raise
            if code_of(error) == KafkaError.INVALID_REPLICATION_FACTOR:
                raise TooFewBrokers(
                    f"topic {spec.name} cannot be created with {spec.replicas or 'the default number of'} replicas "
                    f"(WEIR_REPLICATION_FACTOR): start more brokers or lower it; {explain(error)}"
                ) from error
            # Another service starts at the same time and was first.
            if code_of(error) != KafkaError.TOPIC_ALREADY_EXISTS:
                raise BusError(f"topic {spec.name} cannot be created: {explain(error)}") from error
    return created


def shortfalls(admin: AdminClient, specs: Sequence[TopicSpec]) -> list[str]:
    """Return a sentence about existing topics with fewer replicas than specified, and one about a lower
    `min.insync.replicas`; none about what the brokers do not show."""
    wanted = [(spec, spec.replicas) for spec in specs if spec.replicas is not None]
    if not wanted:
        return []
    fewest = {name: min(replicas) for name, replicas in replicas_by_topic(admin).items()}
    few = [spec for spec, required in wanted if fewest.get(spec.name, required) < required]
    found = []
    if few:
        found.append(
            f"{_named(few)} {counted(min(fewest[spec.name] for spec in few), 'replica')}, not {few[0].replicas} (WEIR_REPLICATION_FACTOR): "
            "kafka-reassign-partitions.sh adds replicas"
        )
    lower = [
        spec for spec, is_now in _in_sync(admin, [spec for spec, _ in wanted]) if is_now < int(spec.configs[MIN_INSYNC])
    ]
    if lower:
        remedy = "add replicas first" if few else "python -m weir_runtime.topics sets it"
        found.append(
            f"{_named(lower)} {MIN_INSYNC} below {lower[0].configs[MIN_INSYNC]} (WEIR_MIN_INSYNC_REPLICAS): {remedy}"
        )
    return found


def _in_sync(admin: AdminClient, specs: Sequence[TopicSpec]) -> Iterator[tuple[TopicSpec, int]]:
    """Yield the `min.insync.replicas` of topics that specify one, where the user may see it."""
    resources = {ConfigResource(ResourceType.TOPIC, s.name): s for s in specs if MIN_INSYNC in s.configs}
    described = admin.describe_configs(list(resources), request_timeout=METADATA_SECONDS) if resources else {}
    for resource, result in described.items():
        with suppress(KafkaException):
            yield resources[resource], int(result.result(METADATA_SECONDS + 1.0)[MIN_INSYNC].value)


def _named(specs: Sequence[TopicSpec]) -> str:
    return f"{specs[0].name} has" if len(specs) == 1 else f"{specs[0].name} and {len(specs) - 1} more topics have"

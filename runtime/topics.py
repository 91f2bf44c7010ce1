"""`python -m runtime.topics`: makes the topics of the loop before anything else starts, and gives those that are there the
settings they should have.

Services make what is missing by themselves. This is for who does not let them, and for an upgrade that brings other
retention or compaction: their settings are in one place, `weir_contracts.topics`.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from .clock import Clock, SystemClock
from .kafka_bus import partition_counts
from .kafka_lease import TOPIC as LEASES
from .records import TopicSpec
from .service import topic_specs
from .settings import ServiceSettings, load

CALL_SECONDS = 15.0
ANSWER_SECONDS = 25.0
"""The client tells of its own timeouts before."""
PAUSE_SECONDS = 0.5
LISTED_PAUSE_SECONDS = 0.1
EXIT_UNUSABLE = 1


class TopicsSettings(ServiceSettings):
    """Makes the topics of the loop and checks those that are there.

    Arguments: --timeout SECONDS to wait for the brokers (60), and --also NAME:PARTITIONS for each further topic.
    """


class TopicsError(Exception):
    """Topics cannot be made, or are not as they must be; one line."""


def ensure(
    admin: AdminClient, specs: Sequence[TopicSpec], clock: Clock, listed_seconds: float = CALL_SECONDS
) -> list[str]:
    """Make what is missing and set what differs; what was done, in sentences. `TopicsError` for a topic with other partitions:
    keys would move, so that nobody changes it by the way; and where what was made is not listed in time."""
    deadline = clock.monotonic() + listed_seconds
    there = _partitions(admin)
    _refuse_other_partitions(specs, there)
    missing = [spec for spec in specs if spec.name not in there]
    made = _create(admin, missing)
    _refuse_other_partitions(missing, _until_listed(admin, {spec.name for spec in missing}, clock, deadline))
    differing = _differing(admin, [spec for spec in specs if spec not in made and spec.configs])
    return [f"{spec.name}: made with {spec.partitions} partitions" for spec in made] + [
        _configure(admin, spec, changes) for spec, changes in differing
    ]


def _partitions(admin: AdminClient) -> dict[str, int]:
    return partition_counts(admin.list_topics(timeout=CALL_SECONDS))


def _refuse_other_partitions(specs: Sequence[TopicSpec], there: Mapping[str, int]) -> None:
    for spec in specs:
        if there.get(spec.name, spec.partitions) != spec.partitions:
            raise TopicsError(
                f"topic {spec.name} has {there[spec.name]} partitions and must have {spec.partitions} (WEIR_PARTITIONS): its keys "
                "would move, so delete it or change the setting"
            )


def _create(admin: AdminClient, specs: Sequence[TopicSpec]) -> list[TopicSpec]:
    """Those that this call made. A broker lists a topic a little after its controller has made it: what looked missing may be
    another's, or this job's of a moment ago, with settings that are not these."""
    if not specs:
        return []
    topics = [NewTopic(spec.name, spec.partitions, config=dict(spec.configs)) for spec in specs]
    answers = admin.create_topics(topics, operation_timeout=CALL_SECONDS)
    return [spec for spec in specs if _is_new(spec.name, answers[spec.name])]


def _is_new(name: str, answer: Future[None]) -> bool:
    try:
        answer.result(ANSWER_SECONDS)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        if error.args[0].retriable():
            raise
        raise TopicsError(f"topic {name} cannot be created: {error.args[0].str()}") from None
    return True


def _until_listed(admin: AdminClient, names: set[str], clock: Clock, deadline: float) -> dict[str, int]:
    """Partitions by topic as soon as the broker lists all of these: settings of one that it does not know cannot be asked."""
    there: dict[str, int] = {}
    while names - there.keys():
        there = _partitions(admin)
        if names - there.keys():
            if clock.monotonic() >= deadline:
                missing = ", ".join(sorted(names - there.keys()))
                raise TopicsError(f"made, but not listed by the broker: {missing}")
            admin.poll(LISTED_PAUSE_SECONDS)
    return there


def _differing(admin: AdminClient, specs: Sequence[TopicSpec]) -> list[tuple[TopicSpec, dict[str, str]]]:
    """Topics whose settings are not as they should be, with what should be set."""
    if not specs:
        return []
    resources = {ConfigResource(ResourceType.TOPIC, spec.name): spec for spec in specs}
    found = []
    for resource, answer in admin.describe_configs(list(resources), request_timeout=CALL_SECONDS).items():
        spec, is_now = resources[resource], answer.result(ANSWER_SECONDS)
        changes = {k: v for k, v in spec.configs.items() if not _same(v, is_now[k].value if k in is_now else None)}
        if changes:
            found.append((spec, changes))
    return found


def _same(wanted: str, found: str | None) -> bool:
    """A list's order says nothing."""
    return found is not None and sorted(wanted.split(",")) == sorted(found.split(","))


def _configure(admin: AdminClient, spec: TopicSpec, changes: Mapping[str, str]) -> str:
    entries = [ConfigEntry(k, v, incremental_operation=AlterConfigOpType.SET) for k, v in changes.items()]
    resource = ConfigResource(ResourceType.TOPIC, spec.name, incremental_configs=entries)
    admin.incremental_alter_configs([resource], request_timeout=CALL_SECONDS)[resource].result(ANSWER_SECONDS)
    return f"{spec.name}: set {', '.join(f'{k}={v}' for k, v in sorted(changes.items()))}"


def ensure_within(servers: str, specs: Sequence[TopicSpec], timeout_seconds: float, clock: Clock) -> list[str]:
    """The same, as soon as the brokers answer; `TopicsError` if they do not in time."""
    # Silent: brokers that are not up yet are what is being waited for.
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    deadline = clock.monotonic() + timeout_seconds
    while True:
        try:
            return ensure(admin, specs, clock, max(deadline - clock.monotonic(), LISTED_PAUSE_SECONDS))
        except (KafkaException, TimeoutError) as error:
            if clock.monotonic() >= deadline:
                said = error.args[0].str() if isinstance(error, KafkaException) else "no answer in time"
                raise TopicsError(f"{servers}: {said}") from None
            admin.poll(PAUSE_SECONDS)


def further(text: str) -> TopicSpec:
    """Reads `NAME:PARTITIONS`."""
    name, _, count = text.rpartition(":")
    if not name or not count.isascii() or not count.isdigit() or not 1 <= int(count) <= 512:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME:PARTITIONS")
    return TopicSpec(name, int(count), {})


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if all topics are as they should be, 1 if they cannot be, 2 for wrong settings."""
    parser = argparse.ArgumentParser(prog="python -m runtime.topics", add_help=False)
    parser.add_argument("--timeout", type=float, default=60.0)
    parser.add_argument("--also", type=further, action="append", default=[])
    options, rest = parser.parse_known_args(arguments)
    settings = load(TopicsSettings, rest)
    specs = [*topic_specs(settings.partitions), LEASES, *options.also]
    try:
        done = ensure_within(settings.kafka_bootstrap_servers, specs, options.timeout, SystemClock())
    except TopicsError as error:
        sys.stderr.write(f"topics: {error}\n")
        return EXIT_UNUSABLE
    sys.stdout.write("".join(f"topics: {line}\n" for line in done or ["all are as they should be"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())

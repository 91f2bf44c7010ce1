"""`python -m weir_runtime.topics`: creates the topics of the loop and corrects the settings of existing ones.

Services create missing topics themselves. This job is for installations that do not permit that, and for an upgrade
with another retention or compaction: the settings are in one place, `weir_contracts.topics`.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from .bus import BusError, TopicSpec
from .clock import Clock, SystemClock
from .kafka_client import (
    LISTED_PAUSE_SECONDS,
    MIN_INSYNC,
    TooFewBrokers,
    connection,
    create_missing,
    explain,
    replicas_by_topic,
    shortfalls,
)
from .service import topic_specs
from .settings import ServiceSettings, load

CALL_SECONDS = 15.0
RESULT_SECONDS = 25.0
"""The client reports its own timeouts earlier."""
PAUSE_SECONDS = 0.5
EXIT_UNUSABLE = 1


class TopicsSettings(ServiceSettings):
    """Creates the topics of the loop and checks existing ones.

    Arguments: --timeout SECONDS to wait for the brokers (60), and --also NAME:PARTITIONS for each further topic.
    """


def ensure(
    admin: AdminClient, specs: Sequence[TopicSpec], clock: Clock, listed_seconds: float = CALL_SECONDS
) -> list[str]:
    """Create missing topics and set different settings; returns what was done and what falls short, in sentences. Errors
    as `create_missing`."""
    created = create_missing(admin, specs, clock, clock.monotonic() + listed_seconds)
    replicas = replicas_by_topic(admin)
    existing = [
        _writable(spec, min(replicas.get(spec.name, [0]))) for spec in specs if spec not in created and spec.configs
    ]
    differing = _differing(admin, existing)
    made = [f"{spec.name}: made with {spec.partitions} partitions" for spec in created]
    set_now = [_configure(admin, spec, changes) for spec, changes in differing]
    # A broker may not know yet what was set just now.
    kept = [spec for spec in specs if spec not in created]
    return made + set_now + (shortfalls(admin, kept) if not set_now else [])


def _writable(spec: TopicSpec, replicas: int) -> TopicSpec:
    """Return the topic without a `min.insync.replicas` that would refuse every record: it has fewer replicas."""
    if int(spec.configs.get(MIN_INSYNC, 0)) <= replicas:
        return spec
    return replace(spec, configs={name: value for name, value in spec.configs.items() if name != MIN_INSYNC})


def _differing(admin: AdminClient, specs: Sequence[TopicSpec]) -> list[tuple[TopicSpec, dict[str, str]]]:
    """Return topics with other settings, and the settings to change."""
    if not specs:
        return []
    resources = {ConfigResource(ResourceType.TOPIC, spec.name): spec for spec in specs}
    found = []
    for resource, result in admin.describe_configs(list(resources), request_timeout=CALL_SECONDS).items():
        spec, is_now = resources[resource], result.result(RESULT_SECONDS)
        changes = {k: v for k, v in spec.configs.items() if not _same(v, is_now[k].value if k in is_now else None)}
        if changes:
            found.append((spec, changes))
    return found


def _same(wanted: str, found: str | None) -> bool:
    """Return whether two values are equal; the order of a list has no meaning."""
    return found is not None and sorted(wanted.split(",")) == sorted(found.split(","))


def _configure(admin: AdminClient, spec: TopicSpec, changes: Mapping[str, str]) -> str:
    entries = [ConfigEntry(k, v, incremental_operation=AlterConfigOpType.SET) for k, v in changes.items()]
    resource = ConfigResource(ResourceType.TOPIC, spec.name, incremental_configs=entries)
    admin.incremental_alter_configs([resource], request_timeout=CALL_SECONDS)[resource].result(RESULT_SECONDS)
    return f"{spec.name}: set {', '.join(f'{k}={v}' for k, v in sorted(changes.items()))}"


def ensure_within(
    servers: str,
    specs: Sequence[TopicSpec],
    timeout_seconds: float,
    clock: Clock,
    security: Mapping[str, str] | None = None,
) -> list[str]:
    """The same, as soon as the brokers answer; `BusError` if they do not within `timeout_seconds`."""
    # Silent: brokers that are not up yet are waited for.
    admin = AdminClient(connection(servers, security))
    deadline = clock.monotonic() + timeout_seconds
    while True:
        try:
            return ensure(admin, specs, clock, max(deadline - clock.monotonic(), LISTED_PAUSE_SECONDS))
        except (KafkaException, TimeoutError, TooFewBrokers) as error:
            if clock.monotonic() >= deadline:
                if isinstance(error, TooFewBrokers):
                    raise
                reason = explain(error) if isinstance(error, KafkaException) else "no answer in time"
                raise BusError(f"{servers}: {reason}") from None
            admin.poll(PAUSE_SECONDS)


def further(text: str) -> TopicSpec:
    """Parse `NAME:PARTITIONS`."""
    name, _, count = text.rpartition(":")
    if not name or not count.isascii() or not count.isdigit() or not 1 <= int(count) <= 512:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME:PARTITIONS")
    return TopicSpec(name, int(count), {})


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if all topics are correct, 1 if they cannot be corrected, 2 for invalid settings."""
    parser = argparse.ArgumentParser(prog="python -m weir_runtime.topics", add_help=False)
    parser.add_argument("--timeout", type=float, default=60.0)
    parser.add_argument("--also", type=further, action="append", default=[])
    options, rest = parser.parse_known_args(arguments)
    settings = load(TopicsSettings, rest)
    specs = topic_specs(settings.partitions, settings.replication_factor, settings.min_insync_replicas)
    specs = [*specs, *options.also]
    try:
        servers, security = settings.kafka_bootstrap_servers, settings.kafka_security
        done = ensure_within(servers, specs, options.timeout, SystemClock(), security)
    except BusError as error:
        sys.stderr.write(f"topics: {error}\n")
        return EXIT_UNUSABLE
    sys.stdout.write("".join(f"topics: {line}\n" for line in done or ["all are as they should be"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Consumer of a topic as a member of a group, in its own process: SERVERS GROUP TOPIC CLIENT [INSTANCE]."""

import sys

from confluent_kafka import Consumer


def main(servers: str, group: str, topic: str, client: str, instance: str = "") -> None:
    """Poll until killed; a static member if `instance` is its `group.instance.id`."""
    settings = {"bootstrap.servers": servers, "group.id": group, "client.id": client, "session.timeout.ms": 300_000}
    consumer = Consumer({**settings, **({"group.instance.id": instance} if instance else {})})
    consumer.subscribe([topic])
    while True:
        consumer.poll(0.2)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""kafka-python's admin client with librdkafka's settings, for requests that librdkafka does not have.

It ships no types. It connects as soon as it is opened, so callers check the addresses before.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

_NAMES = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
}
"""Names of librdkafka's settings in kafka-python: one for each that credentials may have."""


def open_admin(
    servers: Sequence[str], client_id: str, timeout_seconds: float, settings: Mapping[str, str] | None = None
) -> Any:
    """Return a connected client, whose thread runs until `close_admin`. Blocks.

    Raises kafka-python's `KafkaError` or `OSError` if the brokers cannot be reached or refuse the credentials.
    """
    # loaded at the first use: half a second and 20 MB that many processes do not need
    from kafka.admin import KafkaAdminClient

    limits = _configured(timeout_seconds, settings) | {"bootstrap_timeout_ms": _milliseconds(timeout_seconds)}
    # without an object at hand, an initialiser that cannot reach the brokers would leave its thread behind
    client: Any = KafkaAdminClient.__new__(KafkaAdminClient)
    try:
        client.__init__(bootstrap_servers=list(servers), client_id=client_id, **limits)
    except BaseException:
        close_admin(client)
        raise
    return client


def _configured(timeout_seconds: float, settings: Mapping[str, str] | None) -> dict[str, Any]:
    """Return kafka-python's settings of a connection."""
    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # its debug lines quote all settings
    named = {_NAMES[name]: _value(name, value) for name, value in (settings or {}).items()}
    return {"request_timeout_ms": _milliseconds(timeout_seconds), **named}


def _milliseconds(seconds: float) -> int:
    return max(1000, int(seconds * 1000))


def _value(name: str, value: str) -> str:
    """Return a value as kafka-python writes it: librdkafka takes names of protocols in any case."""
    return value.upper() if name in ("security.protocol", "sasl.mechanism") else value


def close_admin(client: Any) -> None:
    """End a client and its thread, also one that never connected. Blocks until the thread has ended."""
    if hasattr(client, "_net"):
        client._closed = False
        client.close()

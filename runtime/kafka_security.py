"""TLS and SASL settings of Kafka clients, read from a file, for librdkafka and for Java."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .credentials import read_object

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
_LOGIN_MODULES = {
    "PLAIN": "plain.PlainLoginModule",
    "SCRAM-SHA-256": "scram.ScramLoginModule",
    "SCRAM-SHA-512": "scram.ScramLoginModule",
}


def check(entry: Mapping[str, Any], place: str, further: frozenset[str] = frozenset()) -> None:
    """Raise `ValueError` for a field that is neither allowed nor in `further`, or whose value is no text."""
    for field, value in entry.items():
        if field not in ALLOWED | further:
            raise ValueError(f"{place}: {field[:60]!r} is not among {', '.join(sorted(ALLOWED | further))}")
        if not isinstance(value, str):
            raise ValueError(f"{place}: {field} must be text")  # noqa: TRY004


def read_security(path: Path | None) -> dict[str, str]:
    """Read `{"security.protocol": "SASL_SSL", …}` for the brokers of the loop; without a file there is none.

    `ValueError` names the setting and the field, never a value.
    """
    if path is None:
        return {}
    found = read_object(path, LOOP_SETTING, "be an object of librdkafka's settings")
    place = f"{LOOP_SETTING}: {path}"
    check(found, place)
    try:
        java_settings(found)
    except OSError as error:
        raise ValueError(f"{place}: cannot read a file that it names: {type(error).__name__}") from None
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None
    return found


def java_settings(security: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of Kafka's Java client that mean the same. Certificates and key are passed as their text.

    Raises `ValueError` for what it cannot do, and `OSError` for a file that cannot be read.
    """
    found: dict[str, str] = {}
    if "security.protocol" in security:
        found["security.protocol"] = security["security.protocol"]
    if "sasl.mechanism" in security:
        mechanism = security["sasl.mechanism"]
        if mechanism not in _LOGIN_MODULES:
            raise ValueError(f"sasl.mechanism must be one of {', '.join(_LOGIN_MODULES)}")
        user, password = (_quoted(security.get(name, "")) for name in ("sasl.username", "sasl.password"))
        module = f"org.apache.kafka.common.security.{_LOGIN_MODULES[mechanism]}"
        found["sasl.mechanism"] = mechanism
        found["sasl.jaas.config"] = f"{module} required username={user} password={password};"
    if "ssl.ca.location" in security:
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": _text(security["ssl.ca.location"])}
    if ("ssl.certificate.location" in security) != ("ssl.key.location" in security):
        raise ValueError("ssl.certificate.location and ssl.key.location belong together")
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

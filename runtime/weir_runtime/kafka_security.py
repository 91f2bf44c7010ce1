"""TLS and SASL settings of Kafka clients, read from a file, for librdkafka and for Java."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .credentials import read_credentials_file, read_object

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

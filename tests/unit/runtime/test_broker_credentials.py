"""Credentials of brokers: read by name, sent to their own brokers only, and never shown."""

import json
from pathlib import Path
from typing import Any

import pytest

from weir_runtime.broker_credentials import BrokerCredentials, credentials_for, read_broker_credentials
from weir_runtime.credentials import CredentialsRefused

ENTRY = {
    "namespaces": "shop, carts",
    "servers": "kafka-0:9093, KAFKA-1:9093",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "weir",
    "sasl.password": "secret",
}


def written(folder: Path, document: Any) -> Path:
    path = folder / "credentials.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def test_a_policy_gets_the_settings_of_its_entry(tmp_path: Path) -> None:
    found = read_broker_credentials(written(tmp_path, {"shop": ENTRY}))
    settings = credentials_for("shop", "kafka-1:9093", found).settings
    assert settings["sasl.password"] == "secret" and "servers" not in settings
    assert "secret" not in repr(found["shop"])
    assert found["shop"].namespaces == {"shop", "carts"}
    assert credentials_for(None, "anywhere:9092", found).settings == {}
    assert read_broker_credentials(None) == {}


@pytest.mark.parametrize(
    ("name", "servers", "sentence"),
    [
        ("other", "kafka-0:9093", "has no entry 'other'"),
        ("shop", "kafka-0:9093,evil:9093", "'shop' is not for the broker evil:9093"),
        ("shop", "kafka-0:9094", "'shop' is not for the broker kafka-0:9094"),
    ],
)
def test_credentials_are_not_sent_elsewhere(name: str, servers: str, sentence: str) -> None:
    """The author of a policy must not learn a password by naming a server of their own."""
    known = {"shop": BrokerCredentials(frozenset({"kafka-0:9093"}), {"sasl.password": "secret"}, frozenset({"shop"}))}
    with pytest.raises(CredentialsRefused, match=sentence):
        credentials_for(name, servers, known)


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ("{", "is not JSON"),
        ([], "must map names to entries"),
        (ENTRY, "'namespaces' must be an object: the file maps names to entries"),
        ({"shop": {**ENTRY, "namespaces": ","}}, "'shop': namespaces must list the namespaces of the policies"),
        ({"shop": {**ENTRY, "namespaces": None}}, "'shop': namespaces must list the namespaces of the policies"),
        ({"shop": {**ENTRY, "servers": ","}}, "servers must list the brokers as host:port"),
        ({"shop": {**ENTRY, "servers": "kafka-0"}}, "servers must list the brokers as host:port"),
        ({"shop": {**ENTRY, "sasl.mechanism": "SCRAM"}}, "'shop': sasl.mechanism must be one of PLAIN"),
        ({"shop": {**ENTRY, "ssl.ca.location": "/missing.pem"}}, "'shop': ssl.ca.location: cannot read /missing.pem"),
        ({"shop": {**ENTRY, "sasl.password": 7}}, "sasl.password must be text"),
        ({"shop": {**ENTRY, "plugin.library.paths": "secret"}}, "'plugin.library.paths' is not among"),
    ],
)
def test_an_invalid_file_is_refused_without_its_values(tmp_path: Path, document: Any, sentence: str) -> None:
    path = written(tmp_path, document)
    with pytest.raises(ValueError, match=sentence) as error:
        read_broker_credentials(path)
    assert str(error.value).startswith(f"WEIR_BROKER_CREDENTIALS_FILE: {path}")
    assert "secret" not in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot read .*nothing: FileNotFoundError"):
        read_broker_credentials(tmp_path / "nothing")

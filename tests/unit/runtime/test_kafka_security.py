"""TLS and SASL of the loop's own brokers: read from a file, the same for librdkafka and Java, and never shown."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.unit.runtime.test_broker_credentials import written
from weir_runtime.kafka_security import java_settings, read_security
from weir_runtime.settings import ServiceSettings

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

"""Credentials for the brokers and the HTTP addresses of policies."""

import json
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import AnyHttpUrl, ValidationError

from testbed.kubernetes_access import Authority
from weir_runtime.files import CredentialsRefused
from weir_runtime.http_client import Certificates, tls_context
from weir_runtime.policy_credentials import (
    BrokerCredentials,
    ClientsByCredential,
    FlinkSettings,
    credentials_for,
    read_broker_credentials,
    read_credentials,
)

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


ORIGIN = "https://flink:8081"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is not JSON"),
        ('{"own": {"namespaces": "*", "token": "hidden"}}', "own.origin"),
        ('{"own": {"namespaces": "*", "origin": "http://a/path", "token": "hidden"}}', "scheme, host and port only"),
        ('{"own": {"namespaces": "*", "origin": "http://a", "token": "hid den"}}', "visible ASCII"),
        ('{"own": {"namespaces": "*", "origin": "http://a", "token": ""}}', "own.token"),
        (
            '{"own": {"namespaces": "*", "origin": "http://a", "token": "hidden", "role": "x"}}',
            "own.role: is not among namespaces, origin, token",
        ),
        ('{"O wn": {"origin": "http://a", "token": "hidden"}}', "the name 'O wn' must consist of lower-case letters"),
        (
            '{"own": {"namespaces": "*", "origin": "http://a", "username": "weir"}}',
            "username and password belong together",
        ),
        (
            '{"own": {"namespaces": "*", "origin": "http://a", "username": "we:ir", "password": "hidden"}}',
            "own.username: must not contain a colon",
        ),
        (
            '{"own": {"namespaces": "*", "origin": "http://a", "username": "weir", "password": "hidden", "token": "hidden"}}',
            "token and username exclude each other",
        ),
        (
            '{"own": {"namespaces": "*", "origin": "https://a", "certificate_file": "/hidden.crt"}}',
            "certificate_file and key_file belong together",
        ),
        ('{"own": {"namespaces": "*", "origin": "http://a", "ca_file": "/hidden.crt"}}', "need an origin with https"),
        (
            '{"own": {"namespaces": "*", "origin": "https://a", "ca_file": "/missing.crt"}}',
            "own: ca_file: cannot read /missing.crt",
        ),
        ('{"own": {"origin": "http://a", "token": "hidden"}}', "own.namespaces: is required"),
        (
            '{"own": {"namespaces": [], "origin": "http://a"}}',
            "own.namespaces: must list the namespaces of the policies",
        ),
        (
            '{"own": {"namespaces": 7, "origin": "http://a"}}',
            "own.namespaces: must list the namespaces of the policies",
        ),
        ("[]", "must map names to entries"),
        ('{"origin": "http://a", "token": "hidden"}', "origin: must be an object: the file maps names to entries"),
    ],
)
def test_an_invalid_entry_is_named_without_its_value(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        read_credentials(text)
    assert "hid" not in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "header"),
    [
        ({"token": "of-weir"}, "Bearer of-weir"),
        ({"username": "weir", "password": "pass:wörd"}, "Basic d2VpcjpwYXNzOnfDtnJk"),
        ({"token": None}, None),
        ({}, None),
    ],
)
async def test_a_client_sends_the_header_of_its_entry(entry: dict[str, str | None], header: str | None) -> None:
    """A policy that names no entry sends none; neither shows in the text of an entry."""
    headers: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        headers.append(request.headers.get("authorization"))
        return httpx.Response(200)

    entries = read_credentials(json.dumps({"own": {"namespaces": "*", "origin": ORIGIN, **entry}}))
    clients = ClientsByCredential(entries, "SETTING", transport=httpx.MockTransport(answer))
    url = AnyHttpUrl(f"{ORIGIN}/path")
    for name in ("own", None, "own"):
        await clients.of(name, url).get(str(url))
    assert headers == [header, None, header]
    assert not any(value in repr(entries) for value in entry.values() if value not in (None, "weir"))
    await clients.close()


@pytest.mark.parametrize(
    ("name", "url", "reason"),
    [
        ("other", ORIGIN, "SETTING has no entry 'other'"),
        ("own", "http://flink:8081", "entry 'own' is for another origin than http://flink:8081/"),
        ("own", "https://flink:8082", "is for another origin"),
        ("own", "https://flink.example.org:8081", "is for another origin"),
    ],
)
def test_an_entry_is_for_its_own_origin(name: str, url: str, reason: str) -> None:
    """A policy's author could otherwise have a token sent to a server of their own."""
    clients = ClientsByCredential(
        read_credentials(json.dumps({"own": {"namespaces": "*", "origin": ORIGIN, "token": "t"}})), "SETTING"
    )
    with pytest.raises(CredentialsRefused, match=reason):
        clients.of(name, AnyHttpUrl(url))


def test_certificates_are_read_when_the_service_starts(tmp_path: Path) -> None:
    """Files that fit, and a key of another certificate."""
    authority = Authority(tmp_path)
    authority.create()
    own, other = authority.issue("weir"), authority.issue("other")
    entry: dict[str, Any] = {
        "namespaces": ["shop"],
        "origin": ORIGIN,
        "ca_file": str(authority.certificate),
        "certificate_file": str(own.certificate),
        "key_file": str(own.key),
    }
    found = read_credentials(json.dumps({"own": entry}))["own"]
    assert found.certificates == Certificates(authority.certificate, own.certificate, own.key)
    with pytest.raises(
        ValueError, match="own: the certificates cannot be used: not PEM, or the key is of another certificate"
    ):
        read_credentials(json.dumps({"own": {**entry, "key_file": str(other.key)}}))


def test_replaced_certificates_are_read_again(tmp_path: Path) -> None:
    """A certificate is renewed at its path: the next client trusts and shows the new one, and the old one is not read twice."""
    first, second = Authority(tmp_path / "first"), Authority(tmp_path / "second")
    for each in (first, second):
        each.create()
    path = tmp_path / "ca.crt"
    path.write_bytes(first.certificate.read_bytes())
    before = tls_context(Certificates(path))
    assert tls_context(Certificates(path)) is before
    path.unlink()
    path.write_bytes(second.certificate.read_bytes())
    after = tls_context(Certificates(path))
    trusted = [set(context.get_ca_certs(binary_form=True)) for context in (before, after)]
    own = [ssl.PEM_cert_to_DER_cert(each.certificate.read_text()) for each in (first, second)]
    assert [each in trusted[0] for each in own] == [True, False]
    assert [each in trusted[1] for each in own] == [False, True]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot read"),
        (b"{", "is not JSON"),
        (b"", "is not JSON"),
        (b" " * 1_000_001, "more than 1,000,000 bytes"),
    ],
)
def test_an_unreadable_file_is_named(tmp_path: Path, content: bytes | None, reason: str) -> None:
    """The service does not start; the line has the setting and the file."""
    path = tmp_path / "flink.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValidationError, match=f"WEIR_FLINK_CREDENTIALS_FILE: .*{reason}"):
        FlinkSettings(flink_credentials_file=path)
    assert FlinkSettings().flink_credentials == {}

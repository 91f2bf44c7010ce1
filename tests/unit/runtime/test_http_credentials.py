"""Credentials of HTTP addresses: what an entry may be, and that it goes to its own origin only."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import AnyHttpUrl, ValidationError

from testbed.kubernetes_access import Authority
from weir_runtime.credentials import CredentialsRefused
from weir_runtime.http_client import Certificates
from weir_runtime.http_credentials import ClientsByCredential, FlinkSettings, read_credentials

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

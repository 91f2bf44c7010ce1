"""Files that change under a running service: credentials, namespaces, and what keeps counting while they are invalid."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import REGISTRY
from pydantic import AnyHttpUrl
from structlog.testing import capture_logs

from tests.mount import Mount
from weir_contracts import policy_of
from weir_executor.settings import Settings
from weir_runtime import policy_credentials
from weir_runtime.files import CredentialsRefused, FollowedFiles, follow
from weir_runtime.loop import Stop
from weir_runtime.policy_credentials import BrokerSettings, ClientsByCredential, FlinkSettings, credentials_for
from weir_runtime.settings import KubernetesSettings, ServiceSettings, load

SERVER = "kafka:9093"
ORIGIN = "https://flink:8081"


def brokers(password: str, **more: str) -> dict[str, str]:
    """Return the mounted file of an entry `shop`."""
    entry = {
        "namespaces": "shop",
        "servers": SERVER,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "weir",
        "sasl.password": password,
        **more,
    }
    return {"brokers.json": json.dumps({"shop": entry})}


def flink(token: str) -> dict[str, str]:
    return {"flink.json": json.dumps({"own": {"namespaces": "*", "origin": ORIGIN, "token": token}})}


def renewed(settings: ServiceSettings) -> list[bool]:
    """Look at the files once, as the service does every few seconds; whether each was read again."""
    return [files.renew() for files in settings.followed_files]


def unusable(setting: str) -> float | None:
    return REGISTRY.get_sample_value("weir_files_unusable", {"setting": setting})


def test_a_new_password_counts_once_the_secret_is_replaced(tmp_path: Path) -> None:
    """Kubernetes lets `..data` point to another folder. Until then no look reads the file again."""
    mount = Mount(tmp_path / "mount", brokers("first"))
    settings = BrokerSettings(broker_credentials_file=mount / "brokers.json")
    found = settings.broker_credentials
    first = credentials_for("shop", SERVER, found)
    assert renewed(settings) == [False]
    mount.replace(brokers("second"))
    assert renewed(settings) == [True]
    second = credentials_for("shop", SERVER, found)
    assert (first.settings["sasl.password"], second.settings["sasl.password"]) == ("first", "second")
    assert first != second
    assert renewed(settings) == [False]


def test_an_entry_that_is_removed_is_not_used_any_more(tmp_path: Path) -> None:
    """A revoked entry is refused, and so is one whose namespaces changed, for the policies of others."""
    mount = Mount(tmp_path / "mount", brokers("first"))
    settings = BrokerSettings(broker_credentials_file=mount / "brokers.json")
    reach = settings.reach()
    spec: dict[str, Any] = {
        "application": {"kafkaStreams": {"applicationId": "orders"}},
        "target": {"kubernetes": {"kind": "Deployment", "name": "orders"}},
        "signals": {"kafka": {"bootstrapServers": SERVER, "credentials": "shop"}},
    }
    subject = policy_of("shop/orders", objective={"maxLag": "30s"}, **spec).subject
    assert reach.refusal(subject) is None
    mount.replace(brokers("first", namespaces="bank"))
    renewed(settings)
    assert "is not for policies of namespace shop" in str(reach.refusal(subject))
    mount.replace({"brokers.json": "{}"})
    renewed(settings)
    with pytest.raises(CredentialsRefused, match="has no entry 'shop'"):
        credentials_for("shop", SERVER, settings.broker_credentials)


def test_an_invalid_file_keeps_the_last_content_and_is_logged_once(tmp_path: Path) -> None:
    """The metric is 1 until the file can be used again; the log has no value of it."""
    setting = "WEIR_BROKER_CREDENTIALS_FILE"
    mount = Mount(tmp_path / "mount", brokers("first"))
    settings = BrokerSettings(broker_credentials_file=mount / "brokers.json")
    with capture_logs() as lines:
        for wrong in ({"brokers.json": '{"shop": {"sasl.password": "hidden"'}, brokers("hidden", servers="kafka")):
            mount.replace(wrong)
            assert [renewed(settings) for _ in range(3)] == [[False]] * 3
            assert unusable(setting) == 1.0
            assert credentials_for("shop", SERVER, settings.broker_credentials).settings["sasl.password"] == "first"
        mount.replace(brokers("second"))
        assert renewed(settings) == [True]
    assert [line["event"] for line in lines] == ["file-unusable", "file-unusable", "file-read"]
    assert "is not JSON" in lines[0]["reason"] and "must list the brokers" in lines[1]["reason"]
    assert "hidden" not in str(lines)
    assert unusable(setting) == 0.0
    assert credentials_for("shop", SERVER, settings.broker_credentials).settings["sasl.password"] == "second"


def test_a_file_that_is_gone_keeps_its_last_content(tmp_path: Path) -> None:
    """A write that removes it first is no end of the credentials."""
    path = tmp_path / "brokers.json"
    path.write_text(brokers("first")["brokers.json"])
    settings = BrokerSettings(broker_credentials_file=path)
    path.unlink()
    assert renewed(settings) == [False]
    assert set(settings.broker_credentials) == {"shop"}
    path.write_text(brokers("second")["brokers.json"])
    assert renewed(settings) == [True]


def test_another_certificate_makes_another_entry(tmp_path: Path) -> None:
    """The file of credentials names it and stays as it is; clients would trust the authority of before."""
    authority = tmp_path / "ca.pem"
    authority.write_text("-----BEGIN CERTIFICATE-----\nfirst")
    mount = Mount(tmp_path / "mount", brokers("first", **{"ssl.ca.location": str(authority)}))
    settings = BrokerSettings(broker_credentials_file=mount / "brokers.json")
    before = settings.broker_credentials["shop"]
    authority.write_text("-----BEGIN CERTIFICATE-----\nof another authority")
    assert renewed(settings) == [True]
    after = settings.broker_credentials["shop"]
    assert before.settings == after.settings and before != after


async def test_a_new_token_has_a_new_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests on their way end with the client that sends them; later ones have the new token, and the client of before
    is closed."""
    monkeypatch.setattr(policy_credentials, "LAST_REQUEST_SECONDS", 0.0)
    headers: list[str | None] = []
    arrived, goes_on = asyncio.Event(), asyncio.Event()

    async def answer(request: httpx.Request) -> httpx.Response:
        headers.append(request.headers.get("authorization"))
        if request.url.path == "/slow":
            arrived.set()
            await goes_on.wait()
        return httpx.Response(200)

    mount = Mount(tmp_path / "mount", flink("first"))
    settings = FlinkSettings(flink_credentials_file=mount / "flink.json")
    clients = ClientsByCredential(settings.flink_credentials, "SETTING", transport=httpx.MockTransport(answer))
    url = AnyHttpUrl(ORIGIN)
    before = clients.of("own", url)
    slow = asyncio.create_task(before.get(f"{ORIGIN}/slow"))
    await arrived.wait()
    mount.replace(flink("second"))
    assert renewed(settings) == [True]
    after = clients.of("own", url)
    assert after is not before and clients.of("own", url) is after
    await after.get(ORIGIN)
    goes_on.set()
    assert (await slow).status_code == 200
    async with asyncio.timeout(5.0):
        while not before.is_closed:  # noqa: ASYNC110 - a client has no event
            await asyncio.sleep(0)
    assert not after.is_closed
    await clients.close()
    assert after.is_closed
    assert headers == ["Bearer first", "Bearer second"]


def test_credentials_of_endpoints_are_followed_in_the_folder_of_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where Kubernetes mounts them. The environment takes precedence, and cannot change."""
    setting = "WEIR_EXECUTOR_ENDPOINT_CREDENTIALS"
    mount = Mount(tmp_path / "mount", {setting: flink("first")["flink.json"]})
    monkeypatch.setenv("WEIR_SECRETS_FOLDER", str(mount.folder))
    settings = load(Settings)
    reach, found = settings.reach(), settings.credentials
    mount.replace({setting: flink("second")["flink.json"]})
    assert renewed(settings) == [True]
    authorization = found["own"].authorization
    assert authorization is not None and authorization.get_secret_value() == "Bearer second"
    assert reach.credentials["target.endpoint.credentials"] == found
    monkeypatch.setenv(setting, flink("fixed")["flink.json"])
    assert renewed(load(Settings)) == []


def test_a_namespace_is_added_to_the_mounted_list(tmp_path: Path) -> None:
    """Next to those of the variable; so is a pair. A name that none can have keeps the lists as they were."""
    lists = {"workloads": "shop", "pairs": ""}
    mount = Mount(tmp_path / "mount", lists)
    settings = KubernetesSettings(
        kubernetes_namespaces="fixed",
        kubernetes_namespaces_file=mount / "workloads",
        target_namespaces="a:b",
        target_namespaces_file=mount / "pairs",
    )
    listed, reach = settings.namespaces, settings.reach()
    assert sorted(listed) == ["fixed", "shop"] and "bank" not in listed
    mount.replace({"workloads": "# ours\nshop, bank\n\ncarts", "pairs": "shop:bank\n"})
    assert renewed(settings) == [True, True]
    assert sorted(listed) == ["bank", "carts", "fixed", "shop"] and "bank" in listed and len(listed) == 4
    assert set(reach.pairs) == {("a", "b"), ("shop", "bank")}
    mount.replace({"workloads": "shop Bank", "pairs": "shop"})
    with capture_logs() as lines:
        assert renewed(settings) == [False, False]
    assert {line["reason"].rpartition(": ")[2] for line in lines} == {
        "'Bank' is no name of a namespace",
        "'shop' is not FROM:TO, two namespaces",
    }
    assert "bank" in listed and ("shop", "bank") in reach.pairs


def test_a_list_that_is_missing_ends_the_start_with_the_setting(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"KUBERNETES_NAMESPACES_FILE: cannot read .*nothing"):
        KubernetesSettings(kubernetes_namespaces_file=tmp_path / "nothing")


async def test_a_service_looks_at_its_files_until_it_stops(tmp_path: Path) -> None:
    """A file that cannot be used does not end it."""
    path, stop = tmp_path / "list", Stop()
    path.write_text("1")
    files = FollowedFiles("SETTING", lambda: int(path.read_text()), lambda _: [path])
    following = asyncio.create_task(follow([files], stop, check_seconds=0.001))
    for text, value in (("two", 1), ("3333", 3333)):
        path.write_text(text)
        async with asyncio.timeout(5.0):
            while (unusable("SETTING"), files.value) != (float(text == "two"), value):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
    stop.request("enough")
    await asyncio.wait_for(following, 5.0)

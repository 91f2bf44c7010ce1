"""Fields that a copy of a compose container keeps, and containers that cannot be copied."""

from copy import deepcopy
from typing import Any

import pytest

from services.executor.adapters.docker_copy import Inspected, Uncopyable, copy_of

ID, VOLUME = "c0ffee" * 10 + "abcd", "ab" * 32
SIBLING: dict[str, Any] = {
    "Id": ID,
    "Name": "/shop-taskmanager-1",
    "Image": "sha256:1234",
    "Config": {
        "Hostname": ID[:12],
        "Domainname": "",
        "Env": ["TASK_MANAGER_NUMBER_OF_TASK_SLOTS=2"],
        "Cmd": ["taskmanager"],
        "Image": "flink:2.2",
        "Volumes": {"/data": {}},
        "User": "flink",
        "Labels": {
            "com.docker.compose.project": "shop",
            "com.docker.compose.service": "taskmanager",
            "com.docker.compose.container-number": "1",
            "com.docker.compose.oneoff": "False",
            "com.docker.compose.config-hash": "f00d",
            "com.docker.compose.version": "2.29.7",
            "com.docker.compose.replace": "shop-taskmanager-0",
        },
        "StopTimeout": 30,
    },
    "HostConfig": {
        "NetworkMode": "shop_default",
        "Binds": ["shop_checkpoints:/checkpoints:rw", "/etc/flink:/conf:ro", f"{VOLUME}:/data:rw"],
        "Mounts": [
            {"Type": "volume", "Source": VOLUME, "Target": "/spill"},
            {"Type": "bind", "Source": "/a", "Target": "/b"},
        ],
        "Memory": 1 << 30,
        "NanoCpus": 500_000_000,
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"],
        "RestartPolicy": {"Name": "unless-stopped", "MaximumRetryCount": 0},
        "PortBindings": {"6121/tcp": [{"HostIp": "127.0.0.1", "HostPort": ""}]},
        "ContainerIDFile": "/run/x",
    },
    "NetworkSettings": {
        "Networks": {
            "shop_back": {"Aliases": ["taskmanager", ID[:12]], "IPAMConfig": {}, "NetworkID": "n2"},
            "shop_default": {"Aliases": ["shop-taskmanager-1", "taskmanager"], "IPAMConfig": None, "NetworkID": "n1"},
        }
    },
}


def sibling(**paths: Any) -> Inspected:
    """The sibling with changed fields, `a__b` for what is at `a.b`."""
    document = deepcopy(SIBLING)
    for path, value in paths.items():
        place, (*parents, last) = document, path.split("__")
        for parent in parents:
            place = place[parent]
        place[last] = value
    return Inspected.model_validate(document)


def test_a_copy_is_its_sibling_with_its_own_number() -> None:
    """Image, environment, limits, mounts and compose's labels."""
    copy = copy_of(sibling(), 7, "flink:2.2")
    assert copy.name == "shop-taskmanager-7"
    config, host = SIBLING["Config"], SIBLING["HostConfig"]
    assert {key: copy.body[key] for key in ("Env", "Cmd", "Image", "Volumes", "User", "StopTimeout")} == {
        key: config[key] for key in ("Env", "Cmd", "Image", "Volumes", "User", "StopTimeout")
    }
    assert copy.body["Labels"] == {
        **{key: value for key, value in config["Labels"].items() if not key.endswith("replace")},
        "com.docker.compose.container-number": "7",
    }
    same = ("NetworkMode", "Memory", "NanoCpus", "ReadonlyRootfs", "CapDrop", "RestartPolicy", "PortBindings")
    assert {key: copy.body["HostConfig"][key] for key in same} == {key: host[key] for key in same}


def test_fields_of_the_sibling_alone_are_not_copied() -> None:
    """Host name, anonymous volumes, id file, and the aliases that name only it."""
    copy = copy_of(sibling(), 7, "sha256:1234")
    assert "Hostname" not in copy.body and copy.body["Image"] == "sha256:1234"
    host = copy.body["HostConfig"]
    assert "ContainerIDFile" not in host
    assert host["Binds"] == ["shop_checkpoints:/checkpoints:rw", "/etc/flink:/conf:ro"]
    assert host["Mounts"] == [{"Type": "volume", "Target": "/spill"}, {"Type": "bind", "Source": "/a", "Target": "/b"}]
    assert copy.body["NetworkingConfig"] == {
        "EndpointsConfig": {"shop_default": {"Aliases": ["taskmanager", "shop-taskmanager-7"]}}
    }
    assert copy.networks == {"shop_back": {"Aliases": ["taskmanager"]}}


def test_a_host_name_that_compose_set_is_kept() -> None:
    """All containers of the service have it."""
    assert copy_of(sibling(Config__Hostname="tm"), 2, "x").body["Hostname"] == "tm"


def test_names_are_made_as_the_siblings_are() -> None:
    """Compose 1 joins them with underscores."""
    assert copy_of(sibling(Name="/shop_taskmanager_1"), 2, "x").name == "shop_taskmanager_2"


def test_without_a_network_there_is_none() -> None:
    """On the host's there is nothing to connect."""
    copy = copy_of(sibling(HostConfig__NetworkMode="host"), 2, "x")
    assert "NetworkingConfig" not in copy.body and copy.networks == {}


@pytest.mark.parametrize(
    ("field", "value", "expected_text"),
    [
        ("Name", "/flink-tm", "container_name"),
        (
            "HostConfig__PortBindings",
            {"8081/tcp": [{"HostIp": "", "HostPort": "8081"}]},
            "8081/tcp is published as 8081",
        ),
        (
            "NetworkSettings__Networks",
            {"shop_default": {"IPAMConfig": {"IPv4Address": "172.20.0.9"}}},
            "a fixed address in network shop_default",
        ),
    ],
)
def test_a_container_that_compose_cannot_scale_is_refused(field: str, value: Any, expected_text: str) -> None:
    """The sentence names the setting."""
    with pytest.raises(Uncopyable, match=expected_text):
        copy_of(sibling(**{field: value}), 2, "x")

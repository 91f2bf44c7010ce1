"""A copy of a compose service's container, as compose itself would make the next one. Pure.

From what Docker tells of a sibling (`GET /containers/:id/json`): image, environment, mounts, limits, networks and labels stay, its
number, name, host name and anonymous volumes are its own. What compose could not scale cannot be copied either.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

PROJECT = "com.docker.compose.project"
SERVICE = "com.docker.compose.service"
NUMBER = "com.docker.compose.container-number"
ONE_OFF = "com.docker.compose.oneoff"
_REPLACED = "com.docker.compose.replace"
"""Of a container that took another one's place: says nothing about a new one."""

_ANONYMOUS = re.compile(r"[0-9a-f]{64}")
_SHORT_ID = 12


class Uncopyable(ValueError):
    """There cannot be two of it; the sentence says why."""


class Configuration(BaseModel):
    """The parts of `Config` that a copy is told by; the others are kept as they are."""

    model_config = ConfigDict(extra="allow")

    Image: str
    Hostname: str = ""
    Labels: dict[str, str]
    StopTimeout: int | None = None


class Host(BaseModel):
    """The parts of `HostConfig` likewise."""

    model_config = ConfigDict(extra="allow")

    NetworkMode: str = "default"
    Binds: list[str] | None = None
    Mounts: list[dict[str, Any]] | None = None
    PortBindings: dict[str, list[dict[str, str]] | None] | None = None


class Addressing(BaseModel):
    """An address that was asked for, and not given by Docker."""

    model_config = ConfigDict(extra="allow")

    IPv4Address: str | None = None
    IPv6Address: str | None = None


class Endpoint(BaseModel):
    """A container's end of a network."""

    IPAMConfig: Addressing | None = None
    Links: list[str] | None = None
    Aliases: list[str] | None = None
    DriverOpts: dict[str, str] | None = None


class Networks(BaseModel):
    Networks: dict[str, Endpoint] = Field(default_factory=dict)


class Inspected(BaseModel):
    """A container, whole."""

    Id: str = Field(min_length=_SHORT_ID)
    Name: str
    Image: str
    Config: Configuration
    HostConfig: Host
    NetworkSettings: Networks = Field(default_factory=Networks)


@dataclass(frozen=True)
class Copy:
    """What to create, and the networks to connect it to before it is started (a container is created with one at most)."""

    name: str
    body: dict[str, Any]
    networks: Mapping[str, dict[str, Any]]


def copy_of(original: Inspected, number: int, image: str) -> Copy:
    """Another one of the same service, with its own number. `image`: what to make it of. Raises `Uncopyable`."""
    labels = original.Config.Labels
    name = _name(original, number)
    ends = _endpoints(original, name)
    config = original.Config.model_dump(exclude_unset=True)
    if original.Id.startswith(original.Config.Hostname):
        config.pop("Hostname", None)  # Docker's own: the new one gets one, too
    config.pop("MacAddress", None)
    config["Image"] = image
    config["Labels"] = {key: value for key, value in labels.items() if key != _REPLACED} | {NUMBER: str(number)}
    first = original.HostConfig.NetworkMode if original.HostConfig.NetworkMode in ends else next(iter(ends), None)
    body = {**config, "HostConfig": _host(original)}
    if first is not None:
        body["NetworkingConfig"] = {"EndpointsConfig": {first: ends[first]}}
    return Copy(name, body, {network: end for network, end in ends.items() if network != first})


def _name(original: Inspected, number: int) -> str:
    labels, name = original.Config.Labels, original.Name.removeprefix("/")
    for sep in ("-", "_"):
        stem = sep.join((labels[PROJECT], labels[SERVICE]))
        if name == f"{stem}{sep}{labels[NUMBER]}":
            return f"{stem}{sep}{number}"
    raise Uncopyable(f"{name} has a name of its own (container_name), so there can be one only")


def _host(original: Inspected) -> dict[str, Any]:
    host = original.HostConfig
    for port, bindings in (host.PortBindings or {}).items():
        fixed = [
            b["HostPort"] for b in bindings or [] if b.get("HostPort", "") not in ("", "0") and "-" not in b["HostPort"]
        ]
        if fixed:
            raise Uncopyable(f"its port {port} is published as {fixed[0]}, which a second container cannot have")
    made = host.model_dump(exclude_unset=True)
    made.pop("ContainerIDFile", None)
    # An anonymous volume belongs to one container: Docker makes the copy's own.
    if host.Binds is not None:
        made["Binds"] = [bind for bind in host.Binds if not _ANONYMOUS.fullmatch(bind.split(":", 1)[0])]
    if host.Mounts is not None:
        made["Mounts"] = [_mount(mount) for mount in host.Mounts]
    return made


def _mount(mount: dict[str, Any]) -> dict[str, Any]:
    anonymous = mount.get("Type") == "volume" and _ANONYMOUS.fullmatch(str(mount.get("Source", "")))
    return {key: value for key, value in mount.items() if key != "Source"} if anonymous else dict(mount)


def _endpoints(original: Inspected, name: str) -> dict[str, dict[str, Any]]:
    """Its end of each network, with the aliases that are the service's: its own id and name are not."""
    mode = original.HostConfig.NetworkMode
    if mode in ("host", "none") or mode.startswith("container:"):
        return {}
    own, found = original.Name.removeprefix("/"), {}
    for network, end in original.NetworkSettings.Networks.items():
        if end.IPAMConfig is not None and (end.IPAMConfig.IPv4Address or end.IPAMConfig.IPv6Address):
            raise Uncopyable(f"it has an address of its own in network {network}, which a second container cannot have")
        aliases = [alias for alias in end.Aliases or [] if alias != own and alias != original.Id[:_SHORT_ID]]
        found[network] = {
            key: value
            for key, value in (
                ("Aliases", [*aliases, *([name] if own in (end.Aliases or []) else [])] or None),
                ("Links", end.Links),
                ("DriverOpts", end.DriverOpts),
            )
            if value
        }
    return found

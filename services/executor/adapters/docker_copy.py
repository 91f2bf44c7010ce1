"""Copy of a compose service's container, as compose would create the next one. Pure.

Built from Docker's description of a sibling (`GET /containers/:id/json`): image, environment, mounts, limits, networks
and labels stay; number, name, host name and anonymous volumes are new. A container that compose cannot scale cannot be
copied.
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
"""Label of a replaced container, which does not apply to a copy."""

_ANONYMOUS = re.compile(r"[0-9a-f]{64}")
_SHORT_ID = 12


class Uncopyable(ValueError):
    """The container cannot be copied; the message gives the reason."""


class Configuration(BaseModel):
    """The fields of `Config` that a copy depends on; the others are copied as they are."""

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
    """A requested address, not one assigned by Docker."""

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
    """The inspected container."""

    Id: str = Field(min_length=_SHORT_ID)
    Name: str
    Image: str
    Config: Configuration
    HostConfig: Host
    NetworkSettings: Networks = Field(default_factory=Networks)


@dataclass(frozen=True)
class Copy:
    """Container to create, and networks to connect before its start (creation takes one at most)."""

    name: str
    body: dict[str, Any]
    networks: Mapping[str, dict[str, Any]]


def copy_of(original: Inspected, number: int, image: str) -> Copy:
    """Return a copy of the container with its number, from `image`. Raises `Uncopyable`."""
    labels = original.Config.Labels
    name = _name(original, number)
    ends = _endpoints(original, name)
    config = original.Config.model_dump(exclude_unset=True)
    if original.Id.startswith(original.Config.Hostname):
        config.pop("Hostname", None)  # Docker assigns one to each container
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
    raise Uncopyable(f"{name} has a fixed name (container_name), so the service can have only one container")


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
    # An anonymous volume belongs to one container: Docker creates another for the copy.
    if host.Binds is not None:
        made["Binds"] = [bind for bind in host.Binds if not _ANONYMOUS.fullmatch(bind.split(":", 1)[0])]
    if host.Mounts is not None:
        made["Mounts"] = [_mount(mount) for mount in host.Mounts]
    return made


def _mount(mount: dict[str, Any]) -> dict[str, Any]:
    anonymous = mount.get("Type") == "volume" and _ANONYMOUS.fullmatch(str(mount.get("Source", "")))
    return {key: value for key, value in mount.items() if key != "Source"} if anonymous else dict(mount)


def _endpoints(original: Inspected, name: str) -> dict[str, dict[str, Any]]:
    """Return the endpoint of each network with the service's aliases, without the original's id and name."""
    mode = original.HostConfig.NetworkMode
    if mode in ("host", "none") or mode.startswith("container:"):
        return {}
    own, found = original.Name.removeprefix("/"), {}
    for network, end in original.NetworkSettings.Networks.items():
        if end.IPAMConfig is not None and (end.IPAMConfig.IPv4Address or end.IPAMConfig.IPv6Address):
            raise Uncopyable(f"it has a fixed address in network {network}, which a second container cannot have")
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

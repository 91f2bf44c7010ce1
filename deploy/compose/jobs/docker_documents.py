"""Checks of the Docker socket proxy (`docker_gate.py`) for a copy of a container.

Each document is checked twice: are its keys and values permitted for any container, and are they those of a sibling?
Docker reads keys in any case and merges duplicates, so a key must be spelled as it is here and occur once.
"""

import json
import re
from collections.abc import Callable
from typing import Any

_COMPOSE = "com.docker.compose"
LABEL, SERVICE, NUMBER = f"{_COMPOSE}.project", f"{_COMPOSE}.service", f"{_COMPOSE}.container-number"
ONE_OFF, REPLACED = f"{_COMPOSE}.oneoff", f"{_COMPOSE}.replace"
NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]*"
ANONYMOUS = re.compile(r"[0-9a-f]{64}")


class Refused(Exception):
    """The request is not permitted; the sentence has the reason."""


class Unreadable(Exception):
    """The request cannot be read; the sentence names the place."""


def text(value: Any) -> bool:
    return type(value) is str


def number(value: Any) -> bool:
    return type(value) is int


def flag(value: Any) -> bool:
    return type(value) is bool


def empty(value: Any) -> bool:
    """Return whether the value is unset: Docker reports unset fields as null, zero or empty."""
    return not value


def kept(value: Any) -> bool:
    """Return whether the value is a non-empty list of masked paths: an empty list would unmask all."""
    return type(value) is list and bool(value)


def like(pattern: str) -> Callable[[Any], bool]:
    return lambda value: type(value) is str and re.fullmatch(pattern, value) is not None


def each(*keys: str, be: Any) -> dict[str, Any]:
    return dict.fromkeys(keys, be)


# A dictionary allows its keys ("*": any), a list any number of its items, a function decides. Null counts as absent.
_PLACE = like(r"/[^:]*")
_MOUNT = {
    "Type": like("volume|tmpfs"),
    "Source": like(NAME),
    "Target": _PLACE,
    "ReadOnly": flag,
    "Consistency": text,
    "VolumeOptions": {"NoCopy": flag},
    "TmpfsOptions": each("SizeBytes", "Mode", be=number),
}
_HOST = {
    "Binds": [like(rf"{NAME}:/[^:]*(?::(?:rw|ro|z|Z|nocopy)(?:,(?:rw|ro|z|Z|nocopy))*)?")],
    "Mounts": [_MOUNT],
    "Tmpfs": {"*": text},
    "LogConfig": {"Type": text, "Config": {"*": text}},
    "NetworkMode": like(NAME),
    "PortBindings": {"*": [each("HostIp", "HostPort", be=text)]},
    "RestartPolicy": {"Name": text, "MaximumRetryCount": number},
    "SecurityOpt": [like(r"no-new-privileges(?:[:=]true)?")],
    "Ulimits": [{"Name": text, "Soft": number, "Hard": number}],
    "ConsoleSize": [number],
    # The host's is what Docker itself gives where the kernel has cgroups of the first version.
    "CgroupnsMode": like("|private|host"),
    "IpcMode": like("|none|private|shareable"),
    "Isolation": like("|default"),
    "Runtime": like("|runc"),
    **each("MaskedPaths", "ReadonlyPaths", be=kept),
    **each("AutoRemove", "Init", "PublishAllPorts", "ReadonlyRootfs", be=flag),
    **each("CapDrop", "Dns", "DnsOptions", "DnsSearch", "ExtraHosts", "GroupAdd", be=[text]),
    **each("BlkioWeight", "CpuPeriod", "CpuQuota", "CpuShares", "NanoCpus", be=number),
    **each("CpusetCpus", "CpusetMems", be=text),
    **each("Memory", "MemoryReservation", "MemorySwap", "MemorySwappiness", be=number),
    **each("OomScoreAdj", "PidsLimit", "ShmSize", be=number),
    # Docker reports these, and no container may set them.
    **each("CapAdd", "Capabilities", "Privileged", "Devices", "DeviceCgroupRules", "DeviceRequests", be=empty),
    **each("PidMode", "UTSMode", "UsernsMode", "Cgroup", "CgroupParent", "Sysctls", "Annotations", be=empty),
    **each("ContainerIDFile", "Links", "StorageOpt", "VolumeDriver", "VolumesFrom", "OomKillDisable", be=empty),
    **each("BlkioWeightDevice", "BlkioDeviceReadBps", "BlkioDeviceWriteBps", be=empty),
    **each("BlkioDeviceReadIOps", "BlkioDeviceWriteIOps", "CpuRealtimePeriod", "CpuRealtimeRuntime", be=empty),
    **each("CpuCount", "CpuPercent", "IOMaximumIOps", "IOMaximumBandwidth", be=empty),
    **each("KernelMemory", "KernelMemoryTCP", be=empty),
}
_END = {"Aliases": [like(NAME)]}
NEW = {
    **each("Hostname", "Domainname", "Image", "StopSignal", "User", "WorkingDir", be=text),
    **each("AttachStderr", "AttachStdin", "AttachStdout", "NetworkDisabled", be=flag),
    **each("OpenStdin", "StdinOnce", "Tty", be=flag),
    **each("Cmd", "Entrypoint", "Env", "Shell", be=[text]),
    **each("ArgsEscaped", "OnBuild", be=empty),
    "ExposedPorts": {"*": {}},
    "Healthcheck": {
        "Test": [text],
        **each("Interval", "Timeout", "StartPeriod", "StartInterval", "Retries", be=number),
    },
    "HostConfig": _HOST,
    "Labels": {"*": text},
    "NetworkingConfig": {"EndpointsConfig": {"*": _END}},
    "StopTimeout": number,
    "Volumes": {"*": {}},
}
JOIN = {"Container": like(NAME), "EndpointConfig": _END}


def allow(value: Any, rule: Any, where: str = "") -> None:
    """Raise `Refused` with the first key that the rule does not permit."""
    if value is None:
        return
    if type(rule) is dict and type(value) is dict:
        for key, held in value.items():
            place = f"{where}.{key}".lstrip(".")
            if key not in rule and "*" not in rule:
                raise Refused(f"the key {place}")
            allow(held, rule.get(key, rule.get("*")), place)
    elif type(rule) is list and type(value) is list and None not in value:
        for held in value:
            allow(held, rule[0], where)
    elif not callable(rule) or not rule(value):
        raise Refused(f"{where or 'a document'} as {json.dumps(value)[:200]}")


def allowed(body: bytes, rule: dict[str, Any]) -> dict[str, Any]:
    """Return the document, of allowed keys only and each once: Docker would take the last duplicate, in any case."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise Refused(f"the key {key} more than once")
            found[key] = value
        return found

    try:
        found = json.loads(body.decode(), object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise Unreadable(str(error)) from None
    if type(found) is not dict:
        raise Unreadable("no document")
    allow(found, rule)
    return found


_OTHERWISE = frozenset(
    {"Hostname", "Image", "MacAddress", "HostConfig", "NetworkingConfig", "HostConfig.ContainerIDFile"}
)
"""Looked at otherwise, or the container's own."""


def flat(config: dict[str, Any], host: dict[str, Any]) -> dict[str, Any]:
    found = config | {f"HostConfig.{key}": value for key, value in host.items()}
    return {key: value for key, value in found.items() if value is not None and key not in _OTHERWISE}


def copied(original: Any, its_number: str) -> dict[str, Any]:
    """Return the mounts a copy shares: all but anonymous volumes, which belong to one container."""
    config, host = original["Config"], dict(original["HostConfig"])
    labels = {key: value for key, value in config["Labels"].items() if key != REPLACED} | {NUMBER: its_number}
    if host.get("Binds"):
        host["Binds"] = [bind for bind in host["Binds"] if not ANONYMOUS.fullmatch(bind.split(":", 1)[0])]
    if host.get("Mounts"):
        host["Mounts"] = [
            {key: value for key, value in mount.items() if key != "Source" or not ANONYMOUS.fullmatch(value)}
            for mount in host["Mounts"]
        ]
    return flat({**config, "Labels": labels}, host)


def names_in(original: Any, network: str, name: str) -> set[str]:
    """Return the names of a copy called `name` in a network: its own, and the service's."""
    end = original["NetworkSettings"]["Networks"][network]
    return (set(end.get("Aliases") or []) - {original["Name"].removeprefix("/"), original["Id"][:12]}) | {name}


def unlike(new: dict[str, Any], original: Any, name: str) -> list[str]:
    """Return the keys in which a document differs from its sibling."""
    mine = flat(new, new.get("HostConfig") or {})
    its = copied(original, new["Labels"].get(NUMBER, ""))
    found = [key for key in sorted(mine.keys() | its.keys()) if mine.get(key) != its.get(key)]
    if new.get("Image") not in (original["Config"]["Image"], original["Image"]):
        found.append("Image")
    if new.get("Hostname") not in (None, original["Config"].get("Hostname")):
        found.append("Hostname")
    for network, end in ends_of(new).items():
        joined = network in original["NetworkSettings"]["Networks"]
        if not joined or set((end or {}).get("Aliases") or []) - names_in(original, network, name):
            found.append(f"NetworkingConfig.EndpointsConfig.{network}")
    return found


def ends_of(new: dict[str, Any]) -> dict[str, Any]:
    return (new.get("NetworkingConfig") or {}).get("EndpointsConfig") or {}


def sources(host: dict[str, Any]) -> list[str]:
    return [mount["Source"] for mount in host.get("Mounts") or () if mount.get("Source")]

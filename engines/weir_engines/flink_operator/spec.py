"""Specs of the Flink Kubernetes Operator's resources: options, overrides of the parallelism, and what differs between two. Pure."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic_core import from_json

from weir_engines.flink.rest import MAX_PARALLELISM
from weir_engines.kubernetes.values import mapping

OVERRIDES = "pipeline.jobvertex-parallelism-overrides"
"""Option of Flink: parallelism by vertex id, which replaces the program's own."""
MAX_SPEC_CHARACTERS = 400_000
"""Length of a spec in the status that is read; a longer one is unknown."""
MAX_DEPTH = 12
"""Depth to which specs are read and compared."""
_ENTRY = re.compile(r"""\s*['"]?([0-9A-Za-z_-]{1,64})['"]?\s*:\s*['"]?(\d{1,5})['"]?\s*""")
_IGNORED = ("job.autoscaler", "kubernetes.operator", "parallelism.default")
"""Beginnings of options whose change the operator deploys nothing for."""
_JOB_FIELDS = ("jarURI", "entryClass", "args", "parallelism", "savepointRedeployNonce")
"""Fields of `spec.job` whose change the operator deploys; it changes others in its own record of the spec."""
_NONCES = ("restartNonce", "savepointRedeployNonce")
"""Fields whose removal the operator ignores."""
_POD_FIELDS = ("metadata", "spec")
"""Fields of a pod template; the operator drops others, such as `apiVersion` and `kind`, from its record."""


def recorded_spec(value: Any) -> Mapping[str, Any] | None:
    """Return a spec that the status holds as JSON text; None without one."""
    if not isinstance(value, str) or len(value) > MAX_SPEC_CHARACTERS:
        return None
    try:
        found = mapping(from_json(value))
    except ValueError:
        return None
    return mapping(found.get("spec", found)) or None


def options_of(value: Any) -> dict[str, str]:
    """Return a configuration as options and texts."""
    found: dict[str, str] = {}

    def add(prefix: str, node: Any, depth: int) -> None:
        if isinstance(node, dict) and prefix != OVERRIDES and depth < MAX_DEPTH:
            for key, each in node.items():
                add(f"{prefix}.{key}" if prefix else str(key), each, depth + 1)
        elif isinstance(node, bool):
            found[prefix] = "true" if node else "false"
        elif isinstance(node, dict):
            found[prefix] = ",".join(f"{key}:{each}" for key, each in node.items())
        elif node is not None:
            found[prefix] = str(node)

    add("", value if isinstance(value, dict) else {}, 0)
    return found


def overrides_of(value: str | None) -> Mapping[str, int] | None:
    """Return the parallelism by vertex id of `a:1,b:2` or `{a: 1, b: 2}`; None if it is neither."""
    if value is None or not value.strip().strip("{}").strip():
        return {}
    found = {}
    for part in value.strip().removeprefix("{").removesuffix("}").split(","):
        entry = _ENTRY.fullmatch(part)
        if entry is None or not 1 <= int(entry[2]) <= MAX_PARALLELISM:
            return None
        found[entry[1]] = int(entry[2])
    return found


def small_number(value: str | None) -> int | None:
    return int(value) if value is not None and value.strip().isdecimal() and len(value.strip()) < 6 else None


def deployed_part(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the operator deploys of a spec, without the parallelism that Weir writes."""
    found = _with_pod(spec)
    configuration = options_of(spec.get("flinkConfiguration"))
    found["flinkConfiguration"] = {
        key: each for key, each in configuration.items() if key != OVERRIDES and not key.startswith(_IGNORED)
    }
    for place in ("jobManager", "taskManager"):
        if isinstance(spec.get(place), dict):
            found[place] = _with_pod(spec[place])
    job = mapping(spec.get("job"))
    found["job"] = {key: job[key] for key in _JOB_FIELDS if key in job}
    if "taskManager" in found and spec.get("mode") == "standalone":
        found["taskManager"] = {key: each for key, each in mapping(found["taskManager"]).items() if key != "replicas"}
    return found


def _with_pod(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a part of a spec with what the operator keeps of its pod template."""
    found, pod = dict(value), value.get("podTemplate")
    if isinstance(pod, dict):
        found["podTemplate"] = {key: pod[key] for key in _POD_FIELDS if key in pod}
    return found


def differences(before: Any, now: Any, place: str, depth: int = 0, *, of_records: bool = False) -> Iterator[str]:
    """Yield the paths at which two specs differ. A null, empty or default value is a missing one: the operator's record has
    all fields, so that only of two records (`of_records`) a missing one is a removal at any depth."""
    if isinstance(before, dict) and isinstance(now, dict) and depth < MAX_DEPTH:
        keys = sorted(now.keys() | before.keys()) if of_records or place == "spec.flinkConfiguration" else list(now)
        for key in keys:
            if key not in _NONCES or now.get(key) is not None:
                yield from differences(
                    before.get(key), now.get(key), f"{place}.{key}", depth + 1, of_records=of_records
                )
        if place == "spec" and not of_records:
            removed = sorted(before.keys() - now.keys() - {*_NONCES})
            yield from (f"{place}.{key}" for key in removed if not _is_default(before[key]))
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for i, (one, other) in enumerate(zip(before, now, strict=True)):
            yield from differences(one, other, f"{place}.{i}", depth + 1, of_records=of_records)
    elif not (_is_default(before) and _is_default(now)) and _plain(before) != _plain(now):
        yield place


def _is_default(value: Any) -> bool:
    return value in (None, "", 0, "native") or value in ({}, []) or value is False


def _plain(value: Any) -> str:
    """Return a scalar as text: the operator's record has numbers as numbers, and maps of options as texts."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).lower() if isinstance(value, bool) else str(value)

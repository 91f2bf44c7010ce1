"""The API's discovery: by which path it serves a kind, and whether that has a scale subresource."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .values import mapping, name, sequence

AGGREGATED = (
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,"
    "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json"
)
"""`Accept` of a request for all groups with their resources; an API server before 1.27 responds with the groups alone.
"""


@dataclass(frozen=True, slots=True)
class Kind:
    """Kind of objects and the resource by which the API serves it."""

    group: str
    """Group; empty for the core group."""
    version: str
    kind: str
    resource: str
    """Plural name in paths: `deployments`."""
    is_scalable: bool = True
    """Whether it has a scale subresource."""
    is_namespaced: bool = True

    @property
    def api_version(self) -> str:
        """Group and version as objects name them: `apps/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def root(self) -> str:
        """Path of the group and version."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str, object_name: str = "", subresource: str = "") -> str:
        """Return the path of a namespace's objects, of one object, or of its subresource."""
        parts = (f"{self.root}/namespaces/{namespace}/{self.resource}", object_name, subresource)
        return "/".join(filter(None, parts))


PODS = Kind("", "v1", "Pod", "pods", is_scalable=False)


class KindUnknown(Exception):
    """No kind, or no single one, that can be scaled."""


def root_of(api_version: str) -> str:
    """Return the path of a group and version such as `apps/v1`."""
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


def chosen(kinds: Iterable[Kind], kind: str, api_version: str | None) -> Kind:
    """Return the kind that a policy names; `KindUnknown` unless there is exactly one, which can be scaled.

    `kinds` are in the API server's order of preference: of several versions of a group the first one counts.
    """
    found: dict[str, Kind] = {}
    for each in kinds:
        if each.kind == kind and (api_version is None or each.api_version == api_version):
            found.setdefault(each.group, each)
    of = f" of {api_version}" if api_version else ""
    if not found:
        raise KindUnknown(f"the API server has no kind {kind}{of}: check target.kubernetes, or install its definition")
    scalable = [each for each in found.values() if each.is_scalable]
    if len(scalable) > 1:
        names = " and ".join(sorted(each.api_version for each in scalable))
        raise KindUnknown(f"the kind {kind} is ambiguous: {names} have it; name one in target.kubernetes.apiVersion")
    if not scalable:
        names = " and ".join(sorted(each.api_version for each in found.values()))
        raise KindUnknown(f"the kind {kind} of {names} has no scale subresource and cannot be scaled")
    if not scalable[0].is_namespaced:
        raise KindUnknown(f"the kind {kind} of {scalable[0].api_version} does not belong to a namespace")
    return scalable[0]


def is_aggregated(document: Any) -> bool:
    """Return whether a response holds groups with their resources."""
    return mapping(document).get("kind") == "APIGroupDiscoveryList"


def kinds_of_groups(document: Any) -> list[Kind]:
    """Return the kinds of an aggregated response, preferred versions first."""
    found = []
    for group in map(mapping, sequence(mapping(document).get("items"))):
        group_name = name(mapping(group.get("metadata")).get("name"))
        for version in map(mapping, sequence(group.get("versions"))):
            version_name = name(version.get("version"), 63)
            for each in map(mapping, sequence(version.get("resources"))):
                below = {name(s.get("subresource")) for s in map(mapping, sequence(each.get("subresources")))}
                kind = name(mapping(each.get("responseKind")).get("kind"), 63)
                resource = name(each.get("resource"))
                if kind and resource and version_name:
                    found.append(
                        Kind(
                            group_name,
                            version_name,
                            kind,
                            resource,
                            is_scalable="scale" in below,
                            is_namespaced=each.get("scope") != "Cluster",
                        )
                    )
    return found


def group_versions(document: Any) -> list[str]:
    """Return the groups' versions of an `APIGroupList`, the preferred one of each group alone."""
    found = []
    for group in map(mapping, sequence(mapping(document).get("groups"))):
        preferred = name(mapping(group.get("preferredVersion")).get("groupVersion"), 320)
        if preferred:
            found.append(preferred)
    return found


def kinds_of_version(document: Any, api_version: str) -> list[Kind]:
    """Return the kinds of an `APIResourceList`, the response of one group and version."""
    group, _, version = api_version.rpartition("/")
    resources = [mapping(each) for each in sequence(mapping(document).get("resources"))]
    names = {name(resource.get("name")) for resource in resources}
    found = []
    for each in resources:
        resource, kind = name(each.get("name")), name(each.get("kind"), 63)
        if resource and kind and "/" not in resource:
            scalable = f"{resource}/scale" in names
            namespaced = each.get("namespaced") is True
            found.append(Kind(group, version, kind, resource, is_scalable=scalable, is_namespaced=namespaced))
    return found

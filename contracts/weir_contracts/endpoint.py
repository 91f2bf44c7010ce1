"""Endpoint that scales the instances of an application: the documents of `spec.target.endpoint`, and what its server
keeps to."""

from typing import Annotated, Self
from uuid import UUID

from pydantic import Field, model_validator

from .application import RestUrl
from .document import Document

MAX_INSTANCES = 1000
"""Maximum number of instances of one endpoint."""
MAX_REQUESTED = 32_768
"""Maximum number of replicas in a request, as of parallelism; a server may refuse fewer."""
InstanceId = Annotated[str, Field(min_length=1, max_length=300)]
"""Id of an instance: the start of its consumers' `client.id` or `group.instance.id`, up to the end or a `-`."""
Replicas = Annotated[int, Field(strict=True, ge=0, le=MAX_REQUESTED)]
TargetVersion = Annotated[str, Field(strict=True, min_length=1, max_length=200)]

ENDPOINT_OBLIGATIONS = (
    "An instance is listed from the start of its process until the process has ended, also while it stops. Weir removes "
    "the group's members of an instance that is no longer listed, so that its tasks move at once.",
    "The id of an instance begins the `client.id` or the `group.instance.id` of its consumers, up to the end or a `-`: "
    "instance `orders-1` has the member `orders-1-StreamThread-1-consumer`. Weir never removes a member of another "
    "name.",
    "`version` changes with each change of `replicas` by any client. A PUT of another version changes nothing and is "
    "answered with 409.",
    "A PUT of the present `replicas` changes nothing, so a repeated one is harmless. A PUT is answered at once: GET shows "
    "when instances are ready.",
    "`restarts` is true only where the server restarts single instances. POST of `instances/{id}/restart` then ends the "
    "process of this instance, by force if it must, and starts another one under another id in its place; `replicas` and "
    "`version` stay. It is answered at once. A repeated POST with the same `action` restarts nothing again.",
    "Answers are JSON without compression, at most 1 MB, and come within WEIR_EXECUTOR_TARGET_TIMEOUT_SECONDS. Redirects "
    "are not followed.",
)


class EndpointInstance(Document):
    """Process that runs the application."""

    id: InstanceId
    """Id, unique among the instances that have not ended."""
    metrics_url: RestUrl | None = None
    """Address of its metrics in Prometheus' text format. Default: none."""


class EndpointState(Document):
    """Instances of an application: requested, ready and running ones."""

    replicas: Replicas
    """Number of instances requested."""
    ready: Annotated[int, Field(strict=True, ge=0, le=MAX_INSTANCES)]
    """Number of listed instances that process records or are ready to."""
    instances: Annotated[list[EndpointInstance], Field(max_length=MAX_INSTANCES, fail_fast=True)]
    """Instances whose process has not ended."""
    ended: Annotated[list[InstanceId], Field(max_length=MAX_INSTANCES, fail_fast=True)] = Field(default_factory=list)
    """Ids of instances whose process has ended, for an executor that did not see them before. Default: none."""
    restarts: bool = False
    """Whether the server restarts single instances on request. Default false."""
    version: TargetVersion
    """Version of `replicas`, for the next PUT."""

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        ids = {instance.id for instance in self.instances}
        if len(ids) != len(self.instances):
            raise ValueError("instances: ids must be unique")
        if self.ready > len(ids):
            raise ValueError(f"ready: {self.ready} is more than the {len(ids)} instances that are listed")
        if ids.intersection(self.ended):
            raise ValueError("ended: an id is listed in instances, too")
        return self


class EndpointRequest(Document):
    """Number of instances to run, on the condition that the endpoint still has this version."""

    replicas: Annotated[int, Field(strict=True, ge=1, le=MAX_REQUESTED)]
    """Number of instances requested."""
    version: TargetVersion
    """Version that the last GET returned."""


class EndpointRestart(Document):
    """Restart of one instance, on the condition that the endpoint still has this version."""

    action: UUID
    """Id of the action; with a known one nothing is restarted again."""
    version: TargetVersion
    """Version that the last GET returned."""

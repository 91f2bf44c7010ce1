"""Servers that users provide: remote planners, with their descriptions and registrations, and endpoints that scale
the instances of an application.

A planner implements `GET {url}/` → `PlannerDescription` and `POST {url}/plan` with a `PlanRequest` →
`PlanReply`, with the obligations in `PLAN_OBLIGATIONS`. The server of `spec.target.endpoint` keeps to
`ENDPOINT_OBLIGATIONS`.
"""

from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit
from uuid import UUID

from pydantic import AfterValidator, Field, model_validator

from .base import Message, Name, RestUrl, Sentence, Timestamp, writable
from .document import Document

MAX_REPLY_BYTES = 1_000_000
"""Maximum size of a planner's response, description or reply."""
MAX_REQUEST_BYTES = 8_000_000
"""Maximum size of a request; a planner must accept one of this size."""
MAX_JSON_DEPTH = 64
"""Maximum depth of nested lists and objects in a response."""
MAX_SCHEMA_BYTES = 100_000
"""Maximum size of the schema of a planner's parameters, as JSON."""

PLAN_OBLIGATIONS = (
    "Answer 200 with a PlanReply within the policy's `spec.planner.timeout`, which covers the entire exchange: "
    "connecting, sending and the last byte of the response.",
    "Give every operator of `topology`, and no other, a parallelism of at least 1, or hold with a reason.",
    "Give the same answer to the same request: a request may be sent twice. Keep no state but `memory`, which is sent "
    "with the next request of the same application and has at most 16384 bytes as JSON.",
    f"Accept requests of up to {MAX_REQUEST_BYTES} bytes, and ignore unknown fields. A response has at most "
    f"{MAX_REPLY_BYTES} bytes, nested at most {MAX_JSON_DEPTH} deep, with content type application/json, no redirect "
    "and no compression.",
    "An unknown value is null, never 0: hold rather than guess.",
    "Answer 4xx to an invalid PlanRequest or to parameters that are not accepted, 5xx after an internal error.",
)
"""Obligations of a remote planner. After a violation the policy's fallback decides, or the plan is a hold with the
reason; after several failures in a row the planner is not called for a while."""


def _url(value: str) -> str:
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"is not an address: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ValueError("must look like https://host:port/path")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must not carry credentials: name one that the planner service knows in `credential`")
    if parts.query or parts.fragment or "?" in value or "#" in value:
        raise ValueError("must not have a query or fragment")
    if not value.isascii() or not value.isprintable() or any(character in value for character in ' \\"<>^`{|}'):
        raise ValueError("must be written in plain ASCII without blanks; write a host of another script as xn--…")
    return value.rstrip("/")


PlannerUrl = Annotated[
    str,
    Field(min_length=1, max_length=2000, pattern=r"^https?://", examples=["https://planner.example.org/mine"]),
    AfterValidator(_url),
]
"""Address of a planner, without a slash at the end."""


class PlannerDescription(Message):
    """Description of a planner by itself: the response to `GET {url}/`."""

    name: Name
    """Name that the planner gives itself; it may be registered under another one."""
    version: Annotated[str, Field(min_length=1, max_length=100, examples=["1.4.0"])]
    """Version of the planner."""
    contract_versions: Annotated[list[Annotated[str, Field(min_length=1, max_length=50)]], Field(max_length=50)]
    """Versions of these contracts that the planner supports; Weir's own must be one of them."""
    parameters: Annotated[dict[str, Any], AfterValidator(writable)] = Field(default_factory=lambda: {"type": "object"})
    """JSON Schema (2020-12) of a policy's `spec.planner.parameters`, an object. A policy that does not match is
    refused. References must stay within the schema, and patterns must not use look-around."""
    scope: Literal["operator", "application"]
    """operator: each operator gets its own parallelism. application: all get the same; the reply still names each."""
    description: Sentence
    """Method of the planner in one sentence, for users."""
    reads: Annotated[list[Literal["observations", "history"]] | None, Field(max_length=10)] = None
    """Large parts of a request that the planner reads; the others are sent empty, which is faster. None: all."""


class NewPlanner(Message):
    """Registration request of a remote planner."""

    name: Name
    """Name of the planner in policies; not the name of a built-in planner."""
    url: PlannerUrl
    """Address of the planner."""
    credential: Name | None = None
    """Name of a bearer token in the planner service's settings, never the token. None: no authentication."""


class PlannerRegistration(NewPlanner):
    """Registered planner: a record of the topic of planners, with its name as the key."""

    version: Annotated[int, Field(ge=1)]
    """Version of the registration; it grows with each registration of the name and never repeats."""
    description: PlannerDescription
    """Description of the planner at its registration."""
    registered_at: Timestamp
    """Time of the registration."""
    registered_by: Annotated[str, Field(min_length=1, max_length=200)]
    """Token name of the user who registered the planner."""


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

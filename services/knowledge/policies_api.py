"""`/v1/policies`: create, replace, list, pause, resume and delete, with optimistic concurrency by version."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

import yaml
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from weir_contracts import (
    ActionState,
    InvalidDocument,
    InvalidPolicy,
    PlannerChoice,
    ScalingPolicy,
    example,
    parse_policy,
)

from runtime.addresses import TARGETS, AddressRefused, Allowed, hosts_of
from runtime.auth import Caller
from runtime.clock import Clock
from runtime.documents import Unreadable, read_json, read_yaml
from runtime.problems import Problem, invalid

from . import messages
from .adapters.planner import PlannerAway, PlannerCatalogue, named
from .documents import CHANGED, ERRORS, WRONG_POLICY, Application, Policies, Reader, Responses, Writer, responds, shows
from .store import Store, TargetTaken, VersionConflict
from .targets import may_be_same_job, runs

_POLICY_SCHEMA = {"$ref": "#/components/schemas/ScalingPolicy"}
_USUAL_PLANNER = {"field": "spec.planner", "name": PlannerChoice().name, "parameters": PlannerChoice().parameters}
"""Of a policy that names none: nothing to check."""
_VERSION = re.compile(r"[0-9]{1,18}")
MAX_YAML_BYTES = 100_000
"""Twenty times a long policy: malicious YAML takes up to 20 µs a byte."""


def parse_version(request: Request) -> int | None:
    """Return the version that a client has read: `If-Match: "7"`; 0 for `If-None-Match: *`; None if it names none."""
    if request.headers.get("if-none-match") == "*":
        return 0
    given = request.headers.get("if-match")
    if given is None or given == "*":
        return None
    text = given.strip('W/"')
    if not _VERSION.fullmatch(text):
        raise Problem(400, f"If-Match: {given!r} is not a version", errors=[("header.If-Match", "must be a version")])
    return int(text)


async def _document(request: Request) -> Any:
    """Parse the body as JSON or YAML, in a thread, so that the event loop serves other requests meanwhile.

    YAML includes JSON, but errors of the JSON parser name the place better.
    """
    body = await request.body()
    is_json = "json" in request.headers.get("content-type", "application/json")
    if not is_json and len(body) > MAX_YAML_BYTES:
        raise Problem(413, messages.yaml_too_large(MAX_YAML_BYTES))
    return await asyncio.to_thread(_parsed, body, is_json)


def _parsed(body: bytes, is_json: bool) -> Any:
    try:
        text = body.decode()
        if is_json:
            return read_json(text)
        found = read_yaml(text)
    except (Unreadable, UnicodeDecodeError) as error:
        sentence = "is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)
        detail = messages.unreadable_body(sentence, getattr(error, "line", None))
        raise Problem(422, f"the body cannot be read: {detail}", errors=[("body", detail)]) from None
    if len(found) > 1:
        raise Problem(422, messages.several_documents(len(found)))
    return found[0] if found else None


@dataclass(eq=False, repr=False)
class PolicyChanges:
    """Writes policies: each change is a new version with its author and time."""

    store: Store
    clock: Clock
    on_change: Callable[[], None]

    async def existing(self, application: str) -> ScalingPolicy:
        """Return the policy; 404 if there is none."""
        policy = await self.store.policy(application)
        if policy is None:
            raise Problem(404, messages.no_policy(application))
        return policy

    async def write(self, policy: ScalingPolicy, caller: Caller, expected: int | None) -> tuple[ScalingPolicy, bool]:
        """Store the next version; returns it, and whether the policy is new. 409 if `expected` is not the stored
        version."""
        before = await self.store.policy(policy.application)
        version = (before.metadata.version or 0) if before else 0
        if expected is not None and expected != version:
            raise _conflict(policy.application, before)
        now = self.clock.now()
        deleted = await self.store.deletion(policy.application) or 0
        # By time, so that no version repeats: a plan for a deleted policy must not fit a later policy of that name.
        following = max(version + 1, deleted + 1, _by_time(now))
        metadata = policy.metadata.model_copy(
            update={"version": following, "updated_at": now, "updated_by": caller.name}
        )
        stored = policy.model_copy(update={"metadata": metadata})
        if before is None or before.subject != policy.subject:
            await self._check_job(policy)
        try:
            await self.store.put_policy(stored, version)
        except VersionConflict as conflict:
            raise _conflict(policy.application, conflict.current) from None
        except TargetTaken as taken:
            raise _taken(policy, taken.application) from None
        self.on_change()
        return stored, before is None

    async def _check_job(self, policy: ScalingPolicy) -> None:
        """Raise 409 if another policy names the same job, one by its id and one by its name, according to the newest
        observation."""
        for other in may_be_same_job(policy, await self.store.policies()):
            newest = await self.store.newest(other, ["observation"])
            if runs(newest.observation if newest else None, policy.subject.flink.job):
                raise _taken(policy, other)

    async def pause(self, application: str, caller: Caller) -> ScalingPolicy:
        """Stop planning, and store the mode."""
        policy = await self.existing(application)
        if policy.spec.mode == "paused":
            return policy
        await self.store.keep_mode(application, policy.spec.mode)
        return await self._with_mode(policy, "paused", caller)

    async def resume(self, application: str, caller: Caller) -> ScalingPolicy:
        """Restore the mode of before the pause; a policy that was written as paused advises."""
        policy = await self.existing(application)
        if policy.spec.mode != "paused":
            return policy
        kept = await self.store.kept_mode(application)
        return await self._with_mode(policy, "act" if kept == "act" else "advise", caller)

    async def _with_mode(
        self, policy: ScalingPolicy, mode: Literal["advise", "act", "paused"], caller: Caller
    ) -> ScalingPolicy:
        changed = policy.model_copy(update={"spec": policy.spec.model_copy(update={"mode": mode})})
        stored, _ = await self.write(changed, caller, policy.metadata.version)
        return stored


def policies_router(
    store: Store,
    clock: Clock,
    catalogue: PlannerCatalogue,
    on_change: Callable[[], None],
    allowed: Allowed = TARGETS,
) -> APIRouter:
    """Return the routes. `on_change` is called after each stored change, so that it is published at once; `allowed`
    lists the addresses of targets and brokers."""
    routes = APIRouter(prefix="/v1/policies", tags=["policies"], responses=ERRORS)
    changes = PolicyChanges(store, clock, on_change)
    written = example("policy", "minimal")
    created: Responses = {201: {"description": "Created", "model": ScalingPolicy, **shows(ScalingPolicy)}}

    @routes.get("", summary="All policies", **responds(Policies))
    async def list_policies(
        _caller: Reader,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        after: Annotated[str, Query(max_length=200, description="the last application of the page before")] = "",
    ) -> JSONResponse:
        found = [p for p in await store.policies() if p.application > after]
        page = found[:limit]
        more = page[-1].application if len(found) > limit else None
        return JSONResponse({"items": [p.to_document() for p in page], "next": more})

    @routes.get("/{namespace}/{name}", summary="One policy", **responds(ScalingPolicy))
    async def get_policy(application: Application, _caller: Reader) -> JSONResponse:
        return _response(await changes.existing(application))

    @routes.put(
        "/{namespace}/{name}",
        summary="Create or replace a policy",
        description="The document as JSON or YAML. `metadata.version` or `If-Match` replaces only what you have read.",
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {
                    "application/json": {"schema": _POLICY_SCHEMA, "example": written},
                    "application/yaml": {"schema": _POLICY_SCHEMA, "example": yaml.safe_dump(written)},
                },
            }
        },
        **responds(ScalingPolicy, created, CHANGED, WRONG_POLICY),
    )
    async def put_policy(application: Application, request: Request, caller: Writer) -> Response:
        document = await _document(request)
        try:
            policy = parse_policy(document)
        except InvalidPolicy as error:
            raise invalid(error) from None
        if policy.application != application:
            detail = messages.wrong_application(policy.application, application)
            raise Problem(422, detail, errors=[("metadata", "must be the address's namespace and name")])
        _check_addresses(policy, allowed)
        await _check_planners(policy, await store.policy(policy.application), catalogue)
        expected = parse_version(request)
        expected = policy.metadata.version if expected is None else expected
        if policy.spec.mode == "paused":
            # The mode of before an earlier pause does not count: this policy was written as paused.
            await store.keep_mode(policy.application, "advise")
        stored, is_new = await changes.write(policy, caller, expected)
        response = _response(stored, status_code=201 if is_new else 200)
        if not catalogue.asks:
            response.headers["X-Weir-Warning"] = "no planner service is set; planner and parameters were not checked"
        return response

    @routes.delete(
        "/{namespace}/{name}", status_code=204, summary="Delete a policy and forget its application", responses=CHANGED
    )
    async def delete_policy(application: Application, request: Request, _caller: Writer) -> Response:
        try:
            if not await store.delete_policy(application, parse_version(request), _by_time(clock.now())):
                raise Problem(404, messages.no_policy(application))
        except VersionConflict as conflict:
            raise _conflict(application, conflict.current) from None
        on_change()
        return Response(status_code=204)

    @routes.post("/{namespace}/{name}/pause", summary="Stop planning for an application", **responds(ScalingPolicy))
    async def pause(application: Application, caller: Writer) -> JSONResponse:
        return _response(await changes.pause(application, caller))

    @routes.post(
        "/{namespace}/{name}/resume", summary="Resume in the mode of before the pause", **responds(ScalingPolicy)
    )
    async def resume(application: Application, caller: Writer) -> JSONResponse:
        return _response(await changes.resume(application, caller))

    return routes


def _response(policy: ScalingPolicy, status_code: int = 200) -> JSONResponse:
    headers = {"ETag": f'"{policy.metadata.version}"'}
    return JSONResponse(policy.to_document(), status_code=status_code, headers=headers)


def _check_addresses(policy: ScalingPolicy, allowed: Allowed) -> None:
    """Raise 422 for hosts and literal addresses that are not allowed. The addresses of a name are checked at each
    connect."""
    kafka = policy.spec.signals.kafka
    named: list[tuple[str, Callable[[str], None], str]] = [
        (field, allowed.check_url, str(url)) for field, url in policy.urls
    ]
    if kafka is not None:
        field = "spec.signals.kafka.bootstrapServers"
        named += [(field, allowed.check_host, host) for host in hosts_of(kafka.bootstrap_servers)]
    for field, check, address in named:
        try:
            check(address)
        except AddressRefused as error:
            raise Problem(422, f"{field}: {error}", errors=[(field, str(error))]) from None


async def _check_planners(policy: ScalingPolicy, before: ScalingPolicy | None, catalogue: PlannerCatalogue) -> None:
    """Raise 422 for unknown planners and invalid parameters. Planners are checked if they changed, so that the rest of
    a policy can be changed while the planner service is away."""
    spec = policy.spec
    planners = named(spec)
    if planners == (named(before.spec) if before else [_USUAL_PLANNER]):
        return
    try:
        wrong = await catalogue.problems(spec)
    except PlannerAway as away:
        errors = [("spec.planner", "was changed and could not be checked")]
        raise Problem(503, messages.planners_unchecked(away), errors=errors) from None
    if wrong:
        raise invalid(InvalidDocument(wrong))


def _taken(policy: ScalingPolicy, other: str) -> Problem:
    """Return the refusal of a second policy for one target."""
    detail = messages.target_taken(policy.application, other)
    return Problem(409, detail, errors=[("spec.target", f"is the target of {other}")], extra={"application": other})


def _by_time(now: datetime) -> int:
    """Return the smallest version of a change made now: the millisecond."""
    return int(now.timestamp() * 1000)


def _conflict(application: str, current: ScalingPolicy | ActionState | None) -> Problem:
    version = current.metadata.version if isinstance(current, ScalingPolicy) else None
    return Problem(409, messages.changed_by_another(application, version), extra={"currentVersion": version})

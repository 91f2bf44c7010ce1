"""`/v1/policies`: create, replace, list, pause, resume and delete, with optimistic concurrency by version."""

import asyncio
import re
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Literal

import yaml
from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse
from weir_contracts import InvalidDocument, InvalidPolicy, PlannerChoice, ScalingPolicy, parse_policy

from runtime.addresses import TARGETS, AddressRefused, Allowed, hosts_of
from runtime.auth import Caller, requires
from runtime.clock import Clock
from runtime.documents import Unreadable, read_json, read_yaml
from runtime.problems import Problem, invalid

from . import examples
from .adapters.planner import PlannerAway, PlannerCatalogue, named
from .documents import CHANGED, ERRORS, WRONG_POLICY, Name, Namespace, Policies, example
from .store import Store, TargetTaken, VersionConflict
from .targets import may_be_same_job, runs

_POLICY_SCHEMA = {"$ref": "#/components/schemas/ScalingPolicy"}
_USUAL_PLANNER = {"field": "spec.planner", "name": PlannerChoice().name, "parameters": PlannerChoice().parameters}
"""Of a policy that names none: there is nothing to ask."""
_VERSION = re.compile(r"[0-9]{1,18}")
MAX_YAML_BYTES = 100_000
"""Twenty times the longest policy there is reason to write: YAML of nonsense takes up to 20 µs a byte."""
Reader = Annotated[Caller, Depends(requires("read"))]
Writer = Annotated[Caller, Depends(requires("write"))]


def parse_version(request: Request) -> int | None:
    """The version a client has read: `If-Match: "7"`; 0 for `If-None-Match: *`; None if it named none."""
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
    """The body as JSON or YAML; YAML reads both, but JSON's own errors name the place better. A large one is read in a thread,
    so that the event loop serves other requests meanwhile."""
    body = await request.body()
    is_json = "json" in request.headers.get("content-type", "application/json")
    if not is_json and len(body) > MAX_YAML_BYTES:
        raise Problem(413, f"YAML is larger than {MAX_YAML_BYTES} bytes: send it as JSON")
    return await asyncio.to_thread(_parsed, body, is_json)


def _parsed(body: bytes, is_json: bool) -> Any:
    try:
        text = body.decode()
        if is_json:
            return read_json(text)
        found = read_yaml(text)
    except (Unreadable, UnicodeDecodeError) as error:
        line = getattr(error, "line", None)
        sentence = "is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)
        detail = f"{f'line {line} ' if line else ''}{sentence}"
        raise Problem(422, f"the body cannot be read: {detail}", errors=[("body", detail)]) from None
    if len(found) > 1:
        raise Problem(422, f"the body holds {len(found)} documents: send each to its own address")
    return found[0] if found else None


def shown(policy: ScalingPolicy) -> dict[str, Any]:
    """A policy as its user wrote it, with its version."""
    return policy.to_document()


class PolicyChanges:
    """Writes policies: each change is a new version with who made it and when."""

    def __init__(self, store: Store, clock: Clock, on_change: Callable[[], None]) -> None:
        self._store = store
        self._clock = clock
        self._on_change = on_change

    async def existing(self, application: str) -> ScalingPolicy:
        """The policy; a 404 if there is none."""
        policy = await self._store.policy(application)
        if policy is None:
            raise Problem(404, f"there is no policy {application}")
        return policy

    async def write(self, policy: ScalingPolicy, caller: Caller, expected: int | None) -> tuple[ScalingPolicy, bool]:
        """Store it as the next version; also returns whether it is new. A 409 if `expected` is not the version there."""
        before = await self._store.policy(policy.application)
        version = (before.metadata.version or 0) if before else 0
        if expected is not None and expected != version:
            raise _conflict(policy.application, before)
        now = self._clock.now()
        deleted = await self._store.deletion(policy.application) or 0
        # By time, so that no version comes twice: a plan made for a policy that was deleted must not fit the one that took its name.
        following = max(version + 1, deleted + 1, _by_time(now))
        metadata = policy.metadata.model_copy(
            update={"version": following, "updated_at": now, "updated_by": caller.name}
        )
        stored = policy.model_copy(update={"metadata": metadata})
        if before is None or before.subject != policy.subject:
            await self._check_job(policy)
        try:
            await self._store.put_policy(stored, version)
        except VersionConflict as conflict:
            raise _conflict(policy.application, conflict.current) from None
        except TargetTaken as taken:
            raise _taken(policy, taken.application) from None
        self._on_change()
        return stored, before is None

    async def _check_job(self, policy: ScalingPolicy) -> None:
        """A 409 if another policy names the same job, one by its id and the other by its name, as far as it was seen to run."""
        for other in may_be_same_job(policy, await self._store.policies()):
            newest = await self._store.newest(other, ["observation"])
            if runs(newest.observation if newest else None, policy.subject.flink.job):
                raise _taken(policy, other)

    async def pause(self, application: str, caller: Caller) -> ScalingPolicy:
        """Stop planning, and remember in which mode it was."""
        policy = await self.existing(application)
        if policy.spec.mode == "paused":
            return policy
        await self._store.keep_mode(application, policy.spec.mode)
        return await self._with_mode(policy, "paused", caller)

    async def resume(self, application: str, caller: Caller) -> ScalingPolicy:
        """Go on as before the pause; a policy that was written paused advises."""
        policy = await self.existing(application)
        if policy.spec.mode != "paused":
            return policy
        kept = await self._store.kept_mode(application)
        return await self._with_mode(policy, "act" if kept == "act" else "advise", caller)

    async def _with_mode(
        self, policy: ScalingPolicy, mode: Literal["advise", "act", "paused"], caller: Caller
    ) -> ScalingPolicy:
        spec = policy.spec.model_copy(update={"mode": mode})
        changed = policy.model_copy(update={"spec": spec})
        stored, _ = await self.write(changed, caller, policy.metadata.version)
        return stored


def policies_router(
    store: Store,
    clock: Clock,
    catalogue: PlannerCatalogue,
    on_change: Callable[[], None],
    allowed: Allowed = TARGETS,
) -> APIRouter:
    """The routes. `on_change` is called after each stored change, so that it is published at once; `allowed` is where targets and
    brokers may be."""
    routes = APIRouter(prefix="/v1/policies", tags=["policies"], responses=ERRORS)
    changes = PolicyChanges(store, clock, on_change)

    @routes.get(
        "",
        summary="All policies",
        response_model=Policies,
        responses={200: example({"items": [examples.POLICY], "next": None})},
    )
    async def list_policies(
        _caller: Reader,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        after: Annotated[str, Query(max_length=200, description="the last application of the page before")] = "",
    ) -> JSONResponse:
        found = [p for p in await store.policies() if p.application > after]
        page = found[:limit]
        more = page[-1].application if len(found) > limit else None
        return JSONResponse({"items": [shown(p) for p in page], "next": more})

    @routes.get(
        "/{namespace}/{name}",
        summary="One policy",
        response_model=ScalingPolicy,
        responses={200: example(examples.POLICY)},
    )
    async def get_policy(namespace: Namespace, name: Name, _caller: Reader) -> JSONResponse:
        policy = await changes.existing(f"{namespace}/{name}")
        return JSONResponse(shown(policy), headers={"ETag": f'"{policy.metadata.version}"'})

    @routes.put(
        "/{namespace}/{name}",
        summary="Create or replace a policy",
        description="The document as JSON or YAML. `metadata.version` or `If-Match` replaces only what you have read.",
        response_model=ScalingPolicy,
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {
                    "application/json": {"schema": _POLICY_SCHEMA, "example": examples.WRITTEN_POLICY},
                    "application/yaml": {"schema": _POLICY_SCHEMA, "example": yaml.safe_dump(examples.WRITTEN_POLICY)},
                },
            }
        },
        responses={
            200: {"description": "Replaced", **example(examples.POLICY)},
            201: {"description": "Created", "model": ScalingPolicy, **example({**examples.POLICY})},
            **CHANGED,
            **WRONG_POLICY,
        },
    )
    async def put_policy(namespace: Namespace, name: Name, request: Request, caller: Writer) -> Response:
        document = await _document(request)
        try:
            policy = parse_policy(document)
        except InvalidPolicy as error:
            raise invalid(error) from None
        if policy.application != f"{namespace}/{name}":
            raise Problem(
                422,
                f"metadata names {policy.application}, the address {namespace}/{name}",
                errors=[("metadata", "must be the address's namespace and name")],
            )
        _check_addresses(policy, allowed)
        await _check_planners(policy, await store.policy(policy.application), catalogue)
        expected = parse_version(request)
        expected = policy.metadata.version if expected is None else expected
        if policy.spec.mode == "paused":
            # What it was before an earlier pause does not count any more: it was written paused.
            await store.keep_mode(policy.application, "advise")
        stored, created = await changes.write(policy, caller, expected)
        headers = {"ETag": f'"{stored.metadata.version}"'}
        if not catalogue.asks:
            headers["X-Weir-Warning"] = "no planner service is set; planner and parameters were not checked"
        return JSONResponse(shown(stored), status_code=201 if created else 200, headers=headers)

    @routes.delete(
        "/{namespace}/{name}", status_code=204, summary="Delete a policy and forget its application", responses=CHANGED
    )
    async def delete_policy(namespace: Namespace, name: Name, request: Request, _caller: Writer) -> Response:
        application = f"{namespace}/{name}"
        try:
            if not await store.delete_policy(application, parse_version(request), _by_time(clock.now())):
                raise Problem(404, f"there is no policy {application}")
        except VersionConflict as conflict:
            raise _conflict(application, conflict.current) from None
        on_change()
        return Response(status_code=204)

    @routes.post(
        "/{namespace}/{name}/pause",
        summary="Stop planning for an application",
        response_model=ScalingPolicy,
        responses={200: example(examples.POLICY)},
    )
    async def pause(namespace: Namespace, name: Name, caller: Writer) -> JSONResponse:
        return JSONResponse(shown(await changes.pause(f"{namespace}/{name}", caller)))

    @routes.post(
        "/{namespace}/{name}/resume",
        summary="Go on in the mode it had before it was paused",
        response_model=ScalingPolicy,
        responses={200: example(examples.POLICY)},
    )
    async def resume(namespace: Namespace, name: Name, caller: Writer) -> JSONResponse:
        return JSONResponse(shown(await changes.resume(f"{namespace}/{name}", caller)))

    return routes


def _check_addresses(policy: ScalingPolicy, allowed: Allowed) -> None:
    """A 422 for hosts and literal addresses that are not allowed. What a name stands for is checked at each connect."""
    kafka = policy.spec.signals.kafka
    named: list[tuple[str, Callable[[str], None], str]] = [
        (policy.job_field("url"), allowed.check_url, str(policy.subject.flink.url))
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
    """A 422 for planners that are not there or would not take their parameters; asked only where they are others than before, so that
    everything else of a policy can be changed while the planner service is away."""
    spec = policy.spec
    planners = named(spec)
    if planners == (named(before.spec) if before else [_USUAL_PLANNER]):
        return
    try:
        wrong = await catalogue.problems(spec)
    except PlannerAway as away:
        detail = f"the planner service cannot be asked about the policy's planners: {away}. Nothing was changed"
        raise Problem(503, detail, errors=[("spec.planner", "was changed and could not be checked")]) from None
    if wrong:
        raise invalid(InvalidDocument(wrong))


def _taken(policy: ScalingPolicy, other: str) -> Problem:
    """The refusal of a second policy for one target; names the first."""
    detail = f"{policy.application} has the target of {other}: only one policy may scale a job. Delete {other} or change its target first"
    return Problem(409, detail, errors=[("spec.target", f"is the target of {other}")], extra={"application": other})


def _by_time(now: datetime) -> int:
    """Return the smallest version of a change made now: the millisecond."""
    return int(now.timestamp() * 1000)


def _conflict(application: str, current: Any) -> Problem:
    version = current.metadata.version if isinstance(current, ScalingPolicy) else None
    what = "it does not exist" if version is None else f"its version is {version}"
    return Problem(409, f"{application} was changed by another writer: {what}", extra={"currentVersion": version})

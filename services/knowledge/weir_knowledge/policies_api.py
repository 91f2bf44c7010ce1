"""`/v1/policies`: create, replace, list, pause, resume and delete, with optimistic concurrency by version."""

import asyncio
import re
from typing import Annotated, Any

import yaml
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse

from weir_contracts import (
    InvalidPolicy,
    ScalingPolicy,
    example,
    parse_policy,
)
from weir_contracts.change import MAX_REASON
from weir_runtime.access import Problem, invalid
from weir_runtime.documents import Unreadable, read_json, read_yaml

from .decisions import BECAUSE
from .documents import (
    CHANGED,
    ERRORS,
    WRONG_POLICY,
    Application,
    Policies,
    Reader,
    Responses,
    Writer,
    responds,
    shows,
    wrong_address,
)
from .policy_changes import PolicyChanges

_POLICY_SCHEMA = {"$ref": "#/components/schemas/ScalingPolicy"}
_VERSION = re.compile(r"[0-9]{1,18}")
_REASON = (
    f"A `reason` is kept in the policy's annotation `{BECAUSE}` until the next one, a resume or the next document: pausing again "
    "replaces it."
)
Reason = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=MAX_REASON,
        description="why, for the next reader of the policy",
        examples=["migration until 15:00"],
    ),
]
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
        raise Problem(413, f"YAML is larger than {MAX_YAML_BYTES} bytes: send it as JSON")
    return await asyncio.to_thread(_parsed, body, is_json)


def _parsed(body: bytes, is_json: bool) -> Any:
    try:
        text = body.decode()
        if is_json:
            return read_json(text)
        found = read_yaml(text)
    except (Unreadable, UnicodeDecodeError) as error:
        sentence = "is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)
        line = getattr(error, "line", None)
        detail = f"line {line} {sentence}" if line else sentence
        raise Problem(422, f"the body cannot be read: {detail}", errors=[("body", detail)]) from None
    if len(found) > 1:
        raise Problem(422, f"the body holds {len(found)} documents: send each to its own address")
    return found[0] if found else None


def policies_router(changes: PolicyChanges) -> APIRouter:
    """Return the routes."""
    routes = APIRouter(prefix="/v1/policies", tags=["policies"], responses=ERRORS)
    written = example("policy", "minimal")
    created: Responses = {201: {"description": "Created", "model": ScalingPolicy, **shows(ScalingPolicy)}}

    @routes.get("", summary="All policies", **responds(Policies))
    async def list_policies(
        caller: Reader,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        after: Annotated[str, Query(max_length=200, description="the last application of the page before")] = "",
    ) -> JSONResponse:
        names = [name for name in await changes.view.store.keys("policy") if name > after and caller.may_see(name)]
        page = await changes.view.policy_page(names[:limit])
        more = names[limit - 1] if len(names) > limit else None
        return JSONResponse({"items": [p.to_document() for p in page], "next": more})

    @routes.get("/{namespace}/{name}", summary="One policy", **responds(ScalingPolicy))
    async def get_policy(application: Application, _caller: Reader) -> JSONResponse:
        return _response(await changes.existing(application))

    @routes.put(
        "/{namespace}/{name}",
        summary="Create or replace a policy",
        description="The document as JSON or YAML. `metadata.version` or `If-Match` replaces only what you have read. `X-Weir-Result` "
        "is created, replaced, or unchanged if this document was stored already: its version stays.",
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
    async def put_policy(
        application: Application,
        request: Request,
        caller: Writer,
        dry_run: Annotated[
            bool, Query(description="check the document as if it were stored, and store nothing")
        ] = False,
    ) -> Response:
        try:
            policy = _policy_of(await _document(request), application)
        except Problem as problem:
            if not dry_run:
                await changes.report_refused(application, caller, problem)
            raise
        expected = parse_version(request)
        expected = policy.metadata.version if expected is None else expected
        stored, result = await changes.put(policy, caller, expected, dry_run=dry_run)
        response = _response(stored, status_code=201 if result == "created" and not dry_run else 200)
        response.headers["X-Weir-Result"] = result
        if not changes.catalogue.asks:
            response.headers["X-Weir-Warning"] = "no planner service is set; planner and parameters were not checked"
        return response

    @routes.delete(
        "/{namespace}/{name}", status_code=204, summary="Delete a policy and forget its application", responses=CHANGED
    )
    async def delete_policy(application: Application, request: Request, caller: Writer) -> Response:
        await changes.delete(application, caller, parse_version(request))
        return Response(status_code=204)

    @routes.post(
        "/{namespace}/{name}/pause",
        summary="Stop planning for an application",
        description=_REASON,
        **responds(ScalingPolicy),
    )
    async def pause(application: Application, caller: Writer, reason: Reason = None) -> JSONResponse:
        return _response(await changes.pause(application, caller, reason))

    @routes.post(
        "/{namespace}/{name}/resume",
        summary="Resume in the mode of before the pause",
        description=_REASON,
        **responds(ScalingPolicy),
    )
    async def resume(application: Application, caller: Writer, reason: Reason = None) -> JSONResponse:
        return _response(await changes.resume(application, caller, reason))

    return routes


def _policy_of(document: Any, application: str) -> ScalingPolicy:
    """Read a document that was sent to an application's address."""
    try:
        policy = parse_policy(document)
    except InvalidPolicy as error:
        raise invalid(error) from None
    if policy.application != application:
        detail = wrong_address(policy.application, application)
        raise Problem(422, detail, errors=[("metadata", "must be the address's namespace and name")])
    return policy


def _response(policy: ScalingPolicy, status_code: int = 200) -> JSONResponse:
    headers = {"ETag": f'"{policy.metadata.version}"'}
    return JSONResponse(policy.to_document(), status_code=status_code, headers=headers)

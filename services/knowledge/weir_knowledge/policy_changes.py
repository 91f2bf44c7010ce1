"""Changes of policies, from the REST API and from resources of Kubernetes: what the log does not know is checked here, and
its decision is their result."""

import re
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any, Literal
from uuid import uuid4

import httpx
import structlog
from pydantic import SecretStr

from weir_contracts import (
    ActionState,
    Answer,
    Change,
    InvalidDocument,
    PlannerChoice,
    PlannerFallback,
    PolicySpec,
    ScalingPolicy,
    printable,
)
from weir_contracts.base import NAME_PATTERN
from weir_contracts.change import MAX_CALLER, MAX_REASON, ChangeKind, Owner
from weir_contracts.resource import PAUSED, RELEASE
from weir_engines.registry import may_be_same, names
from weir_runtime.access import Caller, Problem, invalid
from weir_runtime.clock import Clock
from weir_runtime.http_client import async_client
from weir_runtime.reach import REACH, Reach

from .change_log import ChangeLog
from .decisions import Log, as_annotated, decide, is_paused_by_annotation, with_metadata
from .view import View

_LOG = structlog.get_logger("policies")
_APPLICATION = re.compile(rf"{NAME_PATTERN}/{NAME_PATTERN}")
CURRENT = "currentVersion"
"""Extra field of the conflict with another writer."""
MAX_POLICY_BYTES = 65_536
Result = Literal["created", "replaced", "unchanged"]
_USUAL_PLANNER = {"field": "spec.planner", "name": PlannerChoice().name, "parameters": PlannerChoice().parameters}
"""Of a policy that names none: nothing to check."""


Wrong = list[tuple[str, str]]
"""Fields of the policy, and what is wrong."""


class PlannerAway(Exception):
    """The planner service did not check the policy; the sentence gives the reason."""


class PlannerCatalogue:
    """`POST /v1/planners/validate` of the planner service. Without a `url` nothing is checked."""

    def __init__(
        self,
        url: str | None,
        token: SecretStr | None = None,
        timeout_seconds: float = 6.0,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`timeout_seconds`: more than the 5 s that the planner service takes to check parameters. `transport` replaces
        the network where both run in one process."""
        self._transport = transport
        self._url = url
        self._token = token
        self._timeout_seconds = timeout_seconds

    @property
    def asks(self) -> bool:
        """Return whether a planner service is configured."""
        return self._url is not None

    def _client(self, url: str) -> httpx.AsyncClient:
        return async_client(url, self._token, self._timeout_seconds, transport=self._transport)

    async def problems(self, spec: PolicySpec) -> Wrong:
        """Return `(field, sentence)` for each problem of the policy's planners. Raises `PlannerAway`."""
        if self._url is None:
            return []
        try:
            async with self._client(self._url) as client:
                answer = await client.post("/v1/planners/validate", json={"choices": named(spec)})
        except httpx.HTTPError as error:
            raise PlannerAway(f"it does not answer ({type(error).__name__})") from None
        if answer.status_code in (401, 403):
            raise PlannerAway("it does not accept WEIR_KNOWLEDGE_PLANNER_TOKEN")
        if answer.status_code != 200:
            raise PlannerAway(f"it answered {answer.status_code}")
        try:
            return [(str(each["field"]), str(each["message"])) for each in answer.json()["problems"]]
        except (ValueError, KeyError, TypeError):
            raise PlannerAway("it answered with an unknown document") from None


def named(spec: PolicySpec) -> list[dict[str, Any]]:
    """Return every planner that a policy names with its field: the chosen one, its fallback, candidates and shadows."""
    fallback = [] if spec.planner.fallback is None else [("spec.planner.fallback", spec.planner.fallback)]
    choices: list[tuple[str, PlannerChoice | PlannerFallback]] = [
        ("spec.planner", spec.planner),
        *fallback,
        *((f"spec.shadows.{i}", each) for i, each in enumerate(spec.shadows)),
        *((f"spec.candidates.{i}", each) for i, each in enumerate(spec.candidates)),
    ]
    return [{"field": field, "name": each.name, "parameters": each.parameters} for field, each in choices]


@dataclass(eq=False, repr=False)
class PolicyChanges:
    """Checks changes of policies and writes them into the log, whose decision is their result; actions as well.

    `reach` is what policies may name.
    """

    view: View
    clock: Clock
    catalogue: PlannerCatalogue
    log: ChangeLog
    reach: Reach = REACH
    resource_namespaces: Collection[str] = ()
    """Namespaces whose ScalingPolicy resources are policies; in others the policy of a resource belongs to the REST API."""
    resource_exists: Callable[[str], Awaitable[bool]] | None = None
    """Returns whether the resource of an application may exist. None: every one may."""
    on_refused: Callable[[str, str, str, str], Awaitable[None]] | None = None
    """Called with application, caller, code and sentence of each refused document."""

    async def existing(self, application: str) -> ScalingPolicy:
        """Return the policy; 404 if there is none."""
        policy = await self.view.policy(application)
        if policy is None:
            raise _missing(application)
        return policy

    async def put(
        self,
        policy: ScalingPolicy,
        caller: Caller,
        expected: int | None,
        owner: Owner = "rest",
        *,
        dry_run: bool = False,
    ) -> tuple[ScalingPolicy, Result]:
        """Check and store what a user wrote; returns what is stored. A document of the REST API that is stored already
        makes no new version; `dry_run` checks and stores nothing.

        409 if `expected` is not the stored version, and for the policy of the other owner unless that released it;
        422 for addresses that are not allowed, unknown planners and invalid parameters.
        """
        try:
            return await self._put(policy, caller, expected, owner, dry_run=dry_run)
        except Problem as problem:
            if not dry_run:
                await self.report_refused(policy.application, caller, problem)
            raise

    async def report_refused(self, application: str, caller: Caller, problem: Problem) -> None:
        """Let the receiver of the namespace know that a document was refused. Another writer's change, a lacking right and an
        outage are no refusals of the document."""
        is_refused = problem.status in (409, 413, 422) and CURRENT not in problem.extra
        if self.on_refused is not None and is_refused and _APPLICATION.fullmatch(application):
            reasons = {"owner": "owned", "application": "target-taken"}
            code = next((code for name, code in reasons.items() if name in problem.extra), "invalid")
            await self.on_refused(application, caller.name, code, problem.detail)

    async def _put(
        self, policy: ScalingPolicy, caller: Caller, expected: int | None, owner: Owner, *, dry_run: bool
    ) -> tuple[ScalingPolicy, Result]:
        _check_size(policy)
        before = await self.view.policy(policy.application)
        if before is None or owner == "rest" or before.metadata.annotations.get(RELEASE) != "true":
            self._check_owner(before, owner)
        self._check_reach(policy)
        await _check_planners(policy, before, self.catalogue)
        policy = with_metadata(
            policy,
            owner=None if owner == "rest" else owner,
            # The document's own: an exported policy is paused as it was, one that is written as paused resumes to advise.
            mode_before_pause=policy.metadata.mode_before_pause if policy.spec.mode == "paused" else None,
        )
        policy = as_annotated(policy)
        if before is None or before.subject != policy.subject:
            await self._check_job(policy)
        change = self._change("put", policy.application, caller, expected=expected, owner=owner, policy=policy)
        change = _as_seen(change, before)
        if dry_run:
            policies = {each.application: each for each in await self.view.policies()}
            newest = max((each.metadata.version or 0 for each in policies.values()), default=0)
            _, answer = decide(Log.of(policies, {}, newest), change, int(self.clock.now().timestamp() * 1000))
        else:
            answer = await self._submit(change)
        stored = self._accepted(change, answer, is_new=not dry_run)
        result: Result = "created" if answer.was_created else "unchanged" if answer.version is None else "replaced"
        return stored or policy, result

    async def delete(self, application: str, caller: Caller, expected: int | None, owner: Owner = "rest") -> None:
        """Delete a policy; 404 if there is none, 409 as for `put`, unless the resource that owned it exists no more."""
        is_free = self.resource_exists is not None and not await self.resource_exists(application)
        change = self._change("delete", application, caller, expected=expected, owner=owner)
        if is_free:
            change = change.model_copy(update={"owners_policy_is_free": True})
        change = _as_seen(change, await self.view.policy(application))
        self._accepted(change, await self._submit(change))

    async def pause(
        self, application: str, caller: Caller, reason: str | None = None, owner: Owner = "rest"
    ) -> ScalingPolicy:
        """Stop planning; the policy says in which mode it resumes, and why it is paused."""
        return await self._with_mode("pause", application, caller, reason, owner)

    async def resume(
        self, application: str, caller: Caller, reason: str | None = None, owner: Owner = "rest"
    ) -> ScalingPolicy:
        """Restore the mode of before the pause; a policy that was written as paused advises. 409 while the annotation of
        its resource pauses it."""
        before = await self.view.policy(application)
        if owner == "rest" and before is not None and self._is_of_resource(before) and is_paused_by_annotation(before):
            namespace, _, name = application.partition("/")
            detail = (
                f"{application} is paused by the annotation {PAUSED} of its Kubernetes resource: remove that "
                f"(kubectl -n {namespace} annotate scalingpolicy {name} {PAUSED}-)"
            )
            raise Problem(409, detail)
        return await self._with_mode("resume", application, caller, reason, owner)

    async def put_action(self, action: ActionState, caller: Caller, expected: int) -> ActionState:
        """Replace the action with version `expected` (0: none); 409 with the current one otherwise."""
        change = self._change("action", action.application, caller, expected=expected, action=action)
        answer = await self._submit(change)
        if answer.refused == "conflict":
            current = answer.action.model_dump(mode="json") if answer.action else None
            raise Problem(409, "another writer was first", extra={"current": current})
        self._accepted(change, answer)
        return action

    async def _with_mode(
        self, kind: Literal["pause", "resume"], application: str, caller: Caller, reason: str | None, owner: Owner
    ) -> ScalingPolicy:
        said = None if reason is None else printable(reason, MAX_REASON)[:MAX_REASON]
        change = self._change(kind, application, caller, reason=said, owner=owner)
        change = _as_seen(change, await self.view.policy(application))
        policy = self._accepted(change, await self._submit(change))
        if policy is None:
            raise _missing(application)
        return policy

    def _change(self, kind: ChangeKind, application: str, caller: Caller, **given: Any) -> Change:
        """Return a request for the log; 404 for an address that no policy can have."""
        if not _APPLICATION.fullmatch(application):
            raise _missing(application)
        if application.partition("/")[0] not in self.resource_namespaces:
            given["owners_policy_is_free"] = True
        caller_name = caller.name[:MAX_CALLER]
        return Change(id=uuid4(), kind=kind, application=application, caller=caller_name, at=self.clock.now(), **given)

    async def _submit(self, change: Change) -> Answer:
        """Let a change be decided; `StoreUnavailable` beforehand if the view could not show it."""
        await self.view.store.check_room()
        return await self.log.submit(change)

    def _accepted(self, change: Change, answer: Answer, *, is_new: bool = True) -> ScalingPolicy | None:
        """Return the policy that is in force now; raise the refusal."""
        if answer.refused is None:
            if is_new and answer.version is not None and change.kind != "action":
                event = "policy-deleted" if answer.policy is None else "policy-written"
                mode = answer.policy.spec.mode if answer.policy else None
                _LOG.info(
                    event, application=change.application, author=change.caller, version=answer.version, mode=mode
                )
            return answer.policy
        if answer.refused == "missing":
            raise _missing(change.application)
        if answer.refused == "owned":
            self._check_owner(answer.policy, change.owner)
        if answer.refused == "taken" and change.policy is not None and answer.rival is not None:
            raise _taken(change.policy, answer.rival)
        if answer.refused == "expired":
            raise Problem(503, f"the change of {change.application} waited for too long and was not taken: try again")
        if answer.refused == "unwritable":
            raise Problem(422, f"the brokers refuse the policy or action of {change.application}: it was not taken")
        raise _conflict(change.application, answer.policy)

    def _check_owner(self, before: ScalingPolicy | None, owner: Owner) -> None:
        """Raise 409 for a policy that another owner wrote."""
        if before is None:
            return
        present: Owner = "resource" if self._is_of_resource(before) else "rest"
        if present != owner:
            raise Problem(409, _owned(before.application, present), extra={"owner": present})

    def _is_of_resource(self, policy: ScalingPolicy) -> bool:
        """Return whether a resource owns the policy, and its namespace is listed."""
        return policy.metadata.owner == "resource" and policy.metadata.namespace in self.resource_namespaces

    def _check_reach(self, policy: ScalingPolicy) -> None:
        """Raise 422 for what the policy's namespace may not name. The addresses of a name are checked at each connect."""
        if (refused := self.reach.refusal(policy.subject)) is not None:
            field, reason = f"spec.{refused[0]}", refused[1]
            raise Problem(422, f"{field}: {reason}", errors=[(field, reason)])

    async def _check_job(self, policy: ScalingPolicy) -> None:
        """Raise 409 if another policy names the same job, one by its id and one by its name, according to the newest
        observation."""
        for other, claimed in (await self.view.claims()).items():
            if other == policy.application or not may_be_same(policy.subject, claimed):
                continue
            newest = await self.view.newest(other, ["observation"])
            deployment = newest.observation.deployment if newest and newest.observation else None
            if deployment is not None and names(policy.subject, deployment):
                raise _taken(policy, other)


def _as_seen(change: Change, before: ScalingPolicy | None) -> Change:
    """Return the change with the version that the view shows."""
    return change if before is None else change.model_copy(update={"seen": before.metadata.version})


def _missing(application: str) -> Problem:
    return Problem(404, f"there is no policy {application}")


def _owned(application: str, owner: Owner) -> str:
    """Say where the policy of an owner is changed."""
    namespace, _, name = application.partition("/")
    if owner == "resource":
        return (
            f"{application} belongs to the Kubernetes resource ScalingPolicy {name} in namespace {namespace}: change or delete that "
            f"(kubectl -n {namespace} edit scalingpolicy {name}). Pause and resume work without it"
        )
    return (
        f"{application} was written through the REST API: its owner changes it there, or releases it to this resource "
        'by its annotation weir.dev/release: "true" (weir apply)'
    )


def _check_size(policy: ScalingPolicy) -> None:
    """Raise 422 for a policy that is too large to go with each message about its application."""
    size = len(policy.model_dump_json(exclude_unset=True).encode())
    if size > MAX_POLICY_BYTES:
        detail = (
            f"the policy has {size:,} bytes, more than {MAX_POLICY_BYTES:,}: "
            "shorten its parameters, labels or annotations"
        )
        raise Problem(422, detail, errors=[("body", detail)])


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
        detail = f"the policy was not stored: its planners changed, and the planner service cannot check them: {away}"
        raise Problem(503, detail, errors=errors) from None
    if wrong:
        raise invalid(InvalidDocument(wrong))


def _taken(policy: ScalingPolicy, other: str) -> Problem:
    """Return the refusal of a second policy for one target."""
    detail = (
        f"{policy.application} has the target of {other}: only one policy may scale a job. "
        f"Delete {other} or change its target first"
    )
    return Problem(409, detail, errors=[("spec.target", f"is the target of {other}")], extra={"application": other})


def changed_by_another(application: str, version: int | None) -> str:
    """Say which version is in force instead of the one that was read; None: none is."""
    now = "it does not exist" if version is None else f"its version is {version}"
    return f"another writer changed {application}: {now}; read it again and apply your change to that"


def _conflict(application: str, current: ScalingPolicy | None) -> Problem:
    version = None if current is None else current.metadata.version
    return Problem(409, changed_by_another(application, version), extra={CURRENT: version})

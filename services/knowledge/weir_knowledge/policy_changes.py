"""Changes of policies, from the REST API and from resources of Kubernetes: checked, versioned, and each policy with one
owner."""

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import httpx
import structlog
from pydantic import SecretStr

from weir_contracts import ActionState, InvalidDocument, PlannerChoice, PlannerFallback, PolicySpec, ScalingPolicy
from weir_contracts.resource import RELEASE
from weir_engines.registry import claims, may_be_same, names, rival
from weir_runtime.access import Caller, Problem, invalid
from weir_runtime.clock import Clock
from weir_runtime.http_client import async_client
from weir_runtime.reach import REACH, Reach

from .store import INCOMPLETE, Store, StoreUnavailable, TargetTaken, VersionConflict

_LOG = structlog.get_logger("policies")
Owner = Literal["rest", "resource"]
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

    def __init__(self, url: str | None, token: SecretStr | None = None, timeout_seconds: float = 6.0) -> None:
        """`timeout_seconds`: more than the 5 s that the planner service takes to check parameters."""
        self._url = url
        self._token = token
        self._timeout_seconds = timeout_seconds

    @property
    def asks(self) -> bool:
        """Return whether a planner service is configured."""
        return self._url is not None

    def _client(self, url: str) -> httpx.AsyncClient:
        return async_client(url, self._token, self._timeout_seconds)

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
    """Writes policies: each change is a new version with its author and time.

    `on_change` is called after each stored change, so that it is published at once; `reach` is what policies may name.
    """

    store: Store
    clock: Clock
    catalogue: PlannerCatalogue
    on_change: Callable[[], None]
    reach: Reach = REACH
    resource_namespaces: Collection[str] = ()
    """Namespaces whose ScalingPolicy resources are policies; in others the policy of a resource belongs to the REST API."""
    resource_exists: Callable[[str], Awaitable[bool]] | None = None
    """Returns whether the resource of an application may exist. None: every one may."""

    async def existing(self, application: str) -> ScalingPolicy:
        """Return the policy; 404 if there is none. `StoreUnavailable` if it may still have to be restored."""
        policy = await self.store.policy(application)
        if policy is None:
            if not await self.store.is_complete():
                raise StoreUnavailable(INCOMPLETE)
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
        _check_size(policy)
        before = await self.store.policy(policy.application)
        if before is None or owner == "rest" or before.metadata.annotations.get(RELEASE) != "true":
            self._check_owner(before, owner)
        self._check_reach(policy)
        await _check_planners(policy, before, self.catalogue)
        policy = _with_metadata(
            policy,
            owner=None if owner == "rest" else owner,
            # The document's own: an exported policy is paused as it was, one that is written as paused resumes to advise.
            mode_before_pause=policy.metadata.mode_before_pause if policy.spec.mode == "paused" else None,
        )
        if owner == "rest" and before is not None and _as_written(policy) == _as_written(before):
            if expected not in (None, before.metadata.version):
                raise _conflict(policy.application, before)
            return before, "unchanged"
        stored = await self._write(policy, before, caller, expected, dry_run=dry_run)
        return stored, "created" if before is None else "replaced"

    async def delete(self, application: str, caller: Caller, expected: int | None, owner: Owner = "rest") -> None:
        """Delete a policy; 404 if there is none, 409 as for `put`, unless the resource that owned it exists no more."""
        before = await self.store.policy(application)
        if owner == "resource" or self.resource_exists is None or await self.resource_exists(application):
            self._check_owner(before, owner)
        try:
            if not await self.store.delete_policy(application, expected, _by_time(self.clock.now())):
                raise _missing(application)
        except VersionConflict as conflict:
            raise _conflict(application, conflict.current) from None
        _LOG.info("policy-deleted", application=application, author=caller.name)
        self.on_change()

    async def _write(
        self,
        policy: ScalingPolicy,
        before: ScalingPolicy | None,
        caller: Caller,
        expected: int | None,
        *,
        dry_run: bool = False,
    ) -> ScalingPolicy:
        """Store the version after `before`, which was checked; 409 if another writer was first."""
        version = (before.metadata.version or 0) if before else 0
        if expected is not None and expected != version:
            raise _conflict(policy.application, before)
        now = self.clock.now()
        deleted = await self.store.deletion(policy.application) or 0
        # By time, so that no version repeats: a plan for a deleted policy must not fit a later policy of that name.
        following = max(version + 1, deleted + 1, _by_time(now))
        stored = _with_metadata(policy, version=following, updated_at=now, updated_by=caller.name)
        if before is None or before.subject != policy.subject:
            await self._check_job(policy)
        if dry_run:
            others = {each.application: claims(each.subject) for each in await self.store.policies()}
            others.pop(policy.application, None)
            if (taken_by := rival(claims(policy.subject), others)) is not None:
                raise _taken(policy, taken_by)
            return stored
        try:
            await self.store.put_policy(stored, version)
        except VersionConflict as conflict:
            raise _conflict(policy.application, conflict.current) from None
        except TargetTaken as taken:
            raise _taken(policy, taken.application) from None
        _LOG.info(
            "policy-written",
            application=policy.application,
            author=caller.name,
            version=following,
            mode=policy.spec.mode,
            mode_before=before.spec.mode if before else None,
        )
        self.on_change()
        return stored

    def _check_owner(self, before: ScalingPolicy | None, owner: Owner) -> None:
        """Raise 409 for a policy that another owner wrote."""
        if before is None:
            return
        by_resource = before.metadata.owner == "resource" and before.metadata.namespace in self.resource_namespaces
        present: Owner = "resource" if by_resource else "rest"
        if present != owner:
            raise Problem(409, _owned(before.application, present), extra={"owner": present})

    def _check_reach(self, policy: ScalingPolicy) -> None:
        """Raise 422 for what the policy's namespace may not name. The addresses of a name are checked at each connect."""
        if (refused := self.reach.refusal(policy.subject)) is not None:
            field, reason = f"spec.{refused[0]}", refused[1]
            raise Problem(422, f"{field}: {reason}", errors=[(field, reason)])

    async def _check_job(self, policy: ScalingPolicy) -> None:
        """Raise 409 if another policy names the same job, one by its id and one by its name, according to the newest
        observation."""
        for other in await self.store.policies():
            if other.application == policy.application or not may_be_same(policy.subject, other.subject):
                continue
            newest = await self.store.newest(other.application, ["observation"])
            deployment = newest.observation.deployment if newest and newest.observation else None
            if deployment is not None and names(policy.subject, deployment):
                raise _taken(policy, other.application)

    async def pause(self, application: str, caller: Caller) -> ScalingPolicy:
        """Stop planning; the policy says in which mode it resumes."""
        policy = await self.existing(application)
        if policy.spec.mode == "paused":
            return policy
        return await self._with_mode(_with_metadata(policy, mode_before_pause=policy.spec.mode), "paused", caller)

    async def resume(self, application: str, caller: Caller) -> ScalingPolicy:
        """Restore the mode of before the pause; a policy that was written as paused advises."""
        policy = await self.existing(application)
        if policy.spec.mode != "paused":
            return policy
        mode = policy.metadata.mode_before_pause or "advise"
        return await self._with_mode(_with_metadata(policy, mode_before_pause=None), mode, caller)

    async def _with_mode(
        self, policy: ScalingPolicy, mode: Literal["advise", "act", "paused"], caller: Caller
    ) -> ScalingPolicy:
        changed = policy.model_copy(update={"spec": policy.spec.model_copy(update={"mode": mode})})
        return await self._write(changed, policy, caller, policy.metadata.version)


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


def _with_metadata(policy: ScalingPolicy, **changes: object) -> ScalingPolicy:
    """Return the policy with these fields of its metadata; None removes one from the document."""
    metadata = policy.metadata.model_copy(update=changes)
    metadata.model_fields_set.difference_update(name for name, value in changes.items() if value is None)
    return policy.model_copy(update={"metadata": metadata})


def _as_written(policy: ScalingPolicy) -> dict[str, Any]:
    """Return the document without what the service sets."""
    document = policy.to_document()
    for name in ("version", "updatedAt", "updatedBy"):
        document["metadata"].pop(name, None)
    return document


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


def _by_time(now: datetime) -> int:
    """Return the smallest version of a change made now: the millisecond."""
    return int(now.timestamp() * 1000)


def changed_by_another(application: str, version: int | None) -> str:
    """Say which version is in force instead of the one that was read; None: none is."""
    now = "it does not exist" if version is None else f"its version is {version}"
    return f"another writer changed {application}: {now}; read it again and apply your change to that"


def _conflict(application: str, current: ScalingPolicy | ActionState | None) -> Problem:
    version = current.metadata.version if isinstance(current, ScalingPolicy) else None
    return Problem(409, changed_by_another(application, version), extra={"currentVersion": version})

"""Call a planner and check each obligation of the plugin contract."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError
from weir_contracts import (
    VERSION,
    InvalidDocument,
    NewPlanner,
    PlannerDescription,
    PlannerRegistration,
    PlanReply,
    PlanRequest,
    bounded,
)

from services.planner.adapters.http import read_json, usable
from services.planner.core.schemas import parameter_problems, schema_problems
from services.planner.failures import PlannerFailed
from services.planner.remote import Remote

from .cases import AT, cases

CHECKS: dict[str, str] = {
    "describes-itself": "GET {url}/ returns a PlannerDescription that names the contract's version",
    "parameters-schema": "the JSON Schema of its parameters is supported",
    "one-operator": "replies for an application of one operator",
    "overloaded-chain": "replies for an overloaded chain",
    "idle-chain": "replies for a chain without arrivals",
    "diamond-with-join": "replies for a graph that splits and joins",
    "odd-names": "replies for operators with quotes, blanks and other scripts in their names",
    "forty-operators": "replies for forty operators",
    "nothing-known": "replies if no metric is known: each is null",
    "same-answer-twice": "gives the same reply to the same request",
    "memory-comes-back": "accepts the memory that it returned",
    "unknown-fields": "ignores fields that a newer Weir may send",
    "refuses-no-json": "answers 4xx to a body that is no JSON",
    "refuses-no-request": "answers 4xx to JSON that is no PlanRequest",
}
"""The checks, in this order."""
HTTP_ONLY = frozenset(
    {"describes-itself", "parameters-schema", "same-answer-twice", "unknown-fields", "refuses-no-json"}
    | {"refuses-no-request"}
)
EACH_SECONDS = 5.0
ALL_SECONDS = 25.0
"""Less than the timeout of a request to Weir's own API."""


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    check: str
    ok: bool
    sentence: str


@dataclass(frozen=True)
class Report:
    """All findings; `description` is the planner's own, if it could be read."""

    findings: list[Finding] = field(default_factory=list)
    description: PlannerDescription | None = None

    @property
    def failed(self) -> list[Finding]:
        return [finding for finding in self.findings if not finding.ok]

    @property
    def ok(self) -> bool:
        return bool(self.findings) and not self.failed

    def to_document(self) -> dict[str, Any]:
        described = self.description.model_dump(mode="json") if self.description else None
        checks = [{"check": f.check, "ok": f.ok, "sentence": f.sentence} for f in self.findings]
        return {"ok": self.ok, "checks": checks, "description": described}


async def check_planner(
    remote: Remote, new: NewPlanner, *, timeout_seconds: float = EACH_SECONDS, all_seconds: float = ALL_SECONDS
) -> Report:
    """Run the checks of the planner's kind, each exchange within `timeout_seconds` and all within `all_seconds`.

    A planner that must not be called or cannot be reached has this as its only finding.
    """
    run = _Run(remote, new, timeout_seconds)
    try:
        async with asyncio.timeout(all_seconds):
            await run.everything()
    except TimeoutError:
        done = {finding.check for finding in run.findings}
        left = [check for check in run.checks if check not in done]
        run.findings += [Finding(check, False, f"not within {all_seconds:g} s for all checks") for check in left]
    return Report(run.findings, run.description)


class _Run:
    def __init__(self, remote: Remote, new: NewPlanner, timeout_seconds: float) -> None:
        self.findings: list[Finding] = []
        self.description: PlannerDescription | None = None
        self.checks = [check for check in CHECKS if new.kind == "http" or check not in HTTP_ONLY]
        self._remote = remote
        self._new = new
        self._seconds = timeout_seconds
        self._cases: dict[str, PlanRequest] = {}
        self._replies: dict[str, PlanReply] = {}

    async def everything(self) -> None:
        for url in self._new.urls:
            try:
                self._remote.client.check(url, self._new.credential)
            except PlannerFailed as failure:
                self.findings.append(Finding(self.checks[0], False, failure.sentence))
                return
        if self._new.kind == "http":
            await self._check("describes-itself", self._describes_itself)
            if self.description is None:
                return
            await self._check("parameters-schema", self._parameters_schema)
        self._cases = cases(self._new.name, self._example())
        for name in self._cases:
            await self._check(name, lambda name=name: self._case(name))  # type: ignore[misc]
        await self._check("memory-comes-back", self._memory_comes_back)
        if self._new.kind == "http":
            await self._check("same-answer-twice", self._same_answer_twice)
            await self._check("unknown-fields", self._unknown_fields)
            await self._check("refuses-no-json", lambda: self._refuses(b"this is no JSON"))
            await self._check("refuses-no-request", lambda: self._refuses(b'{"id": 1, "topology": "none"}'))

    async def _check(self, name: str, of: Callable[[], Awaitable[str]]) -> None:
        try:
            self.findings.append(Finding(name, True, await of()))
        except PlannerFailed as failure:
            self.findings.append(Finding(name, False, failure.sentence))

    async def _describes_itself(self) -> str:
        document = await self._remote.client.get_json(f"{self._new.url}/", self._seconds, self._new.credential)
        try:
            description = PlannerDescription.model_validate(document)
        except ValidationError as error:
            wrong = InvalidDocument.of(error, "description")
            raise PlannerFailed(f"answered without a planner description: {wrong}") from None
        self.description = description
        if VERSION not in description.contract_versions:
            raise PlannerFailed(
                f"speaks {', '.join(description.contract_versions) or 'no version'}, and Weir speaks {VERSION}"
            )
        return bounded(f"{description.name} {description.version}: {description.description}", 300)

    async def _parameters_schema(self) -> str:
        schema = self.description.parameters if self.description else {}
        if wrong := schema_problems(schema):
            raise PlannerFailed(wrong[0])
        example = self._example()
        if wrong_example := parameter_problems(self._new.name, schema, example, "parameters"):
            where, what = wrong_example[0]
            tried = "its first example is invalid" if example else "no parameters are invalid, and it has no `examples`"
            raise PlannerFailed(f"{where}: {tried}: {what}")
        return f"it has: {', '.join(sorted(schema.get('properties', {}))) or 'no parameters'}"

    def _example(self) -> dict[str, Any]:
        """Return the parameters of the calls: the schema's first example, by default none."""
        examples = self.description.parameters.get("examples") if self.description else None
        return examples[0] if isinstance(examples, list) and examples and isinstance(examples[0], dict) else {}

    async def _ask(self, request: PlanRequest) -> PlanReply:
        # `model_construct`: it was validated as a new planner, and is registered only afterwards.
        fields = self._new.model_dump(include=set(NewPlanner.model_fields))
        registration = PlannerRegistration.model_construct(
            **fields, version=1, description=None, registered_at=AT, registered_by="conformance"
        )
        return await self._remote.try_ask(request, registration, self._seconds)

    async def _case(self, name: str) -> str:
        reply = await self._ask(self._cases[name])
        self._replies[name] = reply
        return bounded(f"{reply.kind} ({reply.code}): {reply.sentence}", 300)

    async def _memory_comes_back(self) -> str:
        first = self._replies.get("overloaded-chain")
        if first is None:
            raise PlannerFailed("was not tried: there is no reply for the overloaded chain")
        again = await self._ask(self._cases["overloaded-chain"].model_copy(update={"memory": first.memory}))
        return f"with {len(first.memory)} entries: {again.kind} ({again.code})"

    async def _same_answer_twice(self) -> str:
        first = self._replies.get("diamond-with-join")
        if first is None:
            raise PlannerFailed("was not tried: there is no reply for the diamond with a join")
        again = await self._ask(self._cases["diamond-with-join"])
        if (first.kind, first.parallelism) != (again.kind, again.parallelism):
            raise PlannerFailed(
                f"said {first.kind} {first.parallelism or ''} and then {again.kind} {again.parallelism or ''} to the same "
                "request: it keeps state"
            )
        return f"{again.kind} ({again.code}) both times"

    async def _unknown_fields(self) -> str:
        document = json.loads(self._cases["overloaded-chain"].model_dump_json())
        for place in (document, document["analysis"], document["topology"], document["topology"]["operators"][0]):
            place["of_a_newer_version"] = {"unknown": True}
        answer = await self._post(json.dumps(document, separators=(",", ":")).encode())
        body = usable(answer)
        await read_json(body)
        return "they are ignored"

    async def _refuses(self, body: bytes) -> str:
        answer = await self._post(body)
        if not 400 <= answer.status < 500:
            raise PlannerFailed(f"answered {answer.status} to {body.decode()!r}, instead of 4xx")
        return f"answered {answer.status}"

    async def _post(self, body: bytes) -> Any:
        return await self._remote.client.exchange(
            "POST", f"{self._new.url}/plan", body, self._seconds, self._new.credential
        )

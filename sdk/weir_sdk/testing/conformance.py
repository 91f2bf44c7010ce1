"""Conformance of a planner to the plugin contract, over HTTP and thus in any language.

def test_it_keeps_the_contract():
    with running(my_planner) as url:
        assert [found for found in check_planner(url) if not found.ok] == []
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import httpx
from pydantic import ValidationError

from weir_contracts import (
    MAX_REPLY_BYTES,
    NO_REPLY,
    VERSION,
    Edge,
    Estimate,
    InvalidDocument,
    PlannerDescription,
    PlanReply,
    PlanState,
    Topology,
    bounded,
    one_line,
    unknown,
)
from weir_contracts.base import Message
from weir_sdk.planner import InvalidReply, checked
from weir_sdk.request import Request
from weir_sdk.schemas import example_parameters, parameter_problems, schema_problems

from .requests import NAMES, request

NAME = "conformance"
"""Name of the planner in the requests' policies."""
ODD_NAMES = ("Quelle: Bestellungen ✓", 'a "quoted" | name = {odd} #2', "<b>ascii & ' \\ / %20</b>", "終")
CHAINS: dict[str, Sequence[str]] = {
    "one-operator": ["orders"],
    "idle": ["orders", "enrich", "sink"],
    "nothing-known": ["orders", "enrich", "sink"],
    "odd-names": ODD_NAMES,
    "forty-operators": [f"step {i}" for i in range(40)],
}
CHECKS: dict[str, str] = {
    "describes-itself": "GET {url}/ returns a PlannerDescription that names the contract's version",
    "parameters-schema": "the JSON Schema of its parameters is supported",
    **{name: f"replies to the recorded request {name}" for name in NAMES},
    "one-operator": "replies for an application of one operator",
    "idle": "replies for a chain without arrivals",
    "nothing-known": "replies if no metric is known: each is null",
    "odd-names": "replies for operators with quotes, blanks and other scripts in their names",
    "forty-operators": "replies for forty operators",
    "memory-comes-back": "accepts the memory that it returned",
    "same-answer-twice": "gives the same reply to the same request",
    "unknown-fields": "ignores fields that a newer Weir may send",
    "refuses-no-json": "answers 4xx to a body that is no JSON",
    "refuses-no-request": "answers 4xx to JSON that is no PlanRequest",
}
"""The checks, in this order."""


@dataclass(frozen=True)
class Finding:
    """Result of one check."""

    check: str
    ok: bool
    sentence: str


class _Violation(Exception):
    """The sentence says what the planner did instead of keeping its obligation."""


def check_planner(url: str, *, token: str | None = None, timeout_seconds: float = 5.0) -> list[Finding]:
    """Return a finding for each check. A planner without a valid description has this as its only finding.

    `token`: the bearer token that the planner requires. `timeout_seconds`: limit of each exchange.
    """
    headers = {"Accept": "application/json", "Accept-Encoding": "identity", "Content-Type": "application/json"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    # As Weir: many servers close an idle connection, and a request on it would be lost.
    limits = httpx.Limits(max_keepalive_connections=0)
    with httpx.Client(headers=headers, timeout=timeout_seconds, limits=limits, trust_env=False) as client:
        run = _Run(client, url.rstrip("/"), timeout_seconds)
        run.everything()
    return run.findings


class _Run:
    def __init__(self, client: httpx.Client, url: str, timeout_seconds: float) -> None:
        self.findings: list[Finding] = []
        self._client = client
        self._url = url
        self._timeout_seconds = timeout_seconds
        self._schema: dict[str, Any] = {}
        self._replies: dict[str, PlanReply] = {}

    def everything(self) -> None:
        self._check("describes-itself", self._describes_itself)
        if not self.findings[0].ok:
            return
        self._check("parameters-schema", self._parameters_schema)
        for name in (*NAMES, *CHAINS):
            self._check(name, lambda name=name: self._case(name))  # type: ignore[misc]
        self._check("memory-comes-back", self._memory_comes_back)
        self._check("same-answer-twice", self._same_answer_twice)
        self._check("unknown-fields", self._unknown_fields)
        self._check("refuses-no-json", lambda: self._refuses("this is no JSON"))
        self._check("refuses-no-request", lambda: self._refuses('{"id": 1, "topology": "none"}'))

    def _check(self, name: str, of: Callable[[], str]) -> None:
        try:
            self.findings.append(Finding(name, True, of()))
        except _Violation as violation:
            self.findings.append(Finding(name, False, str(violation)))

    def _describes_itself(self) -> str:
        try:
            description = PlannerDescription.model_validate_json(self._usable("GET", "/"))
        except ValidationError as error:
            wrong = InvalidDocument.of(error, "description")
            raise _Violation(f"answered without a planner description: {wrong}") from None
        self._schema = description.parameters
        if VERSION not in description.contract_versions:
            spoken = ", ".join(description.contract_versions) or "no version"
            raise _Violation(f"speaks {spoken}, and Weir speaks {VERSION}")
        return bounded(f"{description.name} {description.version}: {description.description}", 300)

    def _parameters_schema(self) -> str:
        if wrong := schema_problems(self._schema):
            raise _Violation(wrong[0])
        example = example_parameters(self._schema)
        if problems := parameter_problems("the planner", self._schema, example, "parameters"):
            where, what = problems[0]
            tried = "its first example is invalid" if example else "no parameters are invalid, and it has no `examples`"
            raise _Violation(f"{where}: {tried}: {what}")
        return f"it has: {', '.join(sorted(self._schema.get('properties', {}))) or 'no parameters'}"

    def _request(self, name: str) -> Request:
        planner = {"name": NAME, "parameters": example_parameters(self._schema)}
        return _chain(name, planner=planner) if name in CHAINS else request(name, planner=planner)

    def _ask(self, asked: Request) -> PlanReply:
        try:
            reply = PlanReply.model_validate_json(self._usable("POST", "/plan", asked.model_dump_json()), strict=True)
            checked(reply, asked)
        except ValidationError as error:
            raise _Violation(f"gave a reply that is no PlanReply: {InvalidDocument.of(error, 'reply')}") from None
        except InvalidReply as error:
            raise _Violation(str(error)) from None
        if reply.code in NO_REPLY:
            raise _Violation(f"gave a reply with the code {reply.code}, which is Weir's own")
        return reply

    def _case(self, name: str) -> str:
        reply = self._replies[name] = self._ask(self._request(name))
        return bounded(f"{reply.kind} ({reply.code}): {reply.sentence}", 300)

    def _memory_comes_back(self) -> str:
        memory = self._first_reply("overloaded").memory
        again = self._ask(self._request("overloaded").model_copy(update={"memory": memory}))
        return f"with {len(memory)} entries: {again.kind} ({again.code})"

    def _same_answer_twice(self) -> str:
        first = self._first_reply("diamond")
        for _ in range(2):  # the two after each other, too: one that takes turns may be at the same one again
            again = self._ask(self._request("diamond"))
            if (first.kind, first.parallelism) != (again.kind, again.parallelism):
                raise _Violation(
                    f"said {first.kind} {first.parallelism or ''} and then {again.kind} {again.parallelism or ''} to the "
                    "same request: it keeps state"
                )
        return f"{again.kind} ({again.code}) each time"

    def _first_reply(self, name: str) -> PlanReply:
        if name not in self._replies:
            raise _Violation(f"was not tried: there is no reply to the request {name}")
        return self._replies[name]

    def _unknown_fields(self) -> str:
        document = json.loads(self._request("overloaded").model_dump_json())
        for place in (document, document["analysis"], document["topology"], document["topology"]["operators"][0]):
            place["of_a_newer_version"] = {"unknown": True}
        self._usable("POST", "/plan", json.dumps(document, separators=(",", ":")))
        return "they are ignored"

    def _refuses(self, body: str) -> str:
        status, _media_type, _answer = self._exchange("POST", "/plan", body)
        if not 400 <= status < 500:
            raise _Violation(f"answered {status} to {body!r}, instead of 4xx")
        return f"answered {status}"

    def _usable(self, method: str, path: str, content: str | None = None) -> bytes:
        """Return the body of a 200 with JSON."""
        status, media_type, body = self._exchange(method, path, content)
        if status != 200:
            raise _Violation(f"answered {status}: {bounded(one_line(body.decode(errors='replace')), 200)}")
        if media_type != "application/json" and not media_type.endswith("+json"):
            raise _Violation(f"answered with content type {media_type[:60] or 'unknown'}, not application/json")
        return body

    def _exchange(self, method: str, path: str, content: str | None) -> tuple[int, str, bytes]:
        """Return status, media type and body, read as sent: the contract allows no compression."""
        ends, body = time.monotonic() + self._timeout_seconds, b""
        try:
            with self._client.stream(method, f"{self._url}{path}", content=content) as response:
                for part in response.iter_raw():
                    body += part
                    if len(body) > MAX_REPLY_BYTES:
                        raise _Violation(f"answered more than {MAX_REPLY_BYTES} bytes")
                    if time.monotonic() > ends:
                        raise httpx.ReadTimeout("the response goes on")
        except httpx.TimeoutException:
            raise _Violation(f"did not reply within {self._timeout_seconds:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _Violation(f"could not be called: {one_line(error)}") from None
        return response.status_code, response.headers.get("content-type", "").partition(";")[0].strip().lower(), body


def _chain(called: str, **policy: Any) -> Request:
    """Return the request `steady` for a chain of other operators."""
    names, steady = CHAINS[called], request("steady", **policy)
    analysis = steady.analysis
    if steady.topology is None or steady.deployment is None:
        raise ValueError("the recorded request steady has no topology")
    source, work = steady.topology.operators[0], steady.topology.operators[2]
    graph = Topology(
        operators=[
            (work if i else source).model_copy(update={"name": name, "id": f"{i:032x}"}) for i, name in enumerate(names)
        ],
        edges=[Edge(source=a, target=b, ship_strategy="HASH") for a, b in pairwise(names)],
    )
    sizes, lower = dict.fromkeys(names, 2), dict.fromkeys(names, 1)
    deployment = steady.deployment.model_copy(
        update={"graph_hash": graph.graph_hash(), "requested": sizes, "requested_lower": lower, "observed": sizes}
    )
    idle = Estimate(value=0.0, basis="measured", confidence=0.9)
    rates = {"input_rate": idle, "output_rate": idle, "target_input_rate": idle} if called == "idle" else {}
    arrivals = {"arrival_rate": idle} if called == "idle" else {}

    def read(analysed: Message) -> Message:
        if called != "nothing-known":
            return analysed
        return analysed.model_copy(
            update={name: unknown("no reading yet") for name, each in analysed if isinstance(each, Estimate)}
        )

    analysed = {
        "topology": graph,
        "deployment": deployment,
        "operators": [
            read(analysis.operators[2 if i else 0].model_copy(update={"operator": name, **rates}))
            for i, name in enumerate(names)
        ],
        "edges": [read(analysis.edges[0].model_copy(update={"source": a, "target": b})) for a, b in pairwise(names)],
        "sources": [read(analysis.sources[0].model_copy(update={"operator": names[0], **arrivals}))],
        "bottleneck": None,
        **arrivals,
    }
    asked = {"topology": graph, "deployment": deployment, "analysis": read(analysis.model_copy(update=analysed))}
    # Observations and plans name the recorded operators.
    return steady.model_copy(update={**asked, "observations": [], "history": [], "state": PlanState()})

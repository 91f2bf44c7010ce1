"""Bad requests: whatever is asked of an HTTP API, the answer is one that its own description promises, and never its fault."""

import contextlib
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable

from runtime.problems import MEDIA_TYPE
from tests.unit.knowledge.builders import APP

from .documents import BROKEN, broken, example, places
from .http_apis import health, knowledge, planner

NAMESPACE, NAME = APP.split("/")
EXAMPLES = 3
"""Requests of each kind for each operation."""
few = settings(
    max_examples=EXAMPLES,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def client(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app, raise_app_exceptions=False), base_url="http://weir")


def blamed(status: int, media_type: str, body: str) -> bool:
    """Whether an answer is well formed, and an error one that says what is wrong."""
    if status < 400 or (status == 503 and media_type == "application/json"):  # not ready is no error
        return True
    told = json.loads(body)
    return media_type == MEDIA_TYPE and told["status"] == status and bool(told["title"] and told["detail"])


@pytest.mark.parametrize("make", [knowledge, planner, health])
def test_every_answer_is_as_described(make: Callable[[], FastAPI]) -> None:
    """Requests made from the API's own description, right ones and wrong ones, about what is known and what is not."""
    import schemathesis
    from schemathesis import GenerationMode
    from schemathesis.specs.openapi import checks

    conforms = [
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
        checks.response_headers_conformance,
        checks.allow_header_conformance,
    ]
    described = schemathesis.openapi.from_asgi("/openapi.json", make())
    asked: set[int] = set()

    def try_out(case: Any) -> None:
        answer = case.call()
        asked.add(answer.status_code)
        assert answer.status_code < 500 or case.path == "/health/ready", answer.text
        media_type = (answer.headers.get("content-type") or [""])[0].partition(";")[0]
        assert blamed(answer.status_code, media_type, answer.text), answer.text
        case.validate_response(answer, checks=conforms)

    operations = [found.ok() for found in described.get_all_operations()]
    for operation in sorted(operations, key=lambda known: known.method == "delete"):
        if operation.path == "/v1/plan":
            continue  # to think of one body of this size takes longer than everything else together: see below
        known = {"namespace": NAMESPACE, "name": NAME} if "{name}" in operation.path else None
        for mode, place in ((GenerationMode.POSITIVE, known), (GenerationMode.NEGATIVE, None)):
            with contextlib.suppress(Unsatisfiable):  # where there is nothing to get wrong
                few(given(case=operation.as_strategy(mode, path_parameters=place))(try_out))()
    assert 200 in asked


@pytest.fixture
def library() -> FastAPI:
    """Filled before the test's loop runs."""
    return knowledge()


BODIES = {
    "policy": ("PUT", "/v1/policies/{namespace}/{name}", 6),
    "action-state": ("PUT", "/v1/applications/{namespace}/{name}/action", 6),
    "plan-request": ("POST", "/v1/plan", 50),
}
"""Where each contract is a request's body, and how many of its fields are left out for each that is tried."""


@pytest.mark.parametrize("name", BODIES)
async def test_a_body_is_refused_with_its_field_or_taken(name: str, library: FastAPI) -> None:
    """Each field with each kind of nonsense in it; what was taken can be shown again."""
    method, path, every = BODIES[name]
    document = example(name)
    if name == "policy":
        del document["metadata"]["resourceVersion"]
    elif name == "plan-request":
        document["policy"]["spec"]["planner"] = {"name": "rate"}
    path = path.format(**document.get("metadata", {"namespace": NAMESPACE, "name": NAME}))
    headers = {"content-type": "application/json"}
    statuses = set()
    async with client(planner() if name == "plan-request" else library) as http:
        if method == "PUT" and (there := await http.get(path)).status_code == 200:
            headers["if-match"] = there.headers["etag"]
        for body in [json.dumps(document).encode(), *_broken(document, every)]:
            answer = await http.request(method, path, content=body, headers=headers)
            assert answer.status_code in (200, 201, 400, 409, 422), (body[:2000], answer.text)
            assert blamed(answer.status_code, answer.headers["content-type"], answer.text)
            statuses.add(answer.status_code)
            if "etag" in answer.headers:
                headers["if-match"] = answer.headers["etag"]
        assert {200, 201} & statuses and 422 in statuses
        if method == "PUT":
            for shown in (path, "/v1/policies", "/v1/applications"):
                assert (await http.get(shown)).status_code == 200


def _broken(document: Any, every: int) -> Iterator[bytes]:
    chance = random.Random(7)
    for place in places(document):
        for text in BROKEN.values():
            if chance.random() * every < 1:
                yield broken(document, place, text)

"""Bad bodies: whatever is sent to an HTTP API, the answer names what is wrong with it, and is never its fault."""

import asyncio
import json
from functools import cache
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st

from tests.effort import examples, some
from tests.unit.knowledge.builders import APP
from tests.unit.planner.build import SOURCE, WORK
from weir_runtime.access import MEDIA_TYPE

from .documents import broken_at_random, example
from .http_apis import knowledge, planner

NAMESPACE, NAME = APP.split("/")


def client(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app, raise_app_exceptions=False), base_url="http://weir")


def blamed(status: int, media_type: str, body: str) -> bool:
    """Return whether a response is well formed, and an error names the problem."""
    if status < 400 or (status == 503 and media_type == "application/json"):  # not ready is no error
        return True
    problem = json.loads(body)
    return media_type == MEDIA_TYPE and problem["status"] == status and bool(problem["title"] and problem["detail"])


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
        del document["metadata"]["version"]
    elif name == "plan-request":
        document["policy"]["spec"]["planner"] = {"name": "rate"}
    path = path.format(**document.get("metadata", {"namespace": NAMESPACE, "name": NAME}))
    headers = {"content-type": "application/json"}
    statuses = set()
    async with client(planner() if name == "plan-request" else library) as http:
        if method == "PUT" and (there := await http.get(path)).status_code == 200:
            headers["if-match"] = there.headers["etag"]
        for body in [json.dumps(document).encode(), *some(broken_at_random(document, every), 8)]:
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


QUESTION = st.fixed_dictionaries(
    {},
    optional={
        "parallelism": st.lists(
            st.builds("{}={}".format, st.sampled_from([SOURCE, WORK]), st.integers(1, 32768)),
            max_size=2,
            unique_by=lambda text: text.partition("=")[0],
        ),
        "load": st.one_of(
            st.builds("x{:g}".format, st.floats(0, 1e6)),
            st.builds("{:g}/s".format, st.floats(0, 1e12)),
            st.sampled_from(["x0", "x1e-300", "x-1", "xnan", "x1e999"]),
        ),
        "horizon": st.sampled_from(["10s", "1h", "1d"]),
    },
)
"""Of an application whose graph and capacities are known."""


@cache
def asked_about() -> FastAPI:
    return knowledge()


@examples(60)
@given(question=QUESTION)
def test_any_question_what_if_is_answered(question: dict[str, Any]) -> None:
    """Whatever parallelism and load: a response of finite numbers, or one that names the request's error."""
    library = asked_about()

    async def answered() -> httpx.Response:
        async with client(library) as http:
            return await http.get(f"/v1/applications/{APP}/what-if", params=question)

    answer = asyncio.run(answered())
    assert answer.status_code == 200 or ("load" in question and answer.status_code == 422), answer.text
    assert blamed(answer.status_code, answer.headers["content-type"], answer.text)
    json.loads(answer.text, parse_constant=pytest.fail)

"""The description of the API: every operation has types and examples, and the examples are true."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from pydantic import TypeAdapter

from tests.unit.knowledge.direct_log import add_routes, changes_of
from tests.unit.knowledge.memory_store import MemoryStore
from weir_knowledge import documents
from weir_knowledge.__main__ import api
from weir_runtime.clock import FakeClock
from weir_runtime.service import Health, health_router

pytestmark = pytest.mark.thorough

METHODS = {"get", "put", "post", "delete", "patch"}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    app, store, clock = api(), MemoryStore(), FakeClock()
    app.include_router(health_router(Health(clock)))
    add_routes(app, changes_of(store, clock))
    return app.openapi()


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if method in METHODS:
                yield f"{method.upper()} {path}", operation


def contents(operation: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each media type of the request and of every response."""
    for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
        yield f"request {media_type}", content
    for status, response in operation["responses"].items():
        for media_type, content in response.get("content", {}).items():
            yield f"{status} {media_type}", content


def resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """A schema, looked up where it is a reference."""
    if "$ref" in schema:
        found: dict[str, Any] = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[-1]]
        return found
    return schema


def test_every_operation_has_types_and_examples(document: dict[str, Any]) -> None:
    """Requests and responses are described completely: no schema allows just anything."""
    lacking = []
    for name, operation in operations(document):
        good = [status for status in operation["responses"] if status.startswith("2")]
        if good != ["204"] and not any(operation["responses"][status].get("content") for status in good):
            lacking.append(f"{name}: no content")
        for place, content in contents(operation):
            schema = resolved(document, content.get("schema", {}))
            if schema.get("type") != "string" and not schema.get("properties"):
                lacking.append(f"{name} {place}: empty schema")
            examples_given = content.get("example") or content.get("examples") or content["schema"].get("examples")
            if not examples_given:
                lacking.append(f"{name} {place}: no example")
    assert not lacking
    assert len(list(operations(document))) >= 19


def test_every_place_in_an_address_has_an_example(document: dict[str, Any]) -> None:
    """`{namespace}` and `{name}` are shown filled in."""
    for name, operation in operations(document):
        for parameter in operation.get("parameters", []):
            if parameter["in"] == "path":
                assert parameter["schema"].get("examples") or parameter.get("examples"), name


def test_the_header_that_resumes_a_feed_is_described(document: dict[str, Any]) -> None:
    """Each feed of events takes `Last-Event-ID`, and the description says what `0` and no header do."""
    feeds = {name: operation for name, operation in operations(document) if name.endswith("/events")}
    assert len(feeds) == 2
    for name, operation in feeds.items():
        (header,) = [each for each in operation["parameters"] if each["in"] == "header"]
        assert (header["name"], header["required"]) == ("Last-Event-ID", False), name
        assert "`0` begins with the oldest stored" in header["description"]
        assert "Without `Last-Event-ID` and `since` a feed begins now" in operation["description"]


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    """Code can be generated from the document."""

    def walk(part: Any) -> None:
        if isinstance(part, dict):
            if isinstance(part.get("$ref"), str):
                assert part["$ref"].rsplit("/", 1)[-1] in document["components"]["schemas"]
            for value in part.values():
                walk(value)
        elif isinstance(part, list):
            for value in part:
                walk(value)

    walk(document)


@pytest.mark.parametrize("model", list(documents.examples()))
def test_every_example_is_what_it_shows(model: Any) -> None:
    """An example that its own type refuses, or with a field that does not exist, would mislead."""
    shown = documents.examples()[model]
    read = TypeAdapter(model).validate_python(shown, strict=False)
    assert set(shown) <= set(read.model_dump(mode="json", by_alias=True))


async def test_the_interactive_documentation_needs_no_internet() -> None:
    """Whatever the page at `/docs` loads comes from the service itself."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(api()), base_url="http://knowledge") as http:
        page = await http.get("/docs")
        loaded = re.findall(r'(?:src|href)="([^"]+)"', page.text)
        answers = [await http.get(address) for address in loaded]
    assert page.status_code == 200
    assert "swagger" in page.text.lower()
    assert len(loaded) >= 3
    assert all(address.startswith("/") for address in loaded)
    assert {answer.status_code for answer in answers} == {200}

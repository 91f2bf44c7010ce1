"""Bad requests: whatever an HTTP API receives, its response is one that its description promises, never a 500."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable

from tests.effort import thorough
from tests.unit.fuzz.http_apis import health, knowledge, planner
from tests.unit.fuzz.test_http import NAME, NAMESPACE, blamed

few = settings(
    max_examples=3 if thorough() else 1,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
"""Requests of each kind for each operation."""


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
    statuses: set[int] = set()

    def try_out(case: Any) -> None:
        answer = case.call()
        statuses.add(answer.status_code)
        assert answer.status_code < 500 or case.path == "/health/ready", answer.text
        media_type = (answer.headers.get("content-type") or [""])[0].partition(";")[0]
        assert blamed(answer.status_code, media_type, answer.text), answer.text
        case.validate_response(answer, checks=conforms)

    operations = [found.ok() for found in described.get_all_operations()]
    for operation in sorted(operations, key=lambda found: found.method == "delete"):
        if operation.path == "/v1/plan":
            continue  # to think of one body of this size takes longer than all else together: see tests/unit/fuzz/test_http.py
        existing = {"namespace": NAMESPACE, "name": NAME} if "{name}" in operation.path else None
        for mode, place in ((GenerationMode.POSITIVE, existing), (GenerationMode.NEGATIVE, None)):
            with contextlib.suppress(Unsatisfiable):  # where there is nothing to get wrong
                few(given(case=operation.as_strategy(mode, path_parameters=place))(try_out))()
    assert 200 in statuses

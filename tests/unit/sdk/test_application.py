"""The SDK's checks of a planner before its first request."""

from typing import Any

import pytest
from weir_planner import Reply, Request, application, kta


def stays(request: Request) -> Reply:
    """Nothing more."""
    return request.hold("enough", "no operator needs more")


class Ones:
    """In KTA's shape."""

    def monitor(self, ctx: kta.Context[Any, Any, Any]) -> dict[str, Any]:
        return {"turn": len(ctx.resultHistory)}

    def plan(self, ctx: kta.Context[Any, Any, Any]) -> dict[Any, int]:
        return dict.fromkeys(ctx.nodes, 1)


def test_its_interface_is_described() -> None:
    """An OpenAPI document with request and reply."""
    for app, route in ((application(stays), "/plan"), (kta.application(Ones), "/api/v1alpha1/plan")):
        assert "requestBody" in app.openapi()["paths"][route]["post"]


@pytest.mark.parametrize("threads", [0, -1])
def test_zero_threads_are_refused(threads: int) -> None:
    """Refused before anything is served."""
    with pytest.raises(ValueError, match="threads"):
        application(stays, threads=threads)

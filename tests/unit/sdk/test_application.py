"""What the SDK makes of a planner before anybody asks it."""

from typing import Any

import pytest
from weir_planner import Reply, Request, application, kta


def stays(request: Request) -> Reply:
    """Nothing more."""
    return request.hold("enough", "nobody needs more")


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
def test_there_is_at_least_one_thread(threads: int) -> None:
    """Said before anything is served."""
    with pytest.raises(ValueError, match="threads"):
        application(stays, threads=threads)

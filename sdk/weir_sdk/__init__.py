"""SDK for planners: a typed request with helpers, and a server around a function or class.

    from weir_sdk import Request, Reply, serve

    def plan(request: Request) -> Reply:
        return request.hold("nothing-to-do", "everything stays as it is")

    serve(plan)

`weir_sdk.testing` has realistic requests and replays a planner on a simulated application. `serve` needs the extra
`weir-sdk[serve]`, replays need `weir-sdk[testing]`.
"""

from typing import TYPE_CHECKING, Any

from weir_contracts import PlannerDescription
from weir_contracts import PlanReply as Reply

from .planner import InvalidPlanner, InvalidReply, Planner, planner
from .request import InvalidParameters, MetricMissing, Request

if TYPE_CHECKING:
    from .server import application, main, serve

__all__ = [
    "InvalidParameters",
    "InvalidPlanner",
    "InvalidReply",
    "MetricMissing",
    "Planner",
    "PlannerDescription",
    "Reply",
    "Request",
    "application",
    "main",
    "planner",
    "serve",
]


def __getattr__(name: str) -> Any:
    """The server's names are looked up when they are used: a planner can be written and tested without its
    dependencies."""
    if name in ("application", "main", "serve"):
        from . import server

        return getattr(server, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

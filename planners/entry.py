"""What a built-in planner is: a function of a request and its typed parameters, described so that a user can choose it."""

from typing import Any, Protocol

from pydantic import BaseModel
from weir_contracts import PlanReply, PlanRequest


class Planner(Protocol):
    """Answers for the whole topology or holds. The same answer for the same request; no state but the request's memory."""

    def __call__(self, request: PlanRequest, parameters: Any) -> PlanReply: ...


LARGE = ("observations", "history")
"""Fields of a request that are most of its size."""


class Entry:
    """A planner with its parameters' type, one sentence of what it does, and which of the `LARGE` fields it looks at."""

    def __init__(
        self, plan: Planner, parameters: type[BaseModel], description: str, reads: frozenset[str] = frozenset()
    ) -> None:
        self.plan = plan
        self.parameters = parameters
        self.description = description
        self.reads = reads

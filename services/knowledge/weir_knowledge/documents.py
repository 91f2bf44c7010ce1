"""Addresses, callers and responses of the API: response types that are no contracts, and the description of every
route's responses."""

from contextlib import suppress
from datetime import datetime
from functools import cache
from typing import Annotated, Any

from fastapi import Depends, Path, Query
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from weir_contracts import (
    Analysis,
    LoopResult,
    Message,
    Observation,
    Outcome,
    Plan,
    ScalingPolicy,
    example,
    parse_duration,
)
from weir_contracts.base import Timestamp
from weir_contracts.export import CONTRACTS
from weir_runtime.access import Caller, Problem, documented, requires

from .core import Cycle, HistoryLimits, Past, State, remember
from .policy_changes import changed_by_another
from .spend import AdviceView, SpendView
from .summary import Summary, summarise

Responses = dict[int | str, dict[str, Any]]
Namespace = Annotated[str, Path(examples=["shop"])]
Name = Annotated[str, Path(examples=["orders"])]


def application_of(namespace: Namespace, name: Name) -> str:
    """Return the application that an address names."""
    return f"{namespace}/{name}"


def unknown(application: str) -> str:
    """Say that an application has neither a policy nor messages."""
    return f"{application} is unknown: it has neither a policy nor messages"


def wrong_address(named: str, address: str) -> str:
    """Say that a document is of another application than its address."""
    return f"the document is of {named}, the address is {address}"


Application = Annotated[str, Depends(application_of)]
Reader = Annotated[Caller, Depends(requires("read"))]
Writer = Annotated[Caller, Depends(requires("write"))]
Executor = Annotated[Caller, Depends(requires("executor"))]
Next = Annotated[str | None, Field(description="`after` of the next page; null: this was the last one")]


_INSTANT = "a time such as 2026-06-14T18:30:00Z, or a duration before now such as 2h"
SinceInstant = Annotated[
    str | None, Query(max_length=40, description=f"from when: {_INSTANT}; without it from the oldest", examples=["2h"])
]
UntilInstant = Annotated[
    str | None, Query(max_length=40, description=f"until when: {_INSTANT}; without it to the newest", examples=["30m"])
]
Moment = Annotated[str | None, Query(max_length=40, description=f"{_INSTANT}; without it now", examples=["30m"])]


_TIMESTAMP: TypeAdapter[Timestamp | None] = TypeAdapter(Timestamp | None)


def time_range(since: str | None, until: str | None, now: datetime) -> tuple[datetime | None, datetime | None]:
    """Return both ends of a time range of the query; 422 if one cannot be read, or the first is after the second."""
    begin, end = instant("since", since, now), instant("until", until, now)
    if begin is not None and end is not None and begin > end:
        raise Problem(422, "since: is after until", errors=[("query.since", "is after until")])
    return begin, end


def instant(field: str, text: str | None, now: datetime) -> datetime | None:
    """Return a time of the query; 422 if it cannot be read."""
    if text is None:
        return None
    with suppress(ValueError, OverflowError):
        return now - parse_duration(text)
    with suppress(ValueError):
        # A plus sign that was not encoded arrives as a space.
        found = datetime.fromisoformat(text.replace(" ", "+") if "T" in text else text)
        if found.tzinfo is not None:
            return found
    sentence = f"must be {_INSTANT}"
    raise Problem(422, f"{field}: {sentence}", errors=[(f"query.{field}", sentence)])


def moment(text: str | None, now: datetime) -> datetime | None:
    """Return the time `at` of the query; 422 if it cannot be read, or lies where no message does."""
    found = instant("at", text, now)
    try:
        return _TIMESTAMP.validate_python(found)
    except ValidationError:
        sentence = "must lie between the years 1970 and 3000"
        raise Problem(422, f"at: {sentence}", errors=[("query.at", sentence)]) from None


class Policies(Message):
    """A page of policies."""

    items: list[ScalingPolicy]
    next: Next = None


class Applications(Message):
    """A page of applications."""

    items: list[Summary]
    next: Next = None


class History(Message):
    """Past cycles in one line each, newest first."""

    items: list[LoopResult]


class Explanation(Message):
    """The last decisions, newest first."""

    items: list[Cycle]
    advice: AdviceView | None = None
    """What following the plans would have cost, and how late it would have been. None: the policy does not advise, or too
    little was observed."""
    spend: SpendView | None = None
    """Slot-hours since the policy acts. None: it does not act, or too little was observed."""
    spend_sentence: str | None = None
    """The same in a sentence, or why nothing is known."""


class Import(Past):
    """Knowledge of an application from another Weir."""

    learned: dict[str, Any] = Field(default_factory=dict)
    """`learned` of its newest analysis there. An analyzer that cannot read it ignores it."""


class ImportResult(Message):
    """The parts of an import that were written to the log. Services add only what they lack; the same import again changes
    nothing."""

    application: str
    learned: bool
    """Whether something that was learned was written."""
    history: int
    """Past cycles in one line each."""
    cycles: int
    """Explained cycles."""


@cache
def examples() -> dict[type[BaseModel], Any]:
    """Return an example of every response: the contracts' golden examples, and what knowledge makes of them."""
    shown: dict[type[BaseModel], Any] = {model: example(name) for name, model in CONTRACTS.items()}
    observation, analysis = Observation(**shown[Observation]), Analysis(**shown[Analysis])
    plan, outcome = Plan(**shown[Plan]), Outcome(**shown[Outcome])
    state = State(application=plan.application)
    for message in (observation, analysis, plan, outcome):
        state = remember(state, message, HistoryLimits())
    summary = summarise(state, ScalingPolicy.model_validate(shown[ScalingPolicy]), None, plan.created_at)
    line = plan.in_short(analysis.lag_seconds.value, analysis.arrival_rate.value, analysis.throughput)
    built = (summary, state.cycles[0], line.model_copy(update={"outcome": outcome.phase}))
    shown |= {type(model): model.model_dump(mode="json", exclude_unset=True) for model in built}
    shown[Policies] = {"items": [shown[ScalingPolicy]], "next": None}
    shown[Applications] = {"items": [shown[Summary]], "next": None}
    shown[History] = {"items": [shown[LoopResult]]}
    shown[Explanation] = {"items": [shown[Cycle]]}
    shown[Import] = {
        "learned": shown[Analysis].get("learned", {}),
        "history": [shown[LoopResult]],
        "cycles": [shown[Cycle]],
    }
    shown[ImportResult] = {"application": plan.application, "learned": True, "history": 1, "cycles": 1}
    return shown


def shows(model: type[BaseModel]) -> dict[str, Any]:
    """Return the content of a response, with the example of `model`."""
    return {"content": {"application/json": {"example": examples()[model]}}}


def responds(model: type[BaseModel], *more: Responses) -> dict[str, Any]:
    """Return the arguments of a route that responds with `model`: its type, its example, and further responses."""
    responses: Responses = {200: shows(model)}
    for each in more:
        responses |= each
    return {"response_model": model, "responses": responses}


def refuses(status: int, description: str, detail: str, *fields: tuple[str, str]) -> Responses:
    """Return a further response of a route: a problem document with its example."""
    return {status: documented(description, status, detail, *fields)}


ERRORS: Responses = {
    "4XX": documented("The request is wrong", 404, unknown("shop/orders")),
    **refuses(503, "The store is away", "redis: connection refused"),
}
"""How every route may fail."""
CHANGED = refuses(409, "Another writer was first", changed_by_another("shop/orders", 8))
_WRONG_LAG = "must be a duration with a unit such as 30s"
WRONG_POLICY = refuses(
    422, "Names every wrong field", f"spec.objective.maxLag: {_WRONG_LAG}", ("spec.objective.maxLag", _WRONG_LAG)
)

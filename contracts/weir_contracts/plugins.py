"""Planners that others run: what one says of itself, and how Weir keeps it.

What a plugin of kind `http` implements: `GET {url}/` → `PlannerDescription`, `POST {url}/plan` with a `PlanRequest` →
`PlanReply`. Its obligations stand beside the fields here and in `PLAN_OBLIGATIONS`.
"""

from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from .base import Message, Name, Sentence, Timestamp, writable

MAX_REPLY_BYTES = 1_000_000
"""The largest answer that is read of a planner, description or reply."""
MAX_REQUEST_BYTES = 8_000_000
"""The largest request that a planner must be able to take."""
MAX_JSON_DEPTH = 64
"""How deep lists and objects of an answer may be nested."""
MAX_SCHEMA_BYTES = 100_000

PLAN_OBLIGATIONS = (
    "Answer 200 with a PlanReply within the policy's `spec.planner.timeout`, which counts for the whole exchange: connecting, "
    "sending and the last byte of the answer.",
    "Cover every operator of `topology` with a parallelism of at least 1, no other, or hold with a reason.",
    "Give the same answer to the same request: a request may come twice. Keep no state but `memory`, which comes back with "
    "the next request of the same application and is at most 16384 bytes as JSON.",
    f"Take requests of up to {MAX_REQUEST_BYTES} bytes, and ignore fields that you do not know. An answer has at most "
    f"{MAX_REPLY_BYTES} bytes, nested at most {MAX_JSON_DEPTH} deep, with content type application/json, no redirect and no "
    "compression.",
    "What is missing is null and never 0: hold rather than guess.",
    "Answer 4xx to what is no PlanRequest or has parameters you do not take, 5xx for a fault of your own.",
)
"""What happens otherwise: the plan is what the policy's fallback says, or a hold, with the reason; after several failures in a
row the planner is not asked for a while."""


def _url(value: str) -> str:
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"is no address: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ValueError("must look like https://host:port/path")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must not carry credentials: name one that the planner service knows in `credential`")
    if parts.query or parts.fragment or "?" in value or "#" in value:
        raise ValueError("must not have a query or fragment")
    if not value.isascii() or not value.isprintable() or any(sign in value for sign in ' \\"<>^`{|}'):
        raise ValueError("must be written in plain ASCII without blanks; write a host of another script as xn--…")
    return value.rstrip("/")


PlannerUrl = Annotated[
    str,
    Field(min_length=1, max_length=2000, pattern=r"^https?://", examples=["https://planner.example.org/mine"]),
    AfterValidator(_url),
]
"""Where a planner answers; without a slash at its end."""


class PlannerDescription(Message):
    """What `GET {url}/` answers."""

    name: Name
    """What the planner calls itself; it may be registered under another name."""
    version: Annotated[str, Field(min_length=1, max_length=100, examples=["1.4.0"])]
    contract_versions: Annotated[list[Annotated[str, Field(min_length=1, max_length=50)]], Field(max_length=50)]
    """The versions of these contracts that it speaks; must contain the one Weir speaks."""
    parameters: Annotated[dict[str, Any], AfterValidator(writable)] = Field(default_factory=lambda: {"type": "object"})
    """JSON Schema (2020-12) of a policy's `spec.planner.parameters`, an object. Policies that do not fit are refused when they are
    written. References only within itself; patterns without look-around."""
    scope: Literal["operator", "application"]
    """operator: gives each operator a parallelism of its own. application: one for all of them (the reply names each all the same)."""
    description: Sentence
    """What it does, for people."""
    reads: Annotated[list[Literal["observations", "history"]] | None, Field(max_length=10)] = None
    """Which of a request's large parts it looks at; the others come empty, which is faster. None: all."""


PlannerKind = Literal["http", "kta"]
_NEEDED: dict[str, tuple[str, ...]] = {"http": ("url",), "kta": ("monitor_url", "plan_url")}


class NewPlanner(Message):
    """What somebody registers. Kind `http` has a `url`; kind `kta` has the addresses of its steps, analyze being optional."""

    name: Name
    """What policies call it; none of the built-in names."""
    kind: PlannerKind = "http"
    url: PlannerUrl | None = Field(default=None, validate_default=True)
    monitor_url: PlannerUrl | None = Field(default=None, validate_default=True)
    analyze_url: PlannerUrl | None = Field(default=None, validate_default=True)
    plan_url: PlannerUrl | None = Field(default=None, validate_default=True)
    credential: Name | None = None
    """The name of a bearer token that the planner service has; never the token itself."""
    result_history_length: Annotated[int | None, Field(default=None, ge=1, le=1000)] = None
    """Kind `kta`: how many earlier results are sent along, at most; None: as many as fit."""
    offer_analysis: bool | None = None
    """Kind `kta`: false leaves Weir's own field `weir` out of every request; None: it is sent."""

    @field_validator("url", "monitor_url", "analyze_url", "plan_url", "result_history_length", "offer_analysis")
    @classmethod
    def _of_its_kind(cls, value: Any, info: ValidationInfo) -> Any:
        kind, field = info.data.get("kind"), str(info.field_name)
        if kind is None:
            return value  # wrong itself, which has been said
        if value is None and field in _NEEDED[kind]:
            raise ValueError(f"a planner of kind {kind} needs one")
        if value is not None and (field == "url") != (kind == "http"):
            raise ValueError(f"is not for a planner of kind {kind}")
        return value

    @property
    def urls(self) -> list[str]:
        """All addresses it is asked at."""
        return [url for url in (self.url, self.monitor_url, self.analyze_url, self.plan_url) if url is not None]


class PlannerRegistration(NewPlanner):
    """A planner as all replicas know it: a record of the topic of planners, keyed by its name."""

    version: Annotated[int, Field(ge=1)]
    """Grows with each registration of the name, and none comes twice."""
    description: PlannerDescription | None = None
    """What it said of itself when it was registered; None for kind `kta`, which cannot say."""
    registered_at: Timestamp
    registered_by: Annotated[str, Field(min_length=1, max_length=200)]

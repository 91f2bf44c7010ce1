"""HTTP API of the load generator: the load to produce, and the costs that the sample job polls."""

import threading
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from .generator import Generator
from .load import Load, LoadChange

Operator = Literal["parse", "enrich", "aggregate", "sink"]
Microseconds = Annotated[float, Field(ge=0, le=10_000_000, allow_inf_nan=False)]
Contention = Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]
Limit = Annotated[float, Field(ge=0.1, le=1e9, allow_inf_nan=False)]


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class OperatorCost(_Document):
    """Cost of one operator's records. Null: the job's argument."""

    service_time_us: Microseconds | None = Field(None, description="time a record takes, in microseconds")
    contention: Contention | None = Field(None, description="s in capacity(p) = c·p / (1 + s·(p − 1))")


class Workload(_Document):
    """Costs that differ from the job's arguments. A change sets the fields it names; null restores the argument."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"operators": {"enrich": {"service_time_us": 500}}}, {"sink_limit_per_second": 900}]
        }
    )

    operators: dict[Operator, OperatorCost] = Field(default_factory=dict)
    sink_limit_per_second: Limit | None = Field(None, description="records/s all sink subtasks together may write")

    def changed(self, change: "Workload") -> "Workload":
        """Return the costs with the change applied."""
        operators = dict(self.operators)
        for name, cost in change.operators.items():
            before = operators.get(name, OperatorCost())
            operators[name] = before.model_copy(update={field: getattr(cost, field) for field in cost.model_fields_set})
        limited = "sink_limit_per_second" in change.model_fields_set
        limit = change.sink_limit_per_second if limited else self.sink_limit_per_second
        return Workload(operators=operators, sink_limit_per_second=limit)


class State(BaseModel):
    """Load that is produced now. Rates in records/s."""

    target_rate: float
    rate: float | None
    """Rate of delivery to the broker over the last two seconds."""
    produced: int
    delivered: int
    failed: int
    let_go: int
    problem: str | None
    override_rate: float | None
    factor: float
    paused: bool
    key_skew: float
    record_bytes: int
    trace_seconds: float
    peak_rate: float


class WorkloadBoard:
    """Holds the costs that were set last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current = Workload()

    @property
    def current(self) -> Workload:
        with self._lock:
            return self._current

    def change(self, change: Workload) -> Workload:
        with self._lock:
            self._current = self._current.changed(change)
            return self._current


def create_app(generator: Generator, board: WorkloadBoard) -> FastAPI:
    """Return the API's application."""
    app = FastAPI(title="Weir load generator", version="1", docs_url="/", redoc_url=None)

    @app.get("/health")
    def health() -> JSONResponse:
        """Return 200 while records arrive or none are requested; otherwise 503 with the broker's last error."""
        now = generator.statistics()
        problem = now.problem if now.target_rate > 0 else None
        return JSONResponse({"status": "failing" if problem else "ok", "problem": problem}, 503 if problem else 200)

    @app.get("/state")
    def state() -> State:
        """Return the load that is produced now."""
        return _state(generator, generator.load)

    @app.put("/load")
    def put_load(change: LoadChange) -> State:
        """Set rate, factor, pause, key skew or record size; an omitted field stays."""
        return _state(generator, generator.change(change))

    @app.get("/workload")
    def workload() -> dict[str, Any]:
        """Return the costs that differ from the job's arguments."""
        return _document(board.current)

    @app.put("/workload")
    def put_workload(change: Workload) -> dict[str, Any]:
        """Set costs; an omitted field stays, null restores the job's argument. Takes effect within a second."""
        return _document(board.change(change))

    @app.exception_handler(RequestValidationError)
    async def refused(_request: Request, error: RequestValidationError) -> JSONResponse:
        return JSONResponse({"errors": [_named(each) for each in error.errors()[:5]]}, 422)

    return app


def _state(generator: Generator, load: Load) -> State:
    return State(
        **asdict(generator.statistics()),
        override_rate=load.rate,
        factor=load.factor,
        paused=load.paused,
        key_skew=load.skew_now(),
        record_bytes=load.bytes_now(),
        trace_seconds=round(load.trace_seconds, 3),
        peak_rate=load.trace.peak_rate,
    )


def _document(workload: Workload) -> dict[str, Any]:
    return workload.model_dump(mode="json", exclude_none=True)


def _named(error: Any) -> dict[str, str]:
    """Return a validation error with its field as a path, `operators.enrich.service_time_us`."""
    return {"field": ".".join(str(part) for part in error["loc"][1:]) or "body", "message": error["msg"]}

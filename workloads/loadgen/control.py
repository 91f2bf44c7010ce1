"""The load generator's HTTP face: the load to produce, and the costs that the sample job asks for."""

import threading
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from .generator import Generator
from .load import Load, LoadChange
from .workload import Workload


class State(BaseModel):
    """What is produced now. Rates in records/s."""

    target_rate: float
    rate: float | None
    """Arrived at the broker, over the last two seconds."""
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
    """The costs that were set last."""

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
    """The application; it starts nothing by itself."""
    app = FastAPI(title="Weir load generator", version="1", docs_url="/", redoc_url=None)

    @app.get("/health")
    def health() -> JSONResponse:
        """200 while records arrive or none are asked for; 503 with the broker's last word otherwise."""
        now = generator.statistics()
        problem = now.problem if now.target_rate > 0 else None
        return JSONResponse({"status": "failing" if problem else "ok", "problem": problem}, 503 if problem else 200)

    @app.get("/state")
    def state() -> State:
        """What is produced now."""
        return _state(generator, generator.load)

    @app.put("/load")
    def put_load(change: LoadChange) -> State:
        """Set rate, factor, pause, key skew or record size; what is left out stays."""
        return _state(generator, generator.change(change))

    @app.get("/workload")
    def workload() -> dict[str, Any]:
        """The costs that differ from the job's arguments."""
        return _document(board.current)

    @app.put("/workload")
    def put_workload(change: Workload) -> dict[str, Any]:
        """Set costs; what is left out stays, null goes back to the job's argument. The job notices within a second."""
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
    """A validation error with its field as a path, `operators.enrich.service_time_us`."""
    return {"field": ".".join(str(part) for part in error["loc"][1:]) or "body", "message": error["msg"]}

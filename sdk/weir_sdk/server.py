"""Serves a planner over HTTP, in the form that Weir calls.

| route | |
|---|---|
| `POST /plan` | a PlanRequest, answered with a PlanReply |
| `GET /` | the PlannerDescription |
| `GET /health/live`, `/health/ready` | 200, or 503 while the planner's own `ready()` says no |
| `GET /metrics` | Prometheus |

What a planner raises is answered 500 with its message and logged with its traceback; what is no request, or has wrong
parameters, 422; what took longer than the policy's `planner.timeout` 503. `MetricMissing` is no error but a hold.

A synchronous `plan` is called on `threads` dedicated threads, 1 by default: then calls come one after the other and an
instance may hold clients, locks, arrays and models freely. With more threads it has to protect what calls share. An
`async def plan` runs on the event loop, several calls at a time. Nothing is pickled and nothing is copied: the instance
given is the instance called.
"""

import asyncio
import time
from functools import partial
from typing import Any

from fastapi import Depends, FastAPI, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest

from weir_contracts import PlannerDescription, PlanReply

from .http import MAX_BODY_BYTES, Busy, Threads, bearer, command, install, log, problem, run
from .planner import Planner
from .request import InvalidParameters, Request

DEFAULT_PORT = 8097


class _Metrics:
    """Server state of one application; several may share a process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.answers = Counter(
            "weir_planner_sdk_answers_total", "Plan requests by answer", ["answer"], registry=self.registry
        )
        self.seconds = Histogram("weir_planner_sdk_plan_seconds", "Time a plan took", registry=self.registry)


def application(
    planner: Any, *, threads: int = 1, token: str | None = None, body_bytes: int = MAX_BODY_BYTES
) -> FastAPI:
    """The planner as an ASGI application, for servers of your own. With a `token`, `/` and `/plan` demand it as bearer."""
    served, metrics = Planner(planner), _Metrics()
    pool = None if served.is_async else Threads(threads)
    description = served.description
    app = FastAPI(
        title=description.name,
        version=description.version,
        description=description.description,
        docs_url=None,
        redoc_url=None,
    )
    install(app, body_bytes)
    needs_token = [Depends(bearer(token))]

    @app.get("/", summary="What this planner is", dependencies=needs_token)
    async def describe() -> PlannerDescription:
        return description

    @app.post(
        "/plan", summary="Answer for the whole topology, or hold", response_model=PlanReply, dependencies=needs_token
    )
    async def plan(request: Request) -> Any:
        began = time.monotonic()
        answer = await _answer(served, pool, request)
        metrics.seconds.observe(time.monotonic() - began)
        metrics.answers.labels(answer.kind if isinstance(answer, PlanReply) else str(answer.status_code)).inc()
        return answer

    @app.get("/health/live", summary="Whether the process answers")
    async def live() -> dict[str, str]:
        return {"status": "alive"}

    @app.get("/health/ready", summary="Whether it can plan")
    async def ready() -> JSONResponse:
        check = getattr(served.wrapped, "ready", None)
        try:
            is_ready = await asyncio.to_thread(check) if callable(check) else True
        except Exception as error:  # noqa: BLE001 - whatever it is, it is not ready
            is_ready = False
            log.warning("not ready: %s", error)
        return JSONResponse({"status": "ready" if is_ready else "not ready"}, status_code=200 if is_ready else 503)

    @app.get("/metrics", summary="Prometheus")
    async def scraped() -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return app


async def _answer(served: Planner, pool: Threads | None, request: Request) -> PlanReply | JSONResponse:
    """The reply, or the problem that there is none."""
    limit = request.policy.spec.planner.timeout.total_seconds()
    try:
        async with asyncio.timeout(limit) as deadline:
            if pool is None:
                return await served.plan_async(request)
            return await pool.run(lambda: served.plan(request))
    except InvalidParameters as error:
        return problem(422, str(error), [("policy.spec.planner.parameters", str(error))])
    except TimeoutError as error:
        if not deadline.expired():  # one of the planner's own
            log.exception("%s: the planner failed", request.application)
            return problem(500, f"{type(error).__name__}: {error}")
        log.warning("%s: no plan within %g s", request.application, limit)
        return problem(503, f"no plan within the policy's {limit:g} s")
    except Busy:
        raise
    except Exception as error:  # noqa: BLE001 - any exception of a planner is reported to the caller
        log.exception("%s: the planner failed", request.application)
        return problem(500, f"{type(error).__name__}: {error}")


def serve(
    planner: Any,
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    *,
    threads: int = 1,
    token: str | None = None,
    open_to_all: bool = False,
) -> None:
    """Serve a planner until SIGTERM or Ctrl-C; open requests may end. A listener that other machines reach needs a
    `token`, or `open_to_all` to allow calls without one."""
    run(application(planner, threads=threads, token=token), host, port, token, open_to_all=open_to_all)


def main(planner: Any, arguments: list[str] | None = None) -> None:
    """Run `serve` with a command line: `--host`, `--port`, `--threads`, `--no-token`; the token is the environment's
    PLANNER_TOKEN."""
    served = Planner(planner)
    command(served.description.name, DEFAULT_PORT, partial(application, served), arguments)

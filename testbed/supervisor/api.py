"""HTTP API of fleets: `GET` and `PUT /scale/NAME` read and set the number of instances."""

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from fastapi import Depends, FastAPI

from weir_contracts.plugins import EndpointInstance, EndpointRequest, EndpointRestart, EndpointState
from weir_runtime.access import Problem, Tokens, requires
from weir_runtime.http import application, listen, serve
from weir_runtime.loop import Stop

from .fleet import Fleet, FleetState, StaleVersion

MAX_BODY_BYTES = 10_000
ANSWER_SECONDS = 5.0
END_SECONDS = 30.0
"""For all instances to end."""


@asynccontextmanager
async def endpoints(fleets: Mapping[str, Fleet], max_replicas: int) -> AsyncIterator[dict[str, str]]:
    """Run fleets, and serve each at `/scale/NAME` of its own address until left; yields the addresses."""
    stop, ended, running, urls = Stop(), threading.Event(), [], {}
    for name, fleet in fleets.items():
        running.append(asyncio.create_task(asyncio.to_thread(fleet.run, ended)))
        bound = listen("127.0.0.1", 0)
        urls[name] = f"http://127.0.0.1:{bound.getsockname()[1]}"
        running.append(asyncio.create_task(serve(create_app(fleet, name, max_replicas), bound, stop)))
    try:
        yield urls
    finally:
        stop.request("its user has ended")
        ended.set()
        await asyncio.wait(running, timeout=END_SECONDS)


def create_app(fleet: Fleet, name: str, max_replicas: int, tokens: Tokens | None = None) -> FastAPI:
    """Return the API's application, which serves `/scale/NAME`."""
    app = application(
        "Supervisor of the Kafka Streams sample",
        "Runs instances as processes of this machine.",
        tokens,
        body_bytes=MAX_BODY_BYTES,
        answer_seconds=ANSWER_SECONDS,
    )

    @app.get(f"/scale/{name}", dependencies=[Depends(requires("read"))])
    def read() -> EndpointState:
        """Return the requested, ready and running instances."""
        return _document(fleet.state())

    @app.put(f"/scale/{name}", dependencies=[Depends(requires("write"))])
    def scale(request: EndpointRequest) -> EndpointState:
        """Request a number of instances, unless the version is another one by now. Responds at once."""
        if request.replicas > max_replicas:
            detail = f"replicas: {request.replicas} are requested, this supervisor runs at most {max_replicas}"
            raise Problem(422, detail, errors=[("replicas", detail)])
        try:
            return _document(fleet.scale(request.replicas, request.version))
        except StaleVersion as error:
            raise Problem(409, str(error)) from None

    @app.post(f"/scale/{name}/instances/{{instance}}/restart", dependencies=[Depends(requires("write"))])
    def restart(instance: str, request: EndpointRestart) -> EndpointState:
        """End an instance and start another one in its place, once for an action. Responds at once."""
        try:
            return _document(fleet.restart(instance, request.action, request.version))
        except StaleVersion as error:
            raise Problem(409, str(error)) from None
        except KeyError:
            raise Problem(404, "no such instance runs") from None

    @app.get("/health")
    def health() -> dict[str, str]:
        """Return that the API answers."""
        return {"status": "ok"}

    return app


def _document(state: FleetState) -> EndpointState:
    return EndpointState(
        replicas=state.scale.replicas,
        ready=state.ready,
        instances=[
            EndpointInstance.model_validate({"id": each.id, "metrics_url": each.metrics_url})
            for each in state.instances
        ],
        ended=list(state.ended),
        restarts=True,
        version=state.scale.version,
    )

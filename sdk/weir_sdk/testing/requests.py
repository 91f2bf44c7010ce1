"""Requests as Weir makes them, recorded on its simulator, and a planner's server for the length of a test."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

from weir_contracts import PlanReply
from weir_sdk.planner import Planner
from weir_sdk.request import Request

NAMES = (
    "warming-up",
    "steady",
    "overloaded",
    "catching-up",
    "over-provisioned",
    "metric-missing",
    "diamond",
    "two-sources",
)
"""warming-up: just started, hardly anything is known. steady: all is well. overloaded: more arrives than is done, and
lag grows. catching-up: just rescaled, with a backlog. over-provisioned: much more than is needed. metric-missing: the
brokers are away, so nobody knows the lag. diamond, two-sources: other graphs than the chain of the first."""


def request(name: str = "steady", **policy: Any) -> Request:
    """The request called `name`. `policy` replaces parts of the policy's spec, as in a policy file: `planner={"name":
    "mine", "parameters": {…}}`, `bounds={"max": 4}`."""
    if name not in NAMES:
        raise KeyError(f"there is no request {name!r}; there are: {', '.join(NAMES)}")
    read = Request.model_validate_json((files(__package__) / "data" / f"{name}.json").read_bytes())
    if not policy:
        return read
    document = read.model_dump(mode="json", by_alias=True)
    for place in (document, document["analysis"]):
        place["policy"]["spec"] |= policy
    return Request.model_validate(document)


def requests() -> Iterator[Request]:
    """All of them."""
    yield from map(request, NAMES)


def checked(planner: Any, request: Request) -> PlanReply:
    """Return the planner's reply as Weir would read it: raises the planner's exceptions, `InvalidReply` for one that
    does not cover the topology, and `AssertionError` for one that is another when asked again."""
    served = Planner(planner)
    first, second = served.plan(request), served.plan(request)
    if first != second:
        raise AssertionError(f"the same request got two replies: {first.model_dump()} and {second.model_dump()}")
    return PlanReply.model_validate_json(first.model_dump_json())


START_SECONDS = 10.0


@contextmanager
def running(planner: Any, **options: Any) -> Iterator[str]:
    """Serve the planner, or a ready ASGI application, on a free port of the loopback; gives its URL. `options` are
    `application`'s. Needs weir-sdk[serve]."""
    from fastapi import FastAPI

    from weir_sdk import http
    from weir_sdk.server import application

    app = planner if isinstance(planner, FastAPI) else application(planner, **options)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        bound.listen(128)  # who comes before the server is up waits in the queue
        server = http.server(app, "127.0.0.1", 0)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(START_SECONDS)

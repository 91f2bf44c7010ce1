"""A planner's server for the length of a test."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

START_SECONDS = 10.0


@contextmanager
def running(planner: Any, **options: Any) -> Iterator[str]:
    """Serve the planner, or a ready ASGI application, on a free port of the loopback; gives its URL. `options` are `application`'s. Needs
    weir-planner[serve]."""
    from fastapi import FastAPI

    from weir_planner import http
    from weir_planner.server import application

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

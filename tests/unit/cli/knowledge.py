"""Knowledge, as far as one command knows it."""

from typing import Any

import httpx

from weir_cli.client import Client


class Server:
    """Server with one response for all requests, which it records."""

    def __init__(self, document: Any, status: int = 200) -> None:
        self.requests: list[httpx.Request] = []
        self._document, self._status = document, status

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return httpx.Response(self._status, json=self._document)

    def client(self, *_: Any) -> Client:
        """In the place of `weir_cli.client.connect`."""
        return Client("http://knowledge", None, httpx.MockTransport(self))

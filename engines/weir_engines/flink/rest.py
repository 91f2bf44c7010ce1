"""REST API of one Flink cluster over an HTTP client that the caller creates, limits and closes."""

import asyncio
import re
from collections.abc import Callable
from typing import Any, TypeVar

import httpx
from pydantic_core import from_json

from .values import Unreadable

T = TypeVar("T")

_REASONS = re.compile(
    r"does not support changing the parallelism"
    r"|Could not find Flink job"
    r"|The newly requested parallelism \d{1,9} for the job vertex [0-9a-f]{1,32} exceeds its maximum parallelism \d{1,9}"
    r"|ongoing leader election"
    r"|Not all required tasks are currently running"
    r"|Checkpoint Coordinator is suspending"
    r"|The maximum number of queued checkpoint requests exceeded"
    r"|The minimum time between checkpoints is still pending"
)
"""Reasons of refusals that are passed on. No other text is: a policy's author chooses the address that it comes
from."""


class CallFailed(Exception):
    """Error of a call (`where`) without a response, or refused with `status`."""

    def __init__(self, where: str, what: str, status: int | None = None) -> None:
        self.where = where
        self.what = what
        self.status = status
        super().__init__(f"{where}: {what}")

    @property
    def is_final(self) -> bool:
        """Whether a retry is useless.

        Flink answers 500 also to a call that can never succeed (default scheduler, unknown job). Another 5xx may come
        from a JobManager during a leader election.
        """
        if self.status is not None and 400 <= self.status < 500:
            return self.status not in (408, 429)
        return "does not support changing the parallelism" in self.what or "Could not find Flink job" in self.what


class Cluster:
    """One cluster. A call ends within `answer_seconds`; at most `calls_at_once` run at a time."""

    def __init__(self, client: httpx.AsyncClient, url: str, answer_seconds: float, calls_at_once: int = 64) -> None:
        self._client = client
        self.url = url.rstrip("/")
        self._answer_seconds = answer_seconds
        self._calls = asyncio.Semaphore(calls_at_once)

    async def get(self, path: str, parse: Callable[[Any], T]) -> T:
        """Return the parsed response; `CallFailed` or `Unreadable` without one."""
        return parse(decode(await self.send("GET", path), _where("GET", path)))

    async def send(self, method: str, path: str, **arguments: Any) -> bytes:
        """Return the body of the response; `CallFailed` for any status but 2xx. `arguments` are httpx's."""
        where = _where(method, path)
        try:
            # httpx limits each wait for bytes: without this limit of the call a slow response would block the caller.
            async with self._calls, asyncio.timeout(self._answer_seconds):
                response = await self._client.request(method, f"{self.url}{path}", **arguments)
        except (httpx.TimeoutException, TimeoutError):
            raise CallFailed(where, "no answer in time") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise CallFailed(where, str(error)[:300] or type(error).__name__) from None
        status = response.status_code
        if not response.is_success:
            detail = reason(response.content) or httpx.codes.get_reason_phrase(status)
            raise CallFailed(where, f"status {status} {detail}".rstrip(), status)
        return response.content


def decode(content: bytes, where: str) -> Any:
    """Return the JSON document. `Unreadable` if it is invalid or has a lone surrogate, which no message can carry."""
    try:
        return from_json(content)
    except ValueError:
        raise Unreadable(where, "the answer is not JSON") from None


def _where(method: str, path: str) -> str:
    return f"{method} {path.split('?', maxsplit=1)[0]}"[:300]


def reason(content: bytes) -> str | None:
    """Return the first known reason in the body of a refusal, or None."""
    found = _REASONS.search(content.decode(errors="replace"))
    return found and found[0]

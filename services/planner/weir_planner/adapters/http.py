"""Call planners over HTTP: only addresses that the settings allow, within a deadline, with bounded replies."""

import asyncio
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from pydantic_core import from_json

from weir_contracts import MAX_JSON_DEPTH, MAX_REPLY_BYTES, MAX_REQUEST_BYTES, one_line
from weir_planner.core.decide import TIMEOUT
from weir_planner.telemetry import PlannerFailed
from weir_runtime.http_client import AnswerRefused, Certificates, ConnectRefused, async_client
from weir_runtime.reach import AddressRefused, Allowed, Resolve, resolve

MAX_CONNECTIONS = 256
LARGE_BYTES = 50_000
"""Larger bodies are parsed in a thread."""


@dataclass(frozen=True)
class Answer:
    """A response's status, media type in small letters, and body."""

    status: int
    media_type: str
    body: bytes


class Credentials:
    """Bearer tokens by name, one file each, read at each use so that they can be replaced. They are never shown."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def token(self, name: str) -> str:
        """Return a token. Raises `PlannerFailed` that names the setting."""
        where = "WEIR_PLANNER_CREDENTIALS_FOLDER"
        if self._folder is None:
            raise PlannerFailed(f"credential {name} is not known: {where} names no folder", counts=False)
        try:
            token = (self._folder / name).read_text().strip()
        except (OSError, ValueError):
            raise PlannerFailed(f"credential {name} is not a readable file in {where}", counts=False) from None
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise PlannerFailed(f"credential {name} in {where} is not one line of a token", counts=False)
        return token


class PlannerClient:
    """Requests to planners; every failure is a `PlannerFailed` whose sentence can be shown."""

    def __init__(
        self,
        allowed: Allowed,
        credentials: Credentials | None = None,
        *,
        reply_bytes: int = MAX_REPLY_BYTES,
        request_bytes: int = MAX_REQUEST_BYTES,
        ca_file: Path | None = None,
        resolve: Resolve = resolve,
    ) -> None:
        self.allowed = allowed
        self._credentials = credentials or Credentials(None)
        self.request_bytes = request_bytes
        self._client = async_client(
            answer_bytes=reply_bytes,
            connections=MAX_CONNECTIONS,
            # Many servers close an idle connection after 5 s, the usual interval: some requests would be lost.
            idle_connections=0,
            allowed=allowed,
            certificates=None if ca_file is None else Certificates(ca_file),
            resolve=resolve,
        )

    async def close(self) -> None:
        await self._client.aclose()

    def check(self, url: str, credential: str | None = None) -> None:
        """Raise `PlannerFailed` if a planner must not be called there, as far as that is known without connecting."""
        try:
            self.allowed.check_url(url)
        except AddressRefused as error:
            raise PlannerFailed(str(error), counts=False) from None
        if credential is not None:
            self._credentials.token(credential)

    async def post_json(self, url: str, body: Any, timeout_seconds: float, credential: str | None) -> Any:
        """Return the JSON of a 200; `body` is encoded JSON, or anything that can be encoded."""
        content = body if isinstance(body, bytes) else json.dumps(body, allow_nan=False).encode()
        return await self._json("POST", url, content, timeout_seconds, credential)

    async def get_json(self, url: str, timeout_seconds: float, credential: str | None) -> Any:
        return await self._json("GET", url, None, timeout_seconds, credential)

    async def _json(self, method: str, url: str, content: bytes | None, seconds: float, credential: str | None) -> Any:
        answer = await self.exchange(method, url, content, seconds, credential)
        return await read_json(usable(answer))

    async def exchange(
        self, method: str, url: str, content: bytes | None, timeout_seconds: float, credential: str | None = None
    ) -> Answer:
        """Send one request; return the complete response, whatever its status."""
        self.check(url)
        if content is not None and len(content) > self.request_bytes:
            raise PlannerFailed(
                f"the request is {len(content)} bytes, more than {self.request_bytes}, and was not sent", counts=False
            )
        token = self._credentials.token(credential) if credential is not None else None
        try:
            async with asyncio.timeout(timeout_seconds):
                answer = await self._exchange(method, url, content, timeout_seconds, token)
        except (TimeoutError, httpx.TimeoutException):
            raise PlannerFailed(f"did not reply within {timeout_seconds:g} s", code=TIMEOUT) from None
        except ConnectRefused as error:
            raise PlannerFailed(str(error), counts=False) from None
        except AnswerRefused as error:
            raise PlannerFailed(str(error)) from None
        except (UnicodeError, ValueError, httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise PlannerFailed(f"could not be called: {one_line(error)}", counts=False) from None
        except (httpx.TransportError, OSError) as error:
            raise PlannerFailed(f"could not be called: {one_line(error)}") from None
        if token is not None and token.encode() in answer.body:
            raise PlannerFailed("repeats its credential in its reply, which is not read further")
        return answer

    async def _exchange(
        self, method: str, url: str, content: bytes | None, seconds: float, token: str | None
    ) -> Answer:
        headers = {"Accept": "application/json"}
        if content is not None:
            headers["Content-Type"] = "application/json"
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        response = await self._client.request(method, url, headers=headers, content=content, timeout=seconds)
        media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        return Answer(response.status_code, media_type, response.content)


def usable(answer: Answer) -> bytes:
    """Return the body of a 200 with JSON. Raises `PlannerFailed` with the reason."""
    status = answer.status
    if 300 <= status < 400:
        raise PlannerFailed(f"answered {status}, a redirect, which is not followed")
    if status != 200:
        is_sick = status >= 500 or status in (408, 429)
        raise PlannerFailed(f"answered {status}{_detail(answer)}", counts=is_sick)
    if not is_json(answer.media_type):
        raise PlannerFailed(f"answered with content type {answer.media_type[:60] or 'unknown'}, not application/json")
    return answer.body


def is_json(media_type: str) -> bool:
    return media_type == "application/json" or (media_type.startswith("application/") and media_type.endswith("+json"))


def _detail(answer: Answer) -> str:
    """Return an error's text from the two fields that planners use."""
    if not is_json(answer.media_type):
        return ""
    try:
        document = from_json(answer.body)
    except ValueError:
        return ""
    detail = (document.get("detail") or document.get("message")) if isinstance(document, dict) else None
    return f": {one_line(detail)}" if isinstance(detail, str) else ""


async def read_json(body: bytes) -> Any:
    """Parse JSON of bounded depth with finite numbers. Raises `PlannerFailed`."""
    if len(body) > LARGE_BYTES:
        return await asyncio.to_thread(_read, body)
    return _read(body)


def _read(body: bytes) -> Any:
    try:
        document = from_json(body)
    except ValueError as error:
        raise PlannerFailed(f"answered something that is not JSON: {one_line(error)}") from None
    level: list[Any] = [document]
    for _depth in range(MAX_JSON_DEPTH + 1):
        below: list[Any] = []
        for each in level:
            if isinstance(each, float) and not math.isfinite(each):
                raise PlannerFailed("answered with NaN or infinity")
            if isinstance(each, dict):
                below.extend(each.values())
            elif isinstance(each, list):
                below.extend(each)
        if not below:
            return document
        level = below
    raise PlannerFailed(f"answered with more than {MAX_JSON_DEPTH} levels of nested lists and objects")

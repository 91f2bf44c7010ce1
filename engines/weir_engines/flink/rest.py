"""REST API of one Flink cluster over an HTTP client that the caller creates, limits and closes; the values in its responses.

A missing optional value is `None`; a value of the wrong form raises `Unreadable` with its place.
"""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import httpx
from pydantic_core import from_json

from weir_contracts import MAX_SECONDS, within

_ID = re.compile(r"[0-9A-Za-z_-]{1,64}")
MAX_PARALLELISM = 32_768


class Unreadable(ValueError):
    """Error of a response that differs from Flink's documentation; `where` names call and field."""

    def __init__(self, where: str, what: str) -> None:
        self.where = where
        self.what = what
        super().__init__(f"{where}: {what}")


def mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise Unreadable(where, f"expected an object, got {type(value).__name__}")
    return value


def sequence(value: Any, where: str) -> Sequence[Any]:
    if not isinstance(value, list):
        raise Unreadable(where, f"expected a list, got {type(value).__name__}")
    return value


def text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise Unreadable(where, f"expected a text that is not empty, got {type(value).__name__}")
    return value


def identifier(value: Any, where: str) -> str:
    """Return an id that is safe in the path of a request."""
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise Unreadable(where, "expected an id of letters, digits, - and _")
    return value


def number(value: Any) -> float | None:
    """Return a number or numeric text as a float of 0 or more within the bounds of messages, else None (NaN, -1,
    text)."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        parsed = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return within(parsed) if parsed >= 0 else None


def count(value: Any) -> int | None:
    parsed = number(value)
    return None if parsed is None else int(parsed)


def instant(milliseconds: Any) -> datetime | None:
    """Return the instant of milliseconds since the epoch; None for 0, -1 and anything but a time."""
    parsed = number(milliseconds)
    if not parsed or parsed > 32_503_680_000_000:
        return None
    return datetime.fromtimestamp(parsed / 1000, UTC)


_UNITS = {
    "ns": 1e-9,
    **dict.fromkeys(("us", "µs"), 1e-6),
    **dict.fromkeys(("", "ms", "milli", "millis", "millisecond", "milliseconds"), 0.001),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}
_DURATION = re.compile(r"(\d{1,18})\s*([a-zµ]*)")
_ISO_DURATION = re.compile(r"pt(?=\d)(?:(\d{1,12})h)?(?:(\d{1,12})m)?(?:(\d{1,12}(?:\.\d+)?)s)?")


def flink_seconds(value: str | None, default: float | None) -> float | None:
    """Return the seconds of a duration in Flink's form (`30 s`, `1 min`, `PT30S`, plain milliseconds).

    `default` if it is unset, None if it is unreadable or longer than 366 days.
    """
    if value is None:
        return default
    cleaned = value.strip().strip("'\"").lower()
    if iso := _ISO_DURATION.fullmatch(cleaned):
        hours, minutes, seconds = (float(part or 0) for part in iso.groups())
        return within(hours * 3600 + minutes * 60 + seconds, MAX_SECONDS)
    match = _DURATION.fullmatch(cleaned)
    return None if match is None or match[2] not in _UNITS else within(float(match[1]) * _UNITS[match[2]], MAX_SECONDS)


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
    """Error of a call (`where`) without a response, or refused with `status`, for a `reason` if it is a known one."""

    def __init__(self, where: str, what: str, status: int | None = None, reason: str | None = None) -> None:
        self.where = where
        self.what = what
        self.status = status
        self.reason = reason
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

    async def send(
        self, method: str, path: str, *, explain: Callable[[bytes], str | None] | None = None, **arguments: Any
    ) -> bytes:
        """Return the body of the response; `CallFailed` for any status but 2xx, with the reason that `explain` finds in its body, by
        default one of those known of any call. `arguments` are httpx's."""
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
            known = (explain or reason)(response.content)
            detail = known or httpx.codes.get_reason_phrase(status)
            raise CallFailed(where, f"status {status} {detail}".rstrip(), status, known)
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

"""Collector of a policy's Prometheus queries, each a named signal with one value.

The policy's author chooses the address, so that no text of a response is passed on.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
from pydantic_core import from_json

from weir_contracts import MAX_NUMBER, Problem, PrometheusSignals, within
from weir_runtime.http_client import async_client
from weir_runtime.reach import TARGETS, Allowed

MAX_RESPONSE_BYTES = 1_000_000
MAX_CONCURRENT_QUERIES = 8
_ERRORS = frozenset({"timeout", "canceled", "execution", "bad_data", "internal", "unavailable", "not_found"})
"""Types of errors that Prometheus documents."""


@dataclass(frozen=True)
class SignalReadings:
    """Values by name of the signal; None for one that could not be read, with its problem."""

    values: Mapping[str, float | None] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()


class QueryFailed(Exception):
    """A query without exactly one usable value; the sentence says why."""


class PrometheusCollector:
    """Reader of the queries of one policy. Failures are problems in the readings and not raised."""

    def __init__(
        self,
        signals: PrometheusSignals,
        timeout_seconds: float,
        allowed: Allowed = TARGETS,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._queries = signals.queries
        self._url = f"{str(signals.url).rstrip('/')}/api/v1/query"
        self._timeout_seconds = timeout_seconds
        self._client = async_client(
            timeout_seconds=timeout_seconds,
            answer_bytes=MAX_RESPONSE_BYTES,
            connections=MAX_CONCURRENT_QUERIES,
            allowed=allowed,
            transport=transport,
        )
        self._calls = asyncio.Semaphore(MAX_CONCURRENT_QUERIES)

    async def close(self) -> None:
        await self._client.aclose()

    async def read(self) -> SignalReadings:
        """Return the value of each query now, all within the timeout: a silent server must not hold back the engine's
        readings."""
        found = await asyncio.gather(*(self._value(query) for query in self._queries.values()))
        values: dict[str, float | None] = {}
        problems = []
        for name, value in zip(self._queries, found, strict=True):
            values[name] = None if isinstance(value, str) else value
            if isinstance(value, str):
                problems.append(Problem(where=f"signals.prometheus.queries.{name}", what=value))
        return SignalReadings(values, tuple(problems))

    async def _value(self, query: str) -> float | str:
        """Return the value, or why there is none."""
        try:
            async with asyncio.timeout(self._timeout_seconds), self._calls:
                response = await self._client.get(
                    self._url, params={"query": query, "timeout": f"{self._timeout_seconds:g}s"}
                )
            return value_of(response.content, response.status_code)
        except QueryFailed as error:
            return str(error)
        except (httpx.TimeoutException, TimeoutError):
            return f"no answer within {self._timeout_seconds:g} s"
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return str(error)[:300] or type(error).__name__


def value_of(content: bytes, status: int = 200) -> float:
    """Return the one value of an instant query's response; `QueryFailed` without one."""
    try:
        document: Any = from_json(content)
    except ValueError:
        raise QueryFailed(f"status {status}, and the answer is not JSON: check signals.prometheus.url") from None
    if not isinstance(document, dict) or document.get("status") != "success":
        kind = document.get("errorType") if isinstance(document, dict) else None
        detail = f" ({kind})" if isinstance(kind, str) and kind in _ERRORS else ""
        raise QueryFailed(f"the server refused the query with status {status}{detail}")
    data = document.get("data")
    kind, result = (data.get("resultType"), data.get("result")) if isinstance(data, dict) else (None, None)
    if kind == "vector" and isinstance(result, list):
        if not result:
            raise QueryFailed("no series: check the query's metric and labels")
        if len(result) > 1:
            raise QueryFailed(f"{len(result)} series instead of one: aggregate them, for example with sum(…)")
        return _number(result[0].get("value") if isinstance(result[0], dict) else None)
    if kind == "scalar":
        return _number(result)
    raise QueryFailed("neither one instant value nor a scalar: the query must not be a range or a text")


def _number(sample: Any) -> float:
    """Return the value of a sample, `[time, "text"]`."""
    written = sample[1] if isinstance(sample, list) and len(sample) == 2 else None
    try:
        value = float(written) if isinstance(written, str) and len(written) <= 64 else None
    except ValueError:
        value = None
    if value is None:
        raise QueryFailed("the value is not a number")
    bounded = within(value)
    if bounded is None:
        raise QueryFailed(f"the value is {value:g}, which is no finite number of at most {MAX_NUMBER:g}")
    return bounded

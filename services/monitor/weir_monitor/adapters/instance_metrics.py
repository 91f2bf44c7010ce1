"""Collector of the metrics endpoints of one application's instances.

Addresses come from the policy's endpoint target, else from the group: the host of each member, as the brokers see it.
No text of a response is passed on.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

import httpx
from pydantic import ValidationError

from weir_contracts import EndpointTarget, Problem
from weir_contracts.application import InstanceMetrics as Endpoint
from weir_contracts.plugins import EndpointState
from weir_engines.kafka_streams.metrics import MAX_BYTES, InstanceMetrics, Unreadable, instance_metrics
from weir_runtime.http_client import async_client
from weir_runtime.reach import TARGETS, Allowed

MAX_INSTANCES = 200
MAX_CONCURRENT_CALLS = 8
_MAX_STATE_BYTES = 1_000_000
_MAX_PROBLEMS = 3


@dataclass(frozen=True)
class MetricsReadings:
    """Metrics of the instances that answered, and why others did not."""

    found: tuple[InstanceMetrics, ...] = ()
    problems: tuple[Problem, ...] = ()


class _Failed(Exception):
    """An endpoint without metrics; the sentence says why."""


class InstanceMetricsCollector:
    """Reader of all instances of one application. Failures are problems in the readings and not raised."""

    def __init__(
        self, endpoint: Endpoint, target: EndpointTarget | None, timeout_seconds: float, allowed: Allowed = TARGETS
    ) -> None:
        self._endpoint = endpoint
        self._target = target
        self._timeout_seconds = timeout_seconds
        self._client = async_client(
            timeout_seconds=timeout_seconds,
            answer_bytes=MAX_BYTES,
            connections=MAX_CONCURRENT_CALLS,
            allowed=allowed,
        )
        self._calls = asyncio.Semaphore(MAX_CONCURRENT_CALLS)

    async def close(self) -> None:
        await self._client.aclose()

    async def read(self, hosts: Iterable[str]) -> MetricsReadings:
        """Return the metrics of all instances, within the timeout; `hosts` are those of the group's members."""
        problems: list[Problem] = []
        urls = await self._urls(hosts, problems)
        answers = await asyncio.gather(*(self._metrics(url) for url in urls[:MAX_INSTANCES]))
        found = [each for each in answers if isinstance(each, InstanceMetrics)]
        failed = [(url, each) for url, each in zip(urls, answers, strict=False) if isinstance(each, str)]
        problems += [Problem(where=f"metrics {url}", what=reason) for url, reason in failed[:_MAX_PROBLEMS]]
        if len(failed) > _MAX_PROBLEMS or len(urls) > MAX_INSTANCES:
            what = f"{len(urls) - len(found)} of {len(urls)} instances report no metrics: busy time is unknown"
            problems.append(Problem(where="metrics", what=what))
        return MetricsReadings(tuple(found), tuple(problems))

    async def _urls(self, hosts: Iterable[str], problems: list[Problem]) -> list[str]:
        if self._target is None:
            named = sorted({f"[{host}]" if ":" in host else host for host in hosts if host})
            return [f"http://{host}:{self._endpoint.port}{self._endpoint.path}" for host in named]
        try:
            state = EndpointState.model_validate_json(await self._get(str(self._target.url), _MAX_STATE_BYTES))
        except _Failed as error:
            problems.append(Problem(where="target.endpoint", what=str(error)))
            return []
        except ValidationError as error:
            field = ".".join(str(part) for part in error.errors(include_url=False, include_input=False)[0]["loc"])
            problems.append(
                Problem(where="target.endpoint", what=f"its answer is not valid at {field[:100] or 'its root'}")
            )
            return []
        return [str(each.metrics_url) for each in state.instances if each.metrics_url is not None]

    async def _metrics(self, url: str) -> InstanceMetrics | str:
        """Return the metrics, or why there are none."""
        try:
            return await asyncio.to_thread(instance_metrics, await self._get(url, MAX_BYTES))
        except (_Failed, Unreadable) as error:
            return str(error)

    async def _get(self, url: str, max_bytes: int) -> bytes:
        try:
            async with asyncio.timeout(self._timeout_seconds), self._calls:
                response = await self._client.get(url)
        except (httpx.TimeoutException, TimeoutError):
            raise _Failed(f"no answer within {self._timeout_seconds:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _Failed(str(error)[:300] or type(error).__name__) from None
        if response.status_code != httpx.codes.OK:
            raise _Failed(f"status {response.status_code} instead of 200")
        if len(response.content) > max_bytes:
            raise _Failed(f"the answer has {len(response.content):,} bytes, more than {max_bytes:,}")
        return response.content

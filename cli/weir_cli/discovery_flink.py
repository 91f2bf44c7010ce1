"""The running jobs of a Flink cluster, for `weir run --flink`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import urlsplit

import httpx

from weir_contracts import counted, parse_policy
from weir_engines.flink.rest import CallFailed, Cluster, Unreadable, mapping
from weir_engines.flink.topology import JobEntry, running_jobs
from weir_runtime.http_client import async_client

from .client import InvalidInput, Unreachable
from .discovery import CALL_SECONDS, LAG_BOUND, MIN_BOUND, Candidate, Found
from .discovery_kafka import Brokers

ANSWER_BYTES = 8_000_000
"""An overview of a thousand jobs has less than a megabyte."""
_REMEDY = "name the JobManager's REST address, such as http://HOST:8081"


def candidates(url: str, jobs: Sequence[JobEntry], brokers: Brokers | None = None) -> list[Candidate]:
    """Return the jobs as candidates. Of several jobs with one name each is named by its id."""
    names = [job.name for job in jobs]
    return [
        Candidate(job.name, job.id[:8].lower(), _spec(url, job, brokers, by_id=names.count(job.name) > 1))
        for job in jobs
    ]


def _spec(url: str, job: JobEntry, brokers: Brokers | None, *, by_id: bool) -> dict[str, Any]:
    """Return the specification that advises on a job.

    Without brokers the time at which a waiting record was appended is unknown, so the policy bounds the time until a new
    record is processed. No operator has more subtasks than the job.
    """
    spec: dict[str, Any] = {
        "application": {"flink": {"url": url, "job": job.id if by_id else job.name}},
        "objective": {"maxLatency" if brokers is None else "maxLag": LAG_BOUND},
        "bounds": {"max": max(MIN_BOUND, job.tasks or 0)},
    }
    if brokers is not None:
        spec["signals"] = {"kafka": brokers.signals | ({"groupId": brokers.group} if brokers.group else {})}
    return spec


@dataclass(eq=False)
class FlinkJobs:
    """Source of a cluster's jobs."""

    url: str
    brokers: Brokers | None = None
    transport: httpx.AsyncBaseTransport | None = None
    """Replaces the network in tests."""
    label: ClassVar[str] = "flink"
    option: ClassVar[str] = "--flink"
    max_watched: ClassVar[int | None] = None
    _is_flink: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.url = self.url.rstrip("/")
        if urlsplit(self.url).scheme not in ("http", "https") or not urlsplit(self.url).hostname:
            raise InvalidInput(f"--flink: {self.url!r} is no address: write http://HOST:8081")
        self._client = async_client(timeout_seconds=CALL_SECONDS, answer_bytes=ANSWER_BYTES, transport=self.transport)
        self._cluster = Cluster(self._client, self.url, 2 * CALL_SECONDS)

    @property
    def place(self) -> str:
        return self.url

    async def find(self) -> Found:
        """Return the running jobs. `InvalidInput` or `Unreachable` with what to do if this is no Flink."""
        if not self._is_flink:
            version = await self._get("/config", lambda found: mapping(found, "/config").get("flink-version"))
            if not isinstance(version, str):
                raise InvalidInput(f"--flink: {self.url} is no Flink: its /config names no flink-version; {_REMEDY}")
            self._is_flink = True
        jobs: list[JobEntry] = await self._get("/jobs/overview", running_jobs)
        sentence = (
            f"{self.url}: {counted(len(jobs), 'job')} running" if jobs else f"no job runs on {self.url} yet: submit one"
        )
        return Found(candidates(self.url, jobs, self.brokers), sentence)

    async def _get(self, path: str, parse: Any) -> Any:
        try:
            return await self._cluster.get(path, parse)
        except Unreadable as error:
            raise InvalidInput(
                f"--flink: {self.url} answers, but not as Flink does ({error}), as a proxy or its login page would; {_REMEDY}"
            ) from None
        except CallFailed as error:
            if error.status in (401, 403):
                raise InvalidInput(
                    f"--flink: {self.url} wants a login ({error.what}): name the JobManager's own address, or write a "
                    "policy with credentials (-f)"
                ) from None
            if error.status is not None:
                raise InvalidInput(
                    f"--flink: {self.url} is no Flink, or not yet: {path} answers {error.what}; {_REMEDY}"
                ) from None
            raise Unreachable(
                f"--flink: nothing answers at {self.url} ({error.what}): start the cluster, or name its REST address"
            ) from None

    def covers(self, policy: Mapping[str, Any]) -> bool:
        flink = parse_policy(policy).subject.application.flink
        return flink is not None and str(flink.url).rstrip("/") == self.url

    async def close(self) -> None:
        await self._client.aclose()

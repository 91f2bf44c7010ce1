"""Finds the jobs of a Flink cluster that no policy names, and writes one that advises for each."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx
import structlog

from weir_engines.flink.rest import CallFailed, Cluster, Unreadable, mapping
from weir_engines.flink.topology import JobEntry, running_jobs
from weir_runtime.http_client import async_client
from weir_runtime.loop import Stop, run_forever

from .client import InvalidInput, Unreachable
from .single import LocalApi

LABEL = "weir.dev/found"
"""Of policies that were found, not written: they are removed again with their job."""
NAMESPACE = "default"
LOOK_SECONDS = 5.0
GONE_SECONDS = 60.0
"""A job that was away for this long has ended; one that is submitted again keeps its policy."""
CALL_SECONDS = 5.0
ANSWER_BYTES = 8_000_000
"""An overview of a thousand jobs has less than a megabyte."""
LAG_BOUND = "30s"
_NAME_CHARACTERS = 50


@dataclass(frozen=True)
class Brokers:
    """Kafka brokers of the sources, and their group, if given."""

    servers: str
    group: str | None = None


def found_policy(url: str, job: JobEntry, name: str, brokers: Brokers | None, *, by_id: bool) -> dict[str, Any]:
    """Return the policy that advises for a job.

    Without brokers the time at which a waiting record was appended is unknown, so the policy bounds the time until a new
    record is processed.
    """
    objective = {"maxLatency": LAG_BOUND} if brokers is None else {"maxLag": LAG_BOUND}
    spec: dict[str, Any] = {
        "application": {"flink": {"url": url, "job": job.id if by_id else job.name}},
        "objective": objective,
        "mode": "advise",
    }
    if brokers is not None:
        kafka = {"bootstrapServers": brokers.servers} | ({"groupId": brokers.group} if brokers.group else {})
        spec["signals"] = {"kafka": kafka}
    metadata = {"namespace": NAMESPACE, "name": name, "labels": {LABEL: "flink"}}
    return {"apiVersion": "weir.dev/v1alpha1", "kind": "ScalingPolicy", "metadata": metadata, "spec": spec}


def found_policies(url: str, jobs: Sequence[JobEntry], brokers: Brokers | None = None) -> dict[str, dict[str, Any]]:
    """Return a policy for each job, by application. Policies of jobs with the same name end with their ids."""
    names = [job.name for job in jobs]
    found: dict[str, dict[str, Any]] = {}
    for job in jobs:
        by_id = names.count(job.name) > 1
        name = policy_name(job.name)
        if by_id or f"{NAMESPACE}/{name}" in found:
            name = f"{name}-{job.id[:8].lower()}"
        found[f"{NAMESPACE}/{name}"] = found_policy(url, job, name, brokers, by_id=by_id)
    return found


def policy_name(job: str) -> str:
    """Return a job's name in the form of a policy's: lower case, and a dash for every other character."""
    return re.sub(r"[^a-z0-9]+", "-", job.lower()).strip("-")[:_NAME_CHARACTERS].strip("-") or "job"


@dataclass(eq=False)
class Discovery:
    """Looks for jobs until stopped. `api` is that of the process."""

    url: str
    api: LocalApi
    brokers: Brokers | None = None
    jobs: int | None = None
    """Jobs that run on the cluster. None: it was not read yet."""
    trouble: str = ""
    """Why the cluster could not be read the last time; empty if it could."""
    transport: httpx.AsyncBaseTransport | None = None
    """Replaces the network in tests."""
    _found: set[str] = field(default_factory=set, init=False)
    _absent_since: dict[str, float] = field(default_factory=dict, init=False)
    _refused: dict[str, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.url = self.url.rstrip("/")
        if urlsplit(self.url).scheme not in ("http", "https") or not urlsplit(self.url).hostname:
            raise InvalidInput(f"--flink: {self.url!r} is no address: write http://HOST:8081")
        self._client = async_client(timeout_seconds=CALL_SECONDS, answer_bytes=ANSWER_BYTES, transport=self.transport)
        self._cluster = Cluster(self._client, self.url, 2 * CALL_SECONDS)

    async def check(self) -> int:
        """Return the number of jobs that run. `InvalidInput` or `Unreachable` with what to do if this is no Flink."""
        version = await self._get("/config", lambda found: mapping(found, "/config").get("flink-version"))
        if not isinstance(version, str):
            raise InvalidInput(f"--flink: {self.url} is no Flink: its /config names no flink-version; {_REMEDY}")
        return len(await self._get("/jobs/overview", running_jobs))

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

    async def run(self, stop: Stop) -> None:
        """Look for jobs until stopped."""
        await run_forever("discovery", lambda: stop.race(self._look()), stop, pause_seconds=LOOK_SECONDS)

    async def close(self) -> None:
        await self._client.aclose()

    async def _look(self) -> None:
        try:
            jobs = await self._cluster.get("/jobs/overview", running_jobs)
        except (CallFailed, Unreadable) as error:
            self.trouble = f"{self.url}: {error}"
            return
        self.jobs, self.trouble = len(jobs), ""
        wanted = found_policies(self.url, jobs, self.brokers)
        for application, document in wanted.items():
            if application not in self._found:
                await self._add(application, document)
        await self._remove_absent(wanted)

    async def _add(self, application: str, document: Mapping[str, Any]) -> None:
        """Write the policy, unless there is one with this name or for this job."""
        refused = await self.api.create(application, document)
        if refused is None or refused.status_code == 409:
            self._found.add(application)
        elif self._refused.get(application) != refused.text:
            self._refused[application] = refused.text
            structlog.get_logger("discovery").warning("not-watched", application=application, reason=refused.text)

    async def _remove_absent(self, wanted: Collection[str]) -> None:
        now = self.api.clock.monotonic()
        for application in wanted:
            self._absent_since.pop(application, None)
        for application in self._found - set(wanted):
            since = self._absent_since.setdefault(application, now)
            if now - since >= GONE_SECONDS and await self.api.remove_found(application, LABEL):
                self._found.discard(application)
                del self._absent_since[application]


_REMEDY = "name the JobManager's REST address, such as http://HOST:8081"

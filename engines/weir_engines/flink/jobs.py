"""Blocking client for programs that submit and cancel jobs of a Flink session cluster."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from weir_engines.flink.rest import count, mapping, text

from .rest import CallFailed, decode
from .topology import JobEntry, find_job


class Jobs:
    """Jobs of one trusted cluster; `CallFailed` quotes the cluster's reason. The HTTP client has base URL and
    timeouts."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def get(self, path: str) -> Any:
        """Return the JSON response; `CallFailed` or `Unreadable` without one."""
        return self.call("GET", path)

    def call(self, method: str, path: str, **arguments: Any) -> Any:
        """Return the JSON response; `CallFailed` for any status but 2xx. `arguments` are httpx's."""
        where = f"{method} {path}"
        try:
            response = self._client.request(method, path, **arguments)
        except httpx.HTTPError as error:
            raise CallFailed(where, str(error) or type(error).__name__) from None
        if not response.is_success:
            raise CallFailed(where, f"{response.status_code} {_root_cause(response.text)}", response.status_code)
        return decode(response.content, where)

    def slots_total(self) -> int | None:
        """Return the number of registered slots; None while the cluster does not answer."""
        try:
            return count(mapping(self.get("/overview"), "/overview").get("slots-total"))
        except CallFailed:
            return None

    def find(self, wanted: str) -> JobEntry | None:
        """Return the newest job of this name or id that has not ended, else the newest, else None."""
        return find_job(self.get("/jobs/overview"), wanted)[0]

    def submit(
        self,
        jar: Path,
        arguments: Sequence[str] = (),
        *,
        parallelism: int | None = None,
        entry_class: str | None = None,
        savepoint: str | None = None,
    ) -> str:
        """Upload and run a job, and return its id. `savepoint` may be the path of a retained checkpoint."""
        with jar.open("rb") as content:
            files = {"jarfile": (jar.name, content, "application/x-java-archive")}
            uploaded = mapping(self.call("POST", "/jars/upload", files=files), "/jars/upload")
        jar_id = text(uploaded.get("filename"), "/jars/upload filename").rsplit("/", 1)[-1]
        options = {"parallelism": parallelism, "entryClass": entry_class, "savepointPath": savepoint}
        body = {"programArgsList": list(arguments)} | {k: v for k, v in options.items() if v is not None}
        started = mapping(self.call("POST", f"/jars/{jar_id}/run", json=body), "/jars/:id/run")
        return text(started.get("jobid"), "/jars/:id/run jobid")

    def cancel(self, job_id: str) -> None:
        """Cancel the job; no error if it has ended already or does not exist."""
        try:
            self.call("PATCH", f"/jobs/{job_id}?mode=cancel")
        except CallFailed as error:
            if error.status not in (404, 409):
                raise


def _root_cause(reply: str) -> str:
    causes = re.findall(r"Caused by: ([^\\\n]+)", reply)
    return (causes[-1] if causes else reply)[:500]

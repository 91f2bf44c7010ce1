"""A real Prometheus on the loopback interface, from the PATH: scraping, or filled with a past that is handed to it."""

import math
import shutil
import signal
import subprocess
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import httpx

from testbed.process import ManagedProcess, Server, TestbedError, claim_port, free_port

Series = dict[tuple[tuple[str, str], ...], list[tuple[float, float]]]
"""(Unix time, value) by a series' labels."""
INSTALL = "install Debian's package prometheus, or put prometheus and promtool on the PATH"


def program(name: str) -> str:
    """Where `prometheus` or `promtool` is; `TestbedError` that says what to install."""
    found = shutil.which(name)
    if found is None:
        raise TestbedError(f"no {name} on the PATH: {INSTALL}")
    return found


def promtool(*arguments: str, folder: Path | None = None, timeout_seconds: float = 300.0) -> str:
    """Return the output of promtool; raises `TestbedError` with it if promtool fails."""
    done = subprocess.run(
        [program("promtool"), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        check=False,
    )
    if done.returncode != 0:
        raise TestbedError(f"promtool {arguments[0]}: {done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


class Prometheus(Server):
    """One server. `configuration` is prometheus.yml's text; files it names are looked for in `folder`. A series without
    a sample for `lookback_seconds` is over: a past that is handed in has no other sign of its end."""

    def __init__(
        self, folder: Path, configuration: str, *, port: int | None = None, lookback_seconds: int = 300
    ) -> None:
        self.folder = folder
        self.port = port or free_port()
        self._configuration = configuration
        self._data = folder / "data"
        self.process = ManagedProcess(
            "prometheus",
            [
                program("prometheus"),
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={self._data}",
                "--storage.tsdb.retention.time=100y",
                f"--web.listen-address=127.0.0.1:{self.port}",
                f"--query.lookback-delta={lookback_seconds}s",
                "--log.level=warn",
            ],
            folder,
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def remember(self, openmetrics: str) -> None:
        """Before the start: a past, as OpenMetrics text with timestamps."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "past.om"
        path.write_text(openmetrics)
        promtool("tsdb", "create-blocks-from", "openmetrics", str(path), str(self._data))

    def start(self, timeout_seconds: float = 60.0) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "prometheus.yml").write_text(self._configuration)
        claim_port("prometheus", self.port)
        self.process.start_ready(self._answers, timeout_seconds=timeout_seconds)
        return self

    def reconfigure(self, configuration: str) -> None:
        """Another prometheus.yml from now on; what was scraped stays."""
        (self.folder / "prometheus.yml").write_text(configuration)
        self.process.signal_group(signal.SIGHUP)

    def query(self, query: str, at: datetime | None = None) -> Series:
        """An instant's values; `TestbedError` with what Prometheus says against the query."""
        return self._series("query", {"query": query, **({} if at is None else {"time": str(at.timestamp())})})

    def query_range(self, query: str, start: datetime, end: datetime, step_seconds: float = 10.0) -> Series:
        """Values over time; what is no number is left out."""
        span = {"start": str(start.timestamp()), "end": str(end.timestamp()), "step": str(step_seconds)}
        return self._series("query_range", {"query": query, **span})

    def _series(self, call: str, parameters: Mapping[str, str]) -> Series:
        result = self.get(f"/api/v1/{call}", parameters)
        if result["resultType"] == "scalar":
            return {(): [(result["result"][0], float(result["result"][1]))]}
        found: Series = {}
        for one in result["result"]:
            values = one["values"] if "values" in one else [one["value"]]
            points = [(float(at), float(value)) for at, value in values]
            finite = [(at, value) for at, value in points if math.isfinite(value)]
            if finite:
                found[tuple(sorted(one["metric"].items()))] = finite
        return found

    def get(self, path: str, parameters: Mapping[str, str] | None = None) -> Any:
        """The `data` of an answer of the API."""
        answer = httpx.get(f"{self.url}{path}", params=dict(parameters or {}), timeout=30, trust_env=False)
        document = answer.json()
        if document["status"] != "success":
            raise TestbedError(f"prometheus: {path}: {document.get('error')}")
        return document["data"]

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/-/ready", timeout=2, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

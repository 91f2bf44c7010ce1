"""One of Weir's own services as a process of its own."""

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from .process import ManagedProcess, free_port


class WeirService:
    """`python -m services.NAME` with its settings in the environment."""

    def __init__(self, name: str, folder: Path, environment: Mapping[str, str], *, port: int | None = None) -> None:
        self.name = name
        self.port = port or free_port()
        self.ready_seconds: float | None = None
        """From the process's start until it first said that it is ready."""
        self._started_at: float | None = None
        self.process = ManagedProcess(
            name,
            [sys.executable, "-m", f"services.{name}"],
            folder,
            environment={**environment, "WEIR_HTTP_PORT": str(self.port), "WEIR_HTTP_HOST": "127.0.0.1"},
            grace_seconds=10.0,
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self.process.pid

    def start(self) -> Self:
        """Start it; returns at once (see `wait_ready`)."""
        self._started_at = time.monotonic()
        self.process.start()
        return self

    def wait_ready(self, timeout_seconds: float = 90.0) -> None:
        """Until `/health/ready` says so; `TestbedError` with the end of its log otherwise."""
        self.process.wait_ready(self.ready, timeout_seconds=timeout_seconds)
        if self.ready_seconds is None and self._started_at is not None:
            self.ready_seconds = round(time.monotonic() - self._started_at, 2)

    def ready(self) -> bool:
        """Whether it says that it is ready."""
        try:
            return httpx.get(f"{self.url}/health/ready", timeout=2.0).status_code == 200
        except httpx.HTTPError:
            return False

    def stop(self) -> None:
        self.process.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

"""The stack as its user reaches it: through its one published port, with the token."""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import httpx

from testbed.process import TestbedError, wait_until
from tests.containers.compose import WEIR


class Loop:
    """A stack and one application in it. Its times are a busy machine's.

    `stack` is a `ComposeStack`, or another place of the same parts with its `exec`, `healthy`, `logs` and
    `operator_token`.
    """

    def __init__(
        self,
        stack: Any,
        port: int,
        application: str = "demo/orders",
        host: str = "127.0.0.1",
        *,
        load: str = "load",
    ) -> None:
        self.stack = stack
        self._load = load
        self.application = application
        self.host, self.url = host, f"http://{host}:{port}"
        token = stack.operator_token()
        self.client = httpx.Client(base_url=self.url, timeout=10, headers={"Authorization": f"Bearer {token}"})

    def get(self, path: str) -> Any:
        """Return a response's body; None while it is unavailable."""
        try:
            answer = self.client.get(path)
        except httpx.TransportError:
            return None
        return answer.json() if answer.status_code == 200 else None

    def summary(self) -> Mapping[str, Any]:
        return self.get(f"/v1/applications/{self.application}") or {}

    def set_load(self, **load: float | None) -> None:
        """Change the load from inside its container; the generator is unreachable from outside."""
        settings = [f"{name}={json.dumps(value)}" for name, value in load.items()]
        self.stack.exec(self._load, "python", "-m", "workloads.loadgen.set_load", *settings)

    def until(self, what: str, condition: Callable[[Mapping[str, Any]], Any], seconds: float = 300) -> None:
        """Wait for a condition of the application; the error has its last summary and the services' logs."""
        try:
            wait_until(lambda: condition(self.summary()), timeout_seconds=seconds, what=what, poll_seconds=1.0)
        except TestbedError as error:
            raise AssertionError(f"{error}; instead: {self.summary()}\n{self.stack.logs(*WEIR)}") from None

    def decided_since(self, summary: Mapping[str, Any], killed: datetime, service: str) -> bool:
        """Return whether there is a decision on a later reading of the running job, and the service is ready."""
        plan = self.get(f"/v1/applications/{self.application}/plan") or {}
        fresh = "observed_at" in plan and datetime.fromisoformat(plan["observed_at"]) > killed
        return fresh and not summary.get("silent") and slowest(summary) >= 1 and self.stack.healthy(service)


def slowest(summary: Mapping[str, Any]) -> int:
    """Observed parallelism of the operator that everything waits for; 0: unknown."""
    return int((summary.get("observed") or {}).get("enrich", 0))

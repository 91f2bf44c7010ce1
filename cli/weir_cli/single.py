"""All five services in one process: the same shells and cores on one bus, one store and one listener.

Services never import one another, so they are put together here, in the layer above them. Requests from one to the other
go to the API of this process, without a network.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

import httpx
from fastapi import FastAPI
from pydantic import PrivateAttr, SecretStr, ValidationError
from pydantic_settings import SettingsConfigDict, SettingsError

from weir_analyzer.adapters import direct as analyzer
from weir_analyzer.settings import AnalyzerSettings
from weir_executor import __main__ as executor
from weir_executor.settings import Settings as ExecutorSettings
from weir_knowledge import __main__ as knowledge
from weir_knowledge.settings import KnowledgeSettings
from weir_knowledge.store import Store
from weir_monitor import __main__ as monitor
from weir_monitor.settings import MonitorSettings
from weir_planner import __main__ as planner
from weir_planner.settings import PlannerSettings
from weir_runtime.access import Caller, Tokens
from weir_runtime.bus import Bus
from weir_runtime.clock import Clock
from weir_runtime.http_client import async_client
from weir_runtime.policy_credentials import BrokerSettings
from weir_runtime.service import Health, Service, Task, health_router
from weir_runtime.settings import ServiceSettings, problems, shared

from .client import InvalidInput

S = TypeVar("S", bound=ServiceSettings)
ADDRESS = "http://127.0.0.1"
"""Of this process's API for its own requests, which reach no network."""


READY_SECONDS = 180.0
"""For the log to be read and the planners' processes to start, which check a policy, on a busy machine."""


class SingleSettings(BrokerSettings):
    """Settings of all services in one process: the shared ones, those of the brokers that are looked at, and those of each
    service with its own prefix."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    partitions: int = 1
    """one owner has all partitions, so that more would only cost"""
    log_level: str = shared("log_level", default="WARNING", pattern="^(DEBUG|INFO|WARNING|ERROR)$")
    """minimum level that is logged"""
    _own_token: str = PrivateAttr(default_factory=lambda: secrets.token_urlsafe(32))

    def callers(self) -> Tokens:
        """Return the tokens of the callers, and that of this process's own requests where tokens are needed."""
        return super().callers().with_own(self._own_token, Caller("weir", frozenset({"write", "executor"})))

    @property
    def own_token(self) -> SecretStr:
        """The token of requests from one service to another in this process."""
        return SecretStr(self._own_token)


@dataclass(frozen=True)
class OneProcess:
    """The API, the tasks of all services, and what closes them."""

    app: FastAPI
    tasks: dict[str, Task]
    close: Callable[[], Awaitable[None]]
    api: "LocalApi"


@dataclass(frozen=True)
class LocalApi:
    """The API of this process, for the process itself."""

    client: httpx.AsyncClient
    clock: Clock

    async def put(self, application: str, document: Mapping[str, Any], **headers: str) -> httpx.Response | None:
        """Store a policy; return the refusal, None if there is none. Waits while the log is read."""
        until = self.clock.monotonic() + READY_SECONDS
        while True:
            answer = await self.client.put(f"/v1/policies/{application}", json=dict(document), headers=headers)
            if answer.status_code != 503 or self.clock.monotonic() > until:
                return None if answer.is_success else answer
            await asyncio.sleep(0.2)

    async def create(self, application: str, document: Mapping[str, Any]) -> httpx.Response | None:
        """Store a policy unless the application has one, which is refused with 409."""
        return await self.put(application, document, **{"If-None-Match": "*"})

    async def found(self, label: str, value: str) -> dict[str, dict[str, Any]]:
        """Return all policies that have the label with this value, by application. Waits while the log is read."""
        until = self.clock.monotonic() + READY_SECONDS
        found: dict[str, dict[str, Any]] = {}
        after: str | None = ""
        while after is not None:
            answer = await self.client.get("/v1/policies", params={"limit": 500, "after": after})
            if answer.status_code == 503 and self.clock.monotonic() < until:
                await asyncio.sleep(0.2)
                continue
            answer.raise_for_status()
            for policy in answer.json()["items"]:
                if policy["metadata"].get("labels", {}).get(label) == value:
                    found[f"{policy['metadata']['namespace']}/{policy['metadata']['name']}"] = policy
            after = answer.json()["next"]
        return found

    async def remove_found(self, application: str, label: str, value: str) -> bool | None:
        """Delete a policy that still has the label with this value and only advises; return whether it was there to be deleted.
        None: it cannot be deleted now."""
        path = f"/v1/policies/{application}"
        answer = await self.client.get(path)
        if answer.is_success:
            policy = answer.json()
            if (
                policy["metadata"].get("labels", {}).get(label) != value
                or policy["spec"].get("mode", "advise") == "act"
            ):
                return False
            answer = await self.client.delete(path, headers={"If-Match": f'"{policy["metadata"]["version"]}"'})
        return False if answer.status_code == 404 else True if answer.is_success else None


def compose(
    settings: SingleSettings, bus: Bus, store: Store, clock: Clock, reads: Mapping[str, Any] = MappingProxyType({})
) -> OneProcess:
    """Put all services together. `InvalidInput` for a setting of one of them. `reads` replaces settings of the monitor alone:
    what it reads there nothing scales."""
    app, health = knowledge.api(), Health(clock)
    transport, token = _transport(app), settings.own_token
    common: dict[str, Any] = {"partitions": settings.partitions}
    of_knowledge = of_environment(KnowledgeSettings, planner_url=ADDRESS, planner_token=token, **common)
    of_executor = of_environment(ExecutorSettings, knowledge_url=ADDRESS, knowledge_token=token, **common)
    of_monitor = of_environment(MonitorSettings, **common, **reads)
    for each in (of_knowledge, of_monitor, of_executor):
        for file in each.followed_files:
            settings.follow(file)
    services = [
        knowledge.service(of_knowledge, bus, store, clock, health, planner_transport=transport),
        monitor.service(of_monitor, bus, clock, health),
        analyzer.service(of_environment(AnalyzerSettings, **common), bus, clock, health),
        planner.service(of_environment(PlannerSettings, **common), bus, clock, health),
        executor.service(of_executor, bus, clock, health, knowledge_transport=transport),
    ]
    return _one_process(app, services, settings, bus, store, health)


def compose_knowledge(settings: SingleSettings, bus: Bus, store: Store, clock: Clock) -> OneProcess:
    """Only knowledge and its API, for a loop that runs elsewhere, as in simulated time."""
    health = Health(clock)
    own = of_environment(KnowledgeSettings, planner_url=None, partitions=settings.partitions)
    services = [knowledge.service(own, bus, store, clock, health)]
    return _one_process(knowledge.api(), services, settings, bus, store, health)


def _one_process(
    app: FastAPI, services: Sequence[Service], settings: SingleSettings, bus: Bus, store: Store, health: Health
) -> OneProcess:
    health.register("log", bus.ping)
    health.register("store", store.check_room)
    for router in (health_router(health), *(router for service in services for router in service.routers)):
        app.include_router(router)
    client = async_client(ADDRESS, settings.own_token, timeout_seconds=15.0, transport=_transport(app))

    async def close() -> None:
        await client.aclose()
        for service in services:
            await service.close()
        await bus.close()
        await store.close()

    tasks = {name: task for service in services for name, task in service.tasks.items()}
    return OneProcess(app, tasks, close, LocalApi(client, health.clock))


def detail_of(refused: httpx.Response) -> str:
    """Return the sentence of a refusal by this process's API."""
    with suppress(ValueError, AttributeError):
        return str(refused.json().get("detail", refused.text))
    return refused.text


def _transport(app: FastAPI) -> httpx.AsyncBaseTransport:
    """Return the way to the API of this process. An exception there is a response with status 500, as over a network."""
    return httpx.ASGITransport(app, raise_app_exceptions=False)


def of_environment(model: type[S], **fixed: Any) -> S:
    """Read settings from the environment, with these values; `InvalidInput` names an invalid one."""
    try:
        return model(**fixed)
    except ValidationError as error:
        raise InvalidInput(f"settings: {'; '.join(problems(model, error))}") from None
    except (SettingsError, ValueError) as error:
        raise InvalidInput(f"settings: {error}") from None

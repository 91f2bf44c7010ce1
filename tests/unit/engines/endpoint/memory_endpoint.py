"""Reference server of an endpoint, and the consumer group of its instances, in memory and in given time.

`Supervisor.answer` is the server: a test reaches it without a network (`transport`) or over HTTP (`serving`).
"""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import httpx
from pydantic import ValidationError

from weir_contracts import KafkaSignals, ScalingPolicy, Subject, parse_policy
from weir_contracts.plugins import EndpointRequest, EndpointRestart
from weir_engines.driver import DepartedMember
from weir_engines.kafka.members import GroupMember, GroupReading, GroupUnread
from weir_runtime.clock import Clock

GROUP = "orders"
PATH = "/scale/orders"
MAX_REPLICAS = 50


@dataclass
class Member:
    """Member of the group."""

    instance: str
    client_id: str
    static_id: str | None
    dies_at: float | None = None
    """When the coordinator gives it up; None while it sends heartbeats."""


@dataclass
class Supervisor:
    """Instances of one application and their group. Change its fields to make it misbehave."""

    clock: Clock
    threads: int = 1
    static: bool = False
    ready_seconds: float = 1.0
    rebalance_seconds: float = 1.0
    session_seconds: float = 45.0
    token: str = ""
    replicas: int = 2
    version: int = 1
    broken: int | None = None
    """Status of every answer."""
    location: str = ""
    """Target of a redirect."""
    lost_answers: int = 0
    """Number of accepted requests whose response is lost."""
    overwrites: int = 0
    """Number of times that another client's write comes just before a PUT, with the same replicas."""
    lie: dict[str, Any] = field(default_factory=dict)
    """Fields of GET that the server reports instead."""
    crash_above: int | None = None
    """Above this number of instances none becomes ready."""
    zombies: bool = False
    """Whether stopped processes go on and join again, although they are no longer listed."""
    brokers_away: str = ""
    puts: list[tuple[int, str]] = field(default_factory=list)
    restarted: dict[str, str] = field(default_factory=dict)
    """Instance by action."""
    evicted: list[str] = field(default_factory=list)
    seen: list[Mapping[str, str]] = field(default_factory=list)
    """Headers of every request, with names in lower case."""
    instances: dict[str, float] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)
    members: dict[str, Member] = field(default_factory=dict)
    rebalanced_at: float = 0.0
    _made: int = 0
    _joined: int = 0

    def __post_init__(self) -> None:
        self._control(age=3600.0)
        self.rebalanced_at = self._now - 3600.0

    # -- the processes ------------------------------------------------------------------------------------------

    @property
    def _now(self) -> float:
        return self.clock.now().timestamp()

    def kill(self, instance: str) -> None:
        """End a process without a word; the supervisor starts another one in its place, under a new id."""
        del self.instances[instance]
        self.ended.append(instance)
        for member in self.members.values():
            if member.instance == instance and member.dies_at is None:
                member.dies_at = self._now + self.session_seconds

    def _control(self, age: float = 0.0) -> None:
        """Do what the processes, the supervisor and the coordinator do as time passes."""
        while len(self.instances) < self.replicas:
            self._made += 1
            self.instances[f"{GROUP}-{self._made}"] = self._now - age
        while len(self.instances) > self.replicas:
            youngest = list(self.instances)[-1]
            if self.zombies:
                del self.instances[youngest]
            else:
                self.kill(youngest)
        for instance in self._running():
            if not any(member.instance == instance for member in self.members.values()):
                self._join(instance)
        for id, member in list(self.members.items()):
            if member.dies_at is not None and self._now >= member.dies_at:
                self._leave(id)

    def _running(self) -> list[str]:
        """Return the instances whose threads have started."""
        if self.crash_above is not None and self.replicas > self.crash_above:
            return []
        return [each for each, born in self.instances.items() if self._now - born >= self.ready_seconds]

    def _join(self, instance: str) -> None:
        for thread in range(1, self.threads + 1):
            self._joined += 1
            name = f"{instance}-StreamThread-{thread}-consumer"
            static_id = f"{instance}-{thread}" if self.static else None
            self.members[f"{name}-{self._joined:08x}"] = Member(instance, name, static_id)
        self.rebalanced_at = self._now

    def _leave(self, id: str) -> None:
        member = self.members.pop(id)
        self.rebalanced_at = self._now
        if self.zombies and member.dies_at is None:
            self._joined += 1
            self.members[f"{member.client_id}-{self._joined:08x}"] = member

    # -- the group ----------------------------------------------------------------------------------------------

    def group(self) -> GroupReading:
        self._control()
        stable = self._now - self.rebalanced_at >= self.rebalance_seconds
        members = tuple(GroupMember(id, each.client_id, each.static_id) for id, each in self.members.items())
        return GroupReading("Stable" if stable else "PreparingRebalance", members)

    def evict(self, members: Sequence[DepartedMember]) -> tuple[DepartedMember, ...]:
        found = tuple(each for each in members if each.id in self.members)
        for each in found:
            assert each.static_id == self.members[each.id].static_id
            self._leave(each.id)
            self.evicted.append(each.id)
        return found

    # -- the endpoint -------------------------------------------------------------------------------------------

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, dict[str, Any]]:
        """Return status and document of a response, as docs/reference/endpoint.openapi.json describes them."""
        self.seen.append({name.lower(): value for name, value in headers.items()})
        if self.broken is not None:
            return self.broken, {"detail": "secret text of the server"}
        if self.token and self.seen[-1].get("authorization") != f"Bearer {self.token}":
            return 401, {}
        self._control()
        if method == "POST" and path.startswith(f"{PATH}/instances/"):
            return self._restart(path.removeprefix(f"{PATH}/instances/").removesuffix("/restart"), body)
        if path != PATH:
            return 404, {}
        if method == "GET":
            return 200, self._state()
        try:
            request = EndpointRequest.model_validate_json(body)
        except ValidationError:
            return 422, {}
        return self._put(request)

    def _put(self, request: EndpointRequest) -> tuple[int, dict[str, Any]]:
        if self.overwrites:
            self.overwrites -= 1
            self.version += 1
        if request.replicas == self.replicas:
            return 200, self._state()
        if request.version != f"v{self.version}":
            return 409, {}
        if request.replicas > MAX_REPLICAS:
            return 422, {}
        self.puts.append((request.replicas, request.version))
        self.replicas, self.version = request.replicas, self.version + 1
        self._control()
        if self.lost_answers:
            self.lost_answers -= 1
            return 504, {}
        return 200, self._state()

    def _restart(self, instance: str, body: bytes) -> tuple[int, dict[str, Any]]:
        request = EndpointRestart.model_validate_json(body)
        if str(request.action) in self.restarted:
            return 200, self._state()
        if request.version != f"v{self.version}":
            return 409, {}
        if instance not in self.instances:
            return 404, {}
        self.restarted[str(request.action)] = instance
        self.kill(instance)
        self._control()
        if self.lost_answers:
            self.lost_answers -= 1
            return 504, {}
        return 200, self._state()

    def _state(self) -> dict[str, Any]:
        listed = [{"id": each, "metricsUrl": f"http://127.0.0.1:9404/{each}"} for each in self.instances]
        return {
            "replicas": self.replicas,
            "ready": len(self._running()),
            "instances": listed,
            "ended": self.ended[-10:],
            "restarts": True,
            "version": f"v{self.version}",
            **self.lie,
        }

    @property
    def transport(self) -> httpx.MockTransport:
        """The server without a network; host `away` does not answer."""

        def handle(request: httpx.Request) -> httpx.Response:
            if request.url.host == "away":
                raise httpx.ConnectError("connection refused")
            status, document = self.answer(request.method, request.url.path, request.headers, request.content)
            headers = {"Location": self.location} if self.location else {}
            return httpx.Response(status, json=document, headers=headers)

        return httpx.MockTransport(handle)

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Serve it over HTTP on the loopback interface; yields the address."""
        supervisor = self

        class Handler(BaseHTTPRequestHandler):
            def _handle(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                path = urlsplit(self.path).path
                status, document = supervisor.answer(self.command, path, dict(self.headers), body)
                content = json.dumps(document).encode()
                self.send_response(status)
                if supervisor.location:
                    self.send_header("Location", supervisor.location)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_PUT = do_POST = _handle  # noqa: N815 - the standard library's names

            def log_message(self, *_given: Any) -> None:
                return None

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            server.server_close()
            thread.join(timeout=5)


class MemoryGroups:
    """The group of a supervisor, in the place of Kafka's coordinators."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    async def read(self, kafka: KafkaSignals, group: str) -> GroupReading:
        if self._supervisor.brokers_away:
            raise GroupUnread(self._supervisor.brokers_away)
        return self._supervisor.group() if group == GROUP else GroupReading("Dead")

    async def evict(
        self, kafka: KafkaSignals, group: str, members: Sequence[DepartedMember]
    ) -> tuple[DepartedMember, ...]:
        if self._supervisor.brokers_away:
            raise GroupUnread(self._supervisor.brokers_away)
        return self._supervisor.evict(members)

    async def close(self) -> None:
        return None


def endpoint_policy(url: str = "http://supervisor", path: str = PATH, **target: Any) -> ScalingPolicy:
    """A policy of a Kafka Streams application behind an endpoint."""
    return parse_policy(
        {
            "apiVersion": "weir.dev/v1alpha1",
            "kind": "ScalingPolicy",
            "metadata": {"namespace": "shop", "name": "orders", "version": 3},
            "spec": {
                "application": {"kafkaStreams": {"applicationId": GROUP}},
                "target": {"endpoint": {"url": f"{url}{path}", **target}},
                "signals": {"kafka": {"bootstrapServers": "127.0.0.1:9092"}},
                "objective": {"maxLag": "30s"},
                "bounds": {"max": 100},
                "mode": "act",
            },
        }
    )


def endpoint_subject(url: str = "http://supervisor", path: str = PATH, **target: Any) -> Subject:
    return endpoint_policy(url, path, **target).subject

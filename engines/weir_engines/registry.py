"""Engine: collector, driver and claims that one folder gives to the services, and the registry of all engines.

The registry names each engine by its place, and loads it when something asks for an engine: a service that only compares
policies opens no client and needs no client's library.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from functools import cache
from pkgutil import resolve_name
from typing import Any, ClassVar, Protocol, TypeVar, cast

from weir_contracts import Deployment, Subject
from weir_runtime.clock import Clock
from weir_runtime.policy_credentials import BrokerCredentials, HttpCredential
from weir_runtime.reach import REACH, Reach

from .driver import Driver
from .scrape import Collector, Scrape

REGISTRY = {
    "flink": "weir_engines.flink.engine:FlinkEngine",
    "kafka": "weir_engines.kafka.engine:KafkaEngine",
    "kubernetes": "weir_engines.kubernetes.engine:KubernetesEngine",
    "flink_operator": "weir_engines.flink_operator.engine:FlinkOperatorEngine",
    "endpoint": "weir_engines.endpoint.engine:EndpointEngine",
    "task_managers": "weir_engines.task_managers.engine:TaskManagersEngine",
    "flink_resubmit": "weir_engines.flink_resubmit.engine:FlinkResubmitEngine",
}
"""Engine's class by the name of its folder. A new engine adds one line."""

Claim = tuple[str, ...]
"""Kind and identity of something that only one policy may scale."""


@dataclass(frozen=True)
class Resources:
    """Clock, limits of what policies may name, and credentials by name, which a service gives to its engines."""

    clock: Clock
    timeout_seconds: float = 5.0
    """Limit of one call to a cluster, broker or target."""
    reach: Reach = REACH
    """What policies may name."""
    namespaces: Set[str] = frozenset()
    """Kubernetes namespaces whose workloads policies may name."""
    kubernetes: Any = None
    """Client of the Kubernetes API (`weir_engines.kubernetes.api.KubernetesApi`). None: there is no cluster."""
    flink_credentials: Mapping[str, HttpCredential] = field(default_factory=dict)
    broker_credentials: Mapping[str, BrokerCredentials] = field(default_factory=dict)
    endpoint_credentials: Mapping[str, HttpCredential] = field(default_factory=dict)


class Meter(Protocol):
    """Counters that a collector makes of the policy's signals, over the scrapes of one application."""

    def measured(self, scrape: Scrape, signals: Mapping[str, float | None], at: float) -> Scrape:
        """Return the scrape with the counters of its operators; `at` is a monotonic time in seconds."""


class Engine:
    """One engine in one process. A folder overrides what it has: a collector, a driver, claims."""

    reads: ClassVar[frozenset[str]] = frozenset()
    """Values of `Application.engine` that its collector reads."""
    scales: ClassVar[str | None] = None
    """Value of `Target.driver` that its driver scales."""

    def __init__(self, resources: Resources, engines: "Engines") -> None:
        self.resources = resources
        self.engines = engines

    @staticmethod
    def claims(subject: Subject) -> Iterable[Claim]:
        """Return what a policy claims of this engine, so that no other policy scales it, too."""
        return ()

    @staticmethod
    def may_be_same(own: Subject, claimed: Iterable[Claim]) -> bool:
        """Return whether a policy may name what another one claims in a different way, which only the running jobs decide."""
        return False

    @staticmethod
    def names(subject: Subject, deployment: Deployment) -> bool:
        """Return whether a deployment is the job that a policy names, in whichever way."""
        return False

    def collector(self, subject: Subject) -> Collector:
        """Return the collector of an application that it `reads`; the caller closes it."""
        raise NotImplementedError(f"the engine does not read {subject.application.engine} applications")

    def with_target(self, collector: Collector, subject: Subject) -> Collector:
        """Return the collector with what the target that it `scales` shows of any engine's application."""
        return collector

    def meter(self, subject: Subject) -> Meter | None:
        """Return what measures an application by its policy's signals; None: its engine measures it."""
        return None

    @property
    def driver(self) -> Driver:
        """The driver of the targets that it `scales`, the same at each call."""
        raise NotImplementedError(f"the engine scales no targets of {self.scales}")

    async def close(self) -> None:
        """End what it opened for all applications."""


E = TypeVar("E", bound=Engine)


@cache
def _loaded(place: str) -> type[Engine]:
    return cast("type[Engine]", resolve_name(place))


def registered() -> list[type[Engine]]:
    """Return the classes of all engines."""
    return [_loaded(place) for place in REGISTRY.values()]


def claims(subject: Subject) -> frozenset[Claim]:
    """Return the resources that a policy claims: its job or group, and the workloads or endpoint that its target scales."""
    return frozenset(claim for engine in registered() for claim in engine.claims(subject))


def rival(wanted: frozenset[Claim], others: Mapping[str, frozenset[Claim]]) -> str | None:
    """Return the first application, by name, that claims some of it; None if there is none."""
    return min((name for name, claimed in others.items() if claimed & wanted), default=None)


def may_be_same(own: Subject, claimed: frozenset[Claim]) -> bool:
    """Return whether a policy may name the job that another one claims in a different way."""
    return any(engine.may_be_same(own, claimed) for engine in registered())


def names(subject: Subject, deployment: Deployment) -> bool:
    """Return whether a deployment is the job that a policy names, in whichever way."""
    return any(engine.names(subject, deployment) for engine in registered())


class Engines:
    """All engines in one process, with what they share."""

    def __init__(self, resources: Resources) -> None:
        self.resources = resources
        self._engines = [kind(resources, self) for kind in registered()]

    def of(self, kind: type[E]) -> E:
        """Return the engine of this class: an engine that runs others' instances asks for them."""
        return next(engine for engine in self._engines if isinstance(engine, kind))

    def reader(self, subject: Subject) -> Engine:
        """Return the engine that reads an application."""
        return next(engine for engine in self._engines if subject.application.engine in engine.reads)

    def collector(self, subject: Subject) -> Collector:
        """Return the collector of an application: its engine's, with what its target shows; the caller closes it."""
        collector, driver = self.reader(subject).collector(subject), subject.target.driver
        if driver is None:
            return collector
        scaling = next(engine for engine in self._engines if engine.scales == driver)
        return scaling.with_target(collector, subject)

    @property
    def drivers(self) -> dict[str, Driver]:
        """The drivers by `Target.driver`."""
        return {engine.scales: engine.driver for engine in self._engines if engine.scales is not None}

    async def close(self) -> None:
        """End what the engines opened, those first that use others."""
        for engine in reversed(self._engines):
            await engine.close()

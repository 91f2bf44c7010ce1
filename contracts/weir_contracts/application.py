"""Application, target and signals: the parts of a policy that collectors read from and drivers act on.

`application` names an engine and its job, `target` names a driver and what it scales. They are separate because a Flink
job is scaled by Flink's scheduler or by the number of its TaskManagers' containers.
"""

from dataclasses import dataclass
from math import gcd
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, AnyHttpUrl, Field, model_validator

from .deployment import Topology
from .document import Document

_LOOPBACK = {"localhost", "127.0.0.1", "[::1]"}


def _plain(url: AnyHttpUrl) -> AnyHttpUrl:
    if url.username or url.password:
        raise ValueError("must not contain credentials: every user with the role read sees policies")
    if url.query or url.fragment:
        raise ValueError("must not have a query or fragment")
    return url


RestUrl = Annotated[AnyHttpUrl, AfterValidator(_plain)]
JobName = Annotated[str, Field(min_length=1, max_length=300)]


class FlinkApplication(Document):
    """Job of a Flink session or application cluster."""

    url: RestUrl
    """Address of Flink's REST API, without credentials, query or fragment."""
    job: JobName
    """Name of the job, which a resubmission keeps, or its 32-digit id."""

    @property
    def cluster(self) -> str:
        """Normalised address of the cluster: host in lower case, port and path, without the scheme."""
        host = (self.url.host or "").lower().rstrip(".")
        return f"{'localhost' if host in _LOOPBACK else host}:{self.url.port}/{(self.url.path or '').strip('/')}"


class Application(Document):
    """The job to scale, of exactly one engine."""

    flink: FlinkApplication | None = None
    """Flink job."""

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if self.flink is None:
            raise ValueError("name exactly one engine; this version supports flink")
        return self

    @property
    def engine(self) -> str:
        """Name of the engine, as in `Deployment.engine`."""
        return "flink"


class FlinkTarget(Document):
    """Flink's adaptive scheduler, which scales each operator on its own."""

    url: RestUrl | None = None
    """Address of Flink's REST API. Required without `spec.application`, not allowed with it."""
    job: JobName | None = None
    """Name or id of the job. Required without `spec.application`, not allowed with it."""

    @model_validator(mode="after")
    def _both_or_neither(self) -> Self:
        if (self.url is None) != (self.job is None):
            missing = "url" if self.url is None else "job"
            raise ValueError(f"{missing} is required, or name the job in spec.application.flink")
        return self

    @property
    def application(self) -> FlinkApplication | None:
        """Job that the target names, in documents without `spec.application`; None if it names none."""
        if self.url is None or self.job is None:
            return None
        return FlinkApplication.model_construct(url=self.url, job=self.job)


@dataclass(frozen=True)
class Unit:
    """Parallelism that one instance adds, for a target that is scaled by its number of instances."""

    slots: int
    """Slots or threads of one instance."""
    instance: str = "instance"
    """Noun for one instance in sentences: container, pod."""

    def instances_for(self, topology: Topology, parallelism: int) -> int:
        """Return the minimum number of instances that give all operators one parallelism of at least `parallelism`.

        A slot sharing group takes as many slots as its parallelism; several groups share the slots evenly.
        """
        groups = topology.slots({})
        step = groups // gcd(groups, self.slots)
        needed = -(-parallelism * groups // self.slots)
        return -(-needed // step) * step

    def parallelism_of(self, topology: Topology, instances: int) -> int:
        """Return the parallelism of each operator with `instances`, before the limits of its key groups."""
        return max(1, instances * self.slots // topology.slots({}))


class DockerTarget(FlinkTarget):
    """Containers of a compose service, each a TaskManager of a job in Flink's reactive mode, which uses every slot: all
    operators have one parallelism."""

    project: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", max_length=100)]
    """Compose project. The executor's setting `WEIR_EXECUTOR_DOCKER_PROJECTS` must list it."""
    service: Annotated[str, Field(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._-]*$", max_length=100)]
    """Compose service whose containers are identical TaskManagers."""
    slots: Annotated[int, Field(ge=1, le=1024)] = 1
    """Slots of one container: its `taskmanager.numberOfTaskSlots`. Default 1, as Flink's."""

    @property
    def unit(self) -> Unit:
        """Parallelism that one container adds."""
        return Unit(self.slots, "container")


class Target(Document):
    """The driver that scales the application, exactly one, and what it scales."""

    flink: FlinkTarget | None = None
    """Flink's adaptive scheduler: `flink: {}`. Default for a Flink application."""
    docker: DockerTarget | None = None
    """Containers of a compose service, for a Flink job in reactive mode."""

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.flink is None) == (self.docker is None):
            raise ValueError("name exactly one driver; this version supports flink and docker")
        return self

    @property
    def own(self) -> FlinkTarget:
        """The part of the document that belongs to the driver."""
        return self.flink or self.docker or FlinkTarget()

    @property
    def driver(self) -> Literal["flink", "docker"]:
        """Name of the driver that scales this application."""
        return "flink" if self.docker is None else "docker"

    @property
    def unit(self) -> Unit | None:
        """Parallelism that one instance adds; None for a target that scales each operator on its own."""
        return None if self.docker is None else self.docker.unit


class KafkaSignals(Document):
    """Kafka brokers of the sources. Every scrape reads demand and lag from them."""

    bootstrap_servers: Annotated[str, Field(pattern=r"^[^\s,/@]+:\d+(,[^\s,/@]+:\d+)*$", max_length=2000)]
    """Addresses of the brokers as `host:port`, separated by commas."""
    group_id: Annotated[str | None, Field(min_length=1, max_length=249)] = None
    """Consumer group whose committed offsets replace a source's position where the source does not report it. Default:
    none."""
    topics: Annotated[list[Annotated[str, Field(pattern=r"^[a-zA-Z0-9._-]{1,249}$")]] | None, Field(max_length=100)] = (
        None
    )
    """Topics of the sources. Default: the topics that the sources report."""
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed"
    """Isolation level of the sources. Default `read_committed`: open transactions do not count as lag."""


class Signals(Document):
    kafka: KafkaSignals | None = None
    """Kafka brokers of the sources. Default: none; demand and lag are then unknown, and planners that need them
    hold."""


@dataclass(frozen=True)
class Subject:
    """The application that collectors read and drivers scale. An action keeps its subject when the policy changes."""

    id: str
    """`namespace/name` of the application."""
    application: Application
    target: Target
    signals: Signals

    @property
    def unit(self) -> Unit | None:
        """Parallelism that one instance of the target adds; None if each operator is scaled on its own."""
        return self.target.unit

    @property
    def flink(self) -> FlinkApplication:
        """Flink job; `ValueError` for an application of another engine."""
        if self.application.flink is None:
            raise ValueError(f"{self.id} is not a Flink application")
        return self.application.flink

    @property
    def cluster(self) -> str:
        """Key of the cluster whose slots the application shares with others."""
        return self.flink.cluster

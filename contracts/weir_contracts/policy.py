"""Scaling policy: one document for the file, the REST body and the Kubernetes resource.

Policies use camelCase and durations such as `30s`; all other messages use snake_case with units in the names. Defaults
stand at the fields: planner, interval and mode here; bounds and behaviour (cooldown, stabilization, holds) in
`policy_behavior.py`, signals in `application.py`, targets in `target.py`.
"""

import re
from collections.abc import Collection
from datetime import timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from .application import Application, FlinkApplication, ServiceApplication, Signals, Subject
from .base import PORT_PATTERN, Duration, Name, Parameters
from .document import Document, InvalidDocument, Metadata, read_document, without_cluster_state, without_nulls
from .policy_behavior import Behavior, Bounds, Budget
from .target import ONE_DRIVER, FlinkTarget, Target

LagMetric = Literal["currentFetchEventTimeLag", "watermarkLag"]
"""Metrics of Flink's sources (FLIP-33) that an objective may name."""


class Objective(Document):
    """Goal of the policy: exactly one of `maxLag`, `maxLatency` and `utilization`."""

    max_lag: Duration | None = None
    """Upper bound on the age of the oldest unprocessed record, at least 1s."""
    max_latency: Duration | None = None
    """Upper bound on the time until a record appended now is processed (lag in records ÷ processing rate), at least
    1s."""
    lag_metric: LagMetric | None = None
    """Metric of the sources of a Flink job that `maxLag` bounds: `currentFetchEventTimeLag`, the age of a record by its own
    timestamp when it is fetched, or `watermarkLag`. Both include what happened before the source. Default: none; lag is the
    time since a record was appended, or `pendingRecords` ÷ throughput."""
    utilization: Annotated[float | None, Field(default=None, ge=0.01, le=1)] = None
    """Target utilization (busy share of time, 0.01 to 1) of the busiest operator."""

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = [n for n in ("max_lag", "max_latency", "utilization") if getattr(self, n) is not None]
        if len(given) != 1:
            raise ValueError("give exactly one of maxLag, maxLatency and utilization")
        for bound in (self.max_lag, self.max_latency):
            if bound is not None and bound < timedelta(seconds=1):
                raise ValueError("maxLag and maxLatency must be at least 1s")
        if self.lag_metric is not None and self.max_lag is None:
            raise ValueError("lagMetric needs maxLag, which bounds it")
        return self

    @property
    def bound_seconds(self) -> float | None:
        """Upper bound on lag or latency in seconds; None for a utilization objective."""
        bound = self.max_lag if self.max_lag is not None else self.max_latency
        return None if bound is None else bound.total_seconds()


class PlannerFallback(Document):
    """Planner that decides when the chosen one gives no valid reply. It keeps no memory between calls."""

    name: Name
    """Name of a built-in or registered planner."""
    parameters: Parameters = Field(default_factory=dict)
    """Parameters of the planner, checked against the schema that it publishes. Default: its own defaults."""


class PlannerChoice(Document):
    """Planner of the application, with its parameters and its fallback."""

    name: Name = "rate"
    """Name of a built-in or registered planner. Default `rate`, Weir's own."""
    parameters: Parameters = Field(default_factory=dict)
    """Parameters of the planner, checked against the schema that it publishes. Default: its own defaults."""
    timeout: Duration = timedelta(seconds=2)
    """Deadline of one call of the planner, 50ms to 60s; its fallback has the same time again. Default 2s, below the
    shortest usual interval."""
    fallback: PlannerFallback | None = None
    """Planner that decides when this one is too slow, fails or gives an invalid answer. Default: none, the application
    is held."""


class CandidateChoice(PlannerFallback):
    """Planner that proposes next to the chosen one. The proposal that the predictor judges best is executed, if it is a
    candidate's; a shadow's never is."""

    label: Name | None = None
    """Name of its proposals in plans. Default: the planner's name. Labels let one planner propose with several sets of
    parameters."""

    @property
    def called(self) -> str:
        """Name of the proposals: the label, or the planner's name."""
        return self.label or self.name


class PolicySpec(Document):
    application: Application | None = None
    """The application to scale. Required, except with a `kubernetes` target, where the default is a service, and with
    `flinkDeployment`, where it is the job that the resource runs, at `http://NAME-rest.NAMESPACE.svc:8081`."""
    target: Target = Field(default_factory=lambda given: _default_target(given.get("application")))
    """The driver that scales the application, and what it scales. Default `flink: {}`, Flink's adaptive scheduler; for a
    consumer group none: Weir then only advises."""
    signals: Signals = Field(default_factory=Signals)
    """External systems that measure demand and lag."""
    objective: Objective
    """Goal that Weir keeps."""
    bounds: Bounds = Field(default_factory=Bounds)
    """Parallelism limits."""
    budget: Budget = Field(default_factory=Budget)
    """Upper limits on slots, CPU and memory of the application."""
    planner: PlannerChoice = Field(default_factory=PlannerChoice)
    """Planner that decides. Default `rate`."""
    candidates: Annotated[list[CandidateChoice], Field(max_length=10)] = Field(default_factory=list)
    """Planners that propose next to `planner`, within its timeout; at most 10. The predictor judges each proposal after
    the guards, and the best one becomes the plan. Default: none."""
    shadows: Annotated[list[CandidateChoice], Field(max_length=5)] = Field(default_factory=list)
    """Planners that propose as candidates do and are never executed; at most 5. The predictor judges each proposal, and
    scores it by the arrivals that came. Default: none."""
    behavior: Behavior = Field(default_factory=Behavior)
    """Limits on when and how fast parallelism changes."""
    interval: Duration = timedelta(seconds=5)
    """Time between two scrapes of this application, 1s to 10m. Default 5s: a load step is visible within seconds.
    After a jump of the arrivals one more scrape follows in the middle of the interval."""
    mode: Literal["advise", "act", "paused"] = "advise"
    """`advise` publishes plans without executing them, `act` executes them, `paused` holds. Default `advise`: review
    the plans first."""

    @model_validator(mode="after")
    def _sane_times(self) -> Self:
        if not timedelta(seconds=1) <= self.interval <= timedelta(minutes=10):
            raise ValueError("interval must lie between 1s and 10m")
        if not timedelta(milliseconds=50) <= self.planner.timeout <= timedelta(seconds=60):
            raise ValueError("planner.timeout must lie between 50ms and 60s")
        return self

    @model_validator(mode="after")
    def _one_application(self) -> Self:
        target, application = self.target, self.application
        is_flink = target.operated is not None or (application is not None and application.flink is not None)
        if self.objective.lag_metric is not None and not is_flink:
            raise ValueError("objective.lagMetric: only the sources of a Flink job report it")
        if application is not None and application.group_id is not None:
            return self._one_group(application)
        if target.driver is None:
            raise ValueError(f"target: {ONE_DRIVER}")
        is_by_id = application is not None and application.flink is not None and application.flink.is_by_id
        if target.resubmit is not None and is_by_id:
            raise ValueError(
                "application.flink.job: must be the job's name, since target.flink.resubmit changes its id"
            )
        if target.endpoint is not None:
            raise ValueError("target.endpoint: needs an application that is a consumer group, such as kafkaStreams")
        if target.restarts_instances:
            raise ValueError(
                "target.kubernetes.restartInstances: only an application that is a consumer group has instances"
            )
        if target.kubernetes is None:
            if application is None and target.flink_deployment is None:
                raise ValueError("application: is required, such as flink: {url: …, job: …}")
            if application is not None and application.flink is None:
                raise ValueError(f"application.{application.engine}: needs a kubernetes target")
        elif application is not None and application.flink is not None:
            if target.kubernetes.workloads is not None:
                raise ValueError("target.kubernetes.workloads: the TaskManagers of a Flink job are one workload")
        elif target.kubernetes.slots != 1:
            raise ValueError("target.kubernetes.slots: a service has no slots")
        return self

    def _one_group(self, application: Application) -> Self:
        """Check a group: it is read from the brokers, and only its number of instances can be scaled."""
        target, kafka = self.target, self.signals.kafka
        if target.flink is not None or target.operated is not None:
            raise ValueError(f"target.{target.field}: does not scale consumer groups: name kubernetes or endpoint")
        if target.driver is None and self.mode == "act":
            raise ValueError("mode: act needs a target that scales the group's instances: kubernetes or endpoint")
        if target.kubernetes is not None and target.kubernetes.workloads is not None:
            raise ValueError("target.kubernetes.workloads: the instances of a consumer group are one workload")
        if kafka is None:
            raise ValueError(f"application.{application.field}: needs signals.kafka, the brokers of its group")
        if kafka.group_id is not None and kafka.group_id != application.group_id:
            raise ValueError(f"signals.kafka.groupId: must not name another group than application.{application.field}")
        return self

    @model_validator(mode="after")
    def _signals_exist(self) -> Self:
        service = self.application.service if self.application is not None else None
        if service is None or self.target.kubernetes is None:
            return self
        workloads = {ref.name for ref in self.target.kubernetes.refs}
        queries = self.signals.prometheus.queries if self.signals.prometheus is not None else {}
        for where, own in [
            ("service", service),
            *((f"service.operators.{n}", o) for n, o in service.operators.items()),
        ]:
            for name in (own.processed, own.waiting):
                if name is not None and name not in queries:
                    raise ValueError(f"application.{where}: signals.prometheus.queries has no {name!r}")
        if unknown := sorted(service.operators.keys() - workloads):
            raise ValueError(f"application.service.operators: target.kubernetes has no workload {unknown[0]!r}")
        return self

    @model_validator(mode="after")
    def _fits_instances(self) -> Self:
        unit = self.target.unit
        if unit is None:
            return self
        if self.bounds.operators:
            raise ValueError(
                "bounds.operators: all operators of this target have the same parallelism: use bounds.min and bounds.max"
            )
        if self.bounds.max // unit.slots * unit.slots < self.bounds.min:
            raise ValueError(
                f"bounds: no number of {unit.instance}s of {unit.slots} slots gives {self.bounds.min} to "
                f"{self.bounds.max}"
            )
        return self

    @model_validator(mode="after")
    def _labels_are_unique(self) -> Self:
        taken = {self.planner.name: "the planner"}
        for kind, choices in (("candidate", self.candidates), ("shadow", self.shadows)):
            for i, choice in enumerate(choices):
                if choice.called in taken:
                    name = taken[choice.called]
                    raise ValueError(f"{kind}s.{i}: {choice.called!r} is already the name of {name}: set another label")
                taken[choice.called] = f"another {kind}"
        return self


def _default_target(application: Application | None) -> Target:
    """Return the target of a policy that names none: only a consumer group needs none, to be advised on."""
    is_group = application is not None and application.group_id is not None
    return Target() if is_group else Target(flink=FlinkTarget())


class ScalingPolicy(Document):
    """Goal for one application, and limits within which Weir scales it."""

    api_version: Literal["weir.dev/v1alpha1"]
    """Version of the policy's format."""
    kind: Literal["ScalingPolicy"]
    """Kind of the document."""
    metadata: Metadata
    """Identity and version of the policy."""
    spec: PolicySpec
    """Desired state of the application."""

    @property
    def application(self) -> str:
        """Id of the application: `namespace/name`, the key of its messages in every topic."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def shares_tasks(self) -> bool:
        """Whether the application's members share whole tasks or partitions (`Application.shares_tasks`)."""
        return self.subject.application.shares_tasks

    @property
    def subject(self) -> Subject:
        """The application that collectors read and drivers scale."""
        application = self.spec.application or self._default_application()
        return Subject(self.application, application, self.spec.target, self.spec.signals)

    def _default_application(self) -> Application:
        """Return the application of a policy that names none: the job of its FlinkDeployment, or a service. The operator
        names the service of the REST API after the resource, and by default the job as well."""
        deployment = self.spec.target.flink_deployment
        if deployment is None:
            return Application(service=ServiceApplication())
        namespace = deployment.namespace or self.metadata.namespace
        job = {"url": f"http://{deployment.name}-rest.{namespace}.svc:8081", "job": deployment.name}
        return Application(flink=FlinkApplication.model_validate(job))

    def counts_records(self, operator: str, sources: Collection[str]) -> bool:
        """Return whether something counts an operator's records: its engine, or else a signal of the policy."""
        service = self.subject.application.service
        return service is None or service.signals_of(operator, sources).processed is not None

    def to_document(self) -> dict[str, Any]:
        """Return the policy as a user writes it, without unset fields."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


_PORT = re.compile(PORT_PATTERN)


class InvalidPolicy(InvalidDocument):
    """Error of an invalid policy; it names fields as the user wrote them."""


def parse_policy(document: Any) -> ScalingPolicy:
    """Return the policy of a user's document, in which an unknown field is a mistake and not a newer version, and null is a
    field that is not given.

    Raises `InvalidPolicy`, which names the first invalid fields and counts the others.
    """
    given = without_nulls(without_cluster_state(document), ScalingPolicy)
    policy = read_document(ScalingPolicy, given, root="policy", refusal=InvalidPolicy, by_name=False)
    if contradictions := _contradictions(policy):
        raise InvalidPolicy(contradictions)
    return policy


def policy_of(application: str, /, version: int | None = None, **spec: Any) -> ScalingPolicy:
    """Return the policy of `namespace/name` with a specification as users write it; raises as `parse_policy`."""
    namespace, _, name = application.partition("/")
    metadata = {"namespace": namespace, "name": name, **({} if version is None else {"version": version})}
    document = {"apiVersion": "weir.dev/v1alpha1", "kind": "ScalingPolicy", "metadata": metadata, "spec": spec}
    return parse_policy(document)


def _contradictions(policy: ScalingPolicy) -> list[tuple[str, str]]:
    """Return the fields whose limits no application can keep or whose addresses cannot exist, each with the reason.

    Checked only where policies are written, so that stored policies stay readable.
    """
    spec = policy.spec
    minimum, total, limit = spec.bounds.min, spec.bounds.total, spec.budget.limit
    found = []
    for broker in spec.signals.kafka.bootstrap_servers.split(",") if spec.signals.kafka else ():
        if not _PORT.fullmatch(broker.rpartition(":")[2]):
            reason = f"{broker[:100]!r} must be host:port with a port between 1 and 65535"
            found.append(("spec.signals.kafka.bootstrapServers", reason))
    if (unread := _unread_signals(spec)) is not None:
        found.append(("spec.application.service", unread))
    if total is not None and total.max is not None and total.max < minimum:
        reason = f"{total.max} for all operators together is below bounds.min, {minimum} for each"
        found.append(("spec.bounds.total.max", reason))
    managers = spec.target.managers
    if managers is not None and managers.max * managers.slots < minimum:
        reason = (
            f"{managers.max} TaskManagers of {managers.slots} slots cannot run bounds.min, {minimum} for each operator"
        )
        found.append(("spec.target.flink.taskManagers.max", reason))
    if limit is not None and limit[0] < minimum:
        slots, resource = limit
        reason = f"allows {slots} slots ({resource}), and bounds.min requires {minimum} for each operator"
        found.append(("spec.budget", reason))
    return found


def _unread_signals(spec: PolicySpec) -> str | None:
    """Return why the signals of the service itself would not be read, or None: they are its only source's."""
    service = spec.application.service if spec.application is not None else None
    if service is None or spec.target.kubernetes is None or (service.processed is None and service.waiting is None):
        return None
    sources = [ref.name for ref in spec.target.kubernetes.refs if not ref.inputs]
    if len(sources) > 1:
        return f"processed and waiting are of the only source, and these are {len(sources)}: name them in operators"
    return f"operators names the signals of {sources[0]!r}, too" if sources[0] in service.operators else None

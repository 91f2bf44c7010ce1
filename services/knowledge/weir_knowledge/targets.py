"""Which policies would scale the same thing. Pure."""

import re
from collections.abc import Iterable, Mapping

from weir_contracts import Observation, ScalingPolicy, Subject

_JOB_ID = re.compile(r"[0-9a-f]{32}")


def claims(subject: Subject) -> frozenset[tuple[str, ...]]:
    """Return the resources that a policy claims: its job or group, and the workloads or endpoint that its
    target scales.

    A group is claimed at each of its brokers' addresses, since two policies may list them differently.
    """
    flink, target = subject.application.flink, subject.target
    kubernetes, endpoint = target.kubernetes, target.endpoint
    found: set[tuple[str, ...]] = set() if flink is None else {("job", subject.cluster, flink.job)}
    group, kafka = subject.application.group_id, subject.signals.kafka
    if group is not None and kafka is not None:
        found |= {("group", broker.lower(), group) for broker in kafka.bootstrap_servers.split(",")}
    if kubernetes is not None:
        found |= {("workload", subject.namespace, ref.kind, ref.name) for ref in kubernetes.refs}
    if endpoint is not None:
        found.add(("endpoint", str(endpoint.url).rstrip("/")))
    return frozenset(found)


def claims_of(document: str) -> frozenset[tuple[str, ...]]:
    """Return the claims of a policy's JSON."""
    return claims(ScalingPolicy.model_validate_json(document).subject)


def rival(wanted: frozenset[tuple[str, ...]], others: Mapping[str, frozenset[tuple[str, ...]]]) -> str | None:
    """The first application, by name, that claims some of it; None if there is none."""
    return min((name for name, claimed in others.items() if claimed & wanted), default=None)


def may_be_same_job(policy: ScalingPolicy, others: Iterable[ScalingPolicy]) -> list[str]:
    """The applications on the same cluster where one policy names its job by id and the other by name: only the running
    jobs decide."""
    own = policy.subject.application.flink
    if own is None:
        return []
    return [
        other.application
        for other in others
        if other.application != policy.application
        and (flink := other.subject.application.flink) is not None
        and flink.cluster == own.cluster
        and bool(_JOB_ID.fullmatch(own.job)) != bool(_JOB_ID.fullmatch(flink.job))
    ]


def runs(observation: Observation | None, job: str) -> bool:
    """Whether an application was last seen as the job of this id or name."""
    deployment = observation.deployment if observation else None
    return deployment is not None and job in (deployment.job_id, deployment.job_name)

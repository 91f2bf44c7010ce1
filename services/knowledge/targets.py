"""Which policies would scale the same thing. Pure."""

import json
import re
from collections.abc import Iterable, Mapping

from weir_contracts import Observation, ScalingPolicy
from weir_contracts.policy import FlinkTarget, Target

_JOB_ID = re.compile(r"[0-9a-f]{32}")
_LOOPBACK = {"localhost", "127.0.0.1", "[::1]"}


def claims(target: Target) -> frozenset[tuple[str, ...]]:
    """Return the resources that a target claims for one policy: its job, and a docker target's service."""
    job = ("job", cluster_of(target.job), target.job.job)
    docker = target.docker
    return frozenset({job} if docker is None else {job, ("service", docker.project, docker.service)})


def claims_of(document: str) -> frozenset[tuple[str, ...]]:
    """The same of a policy's JSON, of which only the target is read."""
    return claims(Target.model_validate(json.loads(document)["spec"]["target"]))


def cluster_of(job: FlinkTarget) -> str:
    """The cluster's address in one form: host in small letters, port, path; the scheme does not distinguish two clusters."""
    host = (job.url.host or "").lower().rstrip(".")
    return f"{'localhost' if host in _LOOPBACK else host}:{job.url.port}/{(job.url.path or '').strip('/')}"


def rival(wanted: frozenset[tuple[str, ...]], others: Mapping[str, frozenset[tuple[str, ...]]]) -> str | None:
    """The first application, by name, that claims some of it; None if there is none."""
    return min((name for name, claimed in others.items() if claimed & wanted), default=None)


def may_be_same_job(policy: ScalingPolicy, others: Iterable[ScalingPolicy]) -> list[str]:
    """The applications on the same cluster where one policy names its job by id and the other by name: only the running jobs decide."""
    own = policy.spec.target.job
    return [
        other.application
        for other in others
        if other.application != policy.application
        and cluster_of(other.spec.target.job) == cluster_of(own)
        and bool(_JOB_ID.fullmatch(own.job)) != bool(_JOB_ID.fullmatch(other.spec.target.job.job))
    ]


def runs(observation: Observation | None, job: str) -> bool:
    """Whether an application was last seen as the job of this id or name."""
    deployment = observation.deployment if observation else None
    return deployment is not None and job in (deployment.job_id, deployment.job_name)

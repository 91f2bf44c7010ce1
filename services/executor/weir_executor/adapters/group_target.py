"""Consumer group as the one operator of a deployment, whatever runs its instances. Pure."""

from weir_contracts import Deployment, KafkaSignals, Operator, Parallelism, RescaleSettings, Subject, Topology, Unit
from weir_contracts.plugins import MAX_REQUESTED

from .group_state import STABLE, GroupReading

_AT_ONCE = RescaleSettings(cooldown_seconds=0, stabilization_seconds=0, max_trigger_delay_seconds=0)


def kafka_of(subject: Subject) -> KafkaSignals:
    """Return the brokers of the group."""
    if subject.signals.kafka is None:
        raise ValueError(f"{subject.id}: a consumer group without signals.kafka")
    return subject.signals.kafka


def group_of(subject: Subject) -> str:
    """Return the group, which is the name of the application's only operator, too."""
    if subject.application.group_id is None:
        raise ValueError(f"{subject.id} is not a consumer group")
    return subject.application.group_id


def unit_of(subject: Subject) -> Unit:
    """Return the threads of one instance."""
    return subject.unit or Unit(1)


def topology_of(subject: Subject) -> Topology:
    """Return the graph of the one operator."""
    name = group_of(subject)
    return Topology(operators=[Operator(name=name, id=name)])


def deployment_of(subject: Subject, group: GroupReading, *, wanted: int, replicas: int) -> Deployment:
    """Return the deployment of a group with `wanted` requested instances, of which `replicas` exist."""
    name, topology = group_of(subject), topology_of(subject)
    return Deployment(
        engine=subject.application.engine,
        health="running" if group.state == STABLE else "restarting",
        job_id=name[:200],
        job_name=name,
        graph_hash=topology.graph_hash(),
        state=group.state[:50],
        requested={name: min(MAX_REQUESTED, wanted * unit_of(subject).slots)},
        observed={name: min(MAX_REQUESTED, max(1, len(group.members)))},
        replicas=replicas,
        rescale=_AT_ONCE,
    )


def unfit(subject: Subject, parallelism: Parallelism) -> str:
    """Return why no number of instances gives this parallelism; empty if one does."""
    name, unit = group_of(subject), unit_of(subject)
    if set(parallelism) != {name}:
        odd = sorted(set(parallelism) ^ {name})
        return f"the group and the request differ in operators: {', '.join(odd[:5])}"
    threads = parallelism[name]
    if threads > MAX_REQUESTED or threads < 1:
        return f"{threads} threads are not between 1 and {MAX_REQUESTED}"
    reached = -(-threads // unit.slots) * unit.slots
    if reached != threads:
        return f"no number of {unit.instance}s of {unit.slots} threads gives {threads}: the next is {reached}"
    return ""

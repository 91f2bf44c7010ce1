"""Sentences about groups, for users."""


def state(name: str, instances: int, threads: int) -> str:
    noun = "instance" if instances == 1 else "instances"
    return f"the group is {name}: {instances} {noun} with {threads} thread{'' if threads == 1 else 's'}"


def no_group(group: str) -> str:
    return f"the brokers have no group {group[:60]!r}, and it has committed nothing"


def unreadable_protocol(group: str) -> str:
    return f"{group[:60]!r} has commits, but no members that can be read: group.protocol=streams is not supported"


def other_type(group: str, found: str) -> str:
    return f"{group[:60]!r} is a group of type {found[:30]!r}, not of consumers"


def not_streams(group: str, assignor: str) -> str:
    return f"{group[:60]!r} is not a Kafka Streams application: its assignor is {assignor[:40]!r}"


def metrics_missing(missing: int, total: int) -> str:
    return f"{missing} of {total} instances report no metrics: busy time is unknown"


def threads_without_metrics(found: int, total: int) -> str:
    return f"metrics of {found} of {total} threads are known: busy time is unknown"


def no_topics(group: str) -> str:
    return f"the topics of {group[:60]!r} are unknown until it has members: name them in spec.signals.kafka.topics"


def no_commit(count: int, total: int) -> str:
    return f"{count} of {total} partitions have records and no commit: how many wait there is unknown"

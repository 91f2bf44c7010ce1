"""Consumer groups: the group at its coordinator, and the processes whose threads are its members."""

from typing import Annotated, Literal

from pydantic import Field

from .base import Count, Message, Share, Timestamp


class Instance(Message):
    """Process of an application that is a consumer group; its threads are members of the group."""

    id: Annotated[str, Field(max_length=300)]
    """Identity of the process: its process id in Kafka Streams, else the common part of its members' client ids."""
    host: Annotated[str, Field(max_length=300)] = ""
    """Host of its members, as the brokers know it. Empty: unknown."""
    threads: Count
    """Number of its members of the group."""
    members: Annotated[list[Annotated[str, Field(max_length=400)]], Field(max_length=1000)] = Field(
        default_factory=list
    )
    """Ids of its members, as the group's coordinator knows them."""
    static_ids: Annotated[list[Annotated[str, Field(max_length=300)]], Field(max_length=1000)] = Field(
        default_factory=list
    )
    """`group.instance.id` of its static members."""
    active_tasks: Count | None = None
    """Number of tasks, or partitions of a plain consumer, that it processes. None: unknown."""
    standby_tasks: Count | None = None
    """Number of tasks whose state it keeps up to date without processing them; a warm-up counts too. None: unknown."""
    warm_up_tasks: Count | None = None
    """Number of standby tasks that the next rebalance may move to it. None: not told apart, or unknown."""
    state: Annotated[str, Field(max_length=50)] = ""
    """State of its Kafka Streams client, such as RUNNING. Empty: unknown."""
    blocked_share: Share | None = None
    """Share of time, 0 to 1, that its threads wait for brokers, mean over the threads. None: unknown, or it restores."""
    restore_remaining_records: Count | None = None
    """Changelog records that it has to read before all of its tasks can run. None: unknown."""
    memory_bytes: Count | None = None
    """Memory in use, in bytes. None: unknown."""

    @property
    def name(self) -> str:
        """Beginning of its threads' ids in Kafka Streams, which is its `client.id`; else its id."""
        first, found, _ = (self.members[0] if self.members else "").partition("-StreamThread-")
        return first if first and found else self.id


class InstanceRef(Message):
    """Instance that an action restarts. The executor restarts the one whose threads these members are, and none if they
    have left the group."""

    id: Annotated[str, Field(max_length=300)]
    """Id of the instance at its target; in a plan the common part of its members' client ids."""
    members: Annotated[list[Annotated[str, Field(max_length=400)]], Field(min_length=1, max_length=1000)]
    """Ids of its members, as the group's coordinator knew them when the plan was made."""
    uid: Annotated[str | None, Field(max_length=100)] = None
    """Identity of what runs it, such as a pod's uid. None: its id belongs to one process only, or it is not found yet."""


class Group(Message):
    """Consumer group at its coordinator."""

    id: Annotated[str, Field(max_length=249)]
    protocol: Literal["classic", "consumer", "streams"] | None = None
    """Rebalance protocol. None: unknown."""
    assignor: Annotated[str, Field(max_length=200)] = ""
    """Name of the assignor, `stream` for Kafka Streams. Empty: unknown."""
    state: Annotated[str, Field(max_length=50)]
    """State as the coordinator names it, such as Stable or PreparingRebalance."""
    members: Count
    """Number of members."""
    probing_rebalance_at: Timestamp | None = None
    """Time of the next probing rebalance: until then a warm-up is under way and tasks may still move. None: none is
    due, or unknown."""

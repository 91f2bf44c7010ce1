"""Consumer group whose members are threads of pods, at a coordinator in memory.

A pod's threads join once it is ready. The coordinator waits for the members of a pod that is gone until they are
evicted, or until their session ends.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count

from weir_contracts import KafkaSignals
from weir_engines.driver import DepartedMember
from weir_engines.kafka.members import GroupMember, GroupReading, GroupUnread
from weir_runtime.clock import Clock

GROUP = "orders-app"


@dataclass(frozen=True)
class PodProcess:
    """Process in a ready pod."""

    uid: str
    pod: str
    address: str = ""


@dataclass
class _Member:
    process: PodProcess
    client_id: str
    static_id: str | None
    dies_at: float | None = None
    """When the coordinator gives it up; None while it sends heartbeats."""


@dataclass
class PodGroup:
    """Group of one application. Change its fields to make it misbehave."""

    clock: Clock
    pods: Callable[[], Awaitable[Iterable[PodProcess]]]
    threads: int = 1
    static: bool = False
    unnamed: bool = False
    """Whether the client ids are random, as Kafka Streams' default."""
    session_seconds: float = 45.0
    rebalance_seconds: float = 1.0
    brokers_away: str = ""
    evicted: list[str] = field(default_factory=list)
    members: dict[str, _Member] = field(default_factory=dict)
    rebalanced_at: float = 0.0
    _joined: "count[int]" = field(default_factory=lambda: count(1))

    async def read(self, kafka: KafkaSignals, group: str) -> GroupReading:
        self._fail()
        if group != GROUP:
            return GroupReading("Dead")
        self._control(list(await self.pods()))
        stable = self._now - self.rebalanced_at >= self.rebalance_seconds
        members = tuple(
            GroupMember(id, each.client_id, each.static_id, each.process.address) for id, each in self.members.items()
        )
        return GroupReading("Stable" if stable else "PreparingRebalance", members)

    async def evict(
        self, kafka: KafkaSignals, group: str, members: Sequence[DepartedMember]
    ) -> tuple[DepartedMember, ...]:
        self._fail()
        found = tuple(each for each in members if each.id in self.members)
        for each in found:
            assert each.static_id == self.members.pop(each.id).static_id
            self.evicted.append(each.id)
            self.rebalanced_at = self._now
        return found

    async def close(self) -> None:
        return None

    def _fail(self) -> None:
        if self.brokers_away:
            raise GroupUnread(self.brokers_away)

    @property
    def _now(self) -> float:
        return self.clock.now().timestamp()

    def _control(self, processes: Sequence[PodProcess]) -> None:
        """Do what the processes and the coordinator do as time passes."""
        running = {each.uid for each in processes}
        for id, member in list(self.members.items()):
            if member.process.uid not in running and member.dies_at is None:
                member.dies_at = self._now + self.session_seconds
            if member.dies_at is not None and self._now >= member.dies_at:
                del self.members[id]
                self.rebalanced_at = self._now
        joined = {member.process.uid for member in self.members.values()}
        for process in processes:
            if process.uid not in joined:
                self._join(process)

    def _join(self, process: PodProcess) -> None:
        for thread in range(1, self.threads + 1):
            number = next(self._joined)
            name = f"{GROUP}-{number:08d}-52b6-4c08" if self.unnamed else process.pod
            client_id = f"{name}-StreamThread-{thread}-consumer"
            static_id = f"{process.pod}-{thread}" if self.static else None
            self.members[f"{client_id}-{number:08x}"] = _Member(process, client_id, static_id)
        self.rebalanced_at = self._now


async def no_pods() -> Iterable[PodProcess]:
    """Return no process, for workloads that are no group."""
    return ()

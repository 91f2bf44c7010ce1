"""Port to the coordinators of consumer groups."""

from collections.abc import Sequence
from typing import Protocol

from weir_contracts import KafkaSignals
from weir_executor.core.observed import DepartedMember

from .group_state import GroupReading


class GroupUnread(Exception):
    """The brokers did not answer, or must not be asked; the sentence has the reason."""


class Groups(Protocol):
    """Consumer groups of any brokers. Calls raise `GroupUnread`."""

    async def read(self, kafka: KafkaSignals, group: str) -> GroupReading:
        """Return the group's state, its members and the partitions without one."""

    async def evict(
        self, kafka: KafkaSignals, group: str, members: Sequence[DepartedMember]
    ) -> tuple[DepartedMember, ...]:
        """Remove members; return those that the coordinator removed. A static one is removed only while its instance id
        still belongs to the member."""

    async def close(self) -> None: ...

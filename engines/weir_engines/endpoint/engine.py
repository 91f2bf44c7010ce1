"""Endpoints as an engine: instances of a consumer group behind HTTP endpoints, which are scaled but not read."""

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from weir_contracts import Subject
from weir_engines.kafka.engine import KafkaEngine
from weir_engines.registry import Claim, Engine

if TYPE_CHECKING:
    from .driver import EndpointDriver


class EndpointEngine(Engine):
    """All endpoints."""

    scales = "endpoint"

    @staticmethod
    def claims(subject: Subject) -> Iterable[Claim]:
        """Return the endpoint's address."""
        target = subject.target.endpoint
        return () if target is None else (("endpoint", str(target.url).rstrip("/")),)

    @cached_property
    def driver(self) -> "EndpointDriver":
        """The driver of all endpoints."""
        from .driver import EndpointDriver

        return EndpointDriver(
            self.resources.clock,
            self.engines.of(KafkaEngine).groups,
            self.resources.endpoint_credentials,
            timeout_seconds=self.resources.timeout_seconds,
            allowed=self.resources.reach.allowed,
        )

    async def close(self) -> None:
        """End the driver's connections."""
        if "driver" in self.__dict__:
            await self.driver.close()

"""The least that a replay is held beside: of what its policy and its cluster allow."""

from weir_contracts import Bounds

from simulator import Application
from simulator.clairvoyant import Clairvoyant


class Least(Clairvoyant):
    """The least parallelism that carries a load, no operator above its upper bound and all together within the cluster's slots.

    More than those nobody could hold, so nobody is measured by more.
    """

    def __init__(self, application: Application, bounds: Bounds) -> None:
        self._there = application.cluster.slots
        super().__init__(application, {name: bounds.of(name)[1] for name in application.parallelism})

    def carries(self, rate: float, seconds: float = 0.0) -> bool:
        return super().carries(rate, seconds) and super().slots(rate, seconds) <= self._there

    def slots(self, rate: float, seconds: float = 0.0) -> int:
        return min(self._there, super().slots(rate, seconds))

"""The offline optimum of a replay, within its policy's bounds and its cluster's slots."""

from weir_contracts import Bounds

from simulator import Application
from simulator.capacity import OfflineOptimum


class BoundedOptimum(OfflineOptimum):
    """Smallest parallelism that carries a load, each operator within its upper bound and all together within the cluster's slots."""

    def __init__(self, application: Application, bounds: Bounds) -> None:
        self._cluster_slots = application.cluster.slots
        super().__init__(application, {name: bounds.of(name)[1] for name in application.parallelism})

    def carries(self, rate: float, seconds: float = 0.0) -> bool:
        return super().carries(rate, seconds) and super().slots(rate, seconds) <= self._cluster_slots

    def slots(self, rate: float, seconds: float = 0.0) -> int:
        return min(self._cluster_slots, super().slots(rate, seconds))

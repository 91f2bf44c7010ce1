"""What somebody who knows the load would need: the smallest parallelism for each rate, changed for free."""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping

from .capacity import sustained
from .spec import Application


class Clairvoyant:
    """The least parallelism of every operator that carries a load, up to `most` subtasks each; a mapping names every operator.

    It has no restarts, no lag to work off and no doubt, so nothing that acts in time can do as well with less, but for what a
    tolerated lag lets it put off.
    """

    def __init__(self, application: Application, most: int | Mapping[str, int]) -> None:
        self._application = application
        self._topology = application.topology()
        self._index = {o.name: i for i, o in enumerate(application.operators)}
        keyed = {link.target for link in application.links if link.ship == "hash"}
        self._curves = []
        for operator in application.operators:
            limit = min(most if isinstance(most, int) else most[operator.name], operator.max_parallelism)
            if operator.source is not None:
                limit = min(limit, operator.source.partitions)
            best, curve = 0.0, []
            for p in range(1, limit + 1):
                best = max(best, sustained(operator, p, keyed=operator.name in keyed))
                curve.append(best)
            self._curves.append(curve)

    def loads(self, rate: float, seconds: float) -> list[float]:
        """Records/s that arrive at each operator when the sources keep up with a load of `rate` at a time."""
        loads = [0.0] * len(self._curves)
        for i, operator in enumerate(self._application.operators):
            if operator.source is not None:
                loads[i] = rate * operator.source.share
            out = loads[i] * operator.selectivity_at(seconds)
            if operator.window_seconds is not None and operator.window_keys is not None:
                keys, length = operator.window_keys, operator.window_seconds
                out = keys * -math.expm1(-loads[i] * length / keys) / length
            for link in self._application.links:
                if link.source == operator.name:
                    loads[self._index[link.target]] += out * link.share
        return loads

    def least(self, rate: float, seconds: float = 0.0) -> dict[str, int]:
        """The smallest parallelism of each operator that carries `rate`; the largest there is where none does."""
        return {
            operator.name: min(len(curve), bisect_left(curve, load * (1 - 1e-9)) + 1)
            for operator, curve, load in zip(
                self._application.operators, self._curves, self.loads(rate, seconds), strict=True
            )
        }

    def carries(self, rate: float, seconds: float = 0.0) -> bool:
        """Whether that is enough."""
        loads = self.loads(rate, seconds)
        return all(curve[-1] >= load * (1 - 1e-9) for curve, load in zip(self._curves, loads, strict=True))

    def slots(self, rate: float, seconds: float = 0.0) -> int:
        """The slots of the least."""
        return self._topology.slots(self.least(rate, seconds))

    def slot_seconds(
        self, arrivals: Callable[[float], float], duration_seconds: float, step_seconds: float = 10.0
    ) -> float:
        """Of a whole load, looked at in the middle of each step."""
        steps = max(1, round(duration_seconds / step_seconds))
        each = duration_seconds / steps
        moments = [(i + 0.5) * each for i in range(steps)]
        return sum(self.slots(arrivals(at), at) * each for at in moments)

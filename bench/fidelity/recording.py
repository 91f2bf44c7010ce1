"""Recording of a run of the job, real or simulated, in one form."""

from bisect import bisect_right
from collections.abc import Callable

from pydantic import BaseModel, ConfigDict
from weir_contracts import Observation


class Request(BaseModel):
    """A rescale that was asked for."""

    model_config = ConfigDict(frozen=True)

    at_seconds: float
    parallelism: dict[str, int]


class Look(BaseModel):
    """One of several samples a second between two observations."""

    model_config = ConfigDict(frozen=True)

    at_seconds: float
    running: bool
    """All tasks of the job."""
    latency_seconds: float | None
    """Age of the oldest order in the newest results."""


class Recording(BaseModel):
    """A run, its times in seconds since its first observation."""

    model_config = ConfigDict(frozen=True)

    observations: list[Observation]
    requests: list[Request]
    looks: list[Look]

    def times(self) -> list[float]:
        """When the observations were made."""
        first = self.observations[0].observed_at
        return [(o.observed_at - first).total_seconds() for o in self.observations]

    def load(self) -> Callable[[float], float]:
        """Records/s that came to the topic at a second: even between two observations that know its end."""
        times, totals = [0.0], [0.0]
        for at, observation in zip(self.times(), self.observations, strict=True):
            ends = [p.log_end_offset for p in observation.partitions]
            known = [end for end in ends if end is not None]
            if known and len(known) == len(ends) and (len(totals) == 1 or at > times[-1]):
                if len(times) == 1 and at == 0:
                    totals[0] = sum(known)
                    continue
                times.append(at)
                totals.append(sum(known))

        def rate(at: float) -> float:
            after = min(max(1, bisect_right(times, at)), len(times) - 1)
            return (totals[after] - totals[after - 1]) / (times[after] - times[after - 1])

        return rate

    def downs(self) -> list[tuple[float, float]]:
        """From when until when the job did not run, as far as looks tell; one that is not over is left out."""
        found, since = [], None
        for look in self.looks:
            if not look.running and since is None:
                since = look.at_seconds
            elif look.running and since is not None:
                found.append((since, look.at_seconds))
                since = None
        return found

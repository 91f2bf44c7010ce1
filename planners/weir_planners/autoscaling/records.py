"""Records that the autoscalers `hpa` and `keda-kafka` keep of their workloads in the plan's memory."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BaseModel, Field

from weir_planners.packed import packed, size, unpacked

from .v2 import Event, Limits, Records, changed

MAX_BYTES = 14_000
"""Size of the records, with room for a planner's other memory."""
FORGOTTEN_SECONDS = 600.0
"""Age from which an unanswered request no longer explains a change."""


class TooManyWorkloads(ValueError):
    """Even the smallest records do not fit into a plan's memory."""


@dataclass(frozen=True)
class Ask:
    """A size that was requested and may be observed later."""

    at: float
    size: int


@dataclass
class Workloads:
    """Records by workload, read from the last plan's memory and written for the next."""

    names: Sequence[str]
    _records: dict[str, Records] = field(default_factory=dict)
    _sizes: dict[str, int] = field(default_factory=dict)
    _asks: dict[str, Ask] = field(default_factory=dict)

    @classmethod
    def of(cls, memory: Mapping[str, Any], names: Sequence[str]) -> "Workloads":
        """Read the records of these workloads; there are none if they are of others or unreadable."""
        workloads = cls(names)
        try:
            found = memory.get("autoscaler")
            kept = _Kept.model_validate(unpacked(found) if isinstance(found, str) else found)
        except ValueError:  # also a ValidationError
            return workloads
        if kept.of != _digest(names) or len(kept.workloads) != len(names):
            return workloads
        for name, one in zip(names, kept.workloads, strict=True):
            workloads._records[name] = Records(
                tuple((kept.base + at, n) for at, n in one.r),
                *(
                    tuple(Event(kept.base + at, n, bool(outdated)) for at, n, outdated in events)
                    for events in (one.u, one.d)
                ),
            )
            workloads._sizes[name] = one.n
            if one.a is not None:
                workloads._asks[name] = Ask(kept.base + one.a[0], one.a[1])
        return workloads

    def observed(self, name: str, limits: Limits, size: int, now: float) -> Records:
        """Return the records of a workload of this size. A change towards the requested size is recorded; any other has
        another cause."""
        records = self._records.get(name, Records())
        before, ask = self._sizes.get(name, size), self._asks.get(name)
        if ask is None or before == size or now - ask.at > FORGOTTEN_SECONDS:
            return records
        ours = before < size <= ask.size or ask.size <= size < before
        return changed(records, limits, before, size, at=ask.at, now=now) if ours else records

    def keep(self, name: str, records: Records, size: int, ask: Ask | None) -> None:
        """Remember a workload after its sync. A request stays until the size changes: it may be carried out late."""
        if ask is None and self._sizes.get(name) == size:
            ask = self._asks.get(name)
        self._records[name], self._sizes[name] = records, size
        if ask is None:
            self._asks.pop(name, None)
        else:
            self._asks[name] = ask

    def memory(self) -> dict[str, Any]:
        """Return the memory for the plan, condensed if it would be too large."""
        times = [at for records in self._records.values() for at, _ in records.recommendations]
        base = int(min(times, default=0.0))
        most = max(
            (len(each.recommendations) + len(each.ups) + len(each.downs) for each in self._records.values()), default=0
        )
        for limit in [most, *(each for each in (64, 32, 16) if each < most)]:
            memory = self._encoded(base, limit)
            if size(memory) <= MAX_BYTES:
                return {"autoscaler": memory}
        for limit in [min(most, 16), *(each for each in (8, 4, 2) if each < most)]:
            text = packed(self._encoded(base, limit))
            if len(text) <= MAX_BYTES:
                return {"autoscaler": text}
        raise TooManyWorkloads(
            f"the records of {len(self.names):,} operators do not fit into a plan: use scope: application"
        )

    def _encoded(self, base: int, limit: int) -> dict[str, Any]:
        def at(seconds: float) -> float:
            return round(seconds - base, 3)

        workloads = []
        for name in self.names:
            records = condensed(self._records.get(name, Records()), limit)
            one: dict[str, Any] = {"r": [[at(t), n] for t, n in records.recommendations], "n": self._sizes.get(name, 0)}
            for key, events in (("u", records.ups), ("d", records.downs)):
                if events:
                    one[key] = [[at(e.at), e.change, int(e.outdated)] for e in events]
            if name in self._asks:
                one["a"] = [at(self._asks[name].at), self._asks[name].size]
            workloads.append(one)
        return {"of": _digest(self.names), "base": base, "workloads": workloads}


def _digest(names: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:12]


def condensed(records: Records, limit: int) -> Records:
    """Return about `limit` records of each kind at most, so that every window decides the same or more cautiously: records in
    a row are replaced by their extremes, or their sum, at the time of the last."""
    return Records(
        recommendations=_folded(records.recommendations, limit),
        ups=_summed(records.ups, limit),
        downs=_summed(records.downs, limit),
    )


def _folded(records: tuple[tuple[float, int], ...], limit: int) -> tuple[tuple[float, int], ...]:
    if len(records) <= limit:
        return records
    size = math.ceil(2 * len(records) / limit)
    folded: list[tuple[float, int]] = []
    for i in range(0, len(records), size):
        group = records[i : i + size]
        values = {n for _, n in group}
        folded += [(group[-1][0], n) for n in sorted({min(values), max(values)})]
    return tuple(folded)


def _summed(events: tuple[Event, ...], limit: int) -> tuple[Event, ...]:
    if len(events) <= limit:
        return events
    size = math.ceil(len(events) / limit)
    groups = [events[i : i + size] for i in range(0, len(events), size)]
    return tuple(Event(max(e.at for e in g), sum(e.change for e in g), all(e.outdated for e in g)) for g in groups)


_Seconds = Annotated[float, Field(allow_inf_nan=False)]
_Size = Annotated[int, Field(ge=-(2**31), lt=2**31)]


class _One(BaseModel):
    r: list[tuple[_Seconds, _Size]]
    u: list[tuple[_Seconds, _Size, int]] = Field(default_factory=list)
    d: list[tuple[_Seconds, _Size, int]] = Field(default_factory=list)
    n: _Size
    a: tuple[_Seconds, _Size] | None = None


class _Kept(BaseModel):
    of: str
    base: int
    workloads: list[_One]

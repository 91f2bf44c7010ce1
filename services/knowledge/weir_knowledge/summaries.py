"""Summaries of applications as the store has them: everything that many of them need in one reading of the store."""

import asyncio
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from weir_runtime.clock import Clock

from .summary import Summary, summarise
from .view import View

READ_AT_ONCE = 50
"""Applications; other requests are answered in between."""
MAX_AGE_SECONDS = 10
"""Of a list that callers share."""
_MAX_AGE = re.compile(r"max-age=([0-9]{1,9})")


async def summaries(view: View, clock: Clock, applications: Sequence[str]) -> list[Summary]:
    """Return the summaries of applications in their order, also of those without messages."""
    found: list[Summary] = []
    for begin in range(0, len(applications), READ_AT_ONCE):
        now = clock.now()
        for digest, policy, action in await view.known(applications[begin : begin + READ_AT_ONCE]):
            found.append(summarise(digest, policy, action, now, view.prices))
        await asyncio.sleep(0)
    return found


async def summary_by_name(view: View, clock: Clock, application: str) -> Summary:
    """Return an application's summary, also of one without messages."""
    return (await summaries(view, clock, [application]))[0]


def accepted_age_seconds(cache_control: str) -> int:
    """Return how old an answer may be by a request's `Cache-Control`, which a page sends that asks again and again; 0 for one
    that names no age."""
    found = _MAX_AGE.search(cache_control)
    return 0 if found is None else min(MAX_AGE_SECONDS, int(found[1]))


@dataclass(frozen=True)
class Listing:
    """A page of the list as JSON, and its age."""

    items: list[str]
    next: str | None
    age_seconds: float


@dataclass(eq=False)
class SummaryList:
    """The list of all applications. What one caller has read is shared with those that accept its age, so that ten open pages
    cost as much as one."""

    view: View
    clock: Clock
    _names: list[str] = field(default_factory=list, init=False)
    _items: list[str] = field(default_factory=list, init=False)
    """Summaries as JSON, by name."""
    _read_at: float | None = field(default=None, init=False)
    """On the monotonic clock."""
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def page(self, after: str, limit: int, may_see: Callable[[str], bool], max_age_seconds: int) -> Listing:
        """Return the applications behind `after` that the caller may see, in order."""
        if max_age_seconds > 0:
            age = await self._shared(max_age_seconds)
            first = bisect_right(self._names, after)
            pairs = zip(self._names[first:], self._items[first:], strict=True)
            seen = [pair for pair in pairs if may_see(pair[0])]
            chosen, more = seen[:limit], len(seen) > limit
            return Listing([item for _, item in chosen], chosen[-1][0] if more else None, age)
        names = [name for name in await self.view.applications() if name > after and may_see(name)]
        items = [each.model_dump_json() for each in await summaries(self.view, self.clock, names[:limit])]
        return Listing(items, names[limit - 1] if len(names) > limit else None, 0.0)

    async def _shared(self, max_age_seconds: int) -> float:
        """Read all again if what was read is older; return its age."""
        async with self._reading:
            if self._read_at is None or self.clock.monotonic() - self._read_at > max_age_seconds:
                began = self.clock.monotonic()
                names = await self.view.applications()
                items = [each.model_dump_json() for each in await summaries(self.view, self.clock, names)]
                self._names, self._items, self._read_at = names, items, began
            return self.clock.monotonic() - self._read_at

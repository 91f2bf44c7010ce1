"""Finds applications that no policy names, and writes a policy that advises for each: the same for every kind of source."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import structlog

from weir_runtime.loop import Stop, run_forever

from .client import CommandError
from .single import LocalApi, detail_of

LABEL = "weir.dev/found"
"""Of policies that were found, not written: they are removed again with their application. Its value is the source's."""
NAMESPACE = "default"
LOOK_SECONDS = 5.0
GONE_SECONDS = 60.0
"""An application that was away for this long has ended; one that comes back before keeps its policy."""
EARLIER_SECONDS = 15.0
"""One that only an earlier process has seen has ended after this long: a group may rebalance meanwhile, a job start again."""
AGAIN_SECONDS = 60.0
"""A policy that was refused is sent again after this long: what refused it may have ended."""
CALL_SECONDS = 5.0
LAG_BOUND = "30s"
MIN_BOUND = 32
"""Of `bounds.max`, as by default: one that runs with more is not advised to shrink to it."""
_NAME_CHARACTERS = 50


@dataclass(frozen=True)
class Candidate:
    """An application that runs, and the specification that advises on it."""

    name: str
    """Its own name, of any form."""
    suffix: str
    """Tells it apart from others whose policies would have the same name."""
    spec: Mapping[str, Any]
    namespace: str = NAMESPACE


@dataclass(frozen=True)
class Found:
    """Applications that a source found, and a sentence that names the place and their number, or the remedy if there are none."""

    candidates: Sequence[Candidate]
    sentence: str


class Source(Protocol):
    """A place that applications are found in."""

    label: ClassVar[str]
    """Value of `LABEL` of its policies."""
    option: ClassVar[str]
    """Option of the command that names the place."""
    max_watched: ClassVar[int | None]
    """Applications that are watched at most; None: all."""

    @property
    def place(self) -> str:
        """Name of the place for sentences."""

    async def find(self) -> Found:
        """Return what runs now; `CommandError` with place and remedy if that cannot be read."""

    def covers(self, policy: Mapping[str, Any]) -> bool:
        """Return whether this source would find the application of a policy with its label, if it runs."""

    async def close(self) -> None: ...


def policy_name(name: str, default: str = "job") -> str:
    """Return an application's name in the form of a policy's: lower case, and a dash for every other character."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:_NAME_CHARACTERS].strip("-") or default


def policies_of(candidates: Iterable[Candidate], label: str) -> dict[str, dict[str, Any]]:
    """Return a policy for each candidate, by application. Names of policies that several would have end with the suffix."""
    named = [(each, policy_name(each.name)) for each in candidates]
    uses = Counter((each.namespace, name) for each, name in named)
    found: dict[str, dict[str, Any]] = {}
    for each, plain in named:
        name = plain if uses[each.namespace, plain] == 1 else f"{plain}-{each.suffix}"
        found[f"{each.namespace}/{name}"] = {
            "apiVersion": "weir.dev/v1alpha1",
            "kind": "ScalingPolicy",
            "metadata": {"namespace": each.namespace, "name": name, "labels": {LABEL: label}},
            "spec": {**each.spec, "mode": "advise"},
        }
    return found


@dataclass(eq=False)
class Discovery:
    """Looks for applications until stopped. `api` is that of the process."""

    source: Source
    api: LocalApi
    sentence: str = field(default="", init=False)
    """What was found the last time, or why nothing could be read; empty: it was not read yet."""
    has_found: bool = field(default=False, init=False)
    """Whether anything was there the last time."""
    _found: dict[str, Sequence[str]] = field(default_factory=dict, init=False)
    """The kind of what each policy names as its application."""
    _earlier: set[str] | None = field(default=None, init=False)
    """Applications that an earlier process found here, and this one has not seen yet. None: they were not read."""
    _absent_since: dict[str, float] = field(default_factory=dict, init=False)
    _refused: dict[str, tuple[float, str]] = field(default_factory=dict, init=False)
    """When a policy is sent again that was refused, and the reason; empty for one that the user wrote."""

    async def run(self, stop: Stop) -> None:
        """Look until stopped."""
        await run_forever("discovery", lambda: stop.race(self._look()), stop, pause_seconds=LOOK_SECONDS)

    async def _look(self) -> None:
        try:
            found = await self.source.find()
        except CommandError as error:
            self.sentence, self.has_found = str(error), False
            return
        await self._adopt()
        there = policies_of(found.candidates, self.source.label)
        wanted = self._watched(there)
        for application in wanted:
            await self._add(application, there[application])
        await self._remove_absent(wanted)
        self._refused = {application: each for application, each in self._refused.items() if application in wanted}
        self.sentence, self.has_found = self._sentence(found, len(wanted)), bool(found.candidates)

    @property
    def is_settled(self) -> bool:
        """Whether it is known which of the applications of an earlier process have ended."""
        return self._earlier == set()

    async def _adopt(self) -> None:
        """Take over the policies that an earlier process found here, and left in the same file."""
        if self._earlier is None:
            stored = await self.api.found(LABEL, self.source.label)
            self._found = {name: _kind(policy) for name, policy in stored.items() if self.source.covers(policy)}
            self._earlier = set(self._found)

    def _watched(self, there: Collection[str]) -> list[str]:
        """Return what is watched: everything, or, of too many, those that are watched already and the first others by name."""
        by_name = sorted(there, key=lambda application: (application not in self._found, application))
        return by_name[: self.source.max_watched]

    def _sentence(self, found: Found, watched: int) -> str:
        sentences = [found.sentence]
        if watched < len(found.candidates):
            sentences.append(f"{watched} of them are watched, the most that are")
        if refused := [f"{name} is not watched: {reason}" for name, (_, reason) in self._refused.items() if reason]:
            sentences.append(refused[0] + (f" ({len(refused) - 1} more)" if len(refused) > 1 else ""))
        return "; ".join(sentences)

    async def _add(self, application: str, document: Mapping[str, Any]) -> None:
        """Write the policy, unless there is one with this name or for the same application. One that was found is replaced if
        the application turns out to be of another kind."""
        again_at, before = self._refused.get(application, (0.0, ""))
        now, known = self.api.clock.monotonic(), self._found.get(application)
        if now < again_at or (known == _kind(document) and application not in self._refused):
            return
        if known not in (None, _kind(document)) and await self._removed(application) is None:
            return
        refused = await self.api.create(application, document)
        if refused is None or refused.status_code == 409:
            self._found[application] = _kind(document)
        if refused is None:
            self._refused.pop(application, None)
            return
        reason = "" if refused.status_code == 409 else detail_of(refused)
        self._refused[application] = (now + AGAIN_SECONDS, reason)
        if reason not in ("", before):
            structlog.get_logger("discovery").warning("not-watched", application=application, reason=reason)

    async def _remove_absent(self, wanted: Collection[str]) -> None:
        now, earlier = self.api.clock.monotonic(), self._earlier or set()
        for application in wanted:
            self._absent_since.pop(application, None)
            earlier.discard(application)
        for application in self._found.keys() - set(wanted):
            since = self._absent_since.setdefault(application, now)
            limit_seconds = EARLIER_SECONDS if application in earlier else GONE_SECONDS
            if now - since < limit_seconds or (is_removed := await self._removed(application)) is None:
                continue
            if is_removed:
                reason = f"it no longer runs at {self.source.place}, where Weir found it"
                structlog.get_logger("discovery").warning("policy-removed", application=application, reason=reason)
            del self._found[application]
            del self._absent_since[application]
            earlier.discard(application)

    async def _removed(self, application: str) -> bool | None:
        """Delete a policy that was found; return whether there was one. None: it cannot be deleted now."""
        return await self.api.remove_found(application, LABEL, self.source.label)


def _kind(policy: Mapping[str, Any]) -> Sequence[str]:
    """Return the kind of what a policy names as its application; empty for a workload."""
    return list(policy["spec"].get("application") or ())

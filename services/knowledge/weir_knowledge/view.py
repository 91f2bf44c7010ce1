"""Policies, actions and states as the store has them, and the documents in which it keeps them.

A state has a field for each newest message and for each entry of its lists, so that a message writes only its changes: it
has up to some hundred kB of JSON, and each of the three messages of a cycle changes a few of them. The newest messages,
its largest part for a rarely scaled application, are read on request and not for the next message. Past cycles are kept
apart, since a message needs none of them, and 500 lines are four times as long as all that it needs.
"""

import asyncio
import json
from collections.abc import Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from cachetools import RRCache

from weir_contracts import ActionState, ScalingPolicy
from weir_engines.registry import Claim, claims
from weir_runtime.bus import partition_of

from .core import Cycle, State
from .newest import KINDS, Digest, Kind, Newest
from .spend import NO_PRICES, Prices
from .store import Fields, Store

TEXT = "text"
"""The field of a policy and of an action."""
VERSION = "version"
"""Of a policy and of an action, in the log: an action's own number is its executor's."""
CLAIMS = "claims"
"""Of a policy: what no other policy may claim."""
TIMES, GLANCE = "times", "glance"
LISTS = ("cycles", "open_cycles")
SUMS = ("spend", "advice", "lateness")
_SEPARATOR = "/"
MAX_STATES_READ = 50
"""In one round trip: some megabytes."""


class Known(NamedTuple):
    """The stored parts of one application that its summary shows; None: it has none."""

    digest: Digest
    policy: ScalingPolicy | None
    action: ActionState | None


@dataclass(frozen=True, eq=False)
class View:
    """Reads the store of a log with so many partitions. Policies and actions are `StoreUnavailable` while their partition
    was not read to its end: what the store has of them may be old, and what it does not have may be in force."""

    store: Store
    partitions: int
    prices: Prices = field(default_factory=lambda: NO_PRICES)
    """Of the slot-hours that are shown."""

    def partition(self, application: str) -> int:
        return partition_of(application, self.partitions)

    async def policy(self, application: str) -> ScalingPolicy | None:
        text = await self._text("policy", application)
        return None if text is None else ScalingPolicy.model_validate_json(text)

    async def policies(self) -> list[ScalingPolicy]:
        """Return all policies, by application."""
        found = await self.store.all("policy", [TEXT], complete=range(self.partitions))
        return [ScalingPolicy.model_validate_json(fields[TEXT]) for fields in found.values()]

    async def policy_page(self, applications: Sequence[str]) -> list[ScalingPolicy]:
        """Return the policies of these applications, in their order, of those that have one."""
        keys = [("policy", name) for name in applications]
        found = await self.store.get(keys, [TEXT], complete=range(self.partitions))
        return [_policy(found[key][TEXT]) for key in keys if key in found]

    async def claims(self) -> dict[str, frozenset[Claim]]:
        """Return what each policy claims, by application, without reading the policies."""
        found = await self.store.all("policy", [CLAIMS], complete=range(self.partitions))
        stored = {name: each[CLAIMS] for name, each in found.items() if CLAIMS in each}
        # Of an earlier version, which did not store them.
        others = await self.policy_page([name for name in found if name not in stored])
        known = {name: frozenset(map(tuple, json.loads(text))) for name, text in stored.items()}
        return known | {each.application: claims(each.subject) for each in others}

    async def action(self, application: str) -> ActionState | None:
        text = await self._text("action", application)
        return None if text is None else ActionState.model_validate_json(text)

    async def _text(self, kind: str, application: str) -> str | None:
        key = (kind, application)
        found = await self.store.get([key], complete=[self.partition(application)])
        return found[key][TEXT] if key in found else None

    async def shows(self, topic: str, application: str, version: int) -> bool:
        """Return whether the application's partition of a topic was applied up to the version of a decision."""
        partition = self.partition(application)
        position = (await self.store.applied([partition]))[partition]
        return position is not None and position.versions.get(topic, 0) >= version

    async def applications(self) -> list[str]:
        """Return all applications with a policy or a state."""
        return sorted({*await self.store.keys("policy"), *await self.store.keys("state")})

    async def newest(self, application: str, kinds: Collection[Kind] = KINDS) -> Newest | None:
        """Return the newest message of each of these kinds; None without a state."""
        key = ("state", application)
        found = await self.store.get([key], kinds)
        return Newest.read(application, found[key]) if key in found else None

    async def known(self, applications: Sequence[str]) -> list[Known]:
        """Return what a summary of each application is made of, in their order and one reading of the store."""
        keys = [(kind, name) for name in applications for kind in ("state", "policy", "action")]
        partitions = {self.partition(name) for name in applications}
        stored = await self.store.get(keys, (TIMES, GLANCE, *SUMS, TEXT), complete=partitions)
        found = []
        for name in applications:
            state, policy, action = (stored.get((kind, name)) for kind in ("state", "policy", "action"))
            found.append(
                Known(
                    Digest(application=name) if state is None else _read_digest(name, state),
                    None if policy is None else _policy(policy[TEXT]),
                    None if action is None else _action(action[TEXT]),
                )
            )
        return found

    async def state(self, application: str) -> State | None:
        stored = (await self.states([application]))[application]
        return None if stored is None else stored.state

    async def states(self, applications: Collection[str]) -> "dict[str, Stored | None]":
        """Return the state of each application, as it is stored."""
        stored: dict[str, Stored | None] = {}
        names = list(applications)
        for begin in range(0, len(names), MAX_STATES_READ):
            piece = names[begin : begin + MAX_STATES_READ]
            found = await self.store.get([("state", name) for name in piece])
            for name in piece:
                fields = found.get(("state", name))
                stored[name] = None if fields is None else read_state(name, fields)
                await asyncio.sleep(0)  # parsing takes time: HTTP requests are answered in between
        return stored


# A list is asked for again and again, and few of its policies and actions change in between.
@lru_cache(maxsize=2_000)
def _policy(text: str) -> ScalingPolicy:
    return ScalingPolicy.model_validate_json(text)


@lru_cache(maxsize=2_000)
def _action(text: str) -> ActionState:
    return ActionState.model_validate_json(text)


def policy_fields(policy: ScalingPolicy) -> Fields:
    """Return the policy without the fields that its user left out: a default may change."""
    claimed = json.dumps(sorted(claims(policy.subject)))
    number = str(policy.metadata.version or 0)
    return {TEXT: policy.model_dump_json(exclude_unset=True), VERSION: number, CLAIMS: claimed}


def action_fields(action: ActionState, version: int) -> Fields:
    """Return an action that has this version in the log."""
    return {TEXT: action.model_dump_json(), VERSION: str(version)}


@dataclass(frozen=True)
class Stored:
    """A state as it is stored."""

    state: State
    lengths: Mapping[str, int]
    """Characters of each field that it was read from."""

    def changed(self, state: State, change: "StateChange") -> "Stored":
        """Return the stored state after a change."""
        lengths = {name: length for name, length in self.lengths.items() if name not in change.removed}
        lengths |= {name: len(text) for name, text in change.fields.items() if name.startswith(LISTS)}
        return Stored(state, lengths)


@dataclass(frozen=True)
class StateChange:
    """Fields of a state to write and to remove."""

    fields: dict[str, str]
    removed: list[str]


def state_change(before: State | None, after: State, documents: Mapping[Kind, str]) -> StateChange:
    """Return the change from the stored state (None: none is stored) to `after`, with new newest messages as JSON by kind.

    An entry that is the same object is unchanged.
    """
    before = before or State(application=after.application)
    fields: dict[str, str] = {TIMES: after.times.model_dump_json(), **dict(documents.items())}
    if after.glance is not before.glance:
        fields[GLANCE] = after.glance.model_dump_json(exclude_defaults=True)
    removed: list[str] = []
    for name in LISTS:
        earlier, current = _by_id(getattr(before, name)), _by_id(getattr(after, name))
        if earlier.keys() == current.keys() and all(earlier[key] is current[key] for key in current):
            continue
        prefix = name + _SEPARATOR
        fields |= {prefix + k: cycle.model_dump_json() for k, cycle in current.items() if earlier.get(k) is not cycle}
        fields[name] = json.dumps(list(current))
        removed += [prefix + key for key in earlier if key not in current]
    for name in SUMS:
        earlier_sums, sums = getattr(before, name), getattr(after, name)
        if sums is not None and sums != earlier_sums:
            fields[name] = sums.model_dump_json()
        elif sums is None and earlier_sums is not None:
            removed.append(name)
    return StateChange(fields, removed)


def _by_id(cycles: list[Cycle]) -> dict[str, Cycle]:
    return {str(cycle.correlation_id): cycle for cycle in cycles}


def read_state(application: str, fields: Fields) -> Stored:
    """Return the state of a document. `ValueError` for an invalid one."""
    lists = {}
    for name in LISTS:
        keys = json.loads(fields.get(name, "[]"))
        lists[name] = "[" + ",".join(fields[name + _SEPARATOR + key] for key in keys) + "]"
    lengths = {name: len(text) for name, text in fields.items() if name.startswith(LISTS)}
    return Stored(State.model_validate_json(_body(application, fields, lists)), lengths)


def _read_digest(application: str, fields: Fields) -> Digest:
    return Digest.model_validate_json(_body(application, fields, {}))


def _body(application: str, fields: Fields, lists: Fields) -> str:
    """Return the JSON of a document's parts."""
    parts = {"application": json.dumps(application), TIMES: fields[TIMES], **lists}
    parts |= {name: fields[name] for name in (GLANCE, *SUMS) if name in fields}
    return "{" + ",".join(f'"{name}":{text}' for name, text in parts.items()) + "}"


def state_cache(max_characters: int) -> MutableMapping[str, Stored]:
    """Return a cache of states by application, bounded by the length of their JSON; a state takes about seven times
    that in memory.

    Evicts at random: applications come in the same order each cycle, so that the one used longest ago would be the next
    one.
    """
    return RRCache(max_characters, getsizeof=lambda stored: sum(stored.lengths.values()))

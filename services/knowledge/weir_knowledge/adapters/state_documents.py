"""The state of an application as one Redis hash: a field for each newest message and for each entry of its lists, so
that a message writes only its changes. No I/O: `redis.py` sends the fields, packed.

A hash has up to some hundred kB of JSON, and each of the three messages of a cycle changes a few of them. The newest
messages, its largest part for a rarely scaled application, are read on request and not for the next message.
"""

import json
from collections.abc import Callable, Collection, Mapping, MutableMapping
from dataclasses import dataclass, field
from uuid import uuid4

from cachetools import RRCache

from weir_knowledge.adapters.connection import unpack
from weir_knowledge.core import KINDS, Cycle, Kind, Newest, State

VERSION = "version"
"""A random text after each write, so that a cached state need not be read again, followed by the state's times."""
LISTS = ("cycles", "open_cycles")
SUMS = ("spend", "advice")
_SEPARATOR = "/"


@dataclass
class Change:
    """Fields to write and to remove."""

    fields: dict[str, str] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)

    def packed(self, pack: Callable[[str], bytes]) -> dict[str, bytes]:
        """Return the fields to write. The version is compared in Redis, so it is not packed."""
        return {name: text.encode() if name == VERSION else pack(text) for name, text in self.fields.items()}


def changes(before: State | None, after: State, documents: Mapping[Kind, str], there: Collection[str] = ()) -> Change:
    """Return the change from the stored state to `after`, with new newest messages as JSON by kind.

    An entry that is the same object is unchanged. If `before` is None, the entries in the fields `there` are replaced.
    """
    change = Change({VERSION: f"{uuid4().hex} {after.times.model_dump_json()}", **dict(documents.items())})
    for name in LISTS:
        prefix, entries = name + _SEPARATOR, getattr(after, name)
        earlier: Mapping[str, Cycle | None]
        if before is None:
            earlier = {field.removeprefix(prefix): None for field in there if field.startswith(prefix)}
        elif entries is getattr(before, name):
            continue
        else:
            earlier = _by_id(getattr(before, name))
        current = _by_id(entries)
        for key, entry in current.items():
            if earlier.get(key) is not entry:
                change.fields[prefix + key] = entry.model_dump_json()
        change.removed += [prefix + key for key in earlier if key not in current]
        change.fields[name] = json.dumps(list(current))
    for name in SUMS:
        earlier_sums, sums = getattr(before, name, None), getattr(after, name)
        had = name in there if before is None else earlier_sums is not None
        if sums is not None and sums != earlier_sums:
            change.fields[name] = sums.model_dump_json()
        elif sums is None and had:
            change.removed.append(name)
    return change


def _by_id(cycles: list[Cycle]) -> dict[str, Cycle]:
    return {str(cycle.correlation_id): cycle for cycle in cycles}


def read_newest(application: str, packed: Mapping[str, str]) -> Newest:
    """Return the newest messages and the sums of an application from fields of its hash. `ValueError` for an invalid one."""
    return Newest.read(application, {name: unpack(packed[name]) for name in (*KINDS, *SUMS) if packed.get(name)})


@dataclass(frozen=True)
class Stored:
    """A state as it is stored."""

    version: str
    state: State
    lengths: Mapping[str, int]
    """Characters of each field that it was read from."""

    def changed(self, state: State, change: Change) -> "Stored":
        """Return the stored state after a change."""
        lengths = {name: length for name, length in self.lengths.items() if name not in change.removed}
        lengths |= {name: len(text) for name, text in change.fields.items() if name.startswith(LISTS)}
        return Stored(change.fields[VERSION], state, lengths)


def read(application: str, packed: Mapping[str, str]) -> Stored | None:
    """Return the state in a hash; None for an empty one. `ValueError` for an invalid one."""
    if VERSION not in packed:
        return None
    fields = {name: unpack(text) for name, text in packed.items() if name.startswith(LISTS)}
    parts = {"application": json.dumps(application), "times": packed[VERSION].partition(" ")[2]}
    parts |= {name: _entries(name, fields) for name in LISTS}
    parts |= {name: unpack(packed[name]) for name in SUMS if name in packed}
    body = ",".join(f'"{name}":{text}' for name, text in parts.items())
    state = State.model_validate_json(f"{{{body}}}")
    return Stored(packed[VERSION], state, {name: len(text) for name, text in fields.items()})


def _entries(name: str, fields: Mapping[str, str]) -> str:
    keys = json.loads(fields.get(name, "[]"))
    # An entry may be missing if Redis was emptied during a write; the topics have it.
    found = (fields.get(name + _SEPARATOR + key) for key in keys)
    return "[" + ",".join(text for text in found if text) + "]"


def state_cache(max_characters: int) -> MutableMapping[str, Stored]:
    """Return a cache of states by application, bounded by the length of their JSON; a state takes about seven times
    that in memory.

    Evicts at random: applications come in the same order each cycle, so that the one used longest ago would be the next
    one.
    """
    return RRCache(max_characters, getsizeof=lambda stored: sum(stored.lengths.values()))

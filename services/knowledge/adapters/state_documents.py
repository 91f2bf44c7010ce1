"""An application as one Redis hash: a field for each newest message and for each entry of its state's lists, so that a
message writes only its changes. No I/O here; `redis.py` carries the fields, packed.

A whole hash grows to some hundred kB of JSON, and each of the three messages of a turn changes a few of them. The newest messages are
most of it where an application is seldom scaled: they are read when somebody asks for them, and not for the next message.
"""

import json
from collections.abc import Callable, Collection, Mapping, MutableMapping
from dataclasses import dataclass, field
from uuid import uuid4

from cachetools import RRCache
from weir_contracts import Message

from services.knowledge.adapters.connection import unpack
from services.knowledge.core import KINDS, Kind, Newest, State, Turn

VERSION = "version"
"""Another one after each write, so that who has read this one need not read it again; behind it, what was seen."""

LISTS = ("turns", "open_turns")
HISTORY = "history"
"""A list that an earlier version kept among them; it has a key of its own now."""
_SEPARATOR = "/"


@dataclass
class Change:
    """Fields to write and to remove."""

    fields: dict[str, str] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)

    def packed(self, pack: Callable[[str], bytes]) -> dict[str, bytes]:
        """The fields as they are to lie there. The version is compared as it stands."""
        return {name: text.encode() if name == VERSION else pack(text) for name, text in self.fields.items()}


def changes(before: State | None, after: State, documents: Mapping[Kind, str], there: Collection[str] = ()) -> Change:
    """From what is stored to `after`, with the newest messages that are new, as JSON by kind. Parts that are the very same object are
    the same; `before` None: whatever entries may be `there`, by the names of their fields, are replaced."""
    change = Change({VERSION: f"{uuid4().hex} {after.seen.model_dump_json()}"})
    change.fields.update(documents.items())
    for name in LISTS:
        entries = getattr(after, name)
        if before is None:
            prefix = name + _SEPARATOR
            unknown = {field.removeprefix(prefix): None for field in there if field.startswith(prefix)}
            _list_changes(name, unknown, _keyed(entries), change)
        elif entries is not getattr(before, name):
            _list_changes(name, _keyed(getattr(before, name)), _keyed(entries), change)
    return change


def _list_changes(
    name: str, before: Mapping[str, Message | None], after: Mapping[str, Message], change: Change
) -> None:
    for key, entry in after.items():
        if before.get(key) is not entry:
            change.fields[name + _SEPARATOR + key] = entry.model_dump_json()
    change.removed += [name + _SEPARATOR + key for key in before if key not in after]
    change.fields[name] = json.dumps(list(after))


def _keyed(entries: list[Turn]) -> dict[str, Message]:
    return {str(entry.correlation_id): entry for entry in entries}


def read_newest(application: str, packed: Mapping[str, str]) -> Newest:
    """The newest messages of an application, from fields of its hash. Raises `ValueError` for what is none."""
    return Newest.read(application, {name: unpack(packed[name]) for name in KINDS if packed.get(name)})


def earlier_history(fields: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """The past turns that an earlier version kept in the hash, newest first, and all fields that they are in."""
    prefix = HISTORY + _SEPARATOR
    names = [name for name in fields if name == HISTORY or name.startswith(prefix)]
    keys = json.loads(fields.get(HISTORY, "[]"))
    return [fields[prefix + key] for key in keys if prefix + key in fields], names


@dataclass(frozen=True)
class Stored:
    """A state as it lies there."""

    version: str
    state: State
    lengths: Mapping[str, int]
    """Of each field that it was read from, in characters."""

    def changed(self, state: State, change: Change) -> "Stored":
        """After a change was written."""
        return Stored(change.fields[VERSION], state, lengths_after(self.lengths, change))


def read(application: str, packed: Mapping[str, str]) -> Stored | None:
    """The state in a hash; None for an empty one. Raises `ValueError` for what is no state."""
    if VERSION not in packed:
        return None
    times = packed[VERSION].partition(" ")[2]
    if not times:  # an earlier version wrote it
        times = read_newest(application, packed).times().model_dump_json()
    fields = {name: unpack(text) for name, text in packed.items() if name.startswith(LISTS)}
    parts = {"application": json.dumps(application), "seen": times} | {name: _entries(name, fields) for name in LISTS}
    body = ",".join(f'"{name}":{text}' for name, text in parts.items())
    state = State.model_validate_json(f"{{{body}}}")
    return Stored(packed[VERSION], state, {name: len(text) for name, text in fields.items()})


def _entries(name: str, fields: Mapping[str, str]) -> str:
    keys = json.loads(fields.get(name, "[]"))
    # An entry may be missing where Redis was emptied in the middle of a write; the topics know it.
    found = (fields.get(name + _SEPARATOR + key) for key in keys)
    return "[" + ",".join(text for text in found if text) + "]"


def lengths_after(lengths: Mapping[str, int], change: Change) -> dict[str, int]:
    """Return the length of each field after a change."""
    kept = {name: length for name, length in lengths.items() if name not in change.removed}
    return kept | {name: len(text) for name, text in change.fields.items() if name.startswith(LISTS)}


def known_states(max_characters: int) -> MutableMapping[str, Stored]:
    """States as they were last read or written, by application, up to a sum of lengths. Which go is left to chance: applications come
    round in turn, and the least recently used would always be the very next one. In memory a state is about seven times its length."""
    return RRCache(max_characters, getsizeof=lambda stored: sum(stored.lengths.values()))

"""How an application's state lies in one Redis hash: a field for each part and each entry of its lists, so that a message writes what
it has changed and nothing else. No I/O here; `redis.py` carries the fields.

A whole state grows to some hundred kB of JSON, and each of the three messages of a turn changes a few of them.
"""

import json
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from uuid import uuid4

from cachetools import RRCache
from weir_contracts import Message

from services.knowledge.core import State, Turn

VERSION = "version"
"""Another one after each write: who has read this one already need not read it again."""

DOCUMENTS = ("observation", "analysis", "plan", "outcome")
LISTS = ("turns", "open_turns")
HISTORY = "history"
"""A list that an earlier version kept among them; it has a key of its own now."""
_SEPARATOR = "/"


@dataclass
class Change:
    """What has to be written and removed."""

    fields: dict[str, str] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)


def changes(before: State | None, after: State) -> Change:
    """From what is stored to `after`. Parts that are the very same object are the same; `before` None: whatever may be there is
    replaced, which the caller does by deleting the hash first."""
    change = Change({VERSION: uuid4().hex})
    for name in DOCUMENTS:
        document = getattr(after, name)
        if before is None or document is not getattr(before, name):
            change.fields[name] = "" if document is None else document.model_dump_json()
    for name in LISTS:
        entries = getattr(after, name)
        if before is None or entries is not getattr(before, name):
            _list_changes(name, {} if before is None else _keyed(getattr(before, name)), _keyed(entries), change)
    return change


def _list_changes(name: str, before: Mapping[str, Message], after: Mapping[str, Message], change: Change) -> None:
    for key, entry in after.items():
        if before.get(key) is not entry:
            change.fields[name + _SEPARATOR + key] = entry.model_dump_json()
    change.removed += [name + _SEPARATOR + key for key in before if key not in after]
    change.fields[name] = json.dumps(list(after))


def _keyed(entries: list[Turn]) -> dict[str, Message]:
    return {str(entry.correlation_id): entry for entry in entries}


def read(application: str, fields: Mapping[str, str]) -> State | None:
    """The state in a hash; None for an empty one. Raises `ValueError` for what is no state."""
    if VERSION not in fields:
        return None
    parts = {name: fields[name] for name in DOCUMENTS if fields.get(name)}
    for name in LISTS:
        keys = json.loads(fields.get(name, "[]"))
        # An entry may be missing where Redis was emptied in the middle of a write; the topics know it.
        found = (fields.get(name + _SEPARATOR + key) for key in keys)
        parts[name] = "[" + ",".join(text for text in found if text) + "]"
    body = ",".join(f"{json.dumps(name)}:{text}" for name, text in parts.items())
    return State.model_validate_json(f'{{"application":{json.dumps(application)},{body}}}')


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
    """Of each field, in characters."""

    def changed(self, state: State, change: Change) -> "Stored":
        """After a change was written."""
        return Stored(change.fields[VERSION], state, lengths_after(self.lengths, change))


def lengths_after(lengths: Mapping[str, int], change: Change) -> dict[str, int]:
    """Of each field after a change."""
    kept = {name: length for name, length in lengths.items() if name not in change.removed}
    return kept | {name: len(text) for name, text in change.fields.items()}


def known_states(most_characters: int) -> MutableMapping[str, Stored]:
    """States as they were last read or written, by application, up to a sum of lengths. Which go is left to chance: applications come
    round in turn, and the least used would always be the very next one. In memory a state is about seven times its length."""
    return RRCache(most_characters, getsizeof=lambda stored: sum(stored.lengths.values()))

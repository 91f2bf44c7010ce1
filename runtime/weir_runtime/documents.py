"""Strict reading of users' YAML and JSON: a repeated key is an error, a date stays text."""

import json
import re
import sys
from collections.abc import Iterable
from itertools import chain
from math import inf
from pathlib import Path
from typing import Any

import yaml

from weir_contracts import printable


class Unreadable(ValueError):
    """Text that is not YAML or JSON; `line` counts from 1, None: unknown."""

    def __init__(self, sentence: str, line: int | None = None) -> None:
        self.line = line
        super().__init__(printable(sentence, 300))


MAX_EXPANDED_CHARACTERS = 1_000_000
"""Of a document whose aliases are written out: a kilobyte of them can stand for a terabyte. Fifty times a large policy."""


class _Strict(yaml.SafeLoader):
    has_alias = False

    def compose_document(self) -> Any:
        node = super().compose_document()
        if node is not None and self.has_alias and _expanded(node, {}) > MAX_EXPANDED_CHARACTERS:
            what = (
                f"its aliases stand for more than {MAX_EXPANDED_CHARACTERS:,} characters: write the parts out, or fewer"
            )
            raise yaml.MarkedYAMLError(problem=what, problem_mark=node.start_mark)
        return node

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.has_alias = self.has_alias or self.check_event(yaml.AliasEvent)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = set[Any]()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                # By value as well: `yes` and `true` are one key.
                same = {key.value, self.construct_object(key)}
                if keys & same:
                    what = f"the key {key.value[:100]!r} comes twice"
                    raise yaml.MarkedYAMLError(problem=what, problem_mark=key.start_mark)
                keys |= same
        return super().construct_mapping(node, deep)


def _expanded(node: yaml.Node | None, known: dict[int, float]) -> float:
    """Return the characters of a node with its aliases written out; one that contains itself has no end."""
    if node is None or id(node) in known:
        return 1 if node is None else known[id(node)]
    known[id(node)] = inf
    children: Iterable[yaml.Node] = ()
    if isinstance(node, yaml.MappingNode):
        children = chain.from_iterable(node.value)
    elif isinstance(node, yaml.SequenceNode):
        children = node.value
    own = len(node.value) if isinstance(node, yaml.ScalarNode) else 0
    known[id(node)] = 1 + own + sum(_expanded(child, known) for child in children)
    return known[id(node)]


# Dates stay text: JSON has none, and a policy's text must not change.
_Strict.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
# 1e3 is a number in YAML 1.2, and text in YAML 1.1, which this library reads.
_Strict.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


class _WithoutAliases(_Strict):
    """Refuses aliases, which no client of a service needs."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not read")
        return super().compose_node(parent, index)


def read_yaml(text: str, *, aliases: bool = False) -> list[Any]:
    """Return all non-empty documents. Allow `aliases` only for local files. Raises `Unreadable`."""
    try:
        found = list(yaml.load_all(text, _Strict if aliases else _WithoutAliases))
        return [document for document in found if document is not None]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        what = getattr(error, "problem", None) or " ".join(str(error).split())
        raise Unreadable(f"is not YAML: {what}", mark.line + 1 if mark else None) from None
    except RecursionError:
        raise Unreadable("is not YAML that can be read: it is nested too deeply") from None
    except ValueError as error:  # an invalid number
        raise Unreadable(f"is not YAML: {error}") from None


def read_files(file: str | Path) -> list[Any]:
    """Return the documents of a user's YAML file, or with `-` of standard input, without empty ones.

    Raises `Unreadable`, whose text names the file and the line.
    """
    place = "standard input" if file == "-" else file
    try:
        # Documents are UTF-8, whatever the terminal's encoding.
        content = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return read_yaml(content.decode(), aliases=True)
    except OSError as error:
        raise Unreadable(f"{place}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise Unreadable(f"{place}: is not UTF-8 text: {error.reason} at byte {error.start}") from None
    except Unreadable as error:
        raise Unreadable(f"{place}{f':{error.line}' if error.line else ''}: {error}") from None


def read_file(file: str | Path) -> Any:
    """Return the only document of a user's YAML file, or None where it holds none. Raises `Unreadable`."""
    found = read_files(file)
    if len(found) > 1:
        raise Unreadable(f"{file}: holds {len(found)} documents, and one is wanted")
    return found[0] if found else None


def read_json(text: str) -> Any:
    """Return the document. Raises `Unreadable`."""
    try:
        return json.loads(text, object_pairs_hook=_without_repeats)
    except RecursionError:
        raise Unreadable("is nested too deeply") from None
    except ValueError as error:
        raise Unreadable(f"is not JSON: {error}") from None


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key[:100]!r} comes twice")
        found[key] = value
    return found

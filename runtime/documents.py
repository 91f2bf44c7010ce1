"""YAML and JSON text that a person wrote, read without guessing: a key that comes twice is an error, a date is its text."""

import json
import re
from typing import Any

import yaml
from weir_contracts import printable


class Unreadable(ValueError):
    """Text that is not YAML or JSON; `line` is the place where that is known, from 1."""

    def __init__(self, sentence: str, line: int | None = None) -> None:
        self.line = line
        super().__init__(printable(sentence, 300))


class _Strict(yaml.SafeLoader):
    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[Any] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                # By its value, too: `yes` and `true` are one key.
                same = {key.value, self.construct_object(key)}
                if seen & same:
                    what = f"the key {key.value[:100]!r} comes twice"
                    raise yaml.MarkedYAMLError(problem=what, problem_mark=key.start_mark)
                seen |= same
        return super().construct_mapping(node, deep)


# Dates stay what is written: JSON has none, and a policy's text must not change on its way.
_Strict.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
# A number in YAML 1.2 and to people, and text in YAML 1.1, which this library reads.
_Strict.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


class _WithoutAliases(_Strict):
    """A kilobyte of aliases can stand for a terabyte."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not read")
        return super().compose_node(parent, index)


def read_yaml(text: str, *, aliases: bool = False) -> list[Any]:
    """All documents of the text but empty ones. `aliases` only for a file of the user's own. Raises `Unreadable`."""
    try:
        found = list(yaml.load_all(text, _Strict if aliases else _WithoutAliases))
        return [document for document in found if document is not None]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        what = getattr(error, "problem", None) or " ".join(str(error).split())
        raise Unreadable(f"is not YAML: {what}", mark.line + 1 if mark else None) from None
    except RecursionError:
        raise Unreadable("is not YAML that can be read: it is nested too deeply") from None
    except ValueError as error:  # a number that is none
        raise Unreadable(f"is not YAML: {error}") from None


def read_json(text: str) -> Any:
    """The document. Raises `Unreadable`."""
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

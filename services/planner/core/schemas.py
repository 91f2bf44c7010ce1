"""A planner's own description of its parameters (JSON Schema 2020-12), which somebody else wrote. Pure.

It is only as powerful as its check is cheap: references stay within it and never lead in a circle, patterns are matched in linear
time, and no part is fetched from anywhere.
"""

import json
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import SchemaError
from weir_contracts.plugins import MAX_SCHEMA_BYTES

MOST_PARTS = 5_000
"""Of a schema, its references followed."""
MOST_PARAMETERS_BYTES = 16_384
MOST_PROBLEMS = 10

Problems = list[tuple[str, str]]
"""Field and sentence."""


def schema_problems(schema: Mapping[str, Any]) -> list[str]:
    """What keeps a schema from being used, one sentence each."""
    size = len(json.dumps(schema).encode())
    if size > MAX_SCHEMA_BYTES:
        return [f"parameters: is {size} bytes, more than {MAX_SCHEMA_BYTES}"]
    if schema.get("type", "object") != "object":
        return ["parameters: must be the schema of an object"]
    try:
        _parts(schema, schema, ())
        _kind().check_schema(schema)
    except _Unusable as error:
        return [f"parameters: {error}"]
    except Exception as error:  # noqa: BLE001 - the library's errors are many, and the schema is anybody's
        what = getattr(error, "message", None) or error
        return [f"parameters: is no JSON Schema: {' '.join(str(what).split())[:300]}"]
    return []


def parameter_problems(planner: str, schema: Mapping[str, Any], values: Mapping[str, Any], field: str) -> Problems:
    """What is wrong with a policy's parameters for a planner, below `field`."""
    size = len(json.dumps(values, default=str).encode())
    if size > MOST_PARAMETERS_BYTES:
        return [(field, f"is {size} bytes, more than {MOST_PARAMETERS_BYTES}")]
    if wrong := schema_problems(schema):
        return [(field, f"{planner} describes its parameters in a way that cannot be used: {wrong[0]}")]
    found: Problems = []
    try:
        for error in _kind()(schema, registry=_no_registry()).iter_errors(values):
            found.extend(_told(planner, error, field))
            if len(found) >= MOST_PROBLEMS:
                break
    except Exception as error:  # noqa: BLE001 - as above: whatever the library makes of it
        return [(field, f"cannot be checked against the description of {planner}: {type(error).__name__}")]
    return found[:MOST_PROBLEMS]


class _Unusable(ValueError):
    pass


def _parts(node: Any, root: Mapping[str, Any], way: tuple[str, ...], *, names: bool = False) -> int:
    """How many parts a schema has with its references followed; `_Unusable` for what is not followed or matched here. `names`: the
    node maps properties' names to schemas."""
    if isinstance(node, list):
        return _bounded(sum(_parts(each, root, way) for each in node))
    if not isinstance(node, dict):
        return 1
    count = 1
    for key, value in node.items():
        if names:
            count += _parts(value, root, way)
        elif key in ("$dynamicRef", "$recursiveRef", "patternProperties"):
            raise _Unusable(f"{key} is not supported")
        elif key == "$ref":
            count += _followed(value, root, way)
        elif key in ("enum", "const", "default", "examples"):
            continue
        else:
            if key == "pattern":
                _pattern(value)
            count += _parts(value, root, way, names=key in ("properties", "$defs", "definitions"))
        _bounded(count)
    return count


def _followed(reference: Any, root: Mapping[str, Any], way: tuple[str, ...]) -> int:
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        raise _Unusable(f"$ref {str(reference)[:100]!r} leads out of it")
    if reference == "#" or reference in way:
        raise _Unusable(f"$ref {reference[:100]!r} leads back to itself")
    target: Any = root
    for part in reference[2:].split("/"):
        target = target.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(target, dict) else None
    if target is None:
        raise _Unusable(f"$ref {reference[:100]!r} leads nowhere")
    return _parts(target, root, (*way, reference))


def _bounded(count: int) -> int:
    if count > MOST_PARTS:
        raise _Unusable(f"has more than {MOST_PARTS} parts, its references followed")
    return count


@lru_cache(1000)
def _pattern(pattern: Any) -> TypeAdapter[str]:
    """Matches in linear time, which Python's own expressions do not."""
    try:
        return TypeAdapter(Annotated[str, Field(pattern=pattern)])
    except (SchemaError, TypeError) as error:
        why = " ".join(str(error).split())[:200]
        raise _Unusable(f"pattern {str(pattern)[:100]!r} cannot be matched in linear time: {why}") from None


def _matches(_validator: Any, pattern: str, instance: Any, _schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError as Wrong

    if not isinstance(instance, str):
        return
    try:
        _pattern(pattern).validate_python(instance)
    except ValidationError:
        yield Wrong(f"{instance[:80]!r} does not match {pattern!r}")


@cache
def _kind() -> Any:
    from jsonschema import Draft202012Validator, validators

    return validators.extend(  # type: ignore[no-untyped-call]
        Draft202012Validator, {"pattern": _matches}
    )


@cache
def _no_registry() -> Any:
    """Knows nothing and fetches nothing."""
    from referencing import Registry

    return Registry()


def _told(planner: str, error: Any, field: str) -> Problems:
    place = ".".join([field, *(str(part) for part in error.absolute_path)])
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        known = error.schema.get("properties", {})
        has = ", ".join(sorted(known)) or "none"
        return [
            (f"{place}.{name}", f"{planner} has no such parameter; it has: {has}")
            for name in error.instance
            if name not in known
        ]
    return [(place, " ".join(str(error.message).split())[:300])]

"""Schemas (JSON Schema 2020-12) by which remote planners describe their parameters. Pure.

They are untrusted, so that only cheap ones are supported: references stay in the schema without cycles, patterns match
in linear time, and nothing is fetched.
"""

import json
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import SchemaError

from weir_contracts import bounded, one_line
from weir_contracts.plugins import MAX_SCHEMA_BYTES

MAX_PARTS = 5_000
"""Parts of a schema with its references followed."""
MAX_PARAMETERS_BYTES = 16_384
MAX_PROBLEMS = 10

Problems = list[tuple[str, str]]
"""Field and sentence."""


def schema_problems(schema: Mapping[str, Any]) -> list[str]:
    """Return why a schema cannot be used, one sentence each."""
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
    except Exception as error:  # noqa: BLE001 - the library raises many classes on an untrusted schema
        return [f"parameters: is no JSON Schema: {one_line(getattr(error, 'message', None) or error)}"]
    return []


def parameter_problems(planner: str, schema: Mapping[str, Any], values: Mapping[str, Any], field: str) -> Problems:
    """Return what is wrong with a policy's parameters for a planner, as fields below `field` with sentences."""
    size = len(json.dumps(values, default=str).encode())
    if size > MAX_PARAMETERS_BYTES:
        return [(field, f"is {size} bytes, more than {MAX_PARAMETERS_BYTES}")]
    if wrong := schema_problems(schema):
        return [(field, f"the schema of {planner} cannot be used: {wrong[0]}")]
    found: Problems = []
    try:
        for error in _kind()(schema, registry=_no_registry()).iter_errors(values):
            found.extend(_problems(planner, error, field))
            if len(found) >= MAX_PROBLEMS:
                break
    except Exception as error:  # noqa: BLE001 - as above
        return [(field, f"cannot be checked by the schema of {planner}: {type(error).__name__}")]
    return found[:MAX_PROBLEMS]


def example_parameters(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema's first example, or no parameters: what a trial request sends."""
    examples = schema.get("examples")
    return examples[0] if isinstance(examples, list) and examples and isinstance(examples[0], dict) else {}


class _Unusable(ValueError):
    pass


def _parts(node: Any, root: Mapping[str, Any], way: tuple[str, ...], *, names: bool = False) -> int:
    """Count a schema's parts with references followed; `names`: the node maps names to schemas. Raises `_Unusable`."""
    if isinstance(node, list):
        return _checked_count(sum(_parts(each, root, way) for each in node))
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
        _checked_count(count)
    return count


def _followed(reference: Any, root: Mapping[str, Any], way: tuple[str, ...]) -> int:
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        raise _Unusable(f"$ref {bounded(str(reference), 100)!r} leads out of it")
    if reference == "#" or reference in way:
        raise _Unusable(f"$ref {bounded(reference, 100)!r} leads back to itself")
    target: Any = root
    for part in reference[2:].split("/"):
        target = target.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(target, dict) else None
    if target is None:
        raise _Unusable(f"$ref {bounded(reference, 100)!r} leads nowhere")
    return _parts(target, root, (*way, reference))


def _checked_count(count: int) -> int:
    if count > MAX_PARTS:
        raise _Unusable(f"has more than {MAX_PARTS} parts, its references followed")
    return count


@lru_cache(1000)
def _pattern(pattern: Any) -> TypeAdapter[str]:
    """Return a matcher in linear time, which `re` does not guarantee."""
    try:
        return TypeAdapter(Annotated[str, Field(pattern=pattern)])
    except (SchemaError, TypeError) as error:
        what = f"pattern {bounded(str(pattern), 100)!r} cannot be matched in linear time"
        raise _Unusable(f"{what}: {one_line(error, 200)}") from None


def _matches(_validator: Any, pattern: str, instance: Any, _schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError as Wrong

    if not isinstance(instance, str):
        return
    try:
        _pattern(pattern).validate_python(instance)
    except ValidationError:
        yield Wrong(f"{bounded(instance, 80)!r} does not match {pattern!r}")


@cache
def _kind() -> Any:
    from jsonschema import Draft202012Validator, validators

    return validators.extend(  # type: ignore[no-untyped-call]
        Draft202012Validator, {"pattern": _matches}
    )


@cache
def _no_registry() -> Any:
    """Return an empty registry, which fetches nothing."""
    from referencing import Registry

    return Registry()


def _problems(planner: str, error: Any, field: str) -> Problems:
    place = ".".join([field, *(str(part) for part in error.absolute_path)])
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        properties = error.schema.get("properties", {})
        has = ", ".join(sorted(properties)) or "none"
        return [
            (f"{place}.{name}", f"{planner} has no such parameter; it has: {has}")
            for name in error.instance
            if name not in properties
        ]
    return [(place, one_line(error.message))]

"""Reference page of every policy field as Markdown, from the policy's JSON Schema."""

from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]

_HEAD = """# Policy

Generated from the contracts by `make schemas`; do not edit. Fields are in camelCase, durations as `500ms`, `30s`,
`5m`, `1h30m` or `2d`. An unknown field is refused. The same fields as JSON Schema:
[policy.schema.json](../../contracts/schemas/v1alpha1/policy.schema.json).
"""


def policy_page(schema: Schema) -> str:
    """Return the page of a policy's JSON Schema that has its definitions in `$defs`."""
    sections: dict[str, list[str]] = {}
    for path, field, is_required in fields(schema):
        top = ".".join(path.replace("[]", "").split(".")[:2]) if path.startswith("spec.") else path.split(".")[0]
        top = top if path.startswith(("spec.", "metadata")) else "document"
        default = "required" if is_required else _default(field)
        row = f"| `{path}` | {_type(field, schema)} | {default} | {field['description']} |"
        sections.setdefault(top, []).append(" ".join(row.split()))
    lines = [_HEAD]
    for name, rows in sections.items():
        lines += [f"## {name}", "", "| field | type | default | meaning |", "|---|---|---|---|", *rows, ""]
    return "\n".join(lines)


def fields(schema: Schema) -> Iterator[tuple[str, Schema, bool]]:
    """Yield each field's path, schema and whether it is required, in the order of the types."""
    yield from _fields(schema, schema, "")


def _fields(model: Schema, root: Schema, prefix: str) -> Iterator[tuple[str, Schema, bool]]:
    for name, field in model.get("properties", {}).items():
        path = f"{prefix}{name}"
        yield path, field, name in model.get("required", ())
        for suffix, part in (("", field), ("[]", field.get("items")), (".NAME", field.get("additionalProperties"))):
            if isinstance(part, dict) and (inner := _model(part, root)):
                yield from _fields(inner, root, f"{path}{suffix}.")


def _model(field: Schema, root: Schema) -> Schema | None:
    """Return the definition that a field refers to, or None for a plain value."""
    for each in (field, *field.get("anyOf", ()), *field.get("allOf", ())):
        if reference := each.get("$ref"):
            found: Schema = root["$defs"][reference.rsplit("/", 1)[1]]
            return found
    return None


def _type(field: Schema, root: Schema) -> str:
    parts = [each for each in field.get("anyOf", [field]) if each.get("type") != "null"]
    return " or ".join(_plain_type(each, root) for each in parts)


def _plain_type(field: Schema, root: Schema) -> str:
    if _model(field, root) or field.get("type") == "object":
        return "object"
    if "const" in field or "enum" in field:
        return ", ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    if field["type"] == "array":
        return f"list of {_plain_type(field['items'], root)}"
    low, high = field.get("minimum", field.get("exclusiveMinimum")), field.get("maximum", field.get("exclusiveMaximum"))
    text = str(field["type"])
    if "exclusiveMinimum" in field:
        text += f", above {low:g}" + (f" up to {high:.7g}" if high is not None else "")
    elif low is not None and high is not None and high < 2**53:
        text += f", {low:g} to {high:.7g}"
    elif low is not None:
        text += f", at least {low:g}"
    return f"{text}, such as `{field['examples'][0]}`" if "examples" in field else text


def _default(field: Schema) -> str:
    if field.get("default") is None:
        return "–"
    value = field["default"]
    return ", ".join(f"`{each}`" for each in value) if isinstance(value, list) else f"`{value}`"

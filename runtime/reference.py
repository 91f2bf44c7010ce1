"""An API's reference as one plain page: tables made from the OpenAPI document, nothing loaded from anywhere else."""

import json
from collections.abc import Iterable, Iterator
from html import escape
from typing import Any

_STYLE = (
    "body{font:15px system-ui;margin:2em auto;max-width:70em;padding:0 1em}table{border-collapse:collapse;width:100%}"
    "td,th{border:1px solid #8888;padding:.3em .6em;text-align:left;vertical-align:top}pre{overflow:auto;margin:0}"
)


def page(document: dict[str, Any]) -> str:
    """The whole page: every operation with its parameters, bodies and examples, then every type."""
    info = document["info"]
    parts = [f"<h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{escape(info.get('description', ''))}</p>"]
    parts.append('<p>For programs: <a href="openapi.json">openapi.json</a></p>')
    for path, methods in document["paths"].items():
        parts += [_operation(f"{method.upper()} {path}", operation) for method, operation in methods.items()]
    for name, schema in sorted(document.get("components", {}).get("schemas", {}).items()):
        fields = schema.get("properties", {}).items()
        rows = (
            (field, _type(s) + ("" if field in schema.get("required", ()) else ", optional")) for field, s in fields
        )
        told = (f"<p>{escape(schema.get('description', ''))}</p>", _table(("field", "type"), rows))
        parts.append(f'<h3 id="{escape(name)}">{escape(name)}</h3>{"".join(told)}')
    title = escape(info["title"])
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
    return head + "".join(parts) + "</html>"


def _operation(name: str, operation: dict[str, Any]) -> str:
    rows = [
        (f"{p['name']} ({p['in']})", _type(p.get("schema", {})), escape(p.get("description", "")))
        for p in operation.get("parameters", ())
    ]
    rows += _bodies("request", operation.get("requestBody", {}))
    for status, response in operation["responses"].items():
        told = escape(response.get("description", ""))
        rows += list(_bodies(status, response)) or [(status, "", told)]
    what = escape(operation.get("description", ""))
    title = f"<h2><code>{escape(name)}</code></h2><p><b>{escape(operation.get('summary', ''))}</b> {what}</p>"
    return title + _table(("part", "type", "example or meaning"), rows)


def _bodies(part: str, body: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for media_type, content in body.get("content", {}).items():
        schema = content.get("schema", {})
        shown = content.get("example", next(iter(schema.get("examples", ())), None))
        text = shown if isinstance(shown, str) else json.dumps(shown, indent=1, ensure_ascii=False)
        example = "" if shown is None else f"<details><summary>example</summary><pre>{escape(text)}</pre></details>"
        yield f"{part} {media_type}", _type(schema), escape(body.get("description", "")) + example


def _type(schema: dict[str, Any]) -> str:
    """A schema in a few words, as HTML; references are links."""
    if "$ref" in schema:
        name = escape(str(schema["$ref"]).rsplit("/", 1)[-1])
        return f'<a href="#{name}">{name}</a>'
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        return " or ".join(_type(choice) for choice in choices)
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    said = schema.get("enum") or [schema["const"]] if "enum" in schema or "const" in schema else None
    limits = [
        f"{key} {schema[key]}" for key in ("format", "minimum", "maximum", "default") if schema.get(key) is not None
    ]
    return escape(", ".join([" | ".join(map(str, said)) if said else str(schema.get("type", "any")), *limits]))


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Heads and cells; the cells are HTML."""
    lines = ["".join(f"<td>{cell}</td>" for cell in row) for row in rows]
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>" if lines else ""

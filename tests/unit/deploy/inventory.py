"""The metrics, as the code declares them and as docs/reference/metrics.md lists them."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from weir_knowledge.gauges import ApplicationGauges

ROOT = Path(__file__).parents[3]
_KINDS = {"Counter": "counter", "Gauge": "gauge", "Histogram": "histogram"}
_ROW = re.compile(r"^\| `(weir_\w+)` \| (\w+) \|([\w, ]*)\| (.+) \|$", re.MULTILINE)


@dataclass(frozen=True)
class Known:
    """A metric's type and labels."""

    kind: str
    labels: frozenset[str]


def documented() -> dict[str, Known]:
    """By the tables of docs/reference/metrics.md."""
    text = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    return {
        name: Known(kind, frozenset(label.strip() for label in labels.split(",") if label.strip()))
        for name, kind, labels, _ in _ROW.findall(text)
    }


def exported() -> dict[str, Known]:
    """By what the modules of services, runtime and SDK declare; read, not imported, for that would take seconds."""
    found: dict[str, Known] = {}
    for folder in ("services", "runtime", "sdk"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text()
            if "prometheus_client" in text:
                found.update(_declared(ast.parse(text)))
    for gauge in ApplicationGauges().describe():
        found[gauge.name] = Known(gauge.type, frozenset(gauge._labelnames))
    return found


def _declared(tree: ast.Module) -> Iterator[tuple[str, Known]]:
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _KINDS):
            continue
        name, *rest = node.args
        labels = ast.literal_eval(rest[1]) if len(rest) > 1 else []
        yield ast.literal_eval(name), Known(_KINDS[node.func.id], frozenset(labels))

"""KTA's wire protocol (Kubernetes Topology Autoscaler, `v1alpha1`), which the SDK's server and the planner service's
client share. Pure.

A cycle of the loop calls up to three steps, each with the same id and start: monitor, analyze (optional), plan. Each
request holds the results of the steps before it and of earlier cycles, newest first:

    {"id", "udfStartTimestampMillis", "topology": [node, …], "monitorResult", "analyzeResult", "resultHistory": [result,
    …]}

A node is `{"type": "flinkStreamingGraphNode", "fields": "id=<vertex id>"}`; as the key of a map, that object as JSON
text. Writers differ in the blanks of that text, so keys are read and never compared. Each request also offers Weir's
own analysis as `weir`, which a server may ignore, and KTA's does; the registration's `offer_analysis: false` leaves it
out.

Source: dynatrace-oss/kubernetes-topology-autoscaler v0.1.0-alpha.1. Not copied: there a 0 hides behind the lower bound;
here it is refused.
"""

import json
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic_core import from_json
from weir_contracts import bounded

PREFIX = "/api/v1alpha1"
STEPS = ("monitor", "analyze", "plan")
WEIR_FIELD = "weir"
"""The extra field of a request: `{"contractVersion": "v1alpha1", "analysis": Analysis}`."""
Step = Literal["monitor", "analyze", "plan"]
FLINK_NODE = "flinkStreamingGraphNode"


class InvalidAnswer(ValueError):
    """A step's answer, or a node, that is not KTA's; the sentence says what is wrong with it."""


@dataclass(frozen=True)
class Node:
    """A node of the topology; two are equal if type and fields are, however they were written."""

    type: str
    fields: frozenset[tuple[str, str]]
    order: tuple[str, ...] = field(compare=False, default=())
    """The fields' names in the order in which they are written."""

    @property
    def value(self) -> dict[str, str]:
        """The node as a value."""
        named = dict(self.fields)
        return {"type": self.type, "fields": "|".join(f"{name}={named[name]}" for name in self.order or sorted(named))}

    @property
    def key(self) -> str:
        """The node as a map's key, as KTA's operator writes it."""
        return json.dumps(self.value, separators=(",", ":"))


def parse_node(written: Any) -> Node:
    """A node from a value or a key, which may be JSON text twice over. Raises `InvalidAnswer`."""
    read = written
    for _ in range(2):
        if isinstance(read, str):
            try:
                read = from_json(read)
            except (ValueError, TypeError):  # the latter for half a character
                raise InvalidAnswer(f"{shortened(written)} is no node") from None
    if not isinstance(read, dict) or not isinstance(read.get("type"), str) or not isinstance(read.get("fields"), str):
        raise InvalidAnswer(f"{shortened(written)} is no node: it needs the texts type and fields")
    pairs = [part.split("=") for part in read["fields"].split("|")]
    if any(len(pair) != 2 for pair in pairs):
        raise InvalidAnswer(f"{shortened(written)} is no node: its fields are not key=value|key=value")
    named = {pair[0]: pair[1] for pair in pairs}
    return Node(read["type"], frozenset(named.items()), tuple(named))


def shortened(value: Any) -> str:
    """Return what was written, for a sentence."""
    text = value if isinstance(value, str) else repr(value)
    return repr(bounded(text, 120))

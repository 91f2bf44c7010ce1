"""Monitor and executor read the same graph out of the same answer: otherwise no plan would ever fit its job.

They may not import one another, so the agreement is held here.
"""

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from weir_contracts import Edge, Operator, Topology

from services.executor.adapters import flink_answers as executor
from services.monitor import flink_answers as monitor

RECORDED = Path(__file__).parent / "recorded" / "job.json"


def as_monitored(document: Any) -> Topology:
    job = monitor.job(document)
    names = job.names()
    return Topology(
        operators=[Operator(name=names[v.id], id=v.id) for v in job.vertices],
        edges=[Edge(source=names[e.source], target=names[e.target]) for e in job.links],
    )


def as_executed(document: Any) -> Topology:
    return executor.topology(TypeAdapter(executor.Job).validate_python(document))


@st.composite
def graphs(draw: st.DrawFn) -> Any:
    """Any acyclic graph, its vertices and plan listed in any order, names repeated or very long."""
    count = draw(st.integers(min_value=1, max_value=7))
    names = [draw(st.sampled_from(["map", "filter", "sink", "x" * 500])) for _ in range(count)]
    inputs = [draw(st.lists(st.integers(0, n - 1), unique=True, max_size=3)) if n else [] for n in range(count)]
    vertices = [{"id": f"v{n}", "name": names[n], "parallelism": 1, "tasks": {"RUNNING": 1}} for n in range(count)]
    nodes = [
        {"id": f"v{n}", "inputs": [{"id": f"v{i}", "ship_strategy": "HASH"} for i in inputs[n]]} for n in range(count)
    ]
    return {
        "jid": "a" * 32,
        "name": "orders",
        "state": "RUNNING",
        "now": 1,
        "timestamps": {},
        "vertices": draw(st.permutations(vertices)),
        "plan": {"nodes": draw(st.permutations(nodes))},
    }


@given(graphs())
def test_any_graph_is_read_alike(document: Any) -> None:
    """Same names for the same vertices, same order, same hash."""
    mine, theirs = as_executed(document), as_monitored(document)
    assert [(o.id, o.name) for o in mine.operators] == [(o.id, o.name) for o in theirs.operators]
    assert mine.graph_hash() == theirs.graph_hash()


def test_a_recorded_job_is_read_alike() -> None:
    """A real one, too."""
    document = json.loads(RECORDED.read_text())
    assert as_executed(document).graph_hash() == as_monitored(document).graph_hash()

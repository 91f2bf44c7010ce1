"""Graph, runs, ids, and vectors in plans."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from weir_contracts import Edge, Operator, Run, ScaleAction, Topology, derive_id, observation_id
from weir_contracts.planning import PlanReply

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def _topology(*names: str, edges: list[tuple[str, str, str]]) -> Topology:
    return Topology(
        operators=[Operator(name=n, id=f"id-{n}") for n in names],
        edges=[Edge(source=a, target=b, ship_strategy=s) for a, b, s in edges],
    )


DIAMOND = _topology(
    "in",
    "left",
    "right",
    "join",
    edges=[
        ("in", "left", "REBALANCE"),
        ("in", "right", "FORWARD"),
        ("left", "join", "HASH"),
        ("right", "join", "HASH"),
    ],
)


def test_a_diamond_has_its_edges() -> None:
    """The source has no inputs; the join is keyed and has two."""
    assert DIAMOND.sources == ["in"]
    assert DIAMOND.inputs("join") == ["left", "right"]
    assert DIAMOND.outputs("in") == ["left", "right"]
    assert DIAMOND.is_keyed("join")
    assert not DIAMOND.is_keyed("left")


def test_the_graph_hash_ignores_parallelism_and_engine_ids() -> None:
    """A rescale or a resubmission with the same graph keeps the hash; another graph has another."""
    renumbered = DIAMOND.model_copy(
        update={"operators": [o.model_copy(update={"id": "x", "max_parallelism": 7}) for o in DIAMOND.operators]}
    )
    assert renumbered.graph_hash() == DIAMOND.graph_hash()
    assert _topology("in", "left", edges=[("in", "left", "HASH")]).graph_hash() != DIAMOND.graph_hash()


def test_a_cycle_or_an_unknown_operator_is_refused() -> None:
    """Operators are listed sources first, so an edge backwards is invalid."""
    with pytest.raises(ValidationError, match="topological order"):
        _topology("a", "b", edges=[("b", "a", "HASH")])
    with pytest.raises(ValidationError, match="unknown operator 'c'"):
        _topology("a", "b", edges=[("a", "c", "HASH")])
    with pytest.raises(ValidationError, match="unique"):
        _topology("a", "a", edges=[])


@given(st.integers(max_value=0))
def test_a_plan_cannot_request_zero_subtasks(parallelism: int) -> None:
    """Zero is invalid, so that a missing number can never stop an application."""
    with pytest.raises(ValidationError):
        ScaleAction(parallelism={"enrich": parallelism})


def test_a_reply_scales_with_a_vector_or_holds_without_one() -> None:
    """Kind and vector must agree, and the planner's memory is limited."""
    with pytest.raises(ValidationError, match="parallelism"):
        PlanReply(kind="scale", code="up", sentence="up")
    with pytest.raises(ValidationError, match="parallelism"):
        PlanReply(kind="hold", code="stay", sentence="stay", parallelism={"a": 1})
    with pytest.raises(ValidationError, match="a planner may keep"):
        PlanReply(kind="hold", code="stay", sentence="stay", memory={"blob": "x" * 20_000})


def test_a_replay_repeats_its_ids() -> None:
    """One observation and stage always give the same id; another stage gives another."""
    observation = observation_id("shop/orders", datetime(2026, 1, 1, tzinfo=UTC))
    assert derive_id(observation, "plan") == derive_id(observation, "plan")
    assert derive_id(observation, "plan") != derive_id(observation, "analysis")


def test_a_run_is_identified_by_its_key() -> None:
    """A restarted monitor reads the number of restarts later; without a key the other fields identify a run."""
    first = Run(key="a@1", attempt=None, running_since=NOON)
    assert first.is_same(Run(key="a@1", attempt=2, running_since=NOON + timedelta(seconds=1)))
    assert not first.is_same(Run(key="a@2", attempt=None, running_since=NOON))
    assert Run(attempt=1, running_since=NOON).is_same(Run(key="a@1", attempt=1, running_since=NOON))
    assert not Run(attempt=1, running_since=NOON).is_same(Run(attempt=2, running_since=NOON))

"""Selectivities of edges, targets through the graph, the bottleneck."""

from dataclasses import replace
from graphlib import TopologicalSorter

import pytest

from tests.unit.analyzer.story import NOON, Job, Loop, Stage
from weir_analyzer.core import AnalysisSettings, graph, run
from weir_analyzer.core.graph import graph_of
from weir_analyzer.core.run import Shares
from weir_analyzer.core.window import estimate
from weir_contracts import Edge, Estimate, Operator, OperatorReading, Run, Topology, unknown

SETTINGS = AnalysisSettings()


def _topology(*edges: tuple[str, str]) -> Topology:
    order: TopologicalSorter[str] = TopologicalSorter()
    for a, b in edges:
        order.add(b, a)
    names = list(order.static_order())
    return Topology(
        operators=[Operator(name=n, id=n) for n in names], edges=[Edge(source=a, target=b) for a, b in edges]
    )


def _ratios(topology: Topology, rates: dict[str, tuple[float, float]], seconds: int = 60) -> dict[str, float | None]:
    """Selectivities of a job whose operators take in and give out at steady rates."""
    started = Run(attempt=0, running_since=NOON)
    ring, start = None, NOON.timestamp()
    for t in range(2, seconds + 1, 2):
        readings = [
            OperatorReading(operator=n, parallelism=1, records_in=int(i * t), records_out=int(o * t), busy_ms=10.0 * t)
            for n, (i, o) in rates.items()
        ]
        ring = ring or run.start(started, readings, start)
        ring, fresh = run.extend(ring, readings, start + t, SETTINGS)
        if fresh:
            ring = replace(ring, edges=graph.edges_with(ring, graph_of(topology), SETTINGS))
    _, ratios = graph.selectivities(graph_of(topology), ring, {}, start + seconds, SETTINGS)
    return {f"{source}>{target}": ratio.value for (source, target), ratio in ratios.items()}


def _sure(value: float) -> Estimate:
    return Estimate(value=value, basis="test", confidence=0.9)


def test_a_single_input_takes_in_what_reaches_it() -> None:
    """A split output: each branch's counter gives its part."""
    topology = _topology(("s", "a"), ("s", "b"))
    ratios = _ratios(topology, {"s": (1000, 1000), "a": (300, 0), "b": (700, 0)})
    assert ratios == {"s>a": pytest.approx(0.3, rel=0.01), "s>b": pytest.approx(0.7, rel=0.01)}


def test_one_of_two_inputs_is_found_by_subtraction() -> None:
    """`s` splits between `a` and the join; `r` gives all it has to the join: the rest came from `s`."""
    topology = _topology(("s", "a"), ("s", "j"), ("r", "j"))
    ratios = _ratios(topology, {"s": (1000, 1000), "a": (600, 0), "r": (100, 200), "j": (600, 0)})
    assert ratios["s>j"] == pytest.approx(0.4, rel=0.01)
    assert ratios["r>j"] == pytest.approx(2.0, rel=0.01)


def test_the_last_resort_is_what_the_source_gives_out() -> None:
    """Two inputs that both split: no counter distinguishes them, so each is taken to send everything."""
    topology = _topology(("s", "a"), ("s", "j"), ("r", "b"), ("r", "j"))
    rates = {"s": (1000.0, 500.0), "a": (250.0, 0.0), "r": (100.0, 80.0), "b": (40.0, 0.0), "j": (290.0, 0.0)}
    ratios = _ratios(topology, rates)
    assert ratios["s>j"] == pytest.approx(0.5, rel=0.01)
    assert ratios["r>j"] == pytest.approx(0.8, rel=0.01)


def test_no_window_no_ratio() -> None:
    """Half a window is not enough."""
    assert _ratios(_topology(("s", "a")), {"s": (1000, 1000), "a": (300, 0)}, seconds=30)["s>a"] is None


def test_no_output_at_all_is_unknown_until_ten_minutes_have_passed() -> None:
    """A window of an hour looks like a filter that drops everything; ten minutes decide, at little confidence."""
    topology, rates = _topology(("s", "a")), {"s": (100.0, 0.0), "a": (0.0, 0.0)}
    assert _ratios(topology, rates, seconds=500)["s>a"] is None
    assert _ratios(topology, rates, seconds=640)["s>a"] == 0


def test_a_learned_ratio_outlives_its_run() -> None:
    """After a restart the ratio comes from the state, and is marked as learned."""
    stages = [Stage("Source: orders", 50_000), Stage("aggregate", 2000, selectivity=0.1, window_seconds=10)]
    loop = Loop(Job(stages=[*stages, Stage("sink: Writer", 5000)]))
    loop.watch(90)
    loop.job.restart()
    analysis = loop.watch(4)
    ratio = analysis.edges[1].selectivity
    assert ratio.value == pytest.approx(0.1, rel=0.02)
    assert "learned" in ratio.basis
    sink = analysis.operator("sink: Writer")
    assert sink is not None
    assert sink.target_input_rate.value == pytest.approx(30, rel=0.05)


def test_targets_multiply_along_the_graph_and_add_up_at_joins() -> None:
    """DS2's traversal by hand: 1000·0.5·2 + 300·1 = 1300."""
    topology = _topology(("s", "a"), ("a", "j"), ("r", "j"))
    ratios = {("s", "a"): _sure(0.5), ("a", "j"): _sure(2), ("r", "j"): _sure(1)}
    targets = graph.target_rates(graph_of(topology), {"s": _sure(1000), "r": _sure(300)}, ratios)
    assert {n: t.value for n, t in targets.items()} == {"s": 1000, "a": 500, "r": 300, "j": 1300}


def test_one_unknown_part_makes_the_sum_unknown() -> None:
    """And everything behind it; what does not depend on it is still reported."""
    topology = _topology(("s", "a"), ("a", "j"), ("r", "j"), ("j", "k"))
    ratios = {("s", "a"): _sure(0.5), ("a", "j"): unknown("window"), ("r", "j"): _sure(1), ("j", "k"): _sure(1)}
    targets = graph.target_rates(graph_of(topology), {"s": _sure(1000), "r": _sure(300)}, ratios)
    assert targets["a"].value == 500
    assert targets["j"].value is None
    assert "a" in targets["j"].basis
    assert targets["k"].value is None


def test_nothing_times_unknown_is_nothing() -> None:
    """A source without arrivals makes the selectivity behind it irrelevant."""
    topology = _topology(("s", "a"), ("a", "b"))
    targets = graph.target_rates(graph_of(topology), {"s": _sure(0)}, {("s", "a"): unknown("never measured")})
    assert targets["b"].value == 0


def test_the_bottleneck_is_the_one_that_holds_its_inputs_back() -> None:
    """`c` has the higher computed load, but `b` is visibly saturated behind backpressured inputs."""
    topology = _topology(("s", "a"), ("a", "b"), ("b", "c"))
    found = graph.bottleneck(
        graph_of(topology),
        load={"s": 0.1, "a": 0.5, "b": 1.1, "c": 1.2},
        shares={"s": Shares(0.1, 0.9), "a": Shares(0.3, 0.7), "b": Shares(1.0, 0.0), "c": Shares(0.6, 0.0)},
        saturated={"b": True},
    )
    assert found == "b"


def test_without_backpressure_the_operator_of_max_load_is_the_bottleneck() -> None:
    """Target rate over capacity; unknown loads do not take part; without any load there is no bottleneck."""
    topology = _topology(("s", "a"), ("a", "b"))
    assert graph.bottleneck(graph_of(topology), {"s": 0.1, "a": None, "b": 0.6}, {}, {}) == "b"
    assert graph.bottleneck(graph_of(topology), {"s": None}, {}, {}) is None


def test_equal_topologies_share_one_graph() -> None:
    first, second = (_topology(("s", "a"), ("a", "b")) for _ in range(2))
    assert first is not second
    assert graph_of(first) is graph_of(second)
    assert graph_of(first) is not graph_of(_topology(("s", "a"), ("s", "b")))


def test_an_estimate_stays_within_the_bounds_of_messages() -> None:
    made = estimate(1.23456789, "b" * 400, 1.7, 3, -1.0)
    assert made == Estimate(value=1.234568, basis="b" * 300, confidence=1.0, samples=3, window_seconds=0.0)
    assert made.model_fields_set == {"value", "basis", "confidence", "samples", "window_seconds"}
    assert estimate(1e19, "too large", 0.9) == unknown("too large")
    assert estimate(float("nan"), "no number", 0.9) == unknown("no number")

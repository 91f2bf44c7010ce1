"""The planner `flink-autoscaler` compared with the original, number by number. `tests/golden/flink-autoscaler` has the
inputs and the outputs of version 1.10.0."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import isnan
from pathlib import Path
from typing import Any

import pytest

from weir_contracts import Edge, Operator, Topology
from weir_planners.flink_autoscaler import FlinkAutoscalerParameters
from weir_planners.flink_autoscaler.decision import (
    Limits,
    Rescaled,
    Waiting,
    decide_job,
    decide_vertex,
    scale,
)
from weir_planners.flink_autoscaler.evaluation import (
    Evaluated,
    Graph,
    Reading,
    Sample,
    Values,
    evaluate,
    with_thresholds,
)
from weir_planners.flink_autoscaler.loop import (
    Raw,
    State,
    collected,
    decided,
    of_run,
    rescaled,
    restart_seconds,
    sampled,
    trimmed,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "flink-autoscaler"
NOON_MS = 1_767_268_800_000
EVALUATED = (
    "target_data_rate",
    "catch_up_data_rate",
    "true_processing_rate",
    "load",
    "scale_up_threshold",
    "scale_down_threshold",
)


@cache
def vectors(name: str) -> list[dict[str, Any]]:
    """The vectors of a file."""
    found = json.loads((GOLDEN / f"{name}.json").read_text())
    assert isinstance(found, list)
    return found


def number(value: float | str | None) -> float:
    """NaN and infinities are written as words; what is missing is NaN."""
    return float("nan") if value is None else float(value)


def same(found: float, expected: float | str | None) -> bool:
    """Compare bit by bit."""
    wanted = number(expected)
    return found == wanted or (isnan(found) and isnan(wanted))


def the_original(**parameters: Any) -> FlinkAutoscalerParameters:
    """Its parameters, as the vectors write them."""
    return FlinkAutoscalerParameters(version="1.10.0", **parameters)


def graph(vertices: Mapping[str, Any], parallelism: Sequence[int] | None = None) -> Graph:
    """The topology of a vector."""
    topology = Topology(
        operators=[
            Operator(name=n, id=n, max_parallelism=v["max_parallelism"], source_partitions=v["partitions"] or None)
            for n, v in vertices.items()
        ],
        edges=[
            Edge(source=i, target=n, ship_strategy="HASH" if v["keyed"] else "REBALANCE")
            for n, v in vertices.items()
            for i in v["inputs"]
        ],
    )
    running = parallelism or [v["parallelism"] for v in vertices.values()]
    return Graph(topology, dict(zip(vertices, running, strict=True)))


def limits(vertex: Mapping[str, Any], parameters: FlinkAutoscalerParameters) -> Limits:
    """Return the limits of a vertex of a vector."""
    return Limits(
        parameters.vertex_min_parallelism,
        parameters.vertex_max_parallelism,
        vertex["max_parallelism"],
        vertex["partitions"],
        vertex["keyed"],
    )


def test_every_factor_leads_to_the_same_parallelism() -> None:
    """400 factors, parallelisms, limits, partitions and key groups: the same parallelism, and the same word that it was
    limited."""
    for vector in vectors("scale"):
        bounds = Limits(
            vector["lower"], vector["upper"], vector["max_parallelism"], vector["partitions"], vector["keyed"]
        )
        found = scale(vector["current"], number(vector["factor"]), bounds, the_original())
        assert (found.parallelism, found.limited) == (vector["parallelism"], vector["limited"]), vector


@pytest.mark.parametrize("version", ["1.10.0", "1.15.0", "1.16.0", "1.16.1"])
def test_every_window_is_evaluated_to_the_same_numbers(version: str) -> None:
    """250 windows over seven shapes of graph, with quiet sources, lost readings and samples a millisecond apart. What
    came later than 1.10.0 changes none of them: without the input rate's gauge, 1.16 takes the counter, too."""
    for vector in vectors("evaluate"):
        samples = [
            Sample(
                at_ms,
                {
                    name: Reading(
                        *(number(x) for x in row[:4]),
                        load=Values.of(number(row[4])),
                        observed_rate=Values.of(number(row[5])),
                    )
                    for name, row in zip(vector["vertices"], rows, strict=True)
                },
            )
            for at_ms, rows in vector["samples"]
        ]
        parameters = the_original(**vector["parameters"]).model_copy(update={"version": version})
        found = evaluate(graph(vector["vertices"]), samples, parameters, vector["restart_seconds"])
        for name, expected in vector["evaluated"].items():
            for field in EVALUATED:
                assert same(getattr(found[name], field), expected[field]), (field, found[name], expected)


def test_every_operator_is_decided_alike() -> None:
    """400 situations of one operator: history, a scale-down that waits, backlog, unknown and infinite rates."""
    for vector in vectors("decide"):
        parameters = the_original(**vector["parameters"])
        evaluated = with_thresholds(
            Evaluated(
                operator="v",
                parallelism=vector["vertex"]["parallelism"],
                target_data_rate=number(vector["target_data_rate"]),
                catch_up_data_rate=vector["catch_up_data_rate"],
                true_processing_rate=number(vector["true_processing_rate"]),
            ),
            parameters,
            vector["restart_seconds"],
            behind=vector["backlog"],
        )
        assert same(evaluated.scale_up_threshold, vector["scale_up_threshold"])
        assert same(evaluated.scale_down_threshold, vector["scale_down_threshold"])
        since = vector["delayed_for_seconds"]
        found = decide_vertex(
            evaluated,
            limits(vector["vertex"], parameters),
            [Rescaled(0, before, after, number(was), hoped) for before, after, was, hoped in vector["history"]],
            None if since is None else Waiting(NOON_MS - 1000 * since),
            parameters,
            restart_seconds=vector["restart_seconds"],
            now_ms=NOON_MS,
        )
        changes = vector["change"] != "NO_CHANGE"
        assert found.parallelism == (vector["parallelism"] if changes else None), vector
        assert found.outside == (vector["change"] == "REQUIRED_CHANGE" and not vector["within"]) or not changes, vector
        assert same(found.expected_processing_rate, vector["expected_processing_rate"]), vector
        waits = None if found.waiting is None else (NOON_MS - found.waiting.since_ms) // 1000
        assert waits == vector["delayed_after_seconds"], vector
        assert found.ineffective == ("IneffectiveScaling" in vector["events"]), vector
        assert found.limited == ("ScalingLimited" in vector["events"]), vector


@pytest.mark.parametrize("name", ["scale", "evaluate", "decide", "stories"])
def test_there_are_vectors(name: str) -> None:
    """A file that was lost would make everything pass."""
    assert len(vectors(name)) >= 16


def raw_of(row: Sequence[Any], *, is_source: bool, parameters: FlinkAutoscalerParameters) -> Raw:
    """A vertex's readings in a cycle of a story."""
    records_in, records_out, busy_ms, busiest, mean, rate, blocked, pending = row
    return Raw(
        records_in=records_in,
        records_out=records_out,
        busy_ms=busy_ms,
        busy_ms_per_second=busiest if parameters.busy_time_aggregator == "MAX" else mean,
        input_rate=rate,
        backpressured_ms_per_second=blocked,
        lag=(pending or 0) if is_source else float("nan"),
    )


@pytest.mark.parametrize("number_of", range(16))
def test_whole_stories_go_the_same_way(number_of: int) -> None:
    """A job under changing load through the original's loop: window, stabilization, restarts and their length, delayed
    scale-downs. Each cycle has the same evaluation, decision and delay; a rescale restarts the job and the loop
    continues."""
    story = vectors("stories")[number_of]
    parameters = the_original(**story["parameters"])
    vertices = story["vertices"]
    state = State()
    running = [v["parallelism"] for v in vertices.values()]
    for cycle in story["turns"]:
        now_ms, its_graph = cycle["at_ms"], graph(vertices, running)
        state = of_run(state, cycle["running_ms"])
        sources = its_graph.topology.sources
        raw = {
            name: raw_of(row, is_source=name in sources, parameters=parameters)
            for name, row in zip(vertices, cycle["readings"], strict=True)
        }
        sample = sampled(raw, sources, state.samples, now_ms, parameters)
        state, stage, _ = collected(state, sample, parameters)
        state = trimmed(state, its_graph.parallelism, now_ms, parameters)
        assert (cycle["evaluated"] is not None) == (stage != "stabilizing" and len(state.samples) > 1)
        overrides = None
        seconds = restart_seconds(state, parameters)
        if cycle["evaluated"] is not None:
            evaluation = evaluate(its_graph, state.samples, parameters, seconds)
            for name, expected in cycle["evaluated"].items():
                for field in EVALUATED:
                    assert same(getattr(evaluation[name], field), expected[field]), (
                        now_ms,
                        field,
                        evaluation[name],
                        expected,
                    )
            if stage == "full":
                decision = decide_job(
                    evaluation,
                    {name: limits(v, parameters) for name, v in vertices.items()},
                    state.history,
                    state.waiting,
                    parameters,
                    restart_seconds=seconds,
                    now_ms=now_ms,
                )
                state = replace(state, waiting=decision.waiting)
                if decision.rescale:
                    overrides = {**its_graph.parallelism, **decision.changes}
                    state = rescaled(state, decided(decision, evaluation, now_ms), overrides, parameters)
                    running = list(overrides.values())
        assert overrides == cycle["overrides"], now_ms
        assert {name: w.since_ms for name, w in state.waiting.items()} == cycle["delayed"], now_ms
        assert restart_seconds(state, parameters) == cycle["restart_seconds"], now_ms

"""The arithmetic of `hpa` and `keda-kafka` compared with the original's code (tests/golden/hpa)."""

import json
from pathlib import Path
from typing import Any

import pytest

from weir_planners.autoscaling import v2

GOLDEN = Path(__file__).parents[2] / "golden" / "hpa"
FILES = sorted(GOLDEN.glob("vectors-*.json"))
DOCUMENTS: dict[str, dict[str, Any]] = {
    path.stem.removeprefix("vectors-"): json.loads(path.read_text()) for path in FILES
}
VERSIONS = sorted(DOCUMENTS)


def rule_of(version: str) -> v2.Version:
    """The planner's parameter for a release."""
    return "1.34" if int(version.split(".")[1]) >= 33 else "1.32"


def test_there_are_hundreds_of_both_versions() -> None:
    """The vectors were made and are read."""
    assert {rule_of(version) for version in DOCUMENTS} == {"1.32", "1.34"}
    for document in DOCUMENTS.values():
        assert len(document["metrics"]) >= 300
        assert sum(len(s["steps"]) for s in document["sequences"]) >= 700


def replicas(pods: list[dict[str, Any]]) -> list[v2.Replica]:
    return [v2.Replica(**{k: p[k] for k in p if k != "ready_and_running"}) for p in pods]


def proposal(vector: dict[str, Any], tolerance: v2.Tolerance) -> int:
    kind, current, target = vector["kind"], vector["current"], vector["target"]
    pods, series = vector.get("pods", []), vector.get("series_milli", [])
    if kind == "utilization":
        return v2.from_utilization(replicas(pods), target, current, tolerance)
    if kind in {"raw", "pods"}:
        return v2.from_values(replicas(pods), target, current, tolerance, cpu=kind == "raw")
    if kind == "average":
        return v2.from_average(series, target, current, tolerance)
    ready = sum(p.get("ready_and_running", False) for p in pods) if pods else None
    return v2.from_total(series, target, current, ready, tolerance)


@pytest.mark.parametrize("kind", ["utilization", "raw", "pods", "average", "value"])
@pytest.mark.parametrize("version", VERSIONS)
def test_one_metric_proposes_the_same(version: str, kind: str) -> None:
    """Utilization, averages and totals; with pods that are missing, unready, failed, starting; at the edge of the
    tolerance."""
    vectors = [v for v in DOCUMENTS[version]["metrics"] if v["kind"] == kind]
    assert len(vectors) >= 30
    for vector in vectors:
        tolerance = v2.Tolerance(vector["tolerance_up"], vector["tolerance_down"], rule_of(version))
        try:
            answered: int | None = proposal(vector, tolerance)
        except v2.NoMetric:
            answered = None
        assert answered == vector["replicas"], vector


def limits(sequence: dict[str, Any]) -> v2.Limits:
    if not sequence["behavior"]:
        return v2.Limits(sequence["min"], sequence["max"])
    rules = []
    for direction in ("scaleUp", "scaleDown"):
        given = sequence[direction]
        window = given["stabilizationWindowSeconds"]
        policies = tuple(v2.RatePolicy(p["type"], p["value"], p["periodSeconds"]) for p in given["policies"])
        rules.append(v2.Rules(300 if window is None else window, policies, given["selectPolicy"]))
    return v2.Limits(sequence["min"], sequence["max"], *rules)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_controller_s_life_goes_the_same(version: str) -> None:
    """Proposals over up to half an hour: windows, policies, limits, records and events; each step's size and its
    reasons."""
    for sequence in DOCUMENTS[version]["sequences"]:
        bounds, current, now = limits(sequence), sequence["start"], 1_000.0
        records = v2.begun(v2.Records(), current, now)
        for number, step in enumerate(sequence["steps"]):
            where = f"step {number} of {sequence['name']}"
            now += step["seconds"]
            wanted = v2.outside(bounds, current)
            if wanted is None:
                settled, records = v2.settle(records, bounds, current, step["proposal"], now)
                wanted = settled.replicas
                assert (settled.able, settled.limited) == (step["reason"], step["limited"]), where
            assert wanted == step["want"], where
            records = v2.changed(records, bounds, current, wanted, at=now, now=now)
            current = wanted

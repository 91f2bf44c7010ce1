"""Invariants of any input: idempotence, no negative numbers, None stays None."""

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.effort import examples
from tests.unit.analyzer.story import Job
from weir_analyzer.core import AnalyzerState, advance
from weir_contracts import Analysis, Estimate, Observation

_FEW = examples(15)

SIGNED = {"lag_growth", "arrival_rate_trend"}


def _observations(count: int = 12) -> list[Observation]:
    job, observed = Job(rate=700), []
    for i in range(count):
        if i == count // 2:
            job.restart({"enrich": 2})
        job.run_for(6)
        observed.append(job.observe())
    return observed


OBSERVATIONS = _observations()


def _run(observations: list[Observation]) -> tuple[AnalyzerState | None, list[Analysis]]:
    memory, analyses = None, []
    for observation in observations:
        memory, analysis = advance(memory, observation)
        if analysis is not None:
            analyses.append(analysis)
    return memory, analyses


def _estimates(value: Any, name: str = "") -> list[tuple[str, Estimate]]:
    if isinstance(value, Estimate):
        return [(name, value)]
    if isinstance(value, list):
        return [pair for each in value for pair in _estimates(each, name)]
    if isinstance(value, Analysis) or type(value).__module__ == "weir_contracts.analysis":
        return [pair for field in type(value).model_fields for pair in _estimates(getattr(value, field), field)]
    return []


EXPECTED = _run(OBSERVATIONS)


@_FEW
@given(st.lists(st.integers(0, len(OBSERVATIONS) - 1), max_size=10), st.randoms(use_true_random=False))
def test_duplicates_and_late_repeats_change_no_analysis(repeats: list[int], rng: random.Random) -> None:
    """At-least-once delivery: whatever already came may come again, at any time after it."""
    stream = list(OBSERVATIONS)
    for repeat in repeats:
        stream.insert(rng.randint(repeat + 1, len(stream)), OBSERVATIONS[repeat])
    # an insertion may push a repeat before its original: keep each original's first place
    memory, analyses = _run(_originals_first(stream))
    plain = [a.model_copy(update={"dropped_observations": 0, "learned": {}}) for a in analyses]
    assert plain == [a.model_copy(update={"dropped_observations": 0, "learned": {}}) for a in EXPECTED[1]]
    assert memory is not None
    assert memory.dropped == len(repeats)


def _originals_first(stream: list[Observation]) -> list[Observation]:
    observed: set[Any] = set()
    firsts = iter(OBSERVATIONS)
    ordered = []
    for observation in stream:
        if observation.id in observed:
            ordered.append(observation)
        else:
            original = next(firsts)
            observed.add(original.id)
            ordered.append(original)
    return ordered


_COUNT = st.none() | st.integers(0, 10**12)
_MS = st.none() | st.floats(0, 1e12)
_SHARE = st.none() | st.floats(0, 1)


@st.composite
def _wild(draw: st.DrawFn) -> list[Observation]:
    """Observations whose readings make no sense together."""
    wild = []
    for observation in OBSERVATIONS[: draw(st.integers(2, 8))]:
        operators = [
            reading.model_copy(
                update={
                    "complete": draw(st.booleans()),
                    "records_in": draw(_COUNT),
                    "records_out": draw(_COUNT),
                    "busy_ms": draw(_MS),
                    "backpressured_ms": draw(_MS),
                    "idle_ms": draw(_MS),
                    "busy_share_mean": draw(_SHARE),
                    "busy_share_max": draw(_SHARE),
                    "pending_records": draw(_COUNT),
                }
            )
            for reading in observation.operators
        ]
        partitions = [
            partition.model_copy(
                update={
                    "log_start_offset": draw(_COUNT),
                    "log_end_offset": draw(_COUNT),
                    "committed_offset": draw(_COUNT),
                    "committed_at": draw(st.none() | st.just(observation.observed_at)),
                    "current_offset": draw(_COUNT),
                }
            )
            for partition in observation.partitions[:2]
        ]
        wild.append(observation.model_copy(update={"operators": operators, "partitions": partitions}))
    return wild


@_FEW
@given(_wild())
def test_no_reading_however_wrong_breaks_the_analysis(observations: list[Observation]) -> None:
    """Every estimate stays finite and, where its sign has a meaning, at least 0; the state survives its bytes."""
    memory, analyses = _run(observations)
    assert memory is not None
    assert AnalyzerState.from_bytes(memory.to_bytes()) == memory
    for analysis in analyses:
        assert Analysis.model_validate_json(analysis.model_dump_json()) == analysis
        for name, estimate in _estimates(analysis):
            assert estimate.value is None or name in SIGNED or estimate.value >= 0, (name, estimate)


@_FEW
@given(st.sets(st.sampled_from(["records_in", "records_out", "busy_ms", "backpressured_ms", "idle_ms"])))
def test_none_stays_none(missing: set[str]) -> None:
    """A reading that an operator lacks is never made up: the estimates that need it are unknown throughout."""
    stream = [
        o.model_copy(
            update={
                "operators": [
                    r.model_copy(
                        update={**dict.fromkeys(missing), "busy_share_mean": None, "busy_share_max": None}
                        if r.operator == "enrich"
                        else {}
                    )
                    for r in o.operators
                ]
            }
        )
        for o in OBSERVATIONS
    ]
    for analysis in _run(stream)[1]:
        enrich = analysis.operator("enrich")
        assert enrich is not None
        if "records_in" in missing:
            assert enrich.input_rate.value is None
            assert enrich.true_processing_rate.value is None
        if "records_out" in missing:
            assert enrich.output_rate.value is None
        if "busy_ms" in missing:
            assert enrich.utilization.value is None
            assert enrich.true_processing_rate.value is None

"""Prometheus queries as signals: one finite value each, or a problem with the query's name."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir_contracts import PrometheusSignals
from weir_monitor.prometheus import MAX_RESPONSE_BYTES, PrometheusCollector, QueryFailed, value_of
from weir_runtime.reach import Allowed


def _answer(*values: str, kind: str = "vector") -> bytes:
    samples = [{"metric": {}, "value": [1.5, value]} for value in values]
    result = [1.5, values[0]] if kind == "scalar" else samples
    return json.dumps({"status": "success", "data": {"resultType": kind, "result": result}}).encode()


@pytest.mark.parametrize(
    ("content", "value"),
    [(_answer("12.5"), 12.5), (_answer("-3"), -3.0), (_answer("1e3", kind="scalar"), 1000.0), (_answer("1e-300"), 0.0)],
)
def test_one_value(content: bytes, value: float) -> None:
    assert value_of(content) == value


@pytest.mark.parametrize(
    ("content", "status", "words"),
    [
        (_answer("NaN"), 200, "the value is nan, which is no finite number"),
        (_answer("+Inf"), 200, "the value is inf, which is no finite number"),
        (_answer("1e300"), 200, "the value is 1e\\+300, which is no finite number"),
        (_answer(), 200, "no series"),
        (_answer("1", "2", "3"), 200, "3 series instead of one: aggregate them"),
        (_answer("1", kind="matrix"), 200, "must not be a range or a text"),
        (b"<html>log in</html>", 200, "not JSON: check signals.prometheus.url"),
        (b'{"status": "error", "errorType": "bad_data", "error": "secret"}', 400, r"status 400 \(bad_data\)$"),
        (b'{"status": "error", "errorType": "secret"}', 422, "status 422$"),
        (b"[]", 200, "refused the query"),
        (b'{"status": "success", "data": {"resultType": "vector", "result": [7]}}', 200, "the value is not a number"),
    ],
)
def test_answers_without_one_value(content: bytes, status: int, words: str) -> None:
    """NaN and infinity are named as such; KEDA took them for -9223372036854776 (github.com/kedacore/keda/issues/7475, /3644)."""
    with pytest.raises(QueryFailed, match=words) as error:
        value_of(content, status)
    assert "secret" not in str(error.value)


@given(
    st.recursive(
        st.one_of(st.none(), st.integers(), st.text(max_size=5), st.sampled_from(["success", "vector"])),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(st.sampled_from(["status", "data", "result", "resultType", "value", "errorType"]), inner),
        ),
        max_leaves=12,
    )
)
def test_answers_of_any_form_are_a_value_or_a_sentence(document: Any) -> None:
    try:
        assert isinstance(value_of(json.dumps({"status": "success", "data": document}).encode()), float)
    except QueryFailed as error:
        assert str(error)


def _collector(handler: Any, timeout_seconds: float = 1.0) -> PrometheusCollector:
    signals = PrometheusSignals(url="http://127.0.0.1:9090/prometheus", queries={"queued": "sum(q)", "done": "sum(d)"})
    return PrometheusCollector(signals, timeout_seconds, transport=httpx.MockTransport(handler))


async def test_each_query_is_a_signal_and_a_failed_one_is_named() -> None:
    seen: list[httpx.URL] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request.url)
        return httpx.Response(200, content=_answer("4") if request.url.params["query"] == "sum(q)" else _answer())

    found = await _collector(handler).read()
    assert found.values == {"queued": 4.0, "done": None}
    (problem,) = found.problems
    assert (problem.where, problem.what) == (
        "signals.prometheus.queries.done",
        "no series: check the query's metric and labels",
    )
    assert {url.path for url in seen} == {"/prometheus/api/v1/query"}


async def test_an_answer_of_10_mb_is_not_read() -> None:
    found = await _collector(lambda _request: httpx.Response(200, content=b" " * 10_000_000)).read()
    assert found.values == {"queued": None, "done": None}
    assert str(MAX_RESPONSE_BYTES) in found.problems[0].what


async def test_a_server_that_is_away_or_slow_is_a_problem_of_each_query() -> None:
    def away(_request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused")

    assert [each.what for each in (await _collector(away).read()).problems] == ["connection refused"] * 2
    over = asyncio.Event()

    async def slow(_request: httpx.Request) -> httpx.Response:
        await over.wait()
        return httpx.Response(200)

    found = await _collector(slow, timeout_seconds=0.05).read()
    assert [each.what for each in found.problems] == ["no answer within 0.05 s"] * 2


async def test_many_queries_of_a_silent_server_end_in_the_time_of_one() -> None:
    """Else 50 queries would outlast the scrape, and cost the engine's readings."""
    over = asyncio.Event()

    async def silent(_request: httpx.Request) -> httpx.Response:
        await over.wait()
        return httpx.Response(200)

    queries = {f"q{i}": "sum(q)" for i in range(50)}
    signals = PrometheusSignals(url="http://127.0.0.1:9090", queries=queries)
    collector = PrometheusCollector(signals, 0.5, transport=httpx.MockTransport(silent))
    async with asyncio.timeout(2.5):
        found = await collector.read()
    assert (len(found.problems), set(found.values.values())) == (50, {None})


async def test_an_address_that_is_not_allowed_is_not_connected_to() -> None:
    allowed = Allowed.of("http,https", "*", "public", prefix="WEIR_TARGET")
    signals = PrometheusSignals(url="http://127.0.0.1:9", queries={"queued": "sum(q)"})
    collector = PrometheusCollector(signals, 1.0, allowed)
    (problem,) = (await collector.read()).problems
    await collector.close()
    assert "WEIR_TARGET_NETWORKS does not allow" in problem.what

"""The conformance suite: a correct planner passes; a faulty one fails the check it violates, with the reason."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest

from runtime.addresses import Allowed
from runtime.clock import FakeClock
from services.planner.adapters.http import PlannerClient
from services.planner.conformance import CHECKS, Report, check_planner
from services.planner.remote import Remote
from tests.effort import some
from tests.unit.planner.build import NOON
from tests.unit.planner.plugin import DESCRIPTION, LOOPBACK, Plugin, Received, Respond, answer, good, json_answer


@pytest.fixture
async def remote() -> AsyncIterator[Remote]:
    client = PlannerClient(LOOPBACK)
    yield Remote(client, FakeClock(NOON), {})
    await client.close()


async def found(remote: Remote, plugin: Plugin, **limits: float) -> Report:
    return await check_planner(remote, plugin.registered(), **limits)


async def test_a_good_planner_passes_every_check(remote: Remote) -> None:
    """The findings have the order of the list of checks."""
    async with Plugin() as plugin:
        report = await found(remote, plugin)
    assert report.failed == []
    assert report.ok
    assert [finding.check for finding in report.findings] == [
        *list(CHECKS)[:9],
        "memory-comes-back",
        "same-answer-twice",
        *list(CHECKS)[11:],
    ]
    assert report.description is not None
    assert report.description.scope == "operator"


def described(**changes: Any) -> Respond:
    return lambda received: json_answer({**DESCRIPTION, **changes}) if received.method == "GET" else good(received)


def instead(of: Respond) -> Respond:
    """Return a correct planner except for its replies to valid requests."""
    return lambda received: (
        of(received) if received.method == "POST" and received.body.startswith(b'{"id":"') else good(received)
    )


def fails_without_metrics(received: Received) -> bytes | Awaitable[bytes]:
    return (
        json_answer({"detail": "KeyError"}, 500)
        if received.json["analysis"]["arrival_rate"]["value"] is None
        else good(received)
    )


def no_odd_names(received: Received) -> bytes | Awaitable[bytes]:
    return json_answer({"detail": "ascii"}, 500) if "終" in received.body.decode() else good(received)


def strict(received: Received) -> bytes | Awaitable[bytes]:
    return json_answer({"detail": "extra field"}, 422) if b"of_a_newer_version" in received.body else good(received)


def zeros(received: Received) -> bytes:
    vector = dict.fromkeys(received.json["deployment"]["observed"], 0)
    return json_answer({"kind": "scale", "parallelism": vector, "code": "less", "sentence": "less"})


def takes_anything(received: Received) -> bytes | Awaitable[bytes]:
    hold = json_answer({"kind": "hold", "code": "well", "sentence": "all is well"})
    return good(received) if received.method == "GET" else hold


def breaks(received: Received) -> bytes | Awaitable[bytes]:
    return (
        json_answer({}, 500)
        if received.method == "POST" and not received.body.startswith(b'{"id":"')
        else good(received)
    )


def forgetful(received: Received) -> bytes | Awaitable[bytes]:
    return json_answer({"detail": "memory?"}, 500) if received.json["memory"] else good(received)


class Counting:
    """Planner with internal state."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, received: Received) -> bytes:
        self.count += 1
        vector = dict.fromkeys(received.json["deployment"]["observed"], 1 + self.count % 2)
        return json_answer({"kind": "scale", "parallelism": vector, "code": "turn", "sentence": "by turns"})


BAD: dict[str, tuple[Respond, str, str]] = {
    "no description": (lambda a: answer("hello") if a.method == "GET" else good(a), "describes-itself", "not JSON"),
    "half a description": (
        lambda a: json_answer({"name": "mine"}) if a.method == "GET" else good(a),
        "describes-itself",
        "version: is required",
    ),
    "another contract": (
        described(contract_versions=["v7"]),
        "describes-itself",
        "speaks v7, and Weir speaks v1alpha1",
    ),
    "no schema": (described(parameters={"type": "object", "properties": 3}), "parameters-schema", "no JSON Schema"),
    "a schema elsewhere": (
        described(parameters={"$ref": "http://127.0.0.1:1/schema"}),
        "parameters-schema",
        "leads out of it",
    ),
    "required parameters without an example": (
        described(parameters={"type": "object", "required": ["model"], "properties": {"model": {}}}),
        "parameters-schema",
        "no `examples`",
    ),
    "zeros": (instead(zeros), "one-operator", "greater than or equal to 1"),
    "unknown metrics": (instead(fails_without_metrics), "nothing-known", "answered 500: KeyError"),
    "odd names": (instead(no_odd_names), "odd-names", "answered 500"),
    "no newer fields": (instead(strict), "unknown-fields", "answered 422: extra field"),
    "takes anything": (takes_anything, "refuses-no-json", "answered 200"),
    "breaks on nonsense": (breaks, "refuses-no-request", "answered 500"),
    "internal state": (instead(Counting()), "same-answer-twice", "it keeps state"),
    "no memory": (instead(forgetful), "memory-comes-back", "answered 500: memory?"),
}


@pytest.mark.parametrize("what", some(BAD, 4))
async def test_a_faulty_planner_fails_the_check_it_violates(remote: Remote, what: str) -> None:
    """The report names the violated check and the reason."""
    planner, check, reason = BAD[what]
    async with Plugin(planner) as plugin:
        report = await found(remote, plugin)
    assert not report.ok
    failures = {finding.check: finding.sentence for finding in report.failed}
    assert check in failures
    assert reason in failures[check]
    if check not in ("describes-itself", "one-operator"):
        assert set(failures) <= {check, "refuses-no-request", "refuses-no-json"}


@pytest.mark.thorough
async def test_a_slow_planner_fails_within_the_time_limits(remote: Remote) -> None:
    """Each exchange and the complete check have a time limit; a report is returned in any case."""

    async def never(_received: Received) -> bytes:
        await asyncio.Event().wait()
        return b""

    async with Plugin(instead(never)) as plugin:
        report = await found(remote, plugin, timeout_seconds=0.3, all_seconds=1.5)
        assert "did not reply within 0.3 s" in report.failed[0].sentence
        assert "not within 1.5 s for all checks" in report.failed[-1].sentence
        assert {f.check for f in report.findings} == set(CHECKS)


async def test_required_parameters_are_taken_from_the_first_example(remote: Remote) -> None:
    """Without them no request could be made."""
    schema = {"type": "object", "required": ["model"], "properties": {"model": {}}, "examples": [{"model": "small"}]}
    async with Plugin(described(parameters=schema)) as plugin:
        assert (await found(remote, plugin)).ok
        received = [json.loads(a.body) for a in plugin.received if a.body.startswith(b'{"id":"')]
    assert {each["policy"]["spec"]["planner"]["parameters"]["model"] for each in received} == {"small"}


async def test_a_forbidden_address_is_not_connected_to() -> None:
    """The single finding names the setting."""
    client = PlannerClient(Allowed.of("http", "*", "public", prefix="WEIR_PLANNER_PLUGIN"))
    async with Plugin() as plugin:
        report = await found(Remote(client, FakeClock(NOON), {}), plugin)
        assert plugin.connections == 0
    [finding] = report.failed
    assert "WEIR_PLANNER_PLUGIN_NETWORKS" in finding.sentence
    await client.close()

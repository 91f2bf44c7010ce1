"""The conformance suite, itself tested: a good planner passes, and each bad one fails the check it breaks, and is told why."""

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
from tests.unit.planner.build import NOON
from tests.unit.planner.plugin import DESCRIPTION, LOOPBACK, Asked, Plugin, Says, answer, good, says


@pytest.fixture
async def remote() -> AsyncIterator[Remote]:
    client = PlannerClient(LOOPBACK)
    yield Remote(client, FakeClock(NOON), {})
    await client.close()


async def found(remote: Remote, plugin: Plugin, **limits: float) -> Report:
    return await check_planner(remote, plugin.registered(), **limits)


async def test_a_good_planner_passes_every_check(remote: Remote) -> None:
    """In the order in which they are listed."""
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


def described(**changes: Any) -> Says:
    return lambda asked: says({**DESCRIPTION, **changes}) if asked.method == "GET" else good(asked)


def instead(of: Says) -> Says:
    """Good but for what it answers to a request that is one."""
    return lambda asked: of(asked) if asked.method == "POST" and asked.body.startswith(b'{"id":"') else good(asked)


def fails_without_metrics(asked: Asked) -> bytes | Awaitable[bytes]:
    return says({"detail": "KeyError"}, 500) if asked.json["analysis"]["arrival_rate"]["value"] is None else good(asked)


def no_odd_names(asked: Asked) -> bytes | Awaitable[bytes]:
    return says({"detail": "ascii"}, 500) if "終" in asked.body.decode() else good(asked)


def strict(asked: Asked) -> bytes | Awaitable[bytes]:
    return says({"detail": "extra field"}, 422) if b"of_a_newer_version" in asked.body else good(asked)


def zeros(asked: Asked) -> bytes:
    vector = dict.fromkeys(asked.json["deployment"]["observed"], 0)
    return says({"kind": "scale", "parallelism": vector, "code": "less", "sentence": "less"})


def takes_anything(asked: Asked) -> bytes | Awaitable[bytes]:
    hold = says({"kind": "hold", "code": "well", "sentence": "all is well"})
    return good(asked) if asked.method == "GET" else hold


def breaks(asked: Asked) -> bytes | Awaitable[bytes]:
    return says({}, 500) if asked.method == "POST" and not asked.body.startswith(b'{"id":"') else good(asked)


def forgetful(asked: Asked) -> bytes | Awaitable[bytes]:
    return says({"detail": "memory?"}, 500) if asked.json["memory"] else good(asked)


class Counting:
    """Keeps state of its own."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, asked: Asked) -> bytes:
        self.count += 1
        vector = dict.fromkeys(asked.json["deployment"]["observed"], 1 + self.count % 2)
        return says({"kind": "scale", "parallelism": vector, "code": "turn", "sentence": "by turns"})


BAD: dict[str, tuple[Says, str, str]] = {
    "no description": (lambda a: answer("hello") if a.method == "GET" else good(a), "describes-itself", "not JSON"),
    "half a description": (
        lambda a: says({"name": "mine"}) if a.method == "GET" else good(a),
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
    "state of its own": (instead(Counting()), "same-answer-twice", "it keeps state"),
    "no memory": (instead(forgetful), "memory-comes-back", "answered 500: memory?"),
}


@pytest.mark.parametrize("what", list(BAD))
async def test_a_bad_planner_is_told_what_it_breaks(remote: Remote, what: str) -> None:
    """The check that fails is the one it breaks, with the reason."""
    planner, check, why = BAD[what]
    async with Plugin(planner) as plugin:
        report = await found(remote, plugin)
    assert not report.ok
    told = {finding.check: finding.sentence for finding in report.failed}
    assert check in told
    assert why in told[check]
    if check not in ("describes-itself", "one-operator"):
        assert set(told) <= {check, "refuses-no-request", "refuses-no-json"}


async def test_a_slow_planner_is_given_up(remote: Remote) -> None:
    """Each exchange has its time and all of them together have theirs: a report comes either way."""

    async def never(_asked: Asked) -> bytes:
        await asyncio.Event().wait()
        return b""

    async with Plugin(instead(never)) as plugin:
        report = await found(remote, plugin, timeout_seconds=0.3, all_seconds=1.5)
        assert "did not reply within 0.3 s" in report.failed[0].sentence
        assert "not within 1.5 s for all checks" in report.failed[-1].sentence
        assert {f.check for f in report.findings} == set(CHECKS)


async def test_required_parameters_are_taken_from_the_first_example(remote: Remote) -> None:
    """Otherwise nothing could be asked."""
    schema = {"type": "object", "required": ["model"], "properties": {"model": {}}, "examples": [{"model": "small"}]}
    async with Plugin(described(parameters=schema)) as plugin:
        assert (await found(remote, plugin)).ok
        asked = [json.loads(a.body) for a in plugin.asked if a.body.startswith(b'{"id":"')]
    assert {each["policy"]["spec"]["planner"]["parameters"]["model"] for each in asked} == {"small"}


async def test_what_may_not_be_asked_is_not_asked() -> None:
    """One finding, which names the setting."""
    client = PlannerClient(Allowed.of("http", "*", "public", prefix="WEIR_PLANNER_PLUGIN"))
    async with Plugin() as plugin:
        report = await found(Remote(client, FakeClock(NOON), {}), plugin)
        assert plugin.connections == 0
    [finding] = report.failed
    assert "WEIR_PLANNER_PLUGIN_NETWORKS" in finding.sentence
    await client.close()

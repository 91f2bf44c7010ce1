"""The conformance suite: a correct planner passes; a faulty one fails the check it violates, with the reason."""

import asyncio
import json
from collections.abc import Awaitable
from typing import Any

import pytest

from tests.effort import some
from tests.unit.planner.plugin import DESCRIPTION, Plugin, Received, Respond, answer, good, json_answer
from weir_contracts import MAX_REPLY_BYTES
from weir_sdk.testing.conformance import CHECKS, Finding, check_planner


async def findings(plugin: Plugin, **options: Any) -> list[Finding]:
    return await asyncio.to_thread(check_planner, plugin.url, **options)


async def test_a_good_planner_passes_every_check() -> None:
    """The findings have the order of the list of checks."""
    async with Plugin() as plugin:
        found = await findings(plugin)
    assert [finding for finding in found if not finding.ok] == []
    assert [finding.check for finding in found] == list(CHECKS)


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


def half(received: Received) -> bytes:
    vector = dict(list(received.json["deployment"]["observed"].items())[1:])
    return json_answer({"kind": "scale", "parallelism": vector, "code": "less", "sentence": "less"})


def weirs_code(_received: Received) -> bytes:
    return json_answer({"kind": "hold", "code": "planner-failed", "sentence": "it failed"})


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
    "no description": (lambda a: answer("hello") if a.method == "GET" else good(a), "describes-itself", "Invalid JSON"),
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
    "half a reply": (instead(half), "steady", "misses"),
    "Weir's code": (instead(weirs_code), "steady", "planner-failed, which is Weir's own"),
    "a text": (instead(lambda _: answer("{}", 200, "text/html")), "steady", "content type text/html"),
    "a redirect": (instead(lambda _: answer("", 302)), "steady", "answered 302"),
    "an endless reply": (instead(lambda _: answer("x" * (MAX_REPLY_BYTES + 1))), "steady", "answered more than"),
    "unknown metrics": (instead(fails_without_metrics), "nothing-known", "KeyError"),
    "odd names": (instead(no_odd_names), "odd-names", "answered 500"),
    "no newer fields": (instead(strict), "unknown-fields", "extra field"),
    "takes anything": (takes_anything, "refuses-no-json", "answered 200"),
    "breaks on nonsense": (breaks, "refuses-no-request", "answered 500"),
    "internal state": (instead(Counting()), "same-answer-twice", "it keeps state"),
    "no memory": (instead(forgetful), "memory-comes-back", "memory?"),
}


@pytest.mark.parametrize("what", some(BAD, 4))
async def test_a_faulty_planner_fails_the_check_it_violates(what: str) -> None:
    """The finding names the violated check and the reason."""
    planner, check, reason = BAD[what]
    async with Plugin(planner) as plugin:
        failures = {each.check: each.sentence for each in await findings(plugin) if not each.ok}
    assert check in failures
    assert reason in failures[check]
    if check in ("odd-names", "unknown-fields", "same-answer-twice", "memory-comes-back"):
        assert set(failures) == {check}


@pytest.mark.thorough
async def test_a_slow_planner_fails_within_the_time_limit() -> None:
    """Each exchange has a time limit."""

    async def never(_received: Received) -> bytes:
        await asyncio.Event().wait()
        return b""

    async with Plugin(instead(never)) as plugin:
        found = await findings(plugin, timeout_seconds=0.2)
    assert [each.check for each in found] == list(CHECKS)
    assert {each.sentence for each in found if each.check in ("steady", "idle")} == {"did not reply within 0.2 s"}


async def test_required_parameters_are_taken_from_the_first_example() -> None:
    """Without them no request could be made."""
    schema = {"type": "object", "required": ["model"], "properties": {"model": {}}, "examples": [{"model": "small"}]}
    async with Plugin(described(parameters=schema)) as plugin:
        assert all(finding.ok for finding in await findings(plugin))
        received = [json.loads(a.body) for a in plugin.received if a.body.startswith(b'{"id":"')]
    assert {each["policy"]["spec"]["planner"]["parameters"]["model"] for each in received} == {"small"}


async def test_a_planner_gets_its_token() -> None:
    """One that requires a bearer token can be checked."""

    def guarded(received: Received) -> bytes | Awaitable[bytes]:
        allowed = received.headers.get("authorization") == "Bearer for-mine"
        return good(received) if allowed else json_answer({"detail": "no token"}, 401)

    async with Plugin(guarded) as plugin:
        assert all(finding.ok for finding in await findings(plugin, token="for-mine"))
        [refused] = await findings(plugin)
    assert (refused.check, refused.ok) == ("describes-itself", False)
    assert "answered 401" in refused.sentence

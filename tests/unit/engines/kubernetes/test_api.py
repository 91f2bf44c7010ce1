"""Client and watches against a server that answers as no API server should, or as one does in an outage."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from aiohttp import web

from tests.unit.engines.kubernetes.objects import pod
from weir_contracts.target import WorkloadRef
from weir_engines.kubernetes import api as module
from weir_engines.kubernetes.api import Access, AnswersBusy, AnswerTooLarge, ApiFailed, Call, KubernetesApi
from weir_engines.kubernetes.cluster import Kinds
from weir_engines.kubernetes.discovery import PODS, Kind
from weir_engines.kubernetes.pods import PodReading, pod_of
from weir_engines.kubernetes.watches import PAGE, Pauses, Watch, pages

LIST = Call("list", "pods", "shop")
PATH = PODS.path("shop")
PATIENCE_SECONDS = 30.0
QUICK = Pauses(first_seconds=0.01, max_seconds=0.05, denied_seconds=0.05)

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _Server:
    """Server on loopback; `answer` decides what it says, `requests` has the queries so far."""

    def __init__(self) -> None:
        self.answer: Answer = self._nothing
        self.requests: list[dict[str, str]] = []
        self.tokens: list[str] = []
        self.url = ""

    async def _nothing(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({})

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(dict(request.query))
        self.tokens.append(request.headers.get("Authorization", ""))
        return await self.answer(request)


@pytest.fixture(autouse=True, scope="module")
def certificates_are_read_once() -> Iterator[None]:
    """A client reads those of the system, which takes longer than most of these tests; no server here has any."""
    with mock.patch("ssl.create_default_context", cache(ssl.create_default_context)):
        yield


@pytest.fixture
async def server() -> AsyncIterator[_Server]:
    found = _Server()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", found.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield found
    await runner.cleanup()


@pytest.fixture
async def client(server: _Server, tmp_path: Path) -> AsyncIterator[KubernetesApi]:
    token = tmp_path / "token"
    token.write_text("first\n")
    found = KubernetesApi(Access.of(server.url, None, token), timeout_seconds=PATIENCE_SECONDS)
    yield found
    await found.close()


def _fixed(content: str | bytes, status: int = 200, content_type: str = "application/json", **headers: str) -> Answer:
    body = content.encode() if isinstance(content, str) else content

    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.Response(body=body, status=status, content_type=content_type, headers=headers)

    return answer


def _status(code: int, reason: str, message: str = "said so") -> str:
    return json.dumps({"kind": "Status", "code": code, "reason": reason, "message": message})


async def test_a_socket_of_this_machine(tmp_path: Path) -> None:
    """As kubectl's proxy has it: the host is localhost, which the proxy takes, and what fails names the socket."""
    hosts: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        hosts.append(request.host)
        return web.json_response({"kind": "PodList"})

    app, socket = web.Application(), tmp_path / "kubectl"
    app.router.add_get(PATH, answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.UnixSite(runner, str(socket)).start()
    client = KubernetesApi(Access.of(f"unix:{socket}", None, None), timeout_seconds=PATIENCE_SECONDS)
    assert await client.get(LIST, PATH) == {"kind": "PodList"}
    await runner.cleanup()
    with pytest.raises(ApiFailed, match=f"the API server unix:{socket} cannot be reached"):
        await client.get(LIST, PATH)
    await client.close()
    assert hosts == ["localhost"]


@pytest.mark.parametrize(
    ("content", "status", "content_type", "words"),
    [
        (_status(403, "Forbidden"), 403, "application/json", r"may not list pods in namespace shop \(403\): said so"),
        (_status(401, "Unauthorized"), 401, "application/json", r"\(401\): the API server does not accept the token"),
        (_status(500, "Internal"), 500, "application/json", r"cannot list pods in namespace shop \(500\): said so"),
        ("<html>log in</html>", 200, "text/html", "answered text/html instead of JSON: check WEIR_KUBERNETES_URL"),
        ("<html>none</html>", 404, "text/html", "not of a Kubernetes API: check WEIR_KUBERNETES_URL"),
        ("{", 200, "application/json", "instead of JSON"),
        (b"\xff\xfe", 200, "application/json", "instead of JSON"),
    ],
)
async def test_answers_that_are_errors(  # noqa: PLR0917 - parametrized
    server: _Server, client: KubernetesApi, content: str | bytes, status: int, content_type: str, words: str
) -> None:
    server.answer = _fixed(content, status, content_type)
    with pytest.raises(ApiFailed, match=words) as error:
        await client.get(LIST, PATH)
    assert error.value.where == "list pods in namespace shop"


async def test_a_redirect_is_not_followed(server: _Server, client: KubernetesApi) -> None:
    server.answer = _fixed("", 302, Location=f"{server.url}/elsewhere")
    with pytest.raises(ApiFailed, match="redirect"):
        await client.get(LIST, PATH)
    assert len(server.requests) == 1


async def test_a_huge_answer_is_not_read(
    server: _Server, client: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_ANSWER_BYTES", 1000)
    server.answer = _fixed(json.dumps({"items": ["x" * 2000]}))
    with pytest.raises(AnswerTooLarge, match="more than 1000 bytes"):
        await client.get(LIST, PATH)


async def test_an_answer_of_many_small_elements_is_not_read(server: _Server, client: KubernetesApi) -> None:
    """0.9 MB of `[],` take 25 MB when they are parsed; an author of objects chooses what a list contains."""
    server.answer = _fixed('{"items": [' + "[]," * 300_000 + "[]]}")
    with pytest.raises(AnswerTooLarge, match=r"the answer has more than 200000 elements"):
        await client.get(LIST, PATH)
    assert module._OPEN.open_bytes == 0


async def test_open_answers_share_a_budget(server: _Server, client: KubernetesApi) -> None:
    """Eight calls at once may each be below the limits: without room an answer waits within its time, is then refused, and
    read once the others are."""
    server.answer = _fixed(json.dumps({"items": ["x" * 2000]}))
    client._timeout_seconds = 0.2
    with module._OPEN.body(50_000_000) as others:
        others.add(b"x" * 43_999_000)
        with pytest.raises(AnswersBusy, match="the answer is not read: too many large bodies are open at once"):
            await client.get(LIST, PATH)
        client._timeout_seconds = PATIENCE_SECONDS
        waiting = asyncio.ensure_future(client.get(LIST, PATH))
        await _until(lambda: len(server.requests) >= 4)
        assert not waiting.done()
    assert await waiting == {"items": ["x" * 2000]}
    assert module._OPEN.open_bytes == 0


async def test_a_slow_answer_ends_in_time(server: _Server, client: KubernetesApi) -> None:
    client._timeout_seconds = 0.1
    over = asyncio.Event()

    async def never(_request: web.Request) -> web.StreamResponse:
        await over.wait()
        return web.json_response({})

    server.answer = never
    with pytest.raises(ApiFailed, match=r"no answer within 0\.1 s"):
        await client.get(LIST, PATH)
    over.set()


async def test_calls_that_wait_for_each_other_end_in_time_too(server: _Server, client: KubernetesApi) -> None:
    """One connection, which a silent server keeps busy: the calls behind it do not add up their times."""
    client._timeout_seconds, client._calls = 0.5, asyncio.Semaphore(1)
    over = asyncio.Event()

    async def never(_request: web.Request) -> web.StreamResponse:
        await over.wait()
        return web.json_response({})

    server.answer = never
    await client._prepare()
    async with asyncio.timeout(2.5):
        found = await asyncio.gather(*(client.get(LIST, PATH) for _ in range(8)), return_exceptions=True)
    assert [type(each) for each in found] == [ApiFailed] * 8
    over.set()


async def test_a_token_of_two_lines_is_an_error_that_does_not_show_it(
    server: _Server, client: KubernetesApi, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("secret\nX-Other: secret\n")
    with pytest.raises(ApiFailed, match=r"the token in .* cannot be read") as error:
        await client.get(LIST, PATH)
    assert "secret" not in str(error.value)
    assert server.requests == []


async def test_the_token_is_read_again_when_its_file_changes(
    server: _Server, client: KubernetesApi, tmp_path: Path
) -> None:
    await client.get(LIST, PATH)
    new = tmp_path / "new"
    new.write_text("second")
    new.replace(tmp_path / "token")
    await client.get(LIST, PATH)
    (tmp_path / "token").unlink()
    with pytest.raises(ApiFailed, match=r"the token in .* cannot be read"):
        await client.get(LIST, PATH)
    assert server.tokens == ["Bearer first", "Bearer second"]


def test_access_that_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    token = tmp_path / "token"
    token.write_text("t")
    with pytest.raises(ValueError, match="does not run in a pod"):
        Access.of("", None, None)
    with pytest.raises(ValueError, match="must begin with https"):
        Access.of("http://kubernetes.example.org", None, token)
    with pytest.raises(ValueError, match="WEIR_KUBERNETES_CA_FILE: cannot read"):
        Access.of("https://kubernetes.example.org", tmp_path / "none", token)
    assert Access.of("https://a.example.org/", None, token).url == "https://a.example.org"


@pytest.mark.parametrize("version", ["1.25", "1.26"])
async def test_kinds_of_an_api_server_of_another_version(server: _Server, client: KubernetesApi, version: str) -> None:
    """Up to 1.25 it lists its groups and then each group's resources; from 1.26 on all in one answer."""
    resources = [
        {"name": "deployments", "kind": "Deployment", "namespaced": True},
        {"name": "deployments/scale", "kind": "Scale", "namespaced": True},
    ]
    groups = {"kind": "APIGroupList", "groups": [{"preferredVersion": {"groupVersion": "apps/v1"}}]}
    answers: dict[str, Any] = {
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": groups,
        "/api/v1": {"kind": "APIResourceList", "resources": []},
        "/apis/apps/v1": {"kind": "APIResourceList", "resources": resources},
    }
    if version == "1.26":
        resource = {
            "resource": "deployments",
            "responseKind": {"kind": "Deployment"},
            "scope": "Namespaced",
            "subresources": [{"subresource": "scale"}],
        }
        group = {"metadata": {"name": "apps"}, "versions": [{"version": "v1", "resources": [resource]}]}
        answers = {"/api": {"kind": "APIGroupDiscoveryList", "items": []}, "/apis": {"kind": "APIGroupDiscoveryList"}}
        answers["/apis"]["items"] = [group]

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response(answers[request.path])

    server.answer = answer
    found = await Kinds(client).find(WorkloadRef(kind="Deployment", name="orders"))
    assert found == Kind("apps", "v1", "Deployment", "deployments")
    assert len(server.requests) == len(answers)


class _Script:
    """API server with pods: lists them, then sends each watch the events that the test queues."""

    def __init__(self, server: _Server) -> None:
        self.items = [_versioned(pod("a"), "5")]
        self.events: asyncio.Queue[str | None] = asyncio.Queue()
        self.refusals: list[tuple[int, str]] = []
        self._server = server
        server.answer = self.answer

    @property
    def lists(self) -> int:
        return sum(1 for query in self._server.requests if "watch" not in query)

    @property
    def watches(self) -> list[str]:
        return [query["resourceVersion"] for query in self._server.requests if "watch" in query]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if self.refusals:
            code, reason = self.refusals.pop(0)
            return web.Response(text=_status(code, reason), status=code, content_type="application/json")
        if "watch" not in request.query:
            limit = int(request.query["limit"])
            start = int(request.query.get("continue", "0"))
            items = self.items[start : start + limit]
            metadata = {"resourceVersion": "9"} | (
                {"continue": str(start + limit)} if start + limit < len(self.items) else {}
            )
            if "as=Table" in request.headers["Accept"]:
                rows = [{"cells": ["1/1", each["metadata"]["name"]], "object": None} for each in items]
                columns = [{"name": "Ready"}, {"name": "Name"}]
                return web.json_response({"metadata": metadata, "columnDefinitions": columns, "rows": rows})
            return web.json_response({"metadata": metadata, "items": items})
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        while (event := await self.events.get()) is not None:
            try:
                await response.write(event.encode())
            except ConnectionResetError:  # the client has closed this watch: the event is the next one's
                self.events.put_nowait(event)
                break
        return response

    def send(self, kind: str, found: dict[str, Any]) -> None:
        self.events.put_nowait(json.dumps({"type": kind, "object": found}) + "\n")


def _versioned(found: dict[str, Any], version: str) -> dict[str, Any]:
    return {**found, "metadata": {**found["metadata"], "resourceVersion": version}}


@pytest.fixture
def script(server: _Server) -> _Script:
    return _Script(server)


@pytest.fixture
async def watch(script: _Script, client: KubernetesApi) -> AsyncIterator[Watch[PodReading]]:
    found = Watch(client, PODS, "shop", pod_of, pauses=QUICK)
    yield found
    await found.close()


async def _until(fits: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not fits():  # noqa: ASYNC110 - a condition of the watch's task
            await asyncio.sleep(0.01)


async def test_a_page_is_not_smaller_because_others_are_read(
    server: _Server, client: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was requested object by object, without a pause, and stayed so to the end of the list: 400 pods took 403
    requests."""
    script = _Script(server)
    script.items = [_versioned(pod(f"p{i}"), "5") for i in range(400)]
    monkeypatch.setattr(module, "BUSY_PAUSE_SECONDS", 0.01)
    with module._OPEN.body(50_000_000) as others:
        others.add(b"x" * 43_999_000)
        listing = asyncio.ensure_future(_listed(client))
        await _until(lambda: len(server.requests) >= 3)
    assert len(await listing) == 400
    assert {query["limit"] for query in server.requests} == {str(PAGE)}


async def test_pages_grow_again_behind_a_large_object(
    server: _Server, client: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what is with it in a page is read in smaller ones. Alone it may be larger than a page."""
    script = _Script(server)
    script.items = [_versioned(pod(f"p{i}"), "5") for i in range(4 * PAGE)]
    monkeypatch.setattr(module, "MAX_ANSWER_BYTES", len(json.dumps(script.items)) // 3)
    script.items[0]["metadata"]["annotations"] = {"text": "x" * module.MAX_ANSWER_BYTES}
    assert len(await _listed(client)) == 4 * PAGE
    limits = [int(query["limit"]) for query in server.requests]
    assert (limits[:6], limits[-1]) == ([100, 12, 1, 2, 4, 8], 100)
    assert len(limits) < 15


async def _listed(client: KubernetesApi) -> list[Any]:
    return [each async for items, _ in pages(client, LIST, PATH) for each in items]


async def test_commas_in_a_text_are_no_elements(script: _Script, watch: Watch[PodReading]) -> None:
    """An annotation may have 256 KiB: one of commas stopped the watch of all pods in its namespace for ever."""
    text = 'a\\",[{' + ",[{" * 80_000
    script.items[0]["metadata"]["annotations"] = {"text": text, "an\\": "end"}
    await watch.synced(PATIENCE_SECONDS)
    added = pod("b")
    added["metadata"]["annotations"] = {"text": text}
    script.send("ADDED", _versioned(added, "10"))
    await _until(lambda: set(watch.objects) == {"a", "b"})
    assert (script.lists, watch.failure) == (1, None)


async def test_a_watch_follows_changes_after_one_list(watch: Watch[PodReading], script: _Script) -> None:
    await watch.synced(PATIENCE_SECONDS)
    assert set(watch.objects) == {"a"}
    script.send("ADDED", _versioned(pod("b"), "10"))
    script.send("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": "20"}})
    script.send("SURPRISE", {"metadata": {"name": "c"}})
    script.send("DELETED", _versioned(pod("a"), "21"))
    await _until(lambda: set(watch.objects) == {"b"})
    script.send("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": "30"}})
    script.events.put_nowait(None)  # the API server ends each watch after some minutes
    await _until(lambda: len(script.watches) == 2)
    assert (script.lists, script.watches) == (1, ["9", "30"])
    assert watch.failure is None


@pytest.mark.parametrize("as_event", [False, True])
async def test_an_expired_version_lists_again(watch: Watch[PodReading], script: _Script, as_event: bool) -> None:
    await watch.synced(PATIENCE_SECONDS)
    await _until(lambda: len(script.watches) == 1)
    script.items = [_versioned(pod("z"), "40")]
    if as_event:
        script.send("ERROR", json.loads(_status(410, "Expired")))
    else:
        script.refusals = [(410, "Gone")]
        script.events.put_nowait(None)
    await _until(lambda: set(watch.objects) == {"z"})
    assert script.lists == 2
    assert watch.failure is None


async def test_an_outage_keeps_the_objects_and_says_so(watch: Watch[PodReading], script: _Script) -> None:
    await watch.synced(PATIENCE_SECONDS)
    script.refusals = [(500, "Internal")] * 3
    script.events.put_nowait(None)
    await _until(lambda: watch.failure is not None)
    assert set(watch.objects) == {"a"}
    assert "cannot watch pods in namespace shop (500)" in str(watch.failure)
    await _until(lambda: watch.failure is None)
    assert script.lists == 1


async def test_a_denied_list_is_an_error_at_once_and_heals(watch: Watch[PodReading], script: _Script) -> None:
    script.refusals = [(403, "Forbidden")]
    with pytest.raises(ApiFailed, match="may not list pods"):
        await watch.synced(PATIENCE_SECONDS)
    await _until(lambda: bool(watch.objects))
    await watch.synced(0.1)


async def test_a_long_list_comes_in_pages(
    script: _Script, client: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages above the limit are requested again with fewer objects."""
    script.items = [_versioned(pod(f"p{i:04}"), "5") for i in range(120)]
    monkeypatch.setattr(module, "MAX_ANSWER_BYTES", 20_000)
    watch = Watch(client, PODS, "shop", pod_of, pauses=QUICK)
    try:
        await watch.synced(PATIENCE_SECONDS)
        assert len(watch.objects) == 120
        assert script.lists > 2
    finally:
        await watch.close()


async def test_an_event_that_is_too_large_breaks_the_watch_only(
    watch: Watch[PodReading], script: _Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LARGE_BYTES", 5000)
    await watch.synced(PATIENCE_SECONDS)
    await _until(lambda: len(script.watches) == 1)
    script.events.put_nowait("x" * 10_000)
    await _until(lambda: len(script.watches) == 2)
    script.send("ADDED", _versioned(pod("b"), "10"))
    await _until(lambda: set(watch.objects) == {"a", "b"})
    await _until(lambda: module._OPEN.open_bytes == 0)


def _huge(name: str, version: str) -> dict[str, Any]:
    """A pod whose arguments are more elements than are read; etcd stores 700,000."""
    found = _versioned(pod(name), version)
    found["spec"]["containers"] = [{"name": "main", "args": [""] * 3001}]
    return found


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the largest objects are quickly read."""
    monkeypatch.setattr(module, "MAX_ANSWER_BYTES", 5_000)
    monkeypatch.setattr(module, "LARGE_ELEMENTS", 3_000)


@pytest.mark.usefixtures("small_limits")
async def test_one_object_that_is_too_large_stops_no_others(script: _Script, client: KubernetesApi) -> None:
    """Its author stopped the watch of all pods in the namespace for ever. It is left out by its name, in the list and
    when it becomes too large, and is there again once it is small."""
    script.items = [_versioned(pod("a"), "5"), _huge("b", "6"), _versioned(pod("c"), "7"), _versioned(pod("d"), "8")]
    watch = Watch(client, PODS, "shop", pod_of, leaves_out=True, pauses=QUICK)
    await watch.synced(PATIENCE_SECONDS)
    assert (set(watch.objects), set(watch.left_out), watch.failure) == ({"a", "c", "d"}, {"b"}, None)
    assert "cannot list pods in namespace shop: b has more than 3000 elements" in str(watch.left_out["b"])
    script.send("MODIFIED", _versioned(pod("b"), "10"))
    await _until(lambda: set(watch.objects) == {"a", "b", "c", "d"} and not watch.left_out)
    script.items[1:3] = [_versioned(pod("b"), "10"), _huge("c", "11")]
    script.send("MODIFIED", script.items[2])
    await _until(lambda: set(watch.left_out) == {"c"})
    assert (set(watch.objects), watch.failure) == ({"a", "b", "d"}, None)
    await watch.close()


@pytest.mark.usefixtures("small_limits")
async def test_a_watch_that_needs_each_object_says_that_one_is_too_large(
    script: _Script, watch: Watch[PodReading]
) -> None:
    """It has no objects rather than all but one, and heals once the object is small."""
    script.items = [_versioned(pod("a"), "5"), _huge("b", "6")]
    with pytest.raises(AnswerTooLarge, match="more than 3000 elements"):
        await watch.synced(PATIENCE_SECONDS)
    script.items[1] = _versioned(pod("b"), "7")
    await _until(lambda: set(watch.objects) == {"a", "b"})


async def test_an_object_that_cannot_be_read_any_more_is_not_shown_as_it_was(
    script: _Script, client: KubernetesApi
) -> None:
    def strict(document: dict[str, Any]) -> PodReading | None:
        if document["metadata"].get("labels", {}).get("app") == "odd":
            raise ValueError("out of bounds")
        return pod_of(document)

    watch = Watch(client, PODS, "shop", strict, pauses=QUICK)
    await watch.synced(PATIENCE_SECONDS)
    assert set(watch.objects) == {"a"}
    script.send("MODIFIED", _versioned(pod("a", "odd"), "10"))
    await _until(lambda: not watch.objects)
    await watch.close()


async def test_a_watch_that_nobody_reads_ends(script: _Script, client: KubernetesApi) -> None:
    watch = Watch(client, PODS, "shop", pod_of, unused_seconds=0.05, pauses=QUICK)
    await watch.synced(PATIENCE_SECONDS)
    for _ in range(100):  # each watch is ended, also those that are opened before the time has passed
        script.events.put_nowait(None)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.gather(watch._task)
    assert watch.is_over


def test_pauses_grow_and_are_spread() -> None:
    class Even:
        def random(self) -> float:
            return 1.0

    pauses = Pauses(first_seconds=0.5, max_seconds=30, denied_seconds=60)
    found = [pauses.after(n, denied=False, random=Even()) for n in (0, 1, 5, 20)]
    assert found == [0.5, 1.0, 16.0, 30]
    found = [pauses.after(n, denied=True, random=Even()) for n in (0, 1, 5, 20)]
    assert found == [0.5, 1.0, 16.0, 60], "an API server that has just started denies for a moment what is allowed"

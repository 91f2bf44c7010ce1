"""`weir apply` and the knowledge service's own API: documents, folders, refusals, and waiting."""

import asyncio
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import pytest
import structlog.testing
import yaml

from tests.unit.cli.test_command import Done, weir
from tests.unit.knowledge.builders import NOON, document
from tests.unit.knowledge.direct_log import changes_of
from tests.unit.knowledge.memory_store import MemoryStore
from weir_cli.client import Client
from weir_knowledge.__main__ import api
from weir_knowledge.policies_api import policies_router
from weir_runtime.access import Problem
from weir_runtime.clock import FakeClock

ORDERS, PAYMENTS = "shop/orders", "shop/payments"


class Knowledge:
    """The knowledge service's routes for policies on a store in memory, and observations of a test."""

    def __init__(self) -> None:
        self.store, self.clock = MemoryStore(), FakeClock(NOON)
        self.app = api()
        self.changes = changes_of(self.store, self.clock)
        self.app.include_router(policies_router(self.changes))
        self.observations: Iterator[Any] = iter(())
        self.refuse: Callable[[httpx.Request], bool] = lambda _: False
        self.requests: list[str] = []

        @self.app.get("/v1/applications/{namespace}/{name}/observation")
        async def observation() -> Any:
            found = next(self.observations, None)
            if found is None:
                raise Problem(404, "no observation yet")
            return found

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(f"{request.method} {request.url.query.decode()}".strip())
        if self.refuse(request):
            return httpx.Response(422, json={"detail": "spec: is not wanted"})

        async def called() -> httpx.Response:
            headers = {name: value for name, value in request.headers.items() if name != "host"}
            async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://knowledge") as http:
                path = request.url.raw_path.decode()
                return await http.request(request.method, path, content=request.content, headers=headers)

        answer = asyncio.run(called())
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)

    def stored(self) -> dict[str, Any]:
        """Return the policies in force, by application."""
        return {each.application: each for each in asyncio.run(self.changes.view.policies())}


@pytest.fixture
def knowledge() -> Iterator[Knowledge]:
    server = Knowledge()
    made = Client("http://knowledge", None, httpx.MockTransport(server))
    with (
        structlog.testing.capture_logs(),  # the service's, which would go to the command's output
        mock.patch("weir_cli.apply.connect", lambda *_: made),
        mock.patch("weir_cli.__main__.connect", lambda *_: made),
        mock.patch("weir_cli.apply.POLL_SECONDS", 0.001),
    ):
        yield server


def write(path: Path, *documents: Any) -> str:
    path.write_text(yaml.safe_dump_all(documents))
    return str(path)


def lines(done: Done) -> list[str]:
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def job(name: str) -> dict[str, Any]:
    return {"flink": {"url": "http://jobmanager:8081", "job": name}}


def test_an_exported_policy_can_be_applied_again_and_again(knowledge: Knowledge, tmp_path: Path) -> None:
    """As with kubectl: unchanged, with the version that it had; an edit replaces it, also the second one."""
    file = write(tmp_path / "orders.yaml", document(mode="advise"))
    first = lines(weir("apply", "-f", file))[0]
    assert first.startswith("shop/orders created (version ")
    version = knowledge.stored()[ORDERS].metadata.version
    exported = weir("get", ORDERS, "--policy", "-o", "yaml").stdout
    assert "version" not in yaml.safe_load(exported)["metadata"]
    Path(file).write_text(exported)
    for _ in range(2):
        assert lines(weir("apply", "-f", file)) == [f"shop/orders unchanged (version {version}, mode advise)"]
    for mode in ("act", "paused"):
        knowledge.clock.advance(1)
        Path(file).write_text(exported.replace("mode: advise", f"mode: {mode}"))
        assert lines(weir("apply", "-f", file))[0].startswith("shop/orders replaced")
        assert knowledge.stored()[ORDERS].spec.mode == mode


def test_a_document_with_its_version_replaces_only_what_was_read(knowledge: Knowledge, tmp_path: Path) -> None:
    """--with-version keeps it in the export: another user's change in between is a conflict, code 4."""
    file = write(tmp_path / "orders.yaml", document(mode="advise"))
    weir("apply", "-f", file)
    exported = weir("get", ORDERS, "--policy", "-o", "yaml", "--with-version").stdout
    knowledge.clock.advance(1)
    weir("apply", "-f", write(tmp_path / "other.yaml", document(mode="act")))
    Path(file).write_text(exported.replace("mode: advise", "mode: paused"))
    done = weir("apply", "-f", file)
    assert done.returncode == 4
    assert done.stderr.startswith(f"weir: {file}: ")
    assert knowledge.stored()[ORDERS].spec.mode == "act"


def test_all_exported_policies_are_applied_from_one_list(knowledge: Knowledge, tmp_path: Path) -> None:
    """`get policies -o json` prints a list, which is read back."""
    documents = [document(), document(PAYMENTS, application=job("payments"))]
    weir("apply", "-f", write(tmp_path / "all.yaml", *documents))
    (tmp_path / "all.json").write_text(weir("get", "policies", "-o", "json").stdout)
    results = [line.split(" (")[0] for line in lines(weir("apply", "-f", str(tmp_path / "all.json")))]
    assert results == ["shop/orders unchanged", "shop/payments unchanged"]


def test_if_one_document_is_refused_none_is_in_force(knowledge: Knowledge, tmp_path: Path) -> None:
    """The server refuses the second, whose target is taken: the file and the document are named, the first is not stored."""
    weir("apply", "-f", write(tmp_path / "present.yaml", document("shop/present", application=job("taken"))))
    file = write(tmp_path / "two.yaml", document(), document(PAYMENTS, application=job("taken")))
    done = weir("apply", "-f", file)
    assert done.returncode == 4
    assert done.stderr.startswith(f"weir: {file}, document 2: ")
    assert done.stderr.endswith("; nothing was changed\n")
    assert set(knowledge.stored()) == {"shop/present"}


def test_what_is_in_force_is_named_where_a_check_cannot_foresee_it(knowledge: Knowledge, tmp_path: Path) -> None:
    """Two documents of one target pass alone; the second is refused when the first is stored."""
    first = write(tmp_path / "1.yaml", document(application=job("orders")))
    second = write(tmp_path / "2.yaml", document(PAYMENTS, application=job("orders")))
    done = weir("apply", "-f", first, "-f", second)
    assert done.returncode == 4
    assert done.stderr.startswith(f"weir: {second}: ")
    assert done.stderr.endswith("; in force: shop/orders\n")
    assert set(knowledge.stored()) == {ORDERS}


def test_a_dry_run_says_what_would_change(knowledge: Knowledge, tmp_path: Path) -> None:
    """The server's checks, without a change: created, replaced, unchanged, or refused."""
    file = write(tmp_path / "orders.yaml", document(application=job("orders")))
    assert lines(weir("apply", "-f", file, "--dry-run")) == ["shop/orders would be created (mode advise)"]
    assert knowledge.stored() == {}
    weir("apply", "-f", file)
    assert lines(weir("apply", "-f", file, "--dry-run")) == ["shop/orders would be unchanged (mode advise)"]
    weir("apply", "-f", file)
    paused = write(tmp_path / "paused.yaml", document(mode="paused", application=job("orders")))
    assert lines(weir("apply", "-f", paused, "--dry-run")) == ["shop/orders would be replaced (mode paused)"]
    assert knowledge.stored()[ORDERS].spec.mode == "advise"
    taken = weir(
        "apply", "-f", write(tmp_path / "taken.yaml", document(PAYMENTS, application=job("orders"))), "--dry-run"
    )
    assert taken.returncode == 4
    assert "shop/orders" in taken.stderr
    planner = document(bounds={"max": 1}, planner={"name": "rate", "parameters": 3})
    assert weir("apply", "-f", write(tmp_path / "wrong.yaml", planner), "--dry-run").returncode == 2


def test_a_folder_is_applied_in_the_order_of_its_names(knowledge: Knowledge, tmp_path: Path) -> None:
    """YAML and JSON; other files are left alone. An empty folder and a policy in two files are errors."""
    folder = tmp_path / "policies"
    folder.mkdir()
    assert weir("apply", "-f", str(folder)).stderr.endswith(
        "the folder has no file that ends with .yaml, .yml, .json\n"
    )
    write(folder / "b.yml", document())
    (folder / "a.json").write_text(json.dumps(document(PAYMENTS, application=job("payments"))))
    (folder / "README.md").write_text("no policy")
    (folder / "archive.yaml").mkdir()
    applied = [line.split(" (")[0] for line in lines(weir("apply", "-f", str(folder)))]
    assert applied == ["shop/payments created", "shop/orders created"]
    again = write(folder / "c.yaml", document(mode="act"))
    done = weir("apply", "-f", str(folder))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"weir: {again}: shop/orders has a policy in {folder / 'b.yml'} already\n"


def test_standard_input_is_utf_8_whatever_the_terminal_is(knowledge: Knowledge) -> None:
    """A pipe on a terminal with another encoding; errors name where the document came from."""
    piped = yaml.safe_dump({**document(), "spec": {**document()["spec"], "größe": 1}}, allow_unicode=True).encode()
    with mock.patch("sys.stdin", io.TextIOWrapper(io.BytesIO(piped), encoding="ascii")):
        done = weir("apply", "-f", "-")
    assert done.returncode == 2
    assert done.stderr.startswith("weir: standard input: spec.größe: is not a field")
    with mock.patch("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a: \xff"))):
        assert weir("apply", "-f", "-").stderr.startswith("weir: standard input: is not UTF-8 text")


def test_waiting_ends_when_the_application_is_read_under_its_policy(knowledge: Knowledge, tmp_path: Path) -> None:
    """Neither an observation under the version before nor one with a problem counts."""
    file = write(tmp_path / "orders.yaml", document())
    version = int(NOON.timestamp() * 1000)

    def seen(of: int, *problems: str, status: str = "running") -> dict[str, Any]:
        return {"policy": {"metadata": {"version": of}}, "status": status, "problems": problems}

    knowledge.observations = iter([None, seen(version - 1), seen(version, "kafka: no answer"), seen(version), seen(0)])
    done = weir("apply", "-f", file, "--wait")
    assert lines(done)[1:] == ["shop/orders observed (running)"]
    assert next(knowledge.observations) == seen(0)
    knowledge.observations = iter([seen(version, "flink: no job orders", status="not-running")] * 100_000)
    with mock.patch("weir_cli.apply.duration", lambda *_: mock.Mock(total_seconds=lambda: 0.02)):
        done = weir("apply", "-f", file, "--wait", "--timeout", "5s")
    assert done.returncode == 1
    assert (
        done.stderr.splitlines()[-1]
        == "weir: shop/orders: applied, but not observed without a problem within 5s: flink: no job orders"
    )


@pytest.mark.parametrize("within", ["0s", "2h", "soon"])
def test_a_time_limit_is_checked_before_anything_is_sent(knowledge: Knowledge, within: str) -> None:
    """Code 2."""
    done = weir("apply", "-f", "orders.yaml", "--wait", "--timeout", within)
    assert done.returncode == 2
    assert "--timeout" in done.stderr
    assert knowledge.requests == []

"""`weir export` and `weir import` on the knowledge service's own API: what moves, what is refused, and what it says."""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import pytest
import structlog.testing

from tests.unit.analyzer.story import Loop
from tests.unit.cli.test_apply import Knowledge
from tests.unit.cli.test_command import Done, weir
from tests.unit.knowledge.builders import analysis, document, observation, outcome, plan
from tests.unit.knowledge.direct_log import show_messages
from weir_cli.client import Client
from weir_cli.move import PART_BYTES, parts
from weir_contracts import Observation
from weir_contracts.topics import OBSERVATIONS
from weir_knowledge.applications_api import applications_router
from weir_knowledge.imports_api import imports_router
from weir_runtime.messages import decode

ORDERS, PAYMENTS = "shop/orders", "shop/payments"
LEARNED = Loop().watch(60).learned


class Weir(Knowledge):
    """A Weir with policies, applications and imports; `carried` are the imports in its log."""

    def __init__(self) -> None:
        super().__init__()
        self.clock.advance(600.0)
        # The observation of waiting, which the other tests answer by themselves, has no part in it.
        self.app.router.routes = [
            each for each in self.app.router.routes if "observation" not in getattr(each, "path", "")
        ]
        self.app.include_router(applications_router(self.changes))
        self.app.include_router(imports_router(self.changes))

    async def carried(self) -> list[Observation]:
        reader = self.changes.log.bus.reader(OBSERVATIONS.name)
        found = [decode(each, Observation).message for each in await reader.receive(timeout_seconds=0.0)]
        await reader.close()
        return [each for each in found if each.imported is not None]

    async def lives(self, application: str) -> None:
        """Live two cycles that learned something."""
        for cycle in (1, 2):
            decided = plan(cycle, 4, application, code=f"reason-{cycle}")
            await show_messages(
                self.store,
                observation(cycle, application),
                analysis(cycle, application, learned=LEARNED),
                decided,
                outcome(decided, "verified"),
            )


@contextmanager
def on(server: Weir) -> Iterator[None]:
    """Send the commands to a Weir."""
    made = Client("http://knowledge", None, httpx.MockTransport(server))
    with (
        structlog.testing.capture_logs(),
        mock.patch("weir_cli.move.connect", lambda *_: made),
        mock.patch("weir_cli.apply.connect", lambda *_: made),
        mock.patch("weir_cli.__main__.connect", lambda *_: made),
    ):
        yield


def run(server: Weir, *arguments: str) -> Done:
    with on(server):
        return weir(*arguments)


@pytest.fixture
def there(tmp_path: Path) -> Weir:
    """A Weir that acts on one application, which it knows, and advises another one."""
    server = Weir()
    for each in (document(ORDERS, mode="act"), document(PAYMENTS)):
        path = tmp_path / "policy.yaml"
        path.write_text(json.dumps(each))
        assert run(server, "apply", "-f", str(path)).returncode == 0
    return server


@pytest.fixture
def moved(there: Weir, tmp_path: Path) -> Path:
    """The file of its export."""
    asyncio.run(there.lives(ORDERS))
    return tmp_path / "weir.jsonl"


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def modes(server: Weir) -> dict[str, str]:
    return {name: each.spec.mode for name, each in server.stored().items()}


def test_an_export_says_what_it_holds_and_keeps_no_memory(there: Weir, moved: Path) -> None:
    """A line for each application between the first and the last; no version, author or planner's memory; the one that
    acts is named, since it must not act twice."""
    done = run(there, "export", str(moved))
    first, orders, payments, last = lines(moved)
    assert (first["weir"], first["version"], last) == ("export", 1, {"end": True, "applications": 2})
    assert orders["policy"]["metadata"] == {"namespace": "shop", "name": "orders"}
    assert orders["learned"] == LEARNED
    assert [each["code"] for each in orders["history"]] == ["reason-2", "reason-1"]
    assert [each["plan"]["code"] for each in orders["cycles"]] == ["reason-2", "reason-1"]
    assert all("state" not in each["plan"] for each in orders["cycles"])
    assert (payments["learned"], payments["history"], payments["cycles"]) == ({}, [], [])
    count = len(LEARNED["capacities"])
    assert done.stdout.splitlines() == [
        f"shop/orders exported: capacities of {count} operators, 2 past cycles, 2 of them explained",
        "shop/payments exported: no capacity, 0 past cycles, 0 of them explained",
    ]
    assert done.stderr.startswith("note: shop/orders acts here: pause it before another Weir does")


def test_an_import_advises_and_hands_everything_on(there: Weir, moved: Path) -> None:
    """Neither Weir is to act because of the move alone. The same file again changes nothing and skips nothing."""
    assert run(there, "export", str(moved)).returncode == 0
    here = Weir()
    done = run(here, "import", str(moved))
    assert (done.returncode, modes(here)) == (0, {ORDERS: "advise", PAYMENTS: "advise"})
    assert done.stdout.startswith("shop/orders created (mode advise): capacities of ")
    assert "shop/orders: mode act where exported, advise here" in done.stderr
    (arrived,) = asyncio.run(here.carried())
    assert arrived.imported is not None
    assert arrived.imported.learned == LEARNED
    assert [each["code"] for each in arrived.imported.past["history"]] == ["reason-2", "reason-1"]
    versions = {name: each.metadata.version for name, each in here.stored().items()}
    again = run(here, "import", str(moved))
    assert [line.split(":")[0] for line in again.stdout.splitlines()] == [
        "shop/orders unchanged (mode advise)",
        "shop/payments unchanged (mode advise)",
    ]
    assert {name: each.metadata.version for name, each in here.stored().items()} == versions


def test_with_act_what_was_learned_comes_before_the_mode(there: Weir, moved: Path) -> None:
    """The record is written while the policy still advises, and names the risk that two Weirs act."""
    run(there, "export", str(moved), ORDERS)
    here = Weir()
    done = run(here, "import", str(moved), "--act")
    assert modes(here) == {ORDERS: "act"}
    (arrived,) = asyncio.run(here.carried())
    assert arrived.policy.spec.mode == "advise"
    assert "the Weir of the export must have stopped" in done.stderr


def test_another_policy_stays_unless_replaced(there: Weir, moved: Path, tmp_path: Path) -> None:
    """An application that was set up here differently is skipped, and its log hears nothing."""
    run(there, "export", str(moved), ORDERS)
    here, own = Weir(), tmp_path / "own.yaml"
    own.write_text(json.dumps(document(ORDERS, objective={"maxLag": "5s"})))
    run(here, "apply", "-f", str(own))
    done = run(here, "import", str(moved), "-o", "json")
    assert [each["result"] for each in json.loads(done.stdout)] == ["skipped"]
    assert asyncio.run(here.carried()) == []
    done = run(here, "import", str(moved), "--replace")
    assert done.stdout.startswith("shop/orders replaced (mode advise)")
    assert here.stored()[ORDERS].spec.objective.max_lag == there.stored()[ORDERS].spec.objective.max_lag
    assert len(asyncio.run(here.carried())) == 1


def test_a_policy_that_the_server_refuses_stops_all(there: Weir, moved: Path) -> None:
    """The line is named, and nothing was changed."""
    run(there, "export", str(moved))
    here = Weir()
    here.refuse = lambda request: request.method == "PUT" and request.url.path.endswith("payments")
    done = run(here, "import", str(moved))
    assert (done.returncode, here.stored()) == (2, {})
    assert done.stderr == f"weir: {moved}:3: spec: is not wanted; nothing was changed\n"


def _second(change: Callable[[dict[str, Any]], object]) -> Callable[[list[str]], list[str]]:
    """Change the application of the second line."""

    def changed(text: list[str]) -> list[str]:
        entry = json.loads(text[1])
        change(entry)
        return [text[0], json.dumps(entry), *text[2:]]

    return changed


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda text: [], ":1: this is no file of weir export"),
        (lambda text: ["kind: ScalingPolicy", *text[1:]], ":1: this is no file of weir export"),
        (lambda text: ["[" * 100_000, *text[1:]], ":1: this is no file of weir export"),
        (
            lambda text: [text[0].replace('"version":1', '"version":2'), *text[1:]],
            ":1: version 2 is of a newer Weir than this, which reads 1: upgrade this one",
        ),
        (
            lambda text: [text[0].replace('"version":1', '"version":"1"'), *text[1:]],
            ":1: version: must be a number, not '1'",
        ),
        (lambda text: text[:-1], ": ends after line 3 without its last line: copy or export it again"),
        (lambda text: [text[0], text[1], text[3]], ":3: counts 2 applications, 1 are there"),
        (lambda text: [text[0], text[1], text[1], *text[3:]], ":3: shop/orders is in line 2 already"),
        (lambda text: [*text, text[1]], ":5: follows the last line"),
        (lambda text: [text[0], "[1]", *text[2:]], ":2: is no application"),
        (lambda text: [text[0], text[1][:200], *text[2:]], ":2: is not JSON"),
        (lambda text: [text[0], '{"a":[' + "[]," * 200_000 + "1]}", *text[2:]], ":2: has 400,002 elements"),
        (_second(lambda entry: entry.pop("learned")), ":2: learned is required"),
        (_second(lambda entry: entry["policy"]["spec"].update(mode="go")), ":2: policy: spec.mode"),
        (_second(lambda entry: entry["learned"].update(version=9)), ":2: learned: it has version 9"),
        (_second(lambda entry: entry.update(learned=[1])), ":2: learned: must be a mapping"),
        (_second(lambda entry: entry.update(polices=1)), ":2: polices: is not a field of this version"),
        (_second(lambda entry: entry["learned"].update(capacity={})), ":2: learned: capacity: is not a field"),
        (_second(lambda entry: entry["learned"].update(restarts=[1e12, 3, 2])), ":2: learned: restarts.0: "),
        (_second(lambda entry: entry["learned"].update(restarts=[4, 3, -2])), ":2: learned: restarts.2: "),
        (_second(lambda entry: entry["learned"].update(restarts=[4, True, 2])), ":2: learned: restarts.1: "),
        (_second(lambda entry: entry["learned"].update(moves=[4, 1e12])), ":2: learned: moves.1: "),
        (_second(lambda entry: entry["learned"].update(forecasts=["a"])), ":2: learned: forecasts: "),
        (
            _second(lambda entry: entry["learned"].update(forecasts={"serie": {}})),
            ":2: learned: forecasts.serie: is not",
        ),
        (
            _second(
                lambda entry: entry["learned"].update(forecasts={"series": {"orders": [1, "x"]}, "wait_seconds": 1})
            ),
            ":2: learned: forecasts.series.orders: ",
        ),
        (_second(lambda entry: entry["history"][0].update(at="noon")), ":2: history.0.at: "),
        (_second(lambda entry: entry.update(application="shop/other")), ":2: application: is 'shop/other'"),
    ],
)
def test_a_file_that_is_damaged_or_foreign_changes_nothing(
    there: Weir, moved: Path, spoil: Callable[[list[str]], list[str]], sentence: str
) -> None:
    """One sentence with file and line, exit code 2, and no request."""
    run(there, "export", str(moved))
    moved.write_text("".join(f"{line}\n" for line in spoil(moved.read_text().splitlines())))
    here = Weir()
    done = run(here, "import", str(moved))
    assert (done.returncode, here.requests) == (2, [])
    assert f"{moved}{sentence}" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_file_that_ends_in_the_middle_of_a_line_changes_nothing(there: Weir, moved: Path) -> None:
    """As after a full disk, or a copy that was interrupted; at whatever byte."""
    run(there, "export", str(moved))
    whole, here = moved.read_bytes(), Weir()
    for length in (1, 40, len(whole) // 2, len(whole) - 20, len(whole) - 1):
        moved.write_bytes(whole[:length])
        done = run(here, "import", str(moved))
        assert (done.returncode, here.requests) == (2, []), length


def test_a_file_that_is_not_there_or_cannot_be_written(there: Weir, tmp_path: Path) -> None:
    """The file and the reason; a half export leaves nothing behind."""
    missing = tmp_path / "none" / "weir.jsonl"
    assert run(there, "import", str(missing)).stderr == f"weir: {missing}: cannot be read: No such file or directory\n"
    assert (
        run(there, "export", str(missing)).stderr == f"weir: {missing}: cannot be written: No such file or directory\n"
    )
    unknown = run(there, "export", str(tmp_path / "weir.jsonl"), "shop/unknown")
    assert (unknown.returncode, unknown.stderr) == (3, "weir: shop/unknown has no policy\n")
    there.refuse = lambda request: request.url.path.endswith("history")
    assert run(there, "export", str(tmp_path / "weir.jsonl")).returncode == 2
    assert not [each for each in tmp_path.iterdir() if "jsonl" in each.name]


def test_a_link_stays_one_and_a_device_is_written_to(there: Weir, tmp_path: Path) -> None:
    """The file that a link leads to is replaced; a full device is an error, and still a device afterwards."""
    place, link = tmp_path / "place.jsonl", tmp_path / "link.jsonl"
    link.symlink_to(place)
    assert run(there, "export", str(link)).returncode == 0
    assert link.is_symlink() and place.read_text().endswith("\n")
    full = run(there, "export", "/dev/full")
    assert (full.returncode, full.stderr) == (2, "weir: /dev/full: cannot be written: No space left on device\n")
    assert Path("/dev/full").is_char_device()


def test_a_long_past_is_sent_in_parts() -> None:
    """Each is within what the server takes, and together they are the whole."""
    whole = {"learned": LEARNED, "history": [{"n": n, "text": "x" * 900} for n in range(3_000)], "cycles": [{"n": 1}]}
    found = list(parts(whole))
    assert len(found) == 3
    assert max(len(json.dumps(each)) for each in found) < 1.1 * PART_BYTES
    assert [each["n"] for part in found for each in part.get("history", [])] == list(range(3_000))
    assert [part.get("learned", {}) for part in found] == [LEARNED, {}, {}]

"""`weir doctor` through the API: an installation, and one application."""

import json
from typing import Any

import pytest

from tests.unit.cli.test_command import Done, _Server, server, weir

__all__ = ["server"]
GOOD = {"ok": True, "reason": "ok", "since": None}
ORDERS = "shop/orders"
ITEM: dict[str, Any] = {
    "application": ORDERS,
    "mode": "act",
    "status": "running",
    "lag_seconds": 3.1,
    "arrival_rate": 1190.0,
    "ages_seconds": {"monitor": 2.0, "analyzer": 2.1, "planner": 2.2},
    "decision": "Hold: lag is 3.1 s.",
    "silent": [],
    "problems": [],
}


@pytest.fixture(autouse=True)
def nothing_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Services do not answer on this machine, where others may run."""
    monkeypatch.setattr("weir_cli.doctor.PORTS", {"monitor": 1, "executor": 1})


def answers(server: _Server, *items: dict[str, Any], **dependencies: Any) -> None:
    found = {"kafka": GOOD, **dependencies}
    ready = all(each["ok"] for each in found.values())
    server.answers["GET", "/health/ready"] = (200 if ready else 503, {"ready": ready, "dependencies": found})
    server.answers["GET", "/v1/applications"] = (200, {"items": list(items), "next": None})
    for item in items:
        server.answers["GET", f"/v1/applications/{item['application']}"] = (200, item)
    policy = {"metadata": {"namespace": "shop", "name": "orders", "version": 7}, "spec": {"mode": "act"}}
    server.answers["GET", f"/v1/policies/{ORDERS}"] = (200, policy)
    observation = {"policy": {"metadata": {"version": 7}}, "status": "running", "message": ""}
    server.answers["GET", f"/v1/applications/{ORDERS}/observation"] = (200, observation)


def doctor(server: _Server, *arguments: str) -> Done:
    return weir("doctor", *arguments, "--server", server.url)


def test_an_installation_that_works(server: _Server) -> None:
    """Services in containers do not answer beside knowledge: their messages show that they run."""
    answers(server, ITEM)
    done = doctor(server)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [
        "ok    knowledge: ready",
        "ok    monitor: no answer at 127.0.0.1:1, but its messages arrive",
        "ok    executor: no answer at 127.0.0.1:1: its readiness is not visible from here",
        "ok    shop/orders: running, mode act",
    ]


def test_a_service_beside_knowledge_is_asked(server: _Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """As separate processes on one machine: each dependency that is missing is a line."""
    answers(server, redis={"ok": False, "reason": "no answer within 3 s", "since": None})
    monkeypatch.setattr("weir_cli.doctor.PORTS", {"planner": int(server.url.rpartition(":")[2])})
    done = doctor(server)
    assert done.returncode == 1
    assert "FAIL  knowledge: redis: no answer within 3 s\n      do: docs/how-to/runbook.md" in done.stdout
    assert "FAIL  planner: redis: no answer within 3 s" in done.stdout
    assert "ok    applications: there is no policy yet\n      do: weir apply -f FILE" in done.stdout
    assert done.stderr == "weir: 2 of 3 checks failed\n"


def test_a_warning_is_no_failure(server: _Server) -> None:
    """Topics with fewer replicas than asked: the loop goes on, and the line says what to do. Programs see the same."""
    answers(server, ITEM, topics={**GOOD, "reason": "weir.plans.v1alpha1 has 1 replica, not 3"})
    done = doctor(server)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[1:3] == [
        "warn  knowledge: topics: weir.plans.v1alpha1 has 1 replica, not 3",
        "      do: docs/how-to/own-cluster.md, Replicas of Weir's topics",
    ]
    found = json.loads(doctor(server, "-o", "json").stdout)
    assert [each["warning"] for each in found] == [False, True, False, False, False]


def test_what_is_wrong_with_applications_is_counted(server: _Server) -> None:
    """The first reason of each; a silent monitor is named with the application that lacks its messages."""
    silent = {**ITEM, "silent": ["monitor"], "problems": ["kafka: no answer within 2 s"]}
    stuck = {**ITEM, "application": "a/b", "obstacle": "another autoscaler scales it"}
    answers(server, silent, stuck)
    done = doctor(server)
    assert done.returncode == 1
    assert "FAIL  monitor: no answer at 127.0.0.1:1; no observation of shop/orders" in done.stdout
    assert (
        "FAIL  shop/orders: no observation from the monitor (and 1 more)\n      do: weir doctor shop/orders"
        in done.stdout
    )
    assert "FAIL  a/b: another autoscaler scales it" in done.stdout
    found = json.loads(doctor(server, "-o", "json").stdout)
    assert [each["ok"] for each in found] == [True, False, True, False, False]


def test_one_application_from_its_policy_to_its_decision(server: _Server) -> None:
    """In the order in which messages arise."""
    answers(server, ITEM)
    done = doctor(server, ORDERS)
    assert done.returncode == 0, done.stdout + done.stderr
    checked = [line.split(": ", 1)[0].removeprefix("ok    ") for line in done.stdout.splitlines()]
    assert checked == [
        *("policy", "observation", "analysis", "plan", "application", "lag", "arrivals", "target", "decision"),
    ]


@pytest.mark.parametrize(
    ("changes", "seen", "expected"),
    [
        ({"ages_seconds": {}}, {}, "FAIL  observation: there is none yet\n      do: read the log of the monitor"),
        ({"silent": ["planner"]}, {}, "FAIL  plan: 2 s old\n      do: read the log of the planner"),
        ({}, {"status": "unreachable", "message": "refused"}, "FAIL  application: unreachable: refused"),
        ({}, {"policy": {"metadata": {"version": 6}}}, "read under version 6 of the policy, not 7"),
        ({"problems": ["kafka: group ordres is unknown"]}, {}, "FAIL  problem: kafka: group ordres is unknown"),
        ({"lag_seconds": None}, {}, "FAIL  lag: unknown\n      do: check spec.signals"),
        (
            {"lag_seconds": None, "lower_bounds": {"lag_seconds": 12.0}},
            {},
            "FAIL  lag: known in part: at least 12.0 s",
        ),
        ({"obstacle": "another writer set 3 replicas"}, {}, "FAIL  target: another writer set 3 replicas"),
    ],
)
def test_what_is_wrong_with_one_application(
    server: _Server, changes: dict[str, Any], seen: dict[str, Any], expected: str
) -> None:
    """Each with the service or the field to look at."""
    answers(server, {**ITEM, **changes})
    path = ("GET", f"/v1/applications/{ORDERS}/observation")
    server.answers[path] = (200, {**server.answers[path][1], **seen})
    done = doctor(server, ORDERS)
    assert done.returncode == 1
    assert expected in done.stdout


def test_an_application_without_a_policy(server: _Server) -> None:
    """Nothing else is checked."""
    done = doctor(server, "shop/ordres")
    assert done.returncode == 1
    assert done.stdout == (
        "FAIL  policy: shop/ordres has none\n      do: weir get policies lists them; weir apply -f FILE adds one\n"
    )


def test_a_server_that_is_no_service_of_weir(server: _Server) -> None:
    """Code 5, as for one that does not answer."""
    server.answers["GET", "/health/ready"] = (200, ["ok"])
    done = doctor(server)
    assert (done.returncode, done.stdout) == (5, "")
    assert "is no service of Weir" in done.stderr
    assert weir("doctor", ORDERS, "--kubernetes").returncode == 2

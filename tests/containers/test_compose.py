"""The complete stack by `docker compose`, as a user starts it: it acts, follows a load step, survives the death of each
service, and leaves nothing behind."""

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

import httpx
import pytest

from testbed.process import free_port, wait_until
from tests.containers.compose import WEIR, ComposeStack, compose_command

from .loop import Loop, slowest

LOW, HIGH = 700, 2000
"""Records/s: two subtasks of the slowest operator do the one, and at least five the other."""
STOP_SECONDS = 10.0
OTHERS = [f"demo/beside-{n}" for n in range(4)]
"""Further applications of the same job, which are only advised."""


@pytest.fixture(scope="module")
def loop(image_settings: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loop]:
    """`docker compose up`, with the images of this tree and what stands in for official ones."""
    if compose_command() is None:
        pytest.skip("no Docker Compose: install it (Debian: apt install docker-compose)")
    port = free_port()
    settings = {**image_settings, "WEIR_PORT": str(port), "WEIR_LOAD_TRACE": "step"}
    stack = ComposeStack(f"weir-test-{port}", tmp_path_factory.mktemp("compose"), settings)
    try:
        stack.up()
        loop = Loop(stack, port)
        loop.set_load(rate=LOW)
        yield loop
        loop.client.close()
    finally:
        try:
            stack.down()
        finally:
            stack.close()


def test_the_loop_acts_by_itself(loop: Loop) -> None:
    """No user acts after `up`: the load exceeds the capacity of the job's initial single subtask."""
    loop.until("a verified rescale", lambda s: s.get("action_phase") == "verified" and slowest(s) >= 2, 600)


def test_only_the_api_can_be_reached(loop: Loop) -> None:
    """From this machine; Kafka, Redis, Flink and the other services not even from there."""
    published = {
        container.labels["com.docker.compose.service"]: [
            (each["HostIp"], each["HostPort"]) for each in bindings if bindings
        ]
        for container in loop.stack.containers()
        for bindings in container.ports.values()
        if bindings
    }
    assert published == {"knowledge": [("127.0.0.1", loop.url.rpartition(":")[2])]}


def test_the_api_asks_for_the_token(loop: Loop) -> None:
    """The first start has made it; only health is public."""
    assert httpx.get(f"{loop.url}/v1/policies").status_code == 401
    wrong = {"Authorization": "Bearer correct-horse-battery-staple"}
    assert httpx.get(f"{loop.url}/v1/policies", headers=wrong).status_code == 401
    assert httpx.get(f"{loop.url}/health/live").status_code == 200
    assert [p["metadata"]["name"] for p in loop.get("/v1/policies")["items"]] == ["orders"]


def test_secrets_are_where_their_readers_are_and_nowhere_else(loop: Loop) -> None:
    """The token in the monitor's folder reads metrics alone, and no variable of any container holds a token."""
    assert loop.stack.exec("monitor", "ls", "/run/weir").split() == ["WEIR_TOKENS"]
    known_to_the_monitor = json.loads(loop.stack.exec("monitor", "cat", "/run/weir/WEIR_TOKENS"))
    for token in known_to_the_monitor:
        answer = httpx.get(f"{loop.url}/v1/policies", headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == 403
    secret = loop.stack.operator_token()
    assert all(secret not in json.dumps(c.attrs["Config"]["Env"]) for c in loop.stack.containers())


def test_a_load_step_is_followed(loop: Loop) -> None:
    """×3, through the API: more is planned, requested and then observed."""
    # What waited while everything started took more than the load does.
    loop.until("what the low load takes", lambda s: 2 <= slowest(s) <= 4 and s.get("action_phase") == "verified")
    before = slowest(loop.summary())
    loop.set_load(rate=HIGH)
    loop.until("more parallelism", lambda s: slowest(s) > before and s.get("action_phase") == "verified")


def test_prometheus_finds_all_five(loop: Loop) -> None:
    """By their names in the project's network, with the token that the first start made for it."""
    loop.stack.up("prometheus")
    command = ["promtool", "query", "instant", "http://127.0.0.1:9090", 'sum by (job) (up{job=~"weir-.*"})']

    def up() -> bool:
        done = loop.stack.containers("prometheus")[0].exec_run(command)
        return done.exit_code == 0 and all(f'job="weir-{name}"}} => 1 ' in done.output.decode() for name in WEIR)

    wait_until(up, timeout_seconds=180, what="five services in Prometheus", poll_seconds=2.0)


@pytest.fixture
def several(loop: Loop) -> Iterator[list[str]]:
    """More than one application to plan for."""
    policy = loop.get(f"/v1/policies/{loop.application}")
    for name in OTHERS:
        namespace, _, word = name.partition("/")
        metadata = {"namespace": namespace, "name": word}
        # A separate job, which the cluster does not have: a target has one policy.
        application = {"flink": {**policy["spec"]["application"]["flink"], "job": word}}
        spec = {**policy["spec"], "application": application, "mode": "advise"}
        document = {**policy, "metadata": metadata, "spec": spec}
        loop.client.put(f"/v1/policies/{name}", json=document).raise_for_status()
    names = [loop.application, *OTHERS]
    wait_until(lambda: all(reading(loop, name, "plan") for name in names), timeout_seconds=180, what="plans for all")
    yield names
    for name in OTHERS:
        loop.client.delete(f"/v1/policies/{name}").raise_for_status()


def reading(loop: Loop, application: str, noun: str) -> str | None:
    """Return the id of the latest reading that an `observation`, an `analysis` or a `plan` is based on."""
    found = loop.get(f"/v1/applications/{application}/{noun}") or {}
    return found.get("id" if noun == "observation" else "observation_id")


def test_a_planner_that_is_stopped_at_work_loses_nothing(loop: Loop, several: list[str]) -> None:
    """`docker stop` while it has readings of several applications before it: code 0 within 10 s. What it had not
    decided is decided after `docker start`, though no further reading comes, and nothing is decided or acted on
    twice."""
    (planner,), (monitor,) = loop.stack.containers("planner"), loop.stack.containers("monitor")
    planner.pause()
    try:
        wait_until(
            lambda: all(reading(loop, name, "analysis") != reading(loop, name, "plan") for name in several),
            timeout_seconds=60,
            what="something to decide for each",
        )
        monitor.pause()
    finally:
        planner.unpause()
    try:
        began = time.monotonic()
        planner.stop(timeout=30)
        seconds = time.monotonic() - began
        logged = planner.logs(tail=20).decode(errors="replace")
        planner.reload()
        assert planner.attrs["State"]["ExitCode"] == 0, logged
        assert seconds < STOP_SECONDS, logged

        planner.start()

        def decided() -> bool:
            last = {noun: [reading(loop, name, noun) for name in several] for noun in ("observation", "plan")}
            return None not in last["plan"] and last["observation"] == last["plan"]

        wait_until(decided, timeout_seconds=180, what="a plan for the last reading of each", poll_seconds=1.0)
    finally:
        monitor.unpause()
    for name in several:
        items = loop.get(f"/v1/applications/{name}/history?limit=200")["items"]
        assert len({item["plan_id"] for item in items}) == len({item["at"] for item in items}) == len(items)
        for cycle in loop.get(f"/v1/applications/{name}/explain?limit=50")["items"]:
            assert len({o["action"]["id"] for o in cycle["outcomes"] if o["action"]}) <= 1


def killed_and_started(loop: Loop, service: str) -> datetime:
    """`docker kill`, then `docker start`; return when it was dead."""
    loop.stack.kill(service)
    killed = datetime.now(UTC)
    assert not loop.stack.containers(service)
    loop.stack.start(service)
    return killed


@pytest.mark.parametrize("service", [*WEIR, "kafka", "redis"])
def test_a_killed_service_comes_back_into_the_loop(loop: Loop, service: str) -> None:
    """Each of Weir's services, the broker and the store; the user only starts it again."""
    killed = killed_and_started(loop, service)
    loop.until(f"a plan after {service}'s death", lambda s: loop.decided_since(s, killed, service))


def test_a_job_that_is_lost_with_its_jobmanager_is_scaled_again(loop: Loop) -> None:
    """It is submitted again with one subtask of each operator, and brought to what the load takes."""
    killed = killed_and_started(loop, "jobmanager")
    loop.until(
        "a verified rescale of the new job",
        lambda s: (
            loop.decided_since(s, killed, "jobmanager") and slowest(s) >= 4 and s.get("action_phase") == "verified"
        ),
        seconds=600,
    )


def test_what_crashes_is_started_again(loop: Loop) -> None:
    """By Docker; only a container stopped by hand has to be started by hand."""
    container = loop.stack.containers("executor")[0]
    if os.geteuid() != 0:
        pytest.skip("only root can end a container's process from outside, as a crash would")
    before = container.attrs["RestartCount"]
    os.kill(container.attrs["State"]["Pid"], signal.SIGKILL)

    def restarted() -> bool:
        container.reload()
        return bool(container.attrs["RestartCount"] > before and container.status == "running")

    wait_until(restarted, timeout_seconds=60, what="restart of the executor")


def test_after_all_that_the_loop_still_acts(loop: Loop) -> None:
    """Down again: every service has died once, and the executor twice."""
    loop.set_load(rate=LOW / 2)
    loop.until("less parallelism", lambda s: 0 < slowest(s) <= 2 and s.get("action_phase") == "verified")


def test_up_again_keeps_changes_of_users(loop: Loop) -> None:
    """A second `up` makes no new token and overwrites no policy."""
    token = loop.stack.operator_token()
    policy = loop.get(f"/v1/policies/{loop.application}")
    policy["spec"]["objective"] = {"maxLag": "45s"}
    loop.client.put(f"/v1/policies/{loop.application}", json=policy).raise_for_status()
    loop.stack.up()
    assert loop.stack.operator_token() == token
    assert loop.get(f"/v1/policies/{loop.application}")["spec"]["objective"] == {"maxLag": "45s"}


def test_up_again_brings_nothing_back_that_was_deleted(loop: Loop) -> None:
    """Above all no policy that acts."""
    loop.client.delete(f"/v1/policies/{loop.application}").raise_for_status()

    def runs() -> int:
        return loop.stack.logs("policy").count("policy: demo/orders ")

    before = runs()
    loop.stack.up()
    wait_until(lambda: runs() > before, timeout_seconds=120, what="the job of the first policy done again")
    assert loop.client.get(f"/v1/policies/{loop.application}").status_code == 404


def test_down_leaves_nothing(loop: Loop) -> None:
    """No container, volume or network of the project."""
    assert loop.stack.left()
    loop.stack.down()
    assert loop.stack.left() == []

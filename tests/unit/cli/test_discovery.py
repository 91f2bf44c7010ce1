"""Jobs that are found on a Flink cluster: their policies, jobs that come and go, and addresses that are no Flink."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from weir_cli.client import CommandError
from weir_cli.discovery import GONE_SECONDS, Brokers, Discovery, found_policies, policy_name
from weir_contracts import parse_policy
from weir_engines.flink.topology import JobEntry, running_jobs
from weir_runtime.clock import FakeClock

URL = "http://jobmanager:8081"


def entry(name: str, number: int = 1, state: str = "RUNNING") -> dict[str, Any]:
    """Return a job as `GET /jobs/overview` lists it."""
    return {"jid": f"{number:08x}{0:024x}", "name": name, "state": state, "start-time": 1_000 * number, "tasks": {}}


def jobs(*entries: dict[str, Any]) -> list[JobEntry]:
    return running_jobs({"jobs": list(entries)})


def test_a_policy_advises_and_is_valid_as_it_is() -> None:
    """A user may apply it: it names the job, advises, and bounds what needs no brokers."""
    found = found_policies(URL, jobs(entry("Orders v2 (EU)")))
    policy = parse_policy(found["default/orders-v2-eu"])
    assert policy.spec.application is not None
    assert policy.spec.application.flink is not None
    assert policy.spec.application.flink.job == "Orders v2 (EU)"
    assert policy.spec.mode == "advise"
    assert policy.spec.objective.max_latency is not None


def test_with_brokers_the_age_of_records_is_known_and_bounded() -> None:
    """The brokers say when a record was appended."""
    found = found_policies(URL, jobs(entry("orders")), Brokers("kafka:9092", "orders-group"))
    policy = parse_policy(found["default/orders"])
    assert policy.spec.objective.max_lag is not None
    assert policy.spec.signals.kafka is not None
    assert policy.spec.signals.kafka.group_id == "orders-group"


def test_jobs_of_one_name_are_told_apart_by_their_ids() -> None:
    """Two running jobs of a name, and two names that look the same as names of policies."""
    found = found_policies(URL, jobs(entry("orders", 1), entry("orders", 2), entry("a b", 3), entry("a/b", 4)))
    named = {name: document["spec"]["application"]["flink"]["job"] for name, document in found.items()}
    assert set(named.values()) == {"a b", "a/b", f"{1:08x}{0:024x}", f"{2:08x}{0:024x}"}
    assert len(named) == 4


def test_ended_and_unreadable_jobs_are_not_watched() -> None:
    """A finished job, a failed one, and an entry without a name."""
    found = jobs(entry("a", 1, "FINISHED"), entry("b", 2, "FAILED"), {"jid": "c"}, entry("d", 4, "RESTARTING"))
    assert [each.name for each in found] == ["d"]


@pytest.mark.parametrize(
    ("job", "name"),
    [
        ("Orders", "orders"),
        ("--", "job"),
        ("Bestellungen (Süd)", "bestellungen-s-d"),
        ("x" * 300, "x" * 50),
        ("日本", "job"),
    ],
)
def test_the_name_of_a_policy(job: str, name: str) -> None:
    """Lower case, digits and dashes, as Kubernetes names are."""
    assert policy_name(job) == name


@dataclass
class MemoryApi:
    """The process's own API as the discovery asks it."""

    clock: FakeClock = field(default_factory=FakeClock)
    policies: dict[str, Any] = field(default_factory=dict)
    refuses: dict[str, httpx.Response] = field(default_factory=dict)

    async def create(self, application: str, document: Mapping[str, Any]) -> httpx.Response | None:
        if application in self.policies:
            return httpx.Response(409)
        if application not in self.refuses:
            self.policies[application] = document
        return self.refuses.get(application)

    async def remove_found(self, application: str, label: str) -> bool:
        assert label in self.policies[application]["metadata"]["labels"]
        del self.policies[application]
        return True


class Cluster:
    """A cluster whose jobs are changed while it is looked at."""

    def __init__(self, *entries: dict[str, Any]) -> None:
        self.entries = list(entries)
        self.api = MemoryApi()
        self.discovery = discovery(
            lambda _: httpx.Response(200, json={"jobs": self.entries, "flink-version": "2.2.1"}), self.api
        )

    async def look(self) -> set[str]:
        await self.discovery._look()
        return set(self.api.policies)


def discovery(answer: Callable[[httpx.Request], httpx.Response], api: MemoryApi | None = None) -> Discovery:
    return Discovery(URL, api or MemoryApi(), transport=httpx.MockTransport(answer))  # type: ignore[arg-type]


async def test_jobs_that_come_and_go() -> None:
    """A new one is watched at the next look; one that was away for a minute is not any more, but one that was submitted
    again in time is, under its name."""
    cluster = Cluster(entry("orders"))
    assert await cluster.look() == {"default/orders"}
    cluster.entries = [entry("clicks", 2)]
    assert await cluster.look() == {"default/orders", "default/clicks"}
    cluster.api.clock.advance(GONE_SECONDS - 1)
    cluster.entries.append(entry("orders", 3))
    await cluster.look()
    cluster.api.clock.advance(GONE_SECONDS)
    assert await cluster.look() == {"default/orders", "default/clicks"}
    cluster.entries = [entry("orders", 3)]
    await cluster.look()
    cluster.api.clock.advance(GONE_SECONDS)
    assert await cluster.look() == {"default/orders"}
    await cluster.discovery.close()


async def test_a_policy_of_the_user_is_left_alone() -> None:
    """One with the job's name, or one that names the job: the found one is not written, and not asked for again."""
    cluster = Cluster(entry("orders"))
    cluster.api.policies["default/orders"] = {"metadata": {}}
    await cluster.look()
    assert cluster.api.policies == {"default/orders": {"metadata": {}}}
    await cluster.discovery.close()


async def test_a_cluster_that_is_away_for_a_while_changes_nothing() -> None:
    """Its jobs are not gone because it does not answer."""
    cluster = Cluster(entry("orders"))
    await cluster.look()
    cluster.entries = "gone"  # type: ignore[assignment]
    cluster.api.clock.advance(10 * GONE_SECONDS)
    assert await cluster.look() == {"default/orders"}
    assert "expected a list" in cluster.discovery.trouble
    await cluster.discovery.close()


HTML = httpx.Response(200, html="<html><title>Sign in</title></html>")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (HTML, "answers, but not as Flink does (GET /config: the answer is not JSON), as a proxy"),
        (httpx.Response(200, json={"version": "4.1"}), "is no Flink: its /config names no flink-version"),
        (httpx.Response(200, json=[]), "answers, but not as Flink does"),
        (httpx.Response(404), "is no Flink, or not yet: /config answers status 404"),
        (httpx.Response(503), "/config answers status 503"),
        (httpx.Response(401), "wants a login"),
        (httpx.ConnectError("Connection refused"), "nothing answers at http://jobmanager:8081"),
    ],
)
async def test_an_address_that_is_no_flink(answer: httpx.Response | Exception, says: str) -> None:
    """One sentence with the address and what to name instead."""

    def reply(_: httpx.Request) -> httpx.Response:
        if isinstance(answer, Exception):
            raise answer
        return answer

    looking = discovery(reply)
    with pytest.raises(CommandError) as refused:
        await looking.check()
    await looking.close()
    sentence = str(refused.value)
    assert sentence.startswith("--flink: ")
    assert URL in sentence
    assert says in sentence


@pytest.mark.parametrize("url", ["jobmanager:8081", "ftp://jobmanager", "http://", ""])
def test_a_text_that_is_no_address(url: str) -> None:
    """It is refused before anything is asked."""
    with pytest.raises(CommandError, match="is no address: write http://HOST:8081"):
        Discovery(url, MemoryApi())  # type: ignore[arg-type]

"""Applications that are found on a Flink cluster or at Kafka brokers: their policies, what comes and goes, and places that
are none."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest

from weir_cli.client import CommandError, InvalidInput, Unreachable
from weir_cli.discovery import AGAIN_SECONDS, EARLIER_SECONDS, GONE_SECONDS, LABEL, Discovery, policies_of, policy_name
from weir_cli.discovery_flink import FlinkJobs, candidates
from weir_cli.discovery_kafka import Brokers, ConsumerGroups
from weir_contracts import parse_policy
from weir_engines.flink.topology import JobEntry, running_jobs
from weir_engines.kafka.assignment import Place
from weir_engines.kafka.group import DescribedGroup, DescribedMember
from weir_engines.kafka.partitions import BrokersAway, Offsets
from weir_runtime.clock import FakeClock
from weir_runtime.policy_credentials import BrokerCredentials

URL = "http://jobmanager:8081"


def entry(name: str, number: int = 1, state: str = "RUNNING") -> dict[str, Any]:
    """Return a job as `GET /jobs/overview` lists it."""
    return {"jid": f"{number:08x}{0:024x}", "name": name, "state": state, "start-time": 1_000 * number, "tasks": {}}


def found_policies(url: str, jobs: list[JobEntry], brokers: Brokers | None = None) -> dict[str, dict[str, Any]]:
    """Return the policies that a cluster's jobs get, by application."""
    return policies_of(candidates(url, jobs, brokers), "flink")


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


def test_a_large_job_is_not_advised_to_shrink_to_the_default_bound() -> None:
    """It runs with at most as many subtasks of one operator as it has in all."""
    large, small = {**entry("large"), "tasks": {"total": 120}}, {**entry("small", 2), "tasks": {"total": 3}}
    found = found_policies(URL, jobs(large, small))
    assert [parse_policy(each).spec.bounds.max for each in found.values()] == [120, 32]


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


def _has(policy: Mapping[str, Any], label: str, value: str) -> bool:
    return policy["metadata"].get("labels", {}).get(label) == value  # type: ignore[no-any-return]


@dataclass
class MemoryApi:
    """The process's own API as the discovery asks it."""

    clock: FakeClock = field(default_factory=FakeClock)
    policies: dict[str, Any] = field(default_factory=dict)
    refuses: dict[str, httpx.Response] = field(default_factory=dict)
    is_busy: bool = False
    """Whether nothing can be deleted now."""

    async def create(self, application: str, document: Mapping[str, Any]) -> httpx.Response | None:
        if application in self.policies:
            return httpx.Response(409)
        if application not in self.refuses:
            self.policies[application] = document
        return self.refuses.get(application)

    async def found(self, label: str, value: str) -> dict[str, Any]:
        return {name: each for name, each in self.policies.items() if _has(each, label, value)}

    async def remove_found(self, application: str, label: str, value: str) -> bool | None:
        if self.is_busy:
            return None
        if is_found := _has(self.policies.get(application, {"metadata": {}}), label, value):
            del self.policies[application]
        return is_found


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
    return Discovery(FlinkJobs(URL, transport=httpx.MockTransport(answer)), api or MemoryApi())  # type: ignore[arg-type]


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
    await cluster.discovery.source.close()


async def test_a_hundred_jobs() -> None:
    """All are watched, each by a policy of its own, also those of one name; the second look has nothing to write. Then half of
    them end at once."""
    cluster = Cluster(*(entry(f"job {number // 2 if number < 20 else number}", number) for number in range(100)))
    watched = await cluster.look()
    assert len(watched) == 100
    assert cluster.discovery.sentence == f"{URL}: 100 jobs running"
    named = {each["spec"]["application"]["flink"]["job"] for each in cluster.api.policies.values()}
    assert len(named) == 100
    cluster.api.refuses = dict.fromkeys(watched, httpx.Response(500))
    assert await cluster.look() == watched
    cluster.entries = cluster.entries[50:]
    await cluster.look()
    cluster.api.clock.advance(GONE_SECONDS)
    assert len(await cluster.look()) == 50
    assert "not watched" not in cluster.discovery.sentence
    await cluster.discovery.source.close()


async def test_what_an_earlier_process_found_is_removed_once_it_is_gone(capsys: pytest.CaptureFixture[str]) -> None:
    """A job that ended between two runs, with a sentence; one that runs stays, and so do a policy of a user, one of another
    cluster and one of another source. The minute of a job that ends while Weir looks does not count."""
    before = Cluster(entry("old"), entry("orders", 2))
    await before.look()
    await before.discovery.source.close()
    after = Cluster(entry("orders", 2))
    elsewhere = policies_of(candidates("http://other:8081", jobs(entry("far"))), "flink")
    after.api.policies |= {**before.api.policies, **elsewhere, "default/own": {"metadata": {}}}
    assert await after.look() == {"default/old", "default/orders", "default/far", "default/own"}
    assert not after.discovery.is_settled
    after.api.clock.advance(EARLIER_SECONDS)
    after.api.is_busy = True
    await after.look()
    after.api.is_busy = False
    assert await after.look() == {"default/orders", "default/far", "default/own"}
    assert after.discovery.is_settled
    said = capsys.readouterr().out
    assert "default/old" in said
    assert "it no longer runs at http://jobmanager:8081, where Weir found it" in said
    assert "default/orders" not in said
    await after.discovery.source.close()


async def test_a_policy_of_the_user_is_left_alone() -> None:
    """One with the job's name, or one that names the job: the found one is not written, and nothing removes the user's. Once
    that is deleted the job is watched again."""
    cluster = Cluster(entry("orders"))
    cluster.api.policies["default/orders"] = {"metadata": {}}
    await cluster.look()
    cluster.entries = []
    await cluster.look()
    cluster.api.clock.advance(GONE_SECONDS)
    await cluster.look()
    assert cluster.api.policies == {"default/orders": {"metadata": {}}}
    cluster.entries = [entry("orders")]
    await cluster.look()
    del cluster.api.policies["default/orders"]
    cluster.api.clock.advance(AGAIN_SECONDS)
    assert await cluster.look() == {"default/orders"}
    assert cluster.api.policies["default/orders"]["metadata"]["labels"] == {LABEL: "flink"}
    await cluster.discovery.source.close()


async def test_a_refused_policy_is_a_sentence_and_is_sent_again() -> None:
    """The settings may not allow the address; a minute later they may."""
    cluster = Cluster(entry("orders"))
    cluster.api.refuses["default/orders"] = httpx.Response(
        422, json={"detail": "the host is not among WEIR_TARGET_HOSTS"}
    )
    assert await cluster.look() == set()
    assert "default/orders is not watched: the host is not among WEIR_TARGET_HOSTS" in cluster.discovery.sentence
    cluster.api.refuses.clear()
    assert await cluster.look() == set()
    cluster.api.clock.advance(AGAIN_SECONDS)
    assert await cluster.look() == {"default/orders"}
    assert "not watched" not in cluster.discovery.sentence
    await cluster.discovery.source.close()


async def test_a_cluster_that_is_away_for_a_while_changes_nothing() -> None:
    """Its jobs are not gone because it does not answer."""
    cluster = Cluster(entry("orders"))
    await cluster.look()
    cluster.entries = "gone"  # type: ignore[assignment]
    cluster.api.clock.advance(10 * GONE_SECONDS)
    assert await cluster.look() == {"default/orders"}
    assert "expected a list" in cluster.discovery.sentence
    await cluster.discovery.source.close()


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
        await looking.source.find()
    await looking.source.close()
    sentence = str(refused.value)
    assert sentence.startswith("--flink: ")
    assert URL in sentence
    assert says in sentence


@pytest.mark.parametrize("url", ["jobmanager:8081", "ftp://jobmanager", "http://", ""])
def test_a_text_that_is_no_address(url: str) -> None:
    """It is refused before anything is asked."""
    with pytest.raises(CommandError, match="is no address: write http://HOST:8081"):
        FlinkJobs(url)


SERVERS = "kafka:9092"


def group(name: str, members: int = 2, state: str = "Stable", assignor: str = "range") -> DescribedGroup:
    """Return a group as its coordinator describes it, each member with two partitions of its own."""
    own = [tuple(("clicks", 2 * i + n) for n in range(2)) for i in range(members)]
    found = tuple(DescribedMember(f"{name}-{i}", f"{name}-{i}", places=places) for i, places in enumerate(own))
    return DescribedGroup(
        name, state if members or state == "Dead" else "Empty", "classic", "consumer", assignor, found
    )


class MemoryGroups:
    """The groups of brokers that are changed while they are looked at, and the process's API beside them."""

    def __init__(self, *groups: DescribedGroup, name: str | None = None) -> None:
        self.there = list(groups)
        self.listed: dict[str, int] = {}
        """Topics with their partitions."""
        self.committed: dict[Place, int] = {}
        self.refused: dict[str, str] = {}
        self.away = ""
        self.api = MemoryApi()
        self.discovery = Discovery(ConsumerGroups(Brokers(SERVERS, name), self.api.clock, groups=self), self.api)  # type: ignore[arg-type]

    async def groups(self) -> list[DescribedGroup]:
        if self.away:
            raise BrokersAway(self.away)
        return [replace(each, members=()) for each in self.there]

    async def group(self, name: str, *, raw: bool) -> DescribedGroup:
        if name in self.refused:
            raise BrokersAway(f"group {name}: {self.refused[name]}")
        return next((each for each in self.there if each.id == name), DescribedGroup(name, "Dead"))

    async def all_commits(self, group: str) -> Offsets:
        return Offsets(self.committed)

    async def topics(self) -> dict[str, int]:
        return self.listed

    async def close(self) -> None: ...

    async def look(self) -> set[str]:
        await self.discovery._look()
        return set(self.api.policies)


async def test_groups_with_members_are_watched() -> None:
    """Of all groups those that process something: none without members, of another kind, or of Weir itself."""
    connect = replace(group("connect-cluster"), type="connect")
    brokers = MemoryGroups(group("orders"), group("old", members=0), connect, group("weir-planner"))
    assert await brokers.look() == {"default/orders"}
    assert brokers.discovery.sentence == "kafka:9092: 1 group with members; old without members: --group watches one"
    policy = parse_policy(brokers.api.policies["default/orders"])
    assert (policy.subject.application.group_id, policy.subject.application.engine) == ("orders", "consumer-group")
    assert (policy.spec.mode, policy.subject.target.driver) == ("advise", None)


async def test_a_kafka_streams_application_is_known_by_its_assignor() -> None:
    """Its inner topics are then no input. While it rebalances the brokers name no assignor: it is watched afterwards."""
    brokers = MemoryGroups(group("totals", state="PreparingRebalance", assignor=""))
    assert await brokers.look() == set()
    brokers.there = [group("totals", assignor="stream")]
    await brokers.look()
    brokers.there = [group("totals", state="PreparingRebalance", assignor="")]
    await brokers.look()
    policy = parse_policy(brokers.api.policies["default/totals"])
    assert policy.subject.application.engine == "kafka-streams"


async def test_a_large_group_is_not_advised_to_shrink_to_the_default_bound() -> None:
    """It is bounded by its partitions: more members than these are idle."""
    brokers = MemoryGroups(group("large", members=40))
    await brokers.look()
    assert parse_policy(brokers.api.policies["default/large"]).spec.bounds.max == 80


async def test_groups_whose_names_look_the_same_are_told_apart() -> None:
    """Names of policies have no dots and capitals. With one group less the other one has the plain name."""
    brokers = MemoryGroups(group("orders.v2"), group("Orders-v2"))
    first = await brokers.look()
    assert len(first) == 2
    assert "default/orders-v2" not in first
    brokers.there.pop()
    await brokers.look()
    brokers.api.clock.advance(GONE_SECONDS)
    assert await brokers.look() == {"default/orders-v2"}


async def test_of_a_hundred_groups_and_more_a_hundred_are_watched() -> None:
    """Those that are watched stay so when others come, and the sentence has both numbers."""
    brokers = MemoryGroups(*(group(f"g{i:03}", members=1) for i in range(1, 121)))
    watched = await brokers.look()
    assert len(watched) == 100
    assert "kafka:9092: 120 groups with members; 100 of them are watched" in brokers.discovery.sentence
    brokers.there.insert(0, group("a", members=1))
    assert await brokers.look() == watched


async def test_a_named_group_is_watched_while_it_has_no_members() -> None:
    """Its consumers crashed: nothing matters more, and its policy stays. Weir's own group is watched if it is named."""
    brokers = MemoryGroups(group("weir-planner"), group("orders"), name="weir-planner")
    assert await brokers.look() == {"default/weir-planner"}
    brokers.there[0] = group("weir-planner", members=0)
    await brokers.look()
    brokers.api.clock.advance(GONE_SECONDS)
    assert await brokers.look() == {"default/weir-planner"}
    assert (
        "group weir-planner is Empty with 0 members: it is watched, start its consumers" in brokers.discovery.sentence
    )


async def test_a_named_group_is_watched_that_never_had_members() -> None:
    """Its consumers crashed before Weir began: the partitions that they have committed bound it. A topic that Kafka Streams
    has made says what it is."""
    plain = MemoryGroups(group("orders", members=0), name="orders")
    plain.committed = {("clicks", n): 7 for n in range(40)}
    plain.listed = {"clicks": 40, "totals-store-changelog": 4}
    assert await plain.look() == {"default/orders"}
    assert plain.discovery.sentence.endswith("group orders is Empty with 0 members: it is watched, start its consumers")
    policy = parse_policy(plain.api.policies["default/orders"])
    assert (policy.subject.application.engine, policy.spec.bounds.max) == ("consumer-group", 40)
    streams = MemoryGroups(group("totals", members=0), name="totals")
    streams.listed = plain.listed
    await streams.look()
    assert parse_policy(streams.api.policies["default/totals"]).subject.application.engine == "kafka-streams"


async def test_a_group_without_members_that_turns_out_to_be_kafka_streams() -> None:
    """It has made no topic: only its members say so. The policy that was found is replaced, also one of an earlier process."""
    brokers = MemoryGroups(group("totals", members=0), name="totals")
    await brokers.look()
    earlier = dict(brokers.api.policies)
    brokers.there = [group("totals", assignor="stream")]
    brokers.api.is_busy = True
    await brokers.look()
    assert brokers.api.policies == earlier
    brokers.api.is_busy = False
    await brokers.look()
    assert parse_policy(brokers.api.policies["default/totals"]).subject.application.engine == "kafka-streams"
    again = MemoryGroups(group("totals", assignor="stream"), name="totals")
    again.api.policies = earlier
    await again.look()
    assert parse_policy(again.api.policies["default/totals"]).subject.application.engine == "kafka-streams"


async def test_brokers_that_are_away_for_a_while_change_nothing() -> None:
    """The groups are not gone because nothing answers; at the start it is an error with a remedy."""
    brokers = MemoryGroups(group("orders"))
    await brokers.look()
    brokers.away = "Local: Broker transport failure"
    brokers.api.clock.advance(10 * GONE_SECONDS)
    assert await brokers.look() == {"default/orders"}
    assert brokers.discovery.sentence.startswith(
        "--kafka: no brokers answer at kafka:9092 (Local: Broker transport failure)"
    )
    with pytest.raises(Unreachable, match="start them, or correct the address"):
        await brokers.discovery.source.find()


@pytest.mark.parametrize(
    ("brokers", "says"),
    [
        (
            MemoryGroups(group("orders"), name="ordrs"),
            "no group ordrs yet: start its consumers, or name one of its groups, such as orders",
        ),
        (MemoryGroups(name="orders"), "kafka:9092 has no group orders yet: start its consumers"),
        (
            MemoryGroups(),
            "no group that may be described at kafka:9092 has members: start consumers, or grant Describe",
        ),
    ],
)
async def test_what_is_not_there_yet_is_a_sentence_with_a_remedy(brokers: MemoryGroups, says: str) -> None:
    """A group may come later, so that Weir looks again."""
    found = await brokers.discovery.source.find()
    assert not found.candidates
    assert says in found.sentence


async def test_a_group_that_may_not_be_described_does_not_hide_the_others() -> None:
    """Rights are given group by group."""
    brokers = MemoryGroups(group("orders"), group("payroll"))
    brokers.refused["payroll"] = "the group may not be read with these credentials"
    assert await brokers.look() == {"default/orders"}
    assert "1 cannot be described: group payroll: the group may not be read" in brokers.discovery.sentence
    alone = MemoryGroups(group("payroll"), name="payroll")
    alone.refused = brokers.refused
    assert "grant Describe" in (await alone.discovery.source.find()).sentence


async def test_a_group_of_another_kind_is_refused_by_name() -> None:
    """Workers of Kafka Connect have a group, too."""
    brokers = MemoryGroups(replace(group("connect-cluster"), type="connect"), name="connect-cluster")
    with pytest.raises(CommandError, match="--group: connect-cluster is a group of type connect, not of consumers"):
        await brokers.discovery.source.find()


@pytest.mark.parametrize("servers", ["kafka", "http://kafka:9092", "kafka:9092, other:9092", "kafka:", ""])
def test_a_text_that_names_no_brokers(servers: str) -> None:
    """It is refused before anything is asked."""
    with pytest.raises(CommandError, match="names no brokers: write HOST:PORT"):
        Brokers.of(servers, None, {})


def entry_for(servers: str, namespaces: str = "*") -> BrokerCredentials:
    return BrokerCredentials(frozenset(servers.split(",")), {"security.protocol": "SSL"}, frozenset({namespaces}))


def test_the_credentials_of_the_brokers_are_those_of_the_entry_that_lists_them() -> None:
    """All of them: a client may connect to each. The policy names the entry; that of a Flink job as well."""
    known = {
        "prod": entry_for("a:9093,kafka:9092"),
        "part": entry_for("b:9093"),
        "other": entry_for("kafka:9092", "shop"),
    }
    assert Brokers.of("KAFKA:9092,a:9093", None, known).credentials == "prod"
    assert Brokers.of("a:9093,b:9093", None, known).credentials is None
    found = found_policies(URL, jobs(entry("orders")), Brokers.of(SERVERS, "orders", known))
    assert found["default/orders"]["spec"]["signals"]["kafka"] == {
        "bootstrapServers": SERVERS,
        "credentials": "prod",
        "groupId": "orders",
    }


@pytest.mark.parametrize(
    ("known", "says"),
    [
        ({"a": entry_for(SERVERS), "b": entry_for(SERVERS)}, "a, b are all for kafka:9092: keep one of them"),
        ({"shop": entry_for(SERVERS, "shop")}, "'shop' is for kafka:9092, but not for policies of namespace default"),
    ],
)
def test_entries_of_which_none_can_be_used(known: dict[str, BrokerCredentials], says: str) -> None:
    """The sentence names the setting and the entries."""
    with pytest.raises(InvalidInput, match=f"WEIR_BROKER_CREDENTIALS_FILE: {says}"):
        Brokers.of(SERVERS, None, known)

"""Reach of a policy: addresses, workloads of other namespaces, groups, and credentials."""

from dataclasses import replace
from typing import Any

import pytest

from weir_contracts import policy_of
from weir_runtime.policy_credentials import BrokerCredentials, HttpCredential
from weir_runtime.reach import USUAL_TARGETS, AddressRefused, Allowed, Reach, checked_addresses
from weir_runtime.settings import TargetSettings

PREFIX = "WEIR_PLANNER_PLUGIN"
USUAL = Allowed.of("https", "*", "public", prefix=PREFIX)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.9.10",
        "::1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "::",
        "224.0.0.1",
        "255.255.255.255",
        "240.0.0.1",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "fd12:3456::1",
        "ff02::1",
        "2001:db8::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "::127.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "2002:7f00:1::",
        "2001:0:7f00:1::",
        "no address",
    ],
)
def test_what_is_not_at_large_is_refused(address: str) -> None:
    """Loopback, link-local, private, shared, multicast, reserved, documentation; also within an IPv6 address that
    carries it."""
    with pytest.raises(AddressRefused) as refused:
        USUAL.check_address(address, "planner.example.org")
    assert address == "no address" or f"{PREFIX}_NETWORKS" in str(refused.value)


@pytest.mark.parametrize("address", ["93.184.216.34", "8.8.8.8", "2606:2800:220:1::1", "::ffff:8.8.8.8"])
def test_the_internet_at_large_is_allowed_by_default(address: str) -> None:
    """It can be left out, too."""
    USUAL.check_address(address, "planner.example.org")
    with pytest.raises(AddressRefused, match="a public address"):
        Allowed.of("https", "*", "10.0.0.0/8", prefix=PREFIX).check_address(address, "planner.example.org")


def test_only_a_listed_network_is_allowed() -> None:
    """The unspecified address stays refused even where everything is listed: some systems take it for this machine."""
    inside = Allowed.of("http", "*", "10.0.0.0/8, 127.0.0.0/8, ::1/128", prefix=PREFIX)
    for address in ("10.2.3.4", "127.0.0.1", "::1", "::ffff:10.2.3.4"):
        inside.check_address(address, "planner")
    for address in ("192.168.0.1", "8.8.8.8", "fe80::1"):
        with pytest.raises(AddressRefused):
            inside.check_address(address, "planner")
    with pytest.raises(AddressRefused, match="unspecified"):
        Allowed.of("http", "*", "0.0.0.0/0", prefix=PREFIX).check_address("0.0.0.0", "planner")


@pytest.mark.parametrize(
    ("hosts", "url", "fits"),
    [
        ("*", "https://any.example.com/x", True),
        ("planner.example.org", "https://planner.example.org", True),
        ("planner.example.org", "https://PLANNER.example.org.:8443/x", True),
        ("planner.example.org", "https://other.example.org", False),
        ("*.example.org", "https://a.b.example.org", True),
        ("*.example.org", "https://example.org", False),
        ("*.example.org", "https://evilexample.org", False),
        ("", "https://planner.example.org", False),
    ],
)
def test_hosts_are_listed_by_name(hosts: str, url: str, fits: bool) -> None:
    """Exactly, or all names below one."""
    allowed = Allowed.of("https", hosts, "public", prefix=PREFIX)
    if fits:
        allowed.check_url(url)
    else:
        with pytest.raises(AddressRefused, match=f"{PREFIX}_HOSTS"):
            allowed.check_url(url)


def test_schemes_are_listed() -> None:
    """Without encryption only where listed."""
    with pytest.raises(AddressRefused, match=f"{PREFIX}_SCHEMES"):
        USUAL.check_url("http://planner.example.org")
    Allowed.of("http,https", "*", "public", prefix=PREFIX).check_url("http://planner.example.org")


def test_an_address_written_as_one_is_checked_at_once() -> None:
    """No name to resolve."""
    for url in ("https://127.0.0.1:9/", "https://[::1]/", "https://[::ffff:10.0.0.1]/"):
        with pytest.raises(AddressRefused, match=f"{PREFIX}_NETWORKS"):
            USUAL.check_url(url)


@pytest.mark.parametrize("lists", [("ftp", "*", "public"), ("https", "*", "10.0.0.0/99"), ("https", "*", "privat")])
def test_lists_that_mean_nothing_are_refused_at_the_start(lists: tuple[str, str, str]) -> None:
    """A misspelt entry must be neither allowed nor forbidden."""
    with pytest.raises(ValueError, match=r"ftp|10\.0\.0\.0/99|privat"):
        Allowed.of(*lists, prefix=PREFIX)


METADATA = ["169.254.169.254", "fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "192.0.0.192", "168.63.129.16"]


@pytest.mark.parametrize(
    "address", [*METADATA, "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "fe80::1", "169.254.0.9"]
)
def test_metadata_services_are_refused_unless_a_network_lists_them(address: str) -> None:
    """No keyword covers them: they hand out the machine's credentials."""
    usual = TargetSettings().targets()
    with pytest.raises(AddressRefused, match="WEIR_TARGET_NETWORKS does not allow"):
        usual.check_address(address, "flink")
    everything = "public,0.0.0.0/0,::/0"
    TargetSettings(target_networks=everything).targets().check_address(address, "flink")


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "::1", "10.1.2.3", "192.168.65.254", "100.64.3.4", "fd12::1", "8.8.8.8"]
)
def test_targets_may_be_on_this_machine_in_private_networks_and_outside(address: str) -> None:
    """By default; each can be left out."""
    TargetSettings().targets().check_address(address, "flink")
    with pytest.raises(AddressRefused):
        TargetSettings(target_networks="203.0.113.0/24").targets().check_address(address, "flink")


async def test_every_address_of_a_name_is_checked() -> None:
    """One that is allowed does not help the other."""

    async def resolve(_host: str, _port: int) -> list[str]:
        return ["10.0.0.1", "169.254.169.254"]

    with pytest.raises(AddressRefused, match=r"169\.254\.169\.254 \(of flink\) is a link-local address"):
        await checked_addresses("flink", 8081, TargetSettings().targets(), resolve)


@pytest.mark.parametrize("host", ["0x7f.1", "2130706433", "localhost", "127.1"])
async def test_other_spellings_of_an_address_are_resolved_before_they_are_checked(host: str) -> None:
    """The system's resolver takes them for 127.0.0.1."""
    with pytest.raises(AddressRefused, match="a loopback address"):
        await checked_addresses(host, 80, TargetSettings(target_networks="public,private").targets())


HOSTS = "*.{namespace}.svc,kafka.example.org,prometheus.monitoring.svc"
GROUPS = "{namespace}-*,shared"
BROKERS = {"bootstrapServers": "kafka.example.org:9092"}
WORKLOAD = {"kind": "Deployment", "name": "orders"}
BROKERS_OF_B = BrokerCredentials(frozenset(), {}, frozenset({"team-b"}))
ADDRESS_OF_B = HttpCredential(namespaces=["team-b"], origin="https://b")


def refusal(reach: Reach, **spec: Any) -> tuple[str, str] | None:
    """What a policy of team-a is refused for."""
    return reach.refusal(policy_of("team-a/orders", objective={"maxLag": "30s"}, **spec).subject)


def flink(host: str, **more: str) -> dict[str, Any]:
    return {"application": {"flink": {"url": f"http://{host}:8081", "job": "orders", **more}}}


def streams(group: str, broker: str = "kafka.example.org", **kafka: str) -> dict[str, Any]:
    return {
        "application": {"kafkaStreams": {"applicationId": group}},
        "target": {"kubernetes": WORKLOAD},
        "signals": {"kafka": {"bootstrapServers": f"{broker}:9092", **kafka}},
    }


def endpoint(host: str, **more: str) -> dict[str, Any]:
    return {**streams("team-a-orders"), "target": {"endpoint": {"url": f"http://{host}", **more}}}


LIMITED = (
    Reach.of(Allowed.of("http,https", HOSTS, USUAL_TARGETS, prefix="WEIR_TARGET"), GROUPS, "")
    .with_credentials("signals.kafka", {"b": BROKERS_OF_B, "all": replace(BROKERS_OF_B, namespaces=frozenset({"*"}))})
    .with_credentials("application.flink", {"b": ADDRESS_OF_B})
    .with_credentials("target.endpoint", {"b": ADDRESS_OF_B})
)


@pytest.mark.parametrize(
    ("spec", "field", "word"),
    [
        (
            {"target": {"kubernetes": {**WORKLOAD, "namespace": "team-b"}}},
            "target.kubernetes.namespace",
            "team-a:team-b",
        ),
        (
            {"target": {"flinkDeployment": {"name": "orders", "namespace": "team-b"}}},
            "target.flinkDeployment.namespace",
            "team-a:team-b",
        ),
        (flink("jobmanager.team-b.svc"), "application.flink.url", "*.team-a.svc"),
        (flink("JOBMANAGER.team-b.svc."), "application.flink.url", "*.team-a.svc"),
        (endpoint("supervisor.team-b.svc"), "target.endpoint.url", "*.team-a.svc"),
        (streams("team-b-totals"), "application", "team-a-*, shared"),
        (streams("team-a-totals", broker="kafka.team-b.svc"), "signals.kafka.bootstrapServers", "*.team-a.svc"),
        (
            {**flink("jobmanager.team-a.svc"), "signals": {"kafka": {**BROKERS, "groupId": "team-b-totals"}}},
            "signals.kafka.groupId",
            "team-a-*",
        ),
        (streams("team-a-totals", credentials="b"), "signals.kafka.credentials", "'b'"),
        (flink("jobmanager.team-a.svc", credentials="b"), "application.flink.credentials", "'b'"),
        (endpoint("supervisor.team-a.svc", credentials="b"), "target.endpoint.credentials", "'b'"),
    ],
)
def test_what_belongs_to_another_namespace_is_refused(spec: dict[str, Any], field: str, word: str) -> None:
    """With the field, and the setting or entry that would allow it."""
    found = refusal(LIMITED, **spec)
    assert found is not None
    assert found[0] == field
    assert word in found[1]


@pytest.mark.parametrize(
    "spec",
    [
        {"target": {"kubernetes": WORKLOAD}},
        {"target": {"kubernetes": {**WORKLOAD, "namespace": "team-a"}}},
        flink("jobmanager.team-a.svc"),
        streams("team-a-totals"),
        streams("shared", credentials="all"),
        endpoint("supervisor.team-a.svc"),
    ],
)
def test_what_belongs_to_its_own_namespace_or_to_all_is_not(spec: dict[str, Any]) -> None:
    assert refusal(LIMITED, **spec) is None


@pytest.mark.parametrize(
    ("pairs", "named", "allowed"),
    [
        ("", "team-b", False),
        ("team-a:team-b", "team-b", True),
        ("team-a:team-b", "team-c", False),
        ("team-b:team-a", "team-b", False),
        ("ops:*", "team-b", False),
        ("team-a:*", "team-b", True),
        ("*:shared, ops:*", "shared", True),
    ],
)
def test_pairs_of_namespaces_have_a_direction(pairs: str, named: str, allowed: bool) -> None:
    """From the policy's namespace to that of the workload; by default there is none."""
    reach = Reach.of(LIMITED.allowed, "*", pairs)
    assert (refusal(reach, target={"kubernetes": {**WORKLOAD, "namespace": named}}) is None) is allowed


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"kubernetes": {**WORKLOAD, "namespace": "team-b"}}, "kubernetes.namespace"),
        ({"endpoint": {"url": "http://metadata.internal"}}, "endpoint.url"),
        ({"endpoint": {"url": "http://tm", "credentials": "b"}}, "endpoint.credentials"),
    ],
)
def test_what_runs_the_task_managers_is_within_reach_too(given: dict[str, Any], field: str) -> None:
    """Their namespace, address and credentials, each by its own path."""
    reach = LIMITED.with_credentials("target.flink.taskManagers.endpoint", {"b": ADDRESS_OF_B})
    application = {"flink": {"url": "http://jobmanager.team-a.svc:8081", "job": "orders"}}
    if field == "endpoint.credentials":
        reach = replace(reach, allowed=replace(reach.allowed, hosts=("*",)))
    found = refusal(reach, application=application, target={"flink": {"taskManagers": {**given, "max": 2}}})
    assert found is not None and found[0] == f"target.flink.taskManagers.{field}"


@pytest.mark.parametrize(
    ("hosts", "allowed"),
    [("", False), ("*.{namespace}.svc", True), ("*.team-b.svc, JobManager.team-a.svc.", True), ("*.team-b.svc", False)],
)
def test_a_policy_runs_jars_only_where_a_setting_allows_it(hosts: str, allowed: bool) -> None:
    """By default nowhere: who may write a policy could otherwise decide which code runs on a cluster that Weir reaches."""
    given = {
        **flink("jobmanager.team-a.svc"),
        "target": {"flink": {"resubmit": {"jar": "orders.jar", "savepointDirectory": "s3://state"}}},
    }
    found = refusal(Reach.of(LIMITED.allowed, "*", "", hosts), **given)
    if allowed:
        assert found is None
    else:
        assert found is not None and found[0] == "target.flink.resubmit" and "WEIR_TARGET_RESUBMIT_HOSTS" in found[1]


@pytest.mark.parametrize("pairs", ["team-a", "team-a:", "a:b:c"])
def test_a_pair_that_is_none_ends_the_service_with_the_settings_name(pairs: str) -> None:
    with pytest.raises(ValueError, match="WEIR_TARGET_NAMESPACES"):
        Reach.of(LIMITED.allowed, "*", pairs)


def test_a_connection_is_checked_for_any_namespace() -> None:
    """It knows no policy: hosts of no namespace stay refused."""
    LIMITED.allowed.check_host("jobmanager.team-b.svc")
    with pytest.raises(Exception, match=r"metadata.internal is not among the hosts"):
        LIMITED.allowed.check_host("metadata.internal")

"""Where registered planners may be asked at: what is not listed is refused, and the refusal names the setting."""

import pytest

from services.planner.core.addresses import HOSTS, NETWORKS, SCHEMES, AddressRefused, Allowed

USUAL = Allowed.of("https", "*", "public")


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
    """Loopback, link-local, private, shared, multicast, reserved, documentation; also within an IPv6 address that carries it."""
    with pytest.raises(AddressRefused) as refused:
        USUAL.check_address(address, "planner.example.org")
    assert address == "no address" or NETWORKS in str(refused.value)


@pytest.mark.parametrize("address", ["93.184.216.34", "8.8.8.8", "2606:2800:220:1::1", "::ffff:8.8.8.8"])
def test_the_internet_at_large_is_allowed_by_default(address: str) -> None:
    """It can be left out, too."""
    USUAL.check_address(address, "planner.example.org")
    with pytest.raises(AddressRefused, match="a public address"):
        Allowed.of("https", "*", "10.0.0.0/8").check_address(address, "planner.example.org")


def test_a_listed_network_is_allowed_and_nothing_beside_it() -> None:
    """The unspecified address stays refused even where everything is listed: some systems take it for this machine."""
    inside = Allowed.of("http", "*", "10.0.0.0/8, 127.0.0.0/8, ::1/128")
    for address in ("10.2.3.4", "127.0.0.1", "::1", "::ffff:10.2.3.4"):
        inside.check_address(address, "planner")
    for address in ("192.168.0.1", "8.8.8.8", "fe80::1"):
        with pytest.raises(AddressRefused):
            inside.check_address(address, "planner")
    with pytest.raises(AddressRefused, match="unspecified"):
        Allowed.of("http", "*", "0.0.0.0/0").check_address("0.0.0.0", "planner")


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
    allowed = Allowed.of("https", hosts, "public")
    if fits:
        allowed.check_url(url)
    else:
        with pytest.raises(AddressRefused, match=HOSTS):
            allowed.check_url(url)


def test_schemes_are_listed() -> None:
    """Without encryption only where it is said."""
    with pytest.raises(AddressRefused, match=SCHEMES):
        USUAL.check_url("http://planner.example.org")
    Allowed.of("http,https", "*", "public").check_url("http://planner.example.org")


def test_an_address_written_as_one_is_checked_at_once() -> None:
    """No name to resolve."""
    for url in ("https://127.0.0.1:9/", "https://[::1]/", "https://[::ffff:10.0.0.1]/"):
        with pytest.raises(AddressRefused, match=NETWORKS):
            USUAL.check_url(url)


@pytest.mark.parametrize("lists", [("ftp", "*", "public"), ("https", "*", "10.0.0.0/99"), ("https", "*", "private")])
def test_lists_that_mean_nothing_are_refused_at_the_start(lists: tuple[str, str, str]) -> None:
    """What is misspelt must not read as allowed or as forbidden."""
    with pytest.raises(ValueError, match=r"ftp|10\.0\.0\.0/99|private"):
        Allowed.of(*lists)

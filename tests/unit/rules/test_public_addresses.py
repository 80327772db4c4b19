"""Which addresses a webhook may go to."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.rules.public_addresses import is_public


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "93.184.216.34", "2606:4700::1111", "2001:4860:4860::8888", "2a00:1450::1"]
)
def test_hosts_of_the_internet_are_public(address: str) -> None:
    assert is_public(address)


PRIVATE_4 = [
    *("0.0.0.1", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.8.8.8", "169.254.169.254"),
    *("172.16.0.1", "172.31.255.255", "192.0.0.1", "192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.1.1"),
    *("198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "168.63.129.16"),
]


@pytest.mark.parametrize("address", PRIVATE_4)
def test_an_address_of_ipv4_that_is_not_public_is_not_in_any_disguise(address: str) -> None:
    bits = int(ipaddress.IPv4Address(address))
    high, low = bits >> 16, bits & 0xFFFF
    for written in (
        address,
        f"::ffff:{address}",
        f"64:ff9b::{address}",
        f"64:ff9b:1::{address}",
        f"::ffff:0:{address}",
        f"::{address}",
        f"2002:{high:x}:{low:x}::1",
        f"2001:0:4136:e378:8000:63bf:{high ^ 0xFFFF:x}:{low ^ 0xFFFF:x}",  # Teredo
        f"fe80::5efe:{address}",  # ISATAP
    ):
        assert not is_public(written), written


def test_public_addresses_of_ipv4_stay_public_where_networks_without_ipv4_reach_them() -> None:
    assert is_public("64:ff9b::8.8.8.8")
    assert is_public("::ffff:8.8.8.8")


@pytest.mark.parametrize(
    "address",
    [
        *(
            "::",
            "::1",
            "::8.8.8.8",
            "::ffff:0:8.8.8.8",
            "64:ff9b:1::8.8.8.8",
            "64:ff9b:1:fffe::1",
            "100::1",
            "100:0:0:1::1",
        ),
        *("2001::1", "2001:2::1", "2001:10::1", "2001:20::1", "2001:db8::1", "2002:808:808::1", "3fff::1", "4000::1"),
        *("5f00::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "ff0e::1"),
    ],
)
def test_everything_else_of_ipv6_is_not_public(address: str) -> None:
    assert not is_public(address)


@given(st.ip_addresses())
def test_nothing_is_public_that_python_calls_private(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    if address.is_private or address.is_loopback or address.is_link_local or address.is_multicast:
        wrapped = address.version == 6 and (address.ipv4_mapped or str(address).startswith("64:ff9b::"))
        assert wrapped or not is_public(str(address))

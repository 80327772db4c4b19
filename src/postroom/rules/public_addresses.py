"""Which network addresses are on the public internet."""

import ipaddress

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def _networks(*texts: str) -> tuple[_Network, ...]:
    return tuple(ipaddress.ip_network(text) for text in texts)


_LAST_32_BITS = 0xFFFFFFFF
_WRAPPED = _networks("::ffff:0:0/96", "64:ff9b::/96")
"""IPv4 addresses written as IPv6, or reached through NAT64: the last 32 bits decide."""
_ASSIGNED = ipaddress.ip_network("2000::/3")
"""All public IPv6 addresses. Outside of it: local addresses of every kind, and obsolete ways to write IPv4."""
_SPECIAL = _networks(
    *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24"),
    *("192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24"),
    *("224.0.0.0/3", "168.63.129.16/32"),  # multicast and above; Azure's platform services
    *("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"),  # Teredo and the like; 6to4; documentation
)


def is_public(address: str) -> bool:
    """Whether an address is on the public internet, looking through IPv6 forms of IPv4 addresses.

    The ranges are listed here because what Python calls global differs from version to version.
    """
    found = ipaddress.ip_address(address.partition("%")[0])
    if any(found in network for network in _WRAPPED):
        found = ipaddress.IPv4Address(int(found) & _LAST_32_BITS)
    if any(found in network for network in _SPECIAL):
        return False
    return found.version == 4 or found in _ASSIGNED  # noqa: PLR2004 - of the internet protocol

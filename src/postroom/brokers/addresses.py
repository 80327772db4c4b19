"""The guard of webhooks: a URL that somebody else chose must not reach into the own network."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import TYPE_CHECKING

from postroom.errors import BrokerUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

_LAST_32_BITS = 0xFFFFFFFF
_HIDING = (ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("::/96"))
"""Networks whose addresses end with one of IPv4: that of NAT64, and the old form of compatible addresses."""


async def lookup(host: str, port: int, timeout: float, *, private: bool) -> Sequence[str]:  # noqa: ASYNC109 - as publish
    """The addresses of a host; unless `private`, all of them are public.

    Connect to one of these and not to the name, which may say something else a moment later. Raises
    `BrokerUnavailable`.
    """
    try:
        async with asyncio.timeout(timeout):
            found = await asyncio.get_running_loop().getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except TimeoutError:
        raise BrokerUnavailable(f"the name of {host} is not found within {timeout:g} s") from None
    except (OSError, UnicodeError) as error:
        raise BrokerUnavailable(f"the name of {host} is not found: {error}") from error
    addresses = list(dict.fromkeys(str(one[4][0]) for one in found))
    if not private and not all(map(is_public, addresses)):
        raise BrokerUnavailable(f"{host} is not on the public internet: ?postroom.private=true permits that")
    return addresses


def is_public(address: str) -> bool:
    """Whether an address is one of the public internet, also where it hides another one."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        hidden = found.ipv4_mapped or found.sixtofour
        if any(found in network for network in _HIDING):
            hidden = ipaddress.IPv4Address(int(found) & _LAST_32_BITS)
        if hidden is not None:
            return is_public(str(hidden))
    return found.is_global and not found.is_multicast

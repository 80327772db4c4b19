"""Resolve the host of a webhook: a URL that somebody else chose must not reach the internal network."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

from postroom.errors import BrokerUnavailable
from postroom.rules.public_addresses import is_public

if TYPE_CHECKING:
    from collections.abc import Sequence


async def lookup(host: str, port: int, timeout: float, *, private: bool) -> Sequence[str]:  # noqa: ASYNC109 - as publish
    """The addresses of a host. Unless `private`, all of them are public.

    Connect to one of these, not to the name, which may resolve differently a moment later. Raises
    `BrokerUnavailable`.
    """
    try:
        async with asyncio.timeout(timeout):
            found = await asyncio.get_running_loop().getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except TimeoutError:
        raise BrokerUnavailable(f"the host name {host} cannot be resolved within {timeout:g} s") from None
    except (OSError, UnicodeError) as error:
        raise BrokerUnavailable(f"the host name {host} cannot be resolved: {error}") from error
    addresses = list(dict.fromkeys(str(one[4][0]) for one in found))
    if not private and not all(map(is_public, addresses)):
        raise BrokerUnavailable(f"{host} is not on the public internet: ?postroom.private=true permits that")
    return addresses

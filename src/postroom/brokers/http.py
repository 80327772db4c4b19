"""HTTP: each message is a POST, signed as Standard Webhooks 1.0 says."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import re
import socket
import time
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated
from urllib.parse import parse_qsl, urlencode

import msgspec

from postroom.brokers import urls
from postroom.brokers.batches import timed_out
from postroom.brokers.cloudevents import HTTP
from postroom.brokers.port import Accepted, Capabilities, Outcome, Refused, Unreached
from postroom.brokers.signatures import key_of, signature
from postroom.errors import BrokerUnavailable, InvalidSetting
from postroom.rules.failures import Failure, Reason

try:
    import httpx
except ImportError as error:
    raise urls.client_missing("http", "http", error) from error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from postroom.message import Message

PORTS = {"http": 80, "https": 443}
OURS = "postroom."
"""What our options begin with: all else in the query is the receiver's."""
MOST_ANSWERED = 16 * 1024
LONGEST_PAUSE = 24 * 3600.0
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_NOT_SET_UP = frozenset({401, 403, 404, 405, 407, 410, 421, 502, 503})
"""Of the receiver as a whole, and not of a message. 410: it wants no more."""


class Options(urls.Options, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the URL's query may hold, each with ``postroom.`` before its name."""

    secret: str | None = None
    """Signs the messages: ``whsec_`` and base64; several, with spaces, while one takes another's place."""
    concurrency: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 16
    """Requests at a time, for each batch."""
    private: bool = False
    """Whether the receiver may have an address that is not on the public internet."""


class HttpBroker:
    """Posts messages to one URL; 2xx is the only success, and no redirect is followed."""

    capabilities = Capabilities()

    def __init__(self, url: str) -> None:
        rest, options = _split(url)
        self._address, self._options = urls.parse(f"{url.partition('?')[0]}?{urlencode(options)}", PORTS, Options)
        if len(self._address.hosts) > 1 or self._options.declare:
            raise InvalidSetting(f"{self._address.name}: give one host; there is nothing to declare")
        self.name = self._address.name
        self._target = f"/{self._address.path}" + (f"?{urlencode(rest)}" if rest else "")
        self._keys = [key_of(secret) for secret in (self._options.secret or "").split()]
        self._envelope = self._options.envelope(HTTP)
        [(self._host, self._port)] = self._address.hosts
        user, password = self._address.user, self._address.password or ""
        login = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._headers = {"authorization": f"Basic {login}"} if user else {}
        # Not a client: that would follow the environment to a proxy, and write URLs to the log.
        self._transport = httpx.AsyncHTTPTransport(
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=256), trust_env=False
        )

    async def publish(self, messages: Sequence[Message], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the port's
        """Post all, some at a time. Raises `BrokerUnavailable`."""
        outcomes: list[Outcome] = [timed_out(timeout)] * len(messages)
        address = await self._checked_address(timeout)
        work = iter(enumerate(messages))
        tasks = [
            asyncio.create_task(self._post_each(work, outcomes, address, timeout))
            for _ in range(min(len(messages), self._options.concurrency))
        ]
        try:
            async with asyncio.timeout(timeout):
                await asyncio.gather(*tasks)
        except TimeoutError:
            pass  # those without an answer have their outcome already
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return outcomes

    async def close(self) -> None:
        """End the connections."""
        await self._transport.aclose()

    async def _checked_address(self, timeout: float) -> str:  # noqa: ASYNC109 - as publish
        """An address of the host that we may connect to; the request goes there, whatever the name says later."""
        try:
            async with asyncio.timeout(timeout):
                found = await asyncio.get_running_loop().getaddrinfo(
                    self._host.strip("[]"), self._port, type=socket.SOCK_STREAM
                )
        except (OSError, UnicodeError) as error:
            raise BrokerUnavailable(f"{self.name}: {str(error) or type(error).__name__}") from error
        addresses = [str(one[4][0]) for one in found]
        for address in addresses:
            if not self._options.private and not is_public(address):
                raise BrokerUnavailable(
                    f"{self.name} is not on the public internet: ?postroom.private=true permits that"
                )
        return addresses[0]

    async def _post_each(
        self,
        work: Iterator[tuple[int, Message]],
        outcomes: list[Outcome],
        address: str,
        timeout: float,  # noqa: ASYNC109 - as publish
    ) -> None:
        for index, message in work:
            outcomes[index] = await self._post(message, address, timeout)

    async def _post(self, message: Message, address: str, timeout: float) -> Outcome:  # noqa: ASYNC109 - as publish
        headers, body = self._envelope.seal(message)
        headers |= self._headers | self._signed(str(message.id), body or b"", int(time.time()))
        headers["host"] = self._host if self._port == PORTS[self._address.scheme] else f"{self._host}:{self._port}"
        place = f"[{address}]" if ":" in address else address
        request = httpx.Request(
            "POST",
            f"{self._address.scheme}://{place}:{self._port}{self._target}",
            content=body or b"",
            headers=headers,
            extensions={"timeout": httpx.Timeout(timeout).as_dict(), "sni_hostname": self._host.strip("[]")},
        )
        try:
            response = await self._transport.handle_async_request(request)
            try:
                size = 0
                async for chunk in response.aiter_raw():
                    size += len(chunk)
                    if size > MOST_ANSWERED:
                        break
            finally:
                await response.aclose()
            return _outcome(response)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            return Unreached(f"{self.name}: {str(error) or type(error).__name__}")
        except httpx.TimeoutException:
            return timed_out(timeout)
        except httpx.HTTPError as error:
            return Refused(Reason.CONNECTION, str(error) or type(error).__name__)

    def _signed(self, name: str, body: bytes, now: int) -> dict[str, str]:
        headers = {"webhook-id": name, "webhook-timestamp": str(now)}
        if self._keys:
            headers["webhook-signature"] = " ".join(signature(key, name, now, body) for key in self._keys)
        return headers


def is_public(address: str) -> bool:
    """Whether an address is one of the public internet, also where it hides another one."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        hidden = found.ipv4_mapped or found.sixtofour
        if found in _NAT64:
            hidden = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        if hidden is not None:
            return is_public(str(hidden))
    return found.is_global and not found.is_multicast


def _split(url: str) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """The receiver's part of the query, and ours."""
    query = parse_qsl(url.partition("?")[2], keep_blank_values=True)
    theirs = [(name, value) for name, value in query if not name.startswith(OURS)]
    return theirs, [(name.removeprefix(OURS), value) for name, value in query if name.startswith(OURS)]


def _outcome(response: httpx.Response) -> Outcome:
    status = response.status_code
    if response.is_success:
        return Accepted(str(status))
    text = f"{status} {response.reason_phrase}".strip()
    pause = _pause(response.headers.get("retry-after", ""))
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return Refused(Reason.MESSAGE_TOO_LARGE, text, Failure.PERMANENT)
    if status in _NOT_SET_UP and pause is None:
        return Unreached(f"the receiver answers {text}")
    return Refused(f"HTTP_{status}", text, retry_after=pause)


def _pause(text: str) -> float | None:
    """The seconds of a Retry-After header, which may also name a time."""
    if re.fullmatch(r"[0-9]{1,9}", text):
        return min(float(text), LONGEST_PAUSE)
    try:
        return min(max(parsedate_to_datetime(text).timestamp() - time.time(), 0.0), LONGEST_PAUSE)
    except ValueError:
        return None

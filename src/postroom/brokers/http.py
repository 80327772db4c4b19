"""Webhooks over HTTP: each message is a POST, signed according to Standard Webhooks 1.0."""

from __future__ import annotations

import asyncio
import base64
import re
import ssl
import time
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from urllib.parse import parse_qsl, urlencode

import msgspec

from postroom.brokers import urls
from postroom.brokers import webhook_signatures as signatures
from postroom.brokers.cloudevents import HTTP, Sealer
from postroom.brokers.connecting import check_time_left
from postroom.brokers.port import NOT_SENT, Accepted, Capabilities, Outcome, Refused, Unreached
from postroom.brokers.refusals import timed_out, unsendable
from postroom.brokers.webhook_hosts import lookup
from postroom.errors import InvalidSetting
from postroom.rules.failures import Failure, Reason

try:
    import httpx
except ImportError as error:
    raise urls.client_missing("http", "http", error) from error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from postroom.message import Message

PORTS = {"http": 80, "https": 443}
OURS = "postroom."
"""Prefix of our own options; everything else in the query belongs to the receiver."""
MAX_RESPONSE_BYTES = 16 * 1024
LONGEST_PAUSE = 24 * 3600.0
START_SHARE = 0.2
"""The share of the timeout in which requests may start, so that each has most of it left for its response."""
CONNECT_SHARE = 0.5
"""The share of the timeout for connecting: tells a receiver that cannot be reached from a slow one."""
_TRANSIENT = frozenset({408, 425, 429})
_RECEIVER_REFUSES = frozenset({401, 403, 404, 405, 407, 410, 421})
"""The receiver refuses all messages, not this one. 410: it wants no more."""


class HttpOptions(urls.UrlOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options in the URL's query, each prefixed with ``postroom.``."""

    secret: str | None = None
    """Signs the messages: ``whsec_`` and base64. Several, separated by spaces, while secrets are rotated."""
    concurrency: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 16
    """Concurrent requests per batch."""
    private: bool = False
    """Whether the receiver's address may be private, not on the public internet."""


class _Call(NamedTuple):
    """What the requests of one publish share."""

    outcomes: list[Outcome]
    places: Sequence[httpx.URL]
    """The target at each of the host's addresses."""
    timeout: float
    extensions: dict[str, Any]


class HttpBroker:
    """Posts messages to one URL. Only 2xx is success, and redirects are not followed."""

    capabilities = Capabilities()  # concurrent requests may overtake each other

    def __init__(self, url: str) -> None:
        rest, _ = _split(url)
        self._url, self._options = parsed(url)
        if len(self._url.hosts) > 1 or self._options.declare:
            raise InvalidSetting(f"{self._url.name}: give one host; there is nothing to declare")
        self.name = self._url.name
        self._target = f"/{self._url.path}" + (f"?{urlencode(rest)}" if rest else "")
        self._keys = [signatures.key_of(secret) for secret in (self._options.secret or "").split()]
        self._attributes_keys = [signatures.attributes_key(key) for key in self._keys]
        self._sealer = Sealer(self._options.envelope(HTTP), lambda _, headers: headers)
        [(self._host, self._port)] = self._url.hosts
        user, password = self._url.user, self._url.password or ""
        login = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._headers = {"authorization": f"Basic {login}"} if user else {}
        # Created once: loading the certificate authorities is slow.
        encrypted = self._url.scheme == "https"
        self._tls = self._options.tls() if encrypted else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._idle: list[httpx.AsyncHTTPTransport] = []
        self._probe_first = True
        """Whether to send one request first, to find out if the receiver accepts messages at all."""
        self._refusals = 0
        self._probing = asyncio.Lock()

    async def publish(self, messages: Sequence[Message], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the port's
        """Post all messages, several at a time; what cannot start soon is not sent. Raises `BrokerUnavailable`."""
        started = asyncio.get_running_loop().time()
        addresses = await lookup(self._host, self._port, timeout, private=self._options.private)
        check_time_left(self.name, started + timeout, timeout)
        outcomes: list[Outcome] = [NOT_SENT] * len(messages)
        call = self._call(outcomes, addresses, timeout)
        work = _startable(messages, started + timeout * START_SHARE)
        tasks: list[asyncio.Task[None]] = []
        try:
            async with asyncio.timeout_at(started + timeout):
                if self._probe_first:
                    await self._probe(work, call)
                if not self._probe_first:
                    tasks = [
                        asyncio.create_task(self._post_each(work, call))
                        for _ in range(min(len(messages), self._options.concurrency))
                    ]
                    await asyncio.gather(*tasks)
        except TimeoutError:
            pass  # messages without a response have been marked as timed out
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return outcomes

    def _call(self, outcomes: list[Outcome], addresses: Sequence[str], timeout: float) -> _Call:
        hosts = [f"[{address}]" if ":" in address else address for address in addresses]
        places = [httpx.URL(f"{self._url.scheme}://{host}:{self._port}{self._target}") for host in hosts]
        times = httpx.Timeout(timeout, connect=timeout * CONNECT_SHARE / max(len(places), 1)).as_dict()
        return _Call(outcomes, places, timeout, {"timeout": times, "sni_hostname": self._host.strip("[]")})

    async def close(self) -> None:
        """Close the connections."""
        while self._idle:
            await self._idle.pop().aclose()

    @asynccontextmanager
    async def _idle_transport(self) -> AsyncIterator[httpx.AsyncHTTPTransport]:
        """A transport for one request at a time: a pool would search all its connections for each.

        Not a client: that would obey proxy settings of the environment, and log URLs.
        """
        transport = self._idle.pop() if self._idle else httpx.AsyncHTTPTransport(verify=self._tls, trust_env=False)
        try:
            yield transport
        except BaseException:
            await transport.aclose()
            raise
        self._idle.append(transport)

    async def _probe(self, work: Iterator[tuple[int, Message]], call: _Call) -> None:
        """Find out with one request whether the receiver accepts messages; of several batches at once, one asks."""
        refusals = self._refusals
        async with self._probing:
            if self._probe_first and refusals == self._refusals:
                try:
                    await self._post_each(islice(work, 1), call)
                finally:  # batches that come meanwhile wait for the answer too
                    self._probe_first = self._refusals > refusals

    async def _post_each(self, work: Iterator[tuple[int, Message]], call: _Call) -> None:
        outcomes = call.outcomes
        async with self._idle_transport() as transport:
            for index, message in work:
                outcomes[index] = timed_out(call.timeout)
                try:
                    headers, body = self._encoded(message)
                except Exception as error:  # noqa: BLE001 - whatever it is, only this message is at fault
                    outcomes[index] = unsendable(error)
                    continue
                try:
                    response = await self._post(transport, headers, body, call)
                    outcomes[index] = _outcome(response)  # the status decides, whatever happens to the body
                    self._probe_first = isinstance(outcomes[index], Unreached)
                    self._refusals += self._probe_first
                    await _read(response)
                except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                    outcomes[index] = Unreached(f"{self.name}: {str(error) or type(error).__name__}")
                except httpx.TimeoutException:
                    pass
                except httpx.LocalProtocolError as error:
                    outcomes[index] = unsendable(error)
                except httpx.HTTPError as error:
                    outcomes[index] = Refused(Reason.CONNECTION, str(error) or type(error).__name__)
                except Exception as error:  # noqa: BLE001 - accepted messages must not be sent again because of it
                    outcomes[index] = Refused(Reason.INTERNAL_ERROR, f"{type(error).__name__}: {error}")
                if self._probe_first:
                    return

    async def _post(
        self, transport: httpx.AsyncHTTPTransport, headers: httpx.Headers, body: bytes, call: _Call
    ) -> httpx.Response:
        """Try one address after another, and return the response's head."""
        trouble: httpx.TransportError | None = None
        for place in call.places:
            request = httpx.Request("POST", place, content=body, headers=headers, extensions=dict(call.extensions))
            try:
                return await transport.handle_async_request(request)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                trouble = error
        raise trouble or httpx.ConnectError("it has no address")

    def _encoded(self, message: Message) -> tuple[httpx.Headers, bytes]:
        name, common, own, body = self._sealer.seal(message)
        headers, body = common | dict(own), body or b""
        headers |= self._headers | self._signed(name, int(time.time()), headers, body)
        headers["host"] = self._host if self._port == PORTS[self._url.scheme] else f"{self._host}:{self._port}"
        return httpx.Headers(headers), body

    def _signed(self, name: str, now: int, headers: Mapping[str, str], body: bytes) -> dict[str, str]:
        signed = {signatures.ID: name, signatures.TIMESTAMP: str(now)}
        if self._keys:
            signed[signatures.SIGNATURE] = " ".join(signatures.signature(key, name, now, body) for key in self._keys)
        if self._keys and self._options.mode == "binary":
            content = signatures.attributes(headers)
            made = (signatures.signature(key, name, now, content) for key in self._attributes_keys)
            signed[signatures.ATTRIBUTES_SIGNATURE] = " ".join(made)
        return signed


def parsed(url: str) -> tuple[urls.BrokerUrl, HttpOptions]:
    """The URL without the receiver's part of the query. Raises `InvalidSetting`."""
    _, options = _split(url)
    return urls.parse(f"{url.partition('?')[0]}?{urlencode(options)}", PORTS, HttpOptions)


def _split(url: str) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Split the query into the receiver's part and ours."""
    query = parse_qsl(url.partition("?")[2], keep_blank_values=True)
    theirs = [(name, value) for name, value in query if not name.startswith(OURS)]
    return theirs, [(name.removeprefix(OURS), value) for name, value in query if name.startswith(OURS)]


def _startable(messages: Sequence[Message], until: float) -> Iterator[tuple[int, Message]]:
    """The messages in turn, while there is time to start a request; the first one in any case."""
    clock = asyncio.get_running_loop().time
    for index, message in enumerate(messages):
        if index and clock() > until:
            return
        yield index, message


async def _read(response: httpx.Response) -> None:
    """Read the body so that the connection can be reused. Give up on a long body, and on reuse."""
    size = 0
    try:
        async for chunk in response.aiter_raw():
            size += len(chunk)
            if size > MAX_RESPONSE_BYTES:
                break
    except httpx.HTTPError:
        pass  # the head is all that matters
    finally:
        await response.aclose()


def _outcome(response: httpx.Response) -> Outcome:
    status = response.status_code
    if response.is_success:
        return Accepted(str(status))
    text = f"{status} {response.reason_phrase}".strip()
    if status in _RECEIVER_REFUSES or response.is_redirect:
        return Unreached(f"the receiver answers {text}")
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return Refused(Reason.MESSAGE_TOO_LARGE, text, Failure.PERMANENT)
    transient = status in _TRANSIENT or not response.is_client_error
    failure = None if transient else Failure.PERMANENT
    return Refused(f"HTTP_{status}", text, failure, _pause(response.headers.get("retry-after", "")))


def _pause(text: str) -> float | None:
    """The seconds in a Retry-After header, which may also hold a date; None if it holds neither."""
    if re.fullmatch(r"[0-9]+", text):
        return min(float(text), LONGEST_PAUSE)
    try:
        return min(max(parsedate_to_datetime(text).timestamp() - time.time(), 0.0), LONGEST_PAUSE)
    except Exception:  # noqa: BLE001 - the header may hold anything
        return None

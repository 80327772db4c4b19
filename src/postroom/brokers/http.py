"""HTTP: each message is a POST, signed as Standard Webhooks 1.0 says."""

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
from typing import TYPE_CHECKING, Annotated
from urllib.parse import parse_qsl, urlencode

import msgspec

from postroom.brokers import signatures, urls
from postroom.brokers.addresses import lookup
from postroom.brokers.batches import check_time, timed_out, unsendable
from postroom.brokers.cloudevents import HTTP
from postroom.brokers.port import NOT_SENT, Accepted, Capabilities, Outcome, Refused, Unreached
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
"""What our options begin with: all else in the query is the receiver's."""
MOST_ANSWERED = 16 * 1024
LONGEST_PAUSE = 24 * 3600.0
BEGINNING = 0.2
"""The part of the timeout in which requests may begin, so that each has nearly all of it for its answer."""
CONNECTING = 0.5
"""The part of the timeout that connecting may take: a receiver that cannot be reached is told from a slow one."""
_PASSING = frozenset({408, 425, 429})
_NOT_SET_UP = frozenset({401, 403, 404, 405, 407, 410, 421})
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

    capabilities = Capabilities()  # requests overtake each other

    def __init__(self, url: str) -> None:
        rest, options = _split(url)
        self._address, self._options = urls.parse(f"{url.partition('?')[0]}?{urlencode(options)}", PORTS, Options)
        if len(self._address.hosts) > 1 or self._options.declare:
            raise InvalidSetting(f"{self._address.name}: give one host; there is nothing to declare")
        self.name = self._address.name
        self._target = f"/{self._address.path}" + (f"?{urlencode(rest)}" if rest else "")
        self._keys = [signatures.key_of(secret) for secret in (self._options.secret or "").split()]
        self._envelope = self._options.envelope(HTTP)
        [(self._host, self._port)] = self._address.hosts
        user, password = self._address.user, self._address.password or ""
        login = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._headers = {"authorization": f"Basic {login}"} if user else {}
        # Made once: reading the certificate authorities takes long.
        encrypted = self._address.scheme == "https"
        self._tls = self._options.tls() if encrypted else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._idle: list[httpx.AsyncHTTPTransport] = []
        self._wary = True
        """Whether one request is to find out first if the receiver takes messages at all."""
        self._refusals = 0
        self._asking = asyncio.Lock()

    async def publish(self, messages: Sequence[Message], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the port's
        """Post all, some at a time; those whose turn does not come soon are not sent. Raises `BrokerUnavailable`."""
        started = asyncio.get_running_loop().time()
        addresses = await lookup(self._host, self._port, timeout, private=self._options.private)
        check_time(self.name, started + timeout, timeout)
        outcomes: list[Outcome] = [NOT_SENT] * len(messages)
        work = _soon(messages, started + timeout * BEGINNING)
        tasks: list[asyncio.Task[None]] = []
        try:
            async with asyncio.timeout_at(started + timeout):
                if self._wary:
                    await self._ask(work, outcomes, addresses, timeout)
                if not self._wary:
                    tasks = [
                        asyncio.create_task(self._post_each(work, outcomes, addresses, timeout))
                        for _ in range(min(len(messages), self._options.concurrency))
                    ]
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
        while self._idle:
            await self._idle.pop().aclose()

    @asynccontextmanager
    async def _line(self) -> AsyncIterator[httpx.AsyncHTTPTransport]:
        """A transport for one request at a time: a pool would look through all its connections for each.

        Not a client, which would follow the environment to a proxy, and write URLs to the log.
        """
        line = self._idle.pop() if self._idle else httpx.AsyncHTTPTransport(verify=self._tls, trust_env=False)
        try:
            yield line
        except BaseException:
            await line.aclose()
            raise
        self._idle.append(line)

    async def _ask(
        self,
        work: Iterator[tuple[int, Message]],
        outcomes: list[Outcome],
        addresses: Sequence[str],
        timeout: float,  # noqa: ASYNC109 - as publish
    ) -> None:
        """Find out with one request whether the receiver takes messages; of several batches at once, one asks."""
        refusals = self._refusals
        async with self._asking:
            if self._wary and refusals == self._refusals:
                try:
                    await self._post_each(islice(work, 1), outcomes, addresses, timeout)
                finally:  # until there is an answer, batches that come meanwhile wait for it too
                    self._wary = self._refusals > refusals

    async def _post_each(
        self,
        work: Iterator[tuple[int, Message]],
        outcomes: list[Outcome],
        addresses: Sequence[str],
        timeout: float,  # noqa: ASYNC109 - as publish
    ) -> None:
        async with self._line() as line:
            for index, message in work:
                outcomes[index] = timed_out(timeout)
                try:
                    headers, body = self._sealed(message)
                except Exception as error:  # noqa: BLE001 - whatever it is, it is this message's
                    outcomes[index] = unsendable(error)
                    continue
                try:
                    response = await self._post(line, headers, body, addresses, timeout)
                    outcomes[index] = _outcome(response)  # whatever may become of the body
                    self._wary = isinstance(outcomes[index], Unreached)
                    self._refusals += self._wary
                    await _read(response)
                except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                    outcomes[index] = Unreached(f"{self.name}: {str(error) or type(error).__name__}")
                except httpx.TimeoutException:
                    pass
                except httpx.LocalProtocolError as error:
                    outcomes[index] = unsendable(error)
                except httpx.HTTPError as error:
                    outcomes[index] = Refused(Reason.CONNECTION, str(error) or type(error).__name__)
                except Exception as error:  # noqa: BLE001 - those that were accepted must not be sent again for it
                    outcomes[index] = Refused(Reason.INTERNAL_ERROR, f"{type(error).__name__}: {error}")
                if self._wary:
                    return

    async def _post(
        self,
        line: httpx.AsyncHTTPTransport,
        headers: httpx.Headers,
        body: bytes,
        addresses: Sequence[str],
        timeout: float,  # noqa: ASYNC109 - as publish
    ) -> httpx.Response:
        """Try one address after another; returns the answer's head."""
        times = httpx.Timeout(timeout, connect=timeout * CONNECTING / len(addresses)).as_dict()
        trouble: httpx.TransportError | None = None
        for address in addresses:
            place = f"[{address}]" if ":" in address else address
            request = httpx.Request(
                "POST",
                f"{self._address.scheme}://{place}:{self._port}{self._target}",
                content=body,
                headers=headers,
                extensions={"timeout": times, "sni_hostname": self._host.strip("[]")},
            )
            try:
                return await line.handle_async_request(request)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                trouble = error
        raise trouble or httpx.ConnectError("it has no address")

    def _sealed(self, message: Message) -> tuple[httpx.Headers, bytes]:
        headers, body = self._envelope.seal(message)
        body = body or b""
        headers |= self._headers | self._signed(str(message.id), int(time.time()), headers, body)
        headers["host"] = self._host if self._port == PORTS[self._address.scheme] else f"{self._host}:{self._port}"
        return httpx.Headers(headers), body

    def _signed(self, name: str, now: int, headers: Mapping[str, str], body: bytes) -> dict[str, str]:
        signed = {signatures.ID: name, signatures.TIMESTAMP: str(now)}
        if self._keys:
            signed[signatures.SIGNATURE] = " ".join(signatures.signature(key, name, now, body) for key in self._keys)
        if self._keys and self._options.mode == "binary":
            content = signatures.attributes(headers)
            keys = map(signatures.attributes_key, self._keys)
            made = (signatures.signature(key, name, now, content) for key in keys)
            signed[signatures.ATTRIBUTES_SIGNATURE] = " ".join(made)
        return signed


def _split(url: str) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """The receiver's part of the query, and ours."""
    query = parse_qsl(url.partition("?")[2], keep_blank_values=True)
    theirs = [(name, value) for name, value in query if not name.startswith(OURS)]
    return theirs, [(name.removeprefix(OURS), value) for name, value in query if name.startswith(OURS)]


def _soon(messages: Sequence[Message], until: float) -> Iterator[tuple[int, Message]]:
    """The messages in turn, while there is time to begin with one; the first in any case."""
    clock = asyncio.get_running_loop().time
    for index, message in enumerate(messages):
        if index and clock() > until:
            return
        yield index, message


async def _read(response: httpx.Response) -> None:
    """Read the body, so that the connection can be used again; of a long one only the beginning, and it cannot."""
    size = 0
    try:
        async for chunk in response.aiter_raw():
            size += len(chunk)
            if size > MOST_ANSWERED:
                break
    except httpx.HTTPError:
        pass  # the head has said all that matters
    finally:
        await response.aclose()


def _outcome(response: httpx.Response) -> Outcome:
    status = response.status_code
    if response.is_success:
        return Accepted(str(status))
    text = f"{status} {response.reason_phrase}".strip()
    if status in _NOT_SET_UP or response.is_redirect:
        return Unreached(f"the receiver answers {text}")
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return Refused(Reason.MESSAGE_TOO_LARGE, text, Failure.PERMANENT)
    passing = status in _PASSING or not response.is_client_error
    failure = None if passing else Failure.PERMANENT
    return Refused(f"HTTP_{status}", text, failure, _pause(response.headers.get("retry-after", "")))


def _pause(text: str) -> float | None:
    """The seconds of a Retry-After header, which may also name a time; None where it says neither."""
    if re.fullmatch(r"[0-9]+", text):
        return min(float(text), LONGEST_PAUSE)
    try:
        return min(max(parsedate_to_datetime(text).timestamp() - time.time(), 0.0), LONGEST_PAUSE)
    except Exception:  # noqa: BLE001 - whatever a stranger wrote there, and however it fails to be a time
        return None

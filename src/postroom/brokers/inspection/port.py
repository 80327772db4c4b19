"""The port of inspectors, and what they share: addresses, passwords and certificates."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from typing import TYPE_CHECKING

from postroom.brokers.urls import ENCRYPTED
from postroom.rules.checks.brokers import Certificate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.brokers.urls import BrokerUrl, UrlOptions
    from postroom.rules.checks.brokers import BrokerFacts

LOCAL = frozenset({"localhost", "127.0.0.1", "[::1]"})
SECURE = {"amqp": "amqps", "http": "https", "kafka": "kafka+ssl", "nats": "nats+tls", "redis": "rediss"}


class Inspector:
    """Looks at one broker. Subclasses parse its URL, and gather facts."""

    greets_first = False
    """Whether the server sends a line in the clear before it encrypts."""

    def __init__(self, url: BrokerUrl, options: UrlOptions) -> None:
        self.url = url
        self.common = options
        self.name = url.name

    async def facts(self, topics: Sequence[str], timeout: float) -> BrokerFacts:  # noqa: ASYNC109 - each adapter limits its own calls
        """What the broker says about itself, and about the places of these topics. Raises `BrokerUnavailable`."""
        raise NotImplementedError

    @property
    def encrypted(self) -> bool:
        """Whether the connection is encrypted."""
        return self.url.scheme in ENCRYPTED

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine."""
        return all(host in LOCAL for host, _ in self.url.hosts)

    @property
    def has_secret(self) -> bool:
        """Whether the URL has a password."""
        return self.url.password is not None

    @property
    def secure_scheme(self) -> str:
        """The scheme for an encrypted connection to it."""
        return SECURE.get(self.url.scheme, self.url.scheme)

    async def certificate(self, timeout: float) -> Certificate | None:  # noqa: ASYNC109 - as facts
        """The certificate of each host, the worst of them; None if the connection is not encrypted.

        Raises `OSError` or `TimeoutError` if a host cannot be reached.
        """
        if not self.encrypted:
            return None
        return await asyncio.to_thread(self._worst, timeout)

    def _worst(self, timeout: float) -> Certificate:
        shown = [self._shown(host.strip("[]"), port, timeout) for host, port in self.url.hosts]
        return min(shown, key=lambda one: (not one.problem, one.seconds_left))

    def _shown(self, host: str, port: int, timeout: float) -> Certificate:
        context = self.common.tls()
        with socket.create_connection((host, port), timeout=timeout / len(self.url.hosts)) as line:
            if self.greets_first:
                _read_line(line)
            try:
                with context.wrap_socket(line, server_hostname=host) as encrypted:
                    return Certificate(seconds_left=_seconds_left(encrypted))
            except ssl.SSLCertVerificationError as error:
                return Certificate(problem=error.verify_message)
            except ssl.SSLError as error:
                return Certificate(problem=error.reason or "the server does not speak TLS")


def _read_line(line: socket.socket) -> None:
    """Read byte by byte: what follows is encrypted, and not for us to read."""
    while line.recv(1) not in (b"\n", b""):
        pass


def _seconds_left(encrypted: ssl.SSLSocket) -> float:
    shown = encrypted.getpeercert() or {}
    return ssl.cert_time_to_seconds(str(shown["notAfter"])) - time.time()

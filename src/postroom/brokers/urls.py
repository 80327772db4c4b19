"""Broker URLs: host, credentials, and the options in the query. Error messages never show secrets."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec

from postroom.brokers.cloudevents import Envelope, HeaderFormat, Mode
from postroom.errors import DriverMissing, InvalidSetting
from postroom.rules.naming import OURS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<place>[^/?#]*)(?P<path>/[^?#]*)?(?:\?(?P<query>[^#]*))?")
_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^:\[\]\s]+)(?::(?P<port>[0-9]{1,5}))?")
ENCRYPTED = ("amqps", "https", "kafka+ssl", "nats+tls", "rediss")
"""The schemes with encrypted connections, whose certificates are checked."""
_LIST = ", ".join(f"{scheme}://" for scheme in ENCRYPTED)
_LAST_PORT = 65_535


class UrlOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of every broker; subclasses add their own."""

    mode: Mode = "binary"
    source: str = OURS
    declare: bool = False
    ca: str | None = None
    """A file with the certificate authorities to trust instead of the system's."""

    def envelope(self, protocol: HeaderFormat) -> Envelope:
        """The encoder for messages in this protocol."""
        return Envelope(protocol, self.source, self.mode)

    def tls(self) -> ssl.SSLContext:
        """The TLS context that checks the server's certificate. Raises `InvalidSetting` if the `ca` file is invalid."""
        try:
            return ssl.create_default_context(cafile=self.ca)
        except OSError as error:
            raise InvalidSetting(f"the ca file {self.ca} cannot be read: {error}") from None


O = TypeVar("O", bound=UrlOptions)  # noqa: E741 - an options class


@dataclass(frozen=True, slots=True)
class BrokerUrl:
    """A parsed broker URL."""

    scheme: str
    hosts: Sequence[tuple[str, int]]
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    path: str = ""
    """Without the leading slash, not decoded."""

    @property
    def name(self) -> str:
        """The broker's name in logs and errors."""
        return f"{self.scheme}://{self.places()}"

    def places(self) -> str:
        """Hosts and ports, separated by commas."""
        return ",".join(f"{host}:{port}" for host, port in self.hosts)


def parse(url: str, ports: Mapping[str, int], options: type[O]) -> tuple[BrokerUrl, O]:
    """Parse a URL whose scheme is one of `ports`, which maps schemes to default ports.

    Raises `InvalidSetting`, which shows neither the password nor option values.
    """
    scheme = url.partition(":")[0]
    found = _URL.fullmatch(url)
    if found is None or scheme not in ports:
        raise InvalidSetting(f"the broker's URL cannot be read: write it as {scheme}://host:port?option=value")
    credentials, _, places = found["place"].rpartition("@")
    user, _, password = credentials.partition(":")
    hosts = [_host(scheme, place, ports[scheme]) for place in places.split(",")]
    parsed = BrokerUrl(
        scheme=scheme,
        hosts=hosts,
        user=unquote(user) or None,
        password=unquote(password) or None,
        path=(found["path"] or "").removeprefix("/"),
    )
    given = _options(scheme, found["query"] or "", options)
    if given.ca is not None:
        _check_ca(scheme, given)
    return parsed, given


def _host(scheme: str, place: str, default_port: int) -> tuple[str, int]:
    found = _HOST.fullmatch(place)
    port = int(found["port"] or default_port) if found else 0
    if found is None or not 0 < port <= _LAST_PORT:
        raise InvalidSetting(f"the {scheme} broker's URL has no valid host and port: write {scheme}://host:port")
    return found["host"], port


def _options(scheme: str, query: str, kind: type[O]) -> O:
    given: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in kind.__struct_fields__:
            known = ", ".join(sorted(kind.__struct_fields__))
            raise InvalidSetting(f"the {scheme} broker's URL: unknown option {name!r}; known options: {known}")
        if name in given:
            raise InvalidSetting(f"the {scheme} broker's URL has the option {name!r} twice")
        given[name] = value
        try:
            msgspec.convert({name: value}, kind, strict=False)
        except msgspec.ValidationError as error:
            reason = str(error).partition(" - at ")[0]
            raise InvalidSetting(f"the {scheme} broker's URL: option {name} is not valid: {reason}") from None
    return msgspec.convert(given, kind, strict=False)


def _check_ca(scheme: str, options: UrlOptions) -> None:
    """Check that the file exists and applies: naming it means to expect an encrypted connection."""
    if scheme not in ENCRYPTED:
        raise InvalidSetting(
            f"the {scheme} broker's URL has the option ca, but {scheme}:// is not encrypted: use one of {_LIST}"
        )
    options.tls()


def client_missing(scheme: str, extra: str, error: ImportError) -> DriverMissing:
    """The error for a client library that is not installed."""
    missing = f": there is no module {error.name.partition('.')[0]}" if error.name else ""
    return DriverMissing(f"{scheme}: needs a client library{missing}; run pip install 'postroom[{extra}]'")

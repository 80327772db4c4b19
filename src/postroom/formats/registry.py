"""A client of Confluent's schema registry, and of those with the same interface."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import quote, unquote, urlsplit

import httpx
import msgspec

from postroom.errors import InvalidSetting, RegistryUnavailable, UnknownSchema
from postroom.rules.failures import cut

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

T = TypeVar("T")
MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
TIMEOUT = 3.0
PAUSE = 10.0
"""Seconds in which a registry that did not answer is not asked again, nor one for a schema that it refused."""
GRACE = 1.0
"""Seconds beyond the timeout in which all of a request must be over, if its parts are each in time."""
MOST_BYTES = 16 * 1024 * 1024
MOST_REFUSED = 1024
"""Refusals that are remembered, as of ids that the registry does not have: anybody can send any number."""
REFUSED = {
    401: ": check the user and password, or the token",
    403: ": check what the user may do",
    404: ": check the URL",
}


class Reference(NamedTuple):
    """A schema that another one uses."""

    name: str
    subject: str
    version: int


class RegisteredSchema(NamedTuple):
    """A schema as the registry has it."""

    id: int
    type: str
    text: str
    references: tuple[Reference, ...] = ()


class SchemaRegistry:
    """Registers schemas, and looks them up by id. It asks once for each: schemas of an id never change.

    ``url`` may hold a user and password; otherwise give ``auth=(user, password)`` or ``token``. ``ca`` names a file
    with the certificate authorities to trust. With ``register=False``, schemas must be in the registry already, as
    where a pipeline registers them and services may not.

    A registry that does not answer within ``timeout`` seconds is not asked again for ``pause`` seconds: until then,
    what needs it fails at once with `RegistryUnavailable`. Safe to use from several threads. Raises `InvalidSetting`.
    """

    def __init__(
        self,
        url: str,
        *,
        auth: tuple[str, str] | None = None,
        token: str | None = None,
        ca: str | None = None,
        register: bool = True,
        timeout: float = TIMEOUT,
        pause: float = PAUSE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name, self._auth = _parsed(url)
        self._auth = auth or self._auth
        if self._auth and token:
            raise InvalidSetting(f"the schema registry {self.name} has a user and a token: give one of them")
        self._headers = {"accept": MEDIA_TYPE, "content-type": MEDIA_TYPE}
        if token:
            if not (token.isascii() and token.isprintable()) or " " in token:
                raise InvalidSetting("the token of the schema registry has a space, a line's end or no ASCII in it")
            self._headers["authorization"] = f"Bearer {token}"
        if not 0 < timeout < float("inf"):
            raise InvalidSetting(f"the timeout of the schema registry is {timeout!r}: give seconds above 0")
        self._tls = _tls(self.name, ca)
        self._register = register
        self._timeout = timeout
        self._pause = pause
        self._clock = clock
        # Held during a request: of all threads that need the same schema, one asks.
        self._lock = threading.Lock()
        self._ids: dict[tuple[str, str, str], int] = {}
        self._schemas: dict[int, RegisteredSchema] = {}
        self._versions: dict[Reference, RegisteredSchema] = {}
        self._refused: dict[Hashable, tuple[float, Exception]] = {}
        self._away_until = float("-inf")
        self._why_away = ""

    def __repr__(self) -> str:
        """Leave out the credentials."""
        return f"SchemaRegistry({self.name!r})"

    def id_of(self, subject: str, type: str, text: str, references: Sequence[Reference] = ()) -> int:
        """The id of a schema of a subject, which is registered if it is not there and that is allowed.

        Raises `RegistryUnavailable`, and `InvalidSetting` if the registry refuses the schema.
        """
        place = (subject, type, text)
        with self._lock:
            if place not in self._ids:
                number = self._unless_refused(place, lambda: self._registered_as(place, references))
                self._schemas.setdefault(number, RegisteredSchema(number, type, text, tuple(references)))
                self._ids[place] = number
            return self._ids[place]

    def version_of(self, subject: str, type: str, text: str, references: Sequence[Reference] = ()) -> int:
        """The version that a registered schema has under its subject. Raises like `id_of`."""
        path, body = f"/subjects/{quote(subject, safe='')}", _body(type, text, references)
        with self._lock:
            return self._ask("POST", path, lambda found: _number(found, "version", self.name), body)

    def schema(self, id: int) -> RegisteredSchema:
        """The schema of an id. Raises `RegistryUnavailable`, and `UnknownSchema` if there is none."""
        known = self._schemas.get(id)
        if known is not None:
            return known
        with self._lock:
            if id not in self._schemas:
                self._schemas[id] = self._unless_refused(id, lambda: self._looked_up(id))
            return self._schemas[id]

    def latest(self, subject: str) -> RegisteredSchema:
        """The newest schema of a subject, which is asked for anew each time. Raises like `schema`."""
        with self._lock:
            return self._ask("GET", f"/subjects/{quote(subject, safe='')}/versions/latest", self._version)

    def referenced(self, reference: Reference) -> RegisteredSchema:
        """A schema that another one uses. Raises like `schema`."""
        with self._lock:
            if reference not in self._versions:
                path = f"/subjects/{quote(reference.subject, safe='')}/versions/{reference.version}"
                self._versions[reference] = self._unless_refused(
                    reference, lambda: self._ask("GET", path, self._version)
                )
            return self._versions[reference]

    def knows(self, id: int) -> bool:
        """Whether the schema, and those that it uses, are had or refused without asking the registry."""
        seen: set[int | Reference] = set()
        waiting: list[int | Reference] = [id]
        while waiting:
            one = waiting.pop()
            if one in seen or self._refusal_of(one) is not None:
                continue
            seen.add(one)
            schema = self._versions.get(one) if isinstance(one, Reference) else self._schemas.get(one)
            if schema is None:
                return self._clock() < self._away_until
            waiting += schema.references
        return True

    def _looked_up(self, id: int) -> RegisteredSchema:
        try:
            return self._ask("GET", f"/schemas/ids/{id}", lambda found: _registered(found, id, self.name))
        except UnknownSchema:
            raise self._unknown_schema(f"no schema {id}") from None

    def _registered_as(self, place: tuple[str, str, str], references: Sequence[Reference]) -> int:
        subject, kind, text = place
        path = f"/subjects/{quote(subject, safe='')}" + ("/versions" if self._register else "")
        try:
            return self._ask("POST", path, lambda found: _number(found, "id", self.name), _body(kind, text, references))
        except UnknownSchema as error:
            missing = f"the schema of {subject} is not registered, and register=False: {error}"
            raise InvalidSetting(missing) from None

    def _version(self, found: Mapping[str, Any]) -> RegisteredSchema:
        return _registered(found, _number(found, "id", self.name), self.name)

    def _unless_refused(self, key: Hashable, ask: Callable[[], T]) -> T:
        """Ask, unless the answer was a refusal a moment ago."""
        refusal = self._refusal_of(key)
        if refusal is not None:
            raise type(refusal)(str(refusal))
        try:
            return ask()
        except (InvalidSetting, UnknownSchema, RegistryUnavailable) as error:
            if len(self._refused) >= MOST_REFUSED:
                self._refused.clear()
            self._refused[key] = (self._clock() + self._pause, error)
            raise

    def _refusal_of(self, key: Hashable) -> Exception | None:
        until, refusal = self._refused.get(key, (0.0, None))
        return refusal if self._clock() < until else None

    def _ask(
        self, method: str, path: str, read: Callable[[Mapping[str, Any]], T], body: Mapping[str, Any] | None = None
    ) -> T:
        if self._clock() < self._away_until:
            raise RegistryUnavailable(self._why_away)
        status = None
        try:
            status, answer = self._answer(method, path, body)
            if status == HTTPStatus.OK and answer is not None:
                return read(answer)
            raise self._refusal(status, answer)
        except RegistryUnavailable as error:
            if status != HTTPStatus.INTERNAL_SERVER_ERROR:  # which may be about this schema alone
                self._away_until = self._clock() + self._pause
                self._why_away = str(error)
            raise

    def _answer(self, method: str, path: str, body: Mapping[str, Any] | None) -> tuple[int, Mapping[str, Any] | None]:
        content = None if body is None else msgspec.json.encode(body)
        limits = {"timeout": self._timeout, "follow_redirects": False, "trust_env": False}
        try:
            # A client for each request: there are few, and connections do not survive forks.
            with (
                httpx.Client(verify=self._tls, auth=self._auth, headers=self._headers, **limits) as client,  # type: ignore[arg-type]  # a dict has one type
                _closed_after(client, self._timeout + GRACE),
                client.stream(method, f"{self.name}{path}", content=content) as response,
            ):
                received = self._read(response)
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, RuntimeError) as error:  # the last two: closed
            raise self._away(f"does not answer ({type(error).__name__})") from None
        return response.status_code, _json(received)

    def _read(self, response: httpx.Response) -> bytes:
        """The body, if it comes soon and is no monster."""
        end = self._clock() + self._timeout
        found = bytearray()
        for part in response.iter_bytes():
            found += part
            if len(found) > MOST_BYTES or self._clock() > end:
                raise self._away(f"answers more than {MOST_BYTES:,} bytes, or for more than {self._timeout:g} s")
        return bytes(found)

    def _refusal(self, status: int, answer: Mapping[str, Any] | None) -> Exception:
        code, said = (answer or {}).get("error_code"), cut(str((answer or {}).get("message", "")), 200)
        match status:
            case HTTPStatus.NOT_FOUND if code is not None and code != HTTPStatus.NOT_FOUND:
                return self._unknown_schema(said or "no such schema")
            case HTTPStatus.CONFLICT | HTTPStatus.UNPROCESSABLE_ENTITY:
                return InvalidSetting(f"the schema registry {self.name} refuses the schema: {said or status}")
            case HTTPStatus.OK:
                return self._away("answered what is no JSON: it is no schema registry")
            case _:
                return self._away(f"answered {status}{REFUSED.get(status, '')}")

    def _unknown_schema(self, what: str) -> UnknownSchema:
        return UnknownSchema(f"the schema registry {self.name} says: {what}")

    def _away(self, how: str) -> RegistryUnavailable:
        return RegistryUnavailable(f"the schema registry {self.name} {how}")


@contextmanager
def _closed_after(client: httpx.Client, seconds: float) -> Iterator[None]:
    """End what the client does after so many seconds: its own limits are for each part of an answer."""
    timer = threading.Timer(seconds, client.close)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _parsed(url: str) -> tuple[str, tuple[str, str] | None]:
    """The URL without credentials, and these."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    if host is None or parts.scheme not in {"http", "https"} or parts.query or parts.fragment:
        raise InvalidSetting("the URL of the schema registry is not valid: write it as https://host:port")
    shown = f"[{host}]" if ":" in host else host
    name = f"{parts.scheme}://{shown}" + (f":{port}" if port else "") + parts.path.rstrip("/")
    user = None if parts.username is None else (unquote(parts.username), unquote(parts.password or ""))
    return name, user


def _tls(name: str, ca: str | None) -> ssl.SSLContext | bool:
    if ca is None:
        return name.startswith("https:")
    if not name.startswith("https:"):
        raise InvalidSetting(f"ca is given for {name}, which is not encrypted: use https")
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise InvalidSetting(f"ca = {ca!r} of the schema registry cannot be loaded: {type(error).__name__}") from None


def _json(received: bytes) -> Mapping[str, Any] | None:
    try:
        found = msgspec.json.decode(received)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return found if isinstance(found, Mapping) else None


def _body(type: str, text: str, references: Sequence[Reference]) -> dict[str, Any]:
    body: dict[str, Any] = {"schema": text, "schemaType": type}
    if references:
        body["references"] = [one._asdict() for one in references]
    return body


def _registered(found: Mapping[str, Any], id: int, name: str) -> RegisteredSchema:
    try:
        references = tuple(
            Reference(str(one["name"]), str(one["subject"]), int(one["version"]))
            for one in found.get("references") or ()
        )
        return RegisteredSchema(id, str(found.get("schemaType") or "AVRO"), str(found["schema"]), references)
    except (KeyError, TypeError, ValueError):
        raise _no_registry(name) from None


def _number(found: Mapping[str, Any], field: str, name: str) -> int:
    number = found.get(field)
    if not isinstance(number, int):
        raise _no_registry(name)
    return number


def _no_registry(name: str) -> RegistryUnavailable:
    return RegistryUnavailable(f"the schema registry {name} answered what a schema registry does not: check the URL")

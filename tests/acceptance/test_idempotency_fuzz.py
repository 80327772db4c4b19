"""Requests of every shape: none leads to an error of ours, to a second effect, or to another tenant's response.

To a server over the wire, and, since servers refuse or mend much, to the middleware itself.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from contextlib import AsyncExitStack, closing, suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode

import h11
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from postroom.web import IdempotencyMiddleware
from postroom.web.idempotency.keyed_request import ENVIRON_KEY
from tests.acceptance.keyed_shop import served
from tests.acceptance.service import Service

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from tests.conftest import FreshDatabase

    Ask = Callable[["Shop", "Fuzzed", bytes | None], Awaitable["Answer"]]

OVER_THE_WIRE = 2000
BY_HAND = 500
OURS = {400, 409, 413, 422}
MOST = 200
PATIENCE = 60
LENGTHS = {b"content-length", b"transfer-encoding", b"connection", b"host", b"expect", b"upgrade"}
"""Headers that are about the connection: those of `written` count."""
REFUSED_BY_THE_SERVER = b"Invalid HTTP request received."

keys = st.sampled_from(["a", "b", '"a"', '"a";p=1', '"b\\""', "a b", "é", "", '"', "x" * 255, "x" * 256]) | st.text(
    st.characters(codec="latin-1"), max_size=20
)
json_keys = keys | st.none() | st.integers() | st.lists(st.text(max_size=3), max_size=2)
bodies = st.one_of(
    st.binary(max_size=MOST + 50),
    st.builds(lambda key: json.dumps({"idempotency_key": key, "n": 1}).encode(), json_keys),
    st.builds(lambda key: urlencode({"idempotency_key": key}).encode(), keys),
    st.sampled_from([b"", b"{", b"[" * MOST, b'{"idempotency_key": "\\ud800"}', b"idempotency_key=%ff", b"null"]),
)
headers = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from([b"idempotency-key", b"Idempotency-Key"]), keys.map(lambda key: key.encode("latin-1"))
        ),
        st.tuples(
            st.just(b"content-type"),
            st.sampled_from(
                [b"application/json", b"application/x-www-form-urlencoded", b"a/b+json; charset=x", b"\xff"]
            ),
        ),
        st.tuples(st.just(b"content-length"), st.sampled_from([b"0", b"10", b"-1", b"999", b"9" * 30, b"\xb2", b"x"])),
        st.tuples(st.binary(min_size=1, max_size=10), st.binary(max_size=10)),
    ),
    max_size=5,
)


class Fuzzed(NamedTuple):
    """A request as a server could hand it on."""

    method: str
    path: str
    raw_path: bytes | None
    query: bytes
    headers: list[tuple[bytes, bytes]]
    parts: list[bytes]
    tenants: tuple[bytes | None, bytes | None]


fuzzed = st.builds(
    Fuzzed,
    method=st.sampled_from(["POST", "POST", "PATCH", "PUT", "post", "FOO"]),
    path=st.sampled_from(["/orders", "/orders/1", "/orders/2", "/free", "/"])
    | st.text(st.characters(exclude_categories=()), max_size=300).map("/{}".format),
    raw_path=st.none() | st.binary(min_size=1, max_size=20),
    query=st.just(b"") | st.binary(max_size=10),
    headers=headers,
    parts=st.lists(bodies, min_size=1, max_size=2),
    tenants=st.tuples(*[st.none() | st.sampled_from([b"Bearer a", b"Bearer b"]) | st.binary(max_size=5)] * 2),
)


class Shop:
    """Counts effects by whose they are and what for."""

    def __init__(self, url: str) -> None:
        self.effects: Counter[tuple[Any, ...]] = Counter()
        self.middleware = IdempotencyMiddleware(
            self.app, database=url, required=["/orders/{id}"], optional=["POST", "PATCH /orders"], max_body_bytes=MOST
        )

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        tenant = tenant_of(scope)
        more = True
        while more:
            event = await receive()
            more = event.get("more_body", False)
        keyed = scope.get(ENVIRON_KEY)
        if keyed is not None:
            self.effects[(tenant, keyed.entry.scope, keyed.key)] += 1
        await asyncio.sleep(0)
        body = repr((tenant, self.effects.total())).encode()
        kept = (b"x-keyed", b"1" if keyed else b"0")
        await send({"type": "http.response.start", "status": 201, "headers": [kept, (b"x-odd", b"\xfe")]})
        await send({"type": "http.response.body", "body": body})


def tenant_of(scope: Any) -> bytes | None:
    return next((value for name, value in scope["headers"] if name == b"authorization"), None)


class Answer(NamedTuple):
    status: int
    headers: dict[bytes, bytes]
    body: bytes


def headers_of(request: Fuzzed, tenant: bytes | None) -> list[tuple[bytes, bytes]]:
    own = [(b"authorization", tenant)] if tenant is not None else []
    return [*own, *((name, value) for name, value in request.headers if name.lower() != b"authorization")]


async def hand(shop: Shop, request: Fuzzed, tenant: bytes | None) -> Answer:
    """Call the middleware as a server would that lets everything through."""
    scope = {
        "type": "http",
        "method": request.method,
        "path": request.path,
        "query_string": request.query,
        "headers": headers_of(request, tenant),
        **({} if request.raw_path is None else {"raw_path": request.raw_path}),
    }
    last = len(request.parts) - 1
    events = iter(
        {"type": "http.request", "body": part, "more_body": number != last} for number, part in enumerate(request.parts)
    )
    sent: list[Any] = []

    async def receive() -> Any:
        return next(events, {"type": "http.disconnect"})

    async def send(event: Any) -> None:
        sent.append(event)

    await shop.middleware(scope, receive, send)
    start, body = sent
    return Answer(start["status"], dict(start["headers"]), body["body"])


class HeaderFormat:
    """The same requests, as bytes to a real server."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def ask(self, _shop: Shop, request: Fuzzed, tenant: bytes | None) -> Answer:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(written(request, tenant))
            async with asyncio.timeout(PATIENCE):
                return await read_answer(reader)
        finally:
            writer.close()
            with suppress(ConnectionError):  # it refused what it had not read to the end
                await writer.wait_closed()


def written(request: Fuzzed, tenant: bytes | None) -> bytes:
    """In chunks, so that no length has to be told. What would end a line early, or continue the last, is left out."""
    path = quote(request.path, errors="surrogatepass").encode() if request.raw_path is None else request.raw_path
    target = re.sub(rb"[\x00-\x20\x7f#?]", b"", path) + b"?" + re.sub(rb"[\x00-\x20\x7f#]", b"", request.query)
    lines = [b"%s %s HTTP/1.1" % (request.method.encode(), target), b"host: shop", b"transfer-encoding: chunked"]
    for name, value in headers_of(request, tenant):
        if name.lower() not in LENGTHS:
            lines.append(re.sub(rb"[\r\n:]", b"", name).lstrip(b" \t") + b": " + on_one_line(value))
    chunks = [b"%x\r\n%s\r\n" % (len(part), part) for part in request.parts if part]
    return b"\r\n".join(lines) + b"\r\n\r\n" + b"".join(chunks) + b"0\r\n\r\n"


def on_one_line(value: bytes) -> bytes:
    """A header's value as it goes over the wire, and as servers hand it on."""
    return re.sub(rb"[\r\n]", b"", value).strip(b" \t")


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    parser = h11.Connection(h11.CLIENT)
    parser.send(h11.Request(method="POST", target="/", headers=[("host", "shop")]))
    parser.send(h11.EndOfMessage())
    head: h11.Response | None = None
    body = b""
    while not isinstance(event := parser.next_event(), h11.EndOfMessage):
        if event is h11.NEED_DATA:
            parser.receive_data(await reader.read(65536))
        elif isinstance(event, h11.Response):
            head = event
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
    assert head is not None
    return Answer(head.status_code, dict(head.headers), body)


def check(shop: Shop, answer: Answer, tenant: bytes | None) -> None:
    if answer.status == 201:
        seen = tenant if tenant is None else on_one_line(tenant)
        assert answer.body.startswith((f"({tenant!r}, ".encode(), f"({seen!r}, ".encode()))
    elif answer.body != REFUSED_BY_THE_SERVER:
        assert answer.status in OURS
        assert answer.headers[b"content-type"] == b"application/problem+json"
        assert json.loads(answer.body)["status"] == answer.status
    assert not shop.effects or shop.effects.most_common(1)[0][1] == 1


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def shop(module_database: FreshDatabase, runner: asyncio.Runner) -> Iterator[Shop]:
    with closing(Service(module_database("sqlite"))) as service:
        shop = Shop(service.url)
        yield shop
        runner.run(shop.middleware.close())


@pytest.fixture(scope="module")
def wire(shop: Shop, runner: asyncio.Runner) -> Iterator[HeaderFormat]:
    """The shop behind a server."""
    stack = AsyncExitStack()
    client = runner.run(stack.enter_async_context(served(shop.middleware)))
    assert client.base_url.port is not None
    yield HeaderFormat(client.base_url.port)
    runner.run(stack.aclose())


async def ask_all(shop: Shop, ask: Ask, request: Fuzzed) -> None:
    tenants = (*request.tenants, request.tenants[0])
    twins = await asyncio.gather(*(ask(shop, request, tenant) for tenant in tenants))
    for answer, tenant in zip(twins, tenants, strict=True):
        check(shop, answer, tenant)
    first, again = [await ask(shop, request, request.tenants[0]) for _ in range(2)]
    check(shop, again, request.tenants[0])
    assert first.status == again.status
    if again.headers.get(b"x-keyed") == b"1":  # kept, and given again
        assert again.headers[b"idempotent-replayed"] == b"true"
        assert again.body == first.body


@settings(max_examples=OVER_THE_WIRE, deadline=None, suppress_health_check=list(HealthCheck))
@given(request=fuzzed)
@example(Fuzzed("POST", "/", None, b"", [(b"content-type", b"application/json")], [b" " * MOST] * 2, (None, None)))
def test_no_request_to_a_server_leads_to_an_error_a_second_effect_or_anothers_response(
    shop: Shop, wire: HeaderFormat, runner: asyncio.Runner, request: Fuzzed
) -> None:
    runner.run(ask_all(shop, wire.ask, request))


@settings(max_examples=BY_HAND, deadline=None, suppress_health_check=list(HealthCheck))
@given(request=fuzzed)
def test_nor_does_one_that_a_server_would_not_have_let_through(
    shop: Shop, runner: asyncio.Runner, request: Fuzzed
) -> None:
    runner.run(ask_all(shop, hand, request))

"""Requests of every shape: none leads to an error of ours, to a second effect, or to another tenant's response."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postroom.web import IdempotencyMiddleware
from postroom.web.joining import PLACE
from tests.acceptance.service import Service

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import FreshDatabase

EXAMPLES = 2000
OURS = {400, 409, 413, 422}
MOST = 200

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
        keyed = scope.get(PLACE)
        if keyed is not None:
            self.effects[(tenant, keyed.entry.scope, keyed.key)] += 1
        await asyncio.sleep(0)
        body = repr((tenant, self.effects.total())).encode()
        kept = (b"x-keyed", b"1" if keyed else b"0")
        await send({"type": "http.response.start", "status": 201, "headers": [kept, (b"x\xff", b"\xfe")]})
        await send({"type": "http.response.body", "body": body})


def tenant_of(scope: Any) -> bytes | None:
    return next((value for name, value in scope["headers"] if name == b"authorization"), None)


class Answer(NamedTuple):
    status: int
    headers: dict[bytes, bytes]
    body: bytes


async def ask(shop: Shop, request: Fuzzed, tenant: bytes | None) -> Answer:
    own = [(b"authorization", tenant)] if tenant is not None else []
    scope = {
        "type": "http",
        "method": request.method,
        "path": request.path,
        "query_string": request.query,
        "headers": [*own, *((name, value) for name, value in request.headers if name.lower() != b"authorization")],
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


def check(shop: Shop, answer: Answer, tenant: bytes | None) -> None:
    if answer.status == 201:
        assert answer.body.startswith(f"({tenant!r}, ".encode())
    else:
        assert answer.status in OURS
        assert answer.headers[b"content-type"] == b"application/problem+json"
        assert json.loads(answer.body)["status"] == answer.status
    assert not shop.effects or shop.effects.most_common(1)[0][1] == 1


@pytest.fixture(scope="module")
def shop(module_database: FreshDatabase) -> Iterator[tuple[Shop, asyncio.Runner]]:
    with closing(Service(module_database("sqlite"))) as service, asyncio.Runner() as runner:
        shop = Shop(service.url)
        yield shop, runner
        runner.run(shop.middleware.close())


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(request=fuzzed)
def test_no_request_leads_to_an_error_a_second_effect_or_anothers_response(
    shop: tuple[Shop, asyncio.Runner], request: Fuzzed
) -> None:
    one, runner = shop

    async def ask_all() -> None:
        twins = await asyncio.gather(*(ask(one, request, tenant) for tenant in (*request.tenants, request.tenants[0])))
        for answer, tenant in zip(twins, (*request.tenants, request.tenants[0]), strict=True):
            check(one, answer, tenant)
        first, again = [await ask(one, request, request.tenants[0]) for _ in range(2)]
        check(one, again, request.tenants[0])
        assert first.status == again.status
        if again.headers.get(b"x-keyed") == b"1":  # kept, and given again
            assert again.headers[b"idempotent-replayed"] == b"true"
            assert again.body == first.body

    runner.run(ask_all())

"""The receiver of webhooks: its answers one by one, and behind a real server with a relay that posts to it."""

from __future__ import annotations

import asyncio
import base64
import time
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import uvicorn

from postroom import Consumer, Message, Relay
from postroom.brokers.cloudevents import HTTP, Envelope
from postroom.brokers.webhook_signatures import attributes, attributes_key, key_of, signature
from postroom.errors import InvalidSetting
from postroom.web import Receiver
from tests.acceptance.service import Service
from tests.acceptance.waiting import wait_for
from tests.services.ports import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from sqlalchemy.ext.asyncio import AsyncConnection

    from postroom.incoming import Incoming
    from tests.conftest import FreshDatabase

SECRET = "whsec_" + base64.b64encode(b"a secret for tests").decode()
OLD_SECRET = "whsec_" + base64.b64encode(b"the one before it").decode()
NOW = 1_700_000_000


@pytest.fixture
def service(ready_database: FreshDatabase) -> Iterator[Service]:
    with closing(Service(ready_database("sqlite"))) as service:
        yield service


class Billing:
    """A consumer that writes down what it handles, and may be told to fail or to wait."""

    def __init__(self, service: Service, **settings: Any) -> None:
        self.consumer = Consumer("billing", database=service.url, poll_interval_sec=0.02, **settings)
        self.handled: list[Incoming] = []
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.fails = False
        self.consumer.handler("orders.*", delays=[3600])(self.bill)

    async def bill(self, connection: AsyncConnection, message: Incoming) -> None:
        del connection
        await self.may_go_on.wait()
        if self.fails:
            raise RuntimeError("not now")
        self.handled.append(message)


@asynccontextmanager
async def requests_to(receiver: Receiver, billing: Billing) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        billing.consumer,
        httpx.AsyncClient(transport=httpx.ASGITransport(receiver), base_url="http://receiver") as client,
    ):
        yield client


def signed(message: Message, secret: str = SECRET, at: int = NOW, mode: Any = "binary") -> dict[str, Any]:
    headers, body = Envelope(HTTP, mode=mode).seal(message)
    name = str(message.id)
    made = signature(key_of(secret), name, at, body or b"")
    of_attributes = signature(attributes_key(key_of(secret)), name, at, attributes(headers))
    headers |= {"webhook-id": name, "webhook-timestamp": str(at), "webhook-signature": f"v1a,other {made}"}
    headers |= {"webhook-attributes-signature": f"v1,other {of_attributes}"} if mode == "binary" else {}
    return {"headers": headers, "content": body or b""}


def receiver_of(billing: Billing, **options: Any) -> Receiver:
    return Receiver(billing.consumer, **{"secret": [OLD_SECRET, SECRET], "clock": lambda: NOW + 10.0, **options})


@pytest.mark.parametrize("mode", ["binary", "structured"])
async def test_a_signed_message_is_handled_before_it_is_answered(service: Service, mode: str) -> None:
    billing = Billing(service)
    message = Message.new("orders.created", {"n": 1}, key="k", type="OrderCreated")
    async with requests_to(receiver_of(billing), billing) as client:
        first = await client.post("/hooks", **signed(message, mode=mode))
        assert (first.status_code, [one.id for one in billing.handled]) == (204, [str(message.id)])
        again = await client.post("/hooks", **signed(message, secret=OLD_SECRET, mode=mode))
        assert again.status_code == 204
    [handled] = billing.handled
    assert (handled.topic, handled.key, handled.type, handled.json()) == (
        "orders.created",
        "k",
        "OrderCreated",
        {"n": 1},
    )
    assert billing.consumer.report.duplicates == 1


async def test_a_plain_webhook_has_its_path_for_a_topic_where_it_is_let_in(service: Service) -> None:
    billing = Billing(service)
    body = b'{"n": 2}'
    headers = {"webhook-id": "msg_1", "webhook-timestamp": str(NOW), "content-type": "application/json"}
    headers["webhook-signature"] = signature(key_of(SECRET), "msg_1", NOW, body)
    async with requests_to(receiver_of(billing, unsigned_attributes=True), billing) as client:
        assert (await client.post("/orders.paid", content=body, headers=headers)).status_code == 204
        assert (await client.post("/orders.other", content=body, headers=headers)).status_code == 204
    [handled] = billing.handled  # it is the same one, on whatever path it comes
    assert (handled.id, handled.topic, handled.json()) == ("msg_1", "orders.paid", {"n": 2})


async def test_an_event_cannot_be_made_a_plain_webhook_of_another_topic(service: Service) -> None:
    billing = Billing(service)
    request = signed(Message.new("orders.created", {"n": 1}))
    named = ("content-type", "webhook-id", "webhook-timestamp", "webhook-signature")
    request["headers"] = {name: request["headers"][name] for name in named}
    async with requests_to(receiver_of(billing), billing) as client:
        answer = await client.post("/orders.cancelled", **request)
    assert (answer.status_code, billing.handled) == (401, [])
    assert "unsigned_attributes=True" in answer.json()["title"]


async def test_a_payload_cannot_be_made_an_event(service: Service) -> None:
    billing = Billing(service)
    event = {"specversion": "1.0", "id": "1", "source": "/", "type": "OrderCancelled", "topic": "orders.cancelled"}
    request = signed(Message.new("orders.created", event))
    named = ("webhook-id", "webhook-timestamp", "webhook-signature")
    request["headers"] = {name: request["headers"][name] for name in named}
    request["headers"]["content-type"] = "application/cloudevents+json"
    async with requests_to(receiver_of(billing), billing) as client:
        answer = await client.post("/", **request)
        assert (answer.status_code, billing.handled) == (401, [])
        assert "webhook-id is not the event's id" in answer.json()["title"]
    async with requests_to(receiver_of(billing, unsigned_attributes=True), billing) as client:
        assert (await client.post("/", **request)).status_code == 204
        request["headers"]["content-type"] = "application/json"
        assert (await client.post("/orders.other", **request)).status_code == 204
    assert len(billing.handled) == 1


async def test_what_is_not_signed_for_us_is_refused(service: Service) -> None:
    billing = Billing(service)
    message = Message.new("orders.created", {"n": 1})
    stranger = "whsec_" + base64.b64encode(b"a stranger's").decode()
    request = signed(message)
    async with requests_to(receiver_of(billing), billing) as client:
        answers = [
            await client.post("/", **signed(message, secret=stranger)),
            await client.post("/", **signed(message, at=NOW - 1000)),
            await client.post("/", **signed(message, at=NOW + 1000)),
            await client.post("/", **{**request, "content": b'{"n": 2}'}),
            await client.post("/", content=b"{}", headers={"ce-id": "1"}),
            await client.post("/", **{**request, "headers": {**request["headers"], "webhook-timestamp": "soon"}}),
        ]
    assert [answer.status_code for answer in answers] == [401] * 6
    assert all(answer.headers["content-type"] == "application/problem+json" for answer in answers)
    assert billing.handled == []


CHANGES: dict[str, dict[str, str | None]] = {
    "another type": {"ce-type": "OrderCancelled"},
    "another topic": {"ce-topic": "orders.cancelled"},
    "another source": {"ce-source": "/other"},
    "another id": {"ce-id": "1"},
    "another key": {"ce-partitionkey": "k2"},
    "no expiry": {"ce-expirytime": "2999-01-01T00:00:00Z"},
    "an attribute less": {"ce-partitionkey": None},
    "another content type": {"content-type": "text/plain"},
    "no signature of the attributes": {"webhook-attributes-signature": None, "ce-type": "OrderCancelled"},
    "the body's signature": {"webhook-attributes-signature": "{webhook-signature}"},
    "no event any more, but its id": {"ce-specversion": None, "webhook-attributes-signature": None},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_what_decides_on_a_message_cannot_be_changed_on_the_way(
    service: Service, change: dict[str, str | None]
) -> None:
    billing = Billing(service)
    request = signed(Message.new("orders.created", {"n": 1}, key="k", type="OrderCreated"))
    before = request["headers"]
    changed = {**before, **{name: value and value.format(**before) for name, value in change.items()}}
    request["headers"] = {name: value for name, value in changed.items() if value is not None}
    async with requests_to(receiver_of(billing), billing) as client:
        answer = await client.post("/orders.other", **request)
    assert (answer.status_code, billing.handled) == (401, [])
    assert "attributes are not signed" in answer.json()["title"]


async def test_a_structured_event_cannot_be_made_a_binary_one(service: Service) -> None:
    billing = Billing(service)
    request = signed(Message.new("orders.created", {"n": 1}), mode="structured")
    request["headers"] |= {"content-type": "application/json", "ce-specversion": "1.0", "ce-source": "/shop"}
    request["headers"] |= {"ce-type": "OrderCancelled", "ce-id": "1", "ce-topic": "orders.cancelled"}
    async with requests_to(receiver_of(billing), billing) as client:
        assert (await client.post("/", **request)).status_code == 401


async def test_the_signature_of_the_attributes_is_none_of_a_body(service: Service) -> None:
    """Or who has listened could have a message handled that holds the attributes' text."""
    billing = Billing(service)
    request = signed(Message.new("orders.created", {"n": 1}))
    headers = request["headers"]
    body = attributes(headers)
    plain = {name: headers[name] for name in ("webhook-id", "webhook-timestamp")}
    plain["webhook-signature"] = headers["webhook-attributes-signature"]
    async with requests_to(receiver_of(billing), billing) as client:
        assert (await client.post("/orders.paid", headers=plain, content=body)).status_code == 401


async def test_senders_that_sign_no_attributes_can_be_let_in(service: Service) -> None:
    billing = Billing(service)
    request = signed(Message.new("orders.created", {"n": 1}))
    del request["headers"]["webhook-attributes-signature"]
    async with requests_to(receiver_of(billing, unsigned_attributes=True), billing) as client:
        assert (await client.post("/", **request)).status_code == 204
    assert len(billing.handled) == 1


async def test_wrong_requests_get_an_answer_that_says_why(service: Service) -> None:
    billing = Billing(service)
    async with requests_to(receiver_of(billing, secret=None, max_bytes=100), billing) as client:
        get = await client.get("/")
        large = await client.post("/", content=b"x" * 101)
        chunked = await client.post("/", content=_chunks())
        nameless = await client.post("/orders.created", content=b"{}")
        broken = await client.post("/", content=b"{", headers={"content-type": "application/cloudevents+json"})
    assert (get.status_code, get.headers["allow"]) == (405, "POST")
    assert (large.status_code, chunked.status_code) == (413, 413)
    assert (nameless.status_code, nameless.json()["title"]) == (400, "the message has no id: send webhook-id or ce-id")
    assert (broken.status_code, broken.json()["status"]) == (400, 400)
    assert "not a structured CloudEvent" in broken.json()["title"]


async def _chunks() -> AsyncIterator[bytes]:
    for _ in range(20):
        yield b"x" * 10


async def test_a_handler_that_fails_is_ours_to_retry_and_not_the_senders(service: Service) -> None:
    billing = Billing(service)
    billing.fails = True
    async with requests_to(receiver_of(billing), billing) as client:
        assert (await client.post("/", **signed(Message.new("orders.created", {})))).status_code == 204
    assert (billing.consumer.report.parked, service.status().waiting) == (1, 1)


async def test_a_sender_does_not_wait_for_ever_and_may_send_again(service: Service) -> None:
    billing = Billing(service)
    billing.may_go_on.clear()
    message = Message.new("orders.created", {}, key="k")
    patient = httpx.AsyncClient(transport=httpx.ASGITransport(receiver_of(billing)), base_url="http://receiver")
    async with requests_to(receiver_of(billing, patience=0.05), billing) as client, patient:
        slow = await client.post("/", **signed(message))
        assert (slow.status_code, slow.headers["retry-after"]) == (503, "5")
        billing.may_go_on.set()
        await wait_for(lambda: billing.handled)
        assert (await patient.post("/", **signed(message))).status_code == 204
    assert len(billing.handled) == 1


async def test_what_is_not_begun_when_the_receiver_stops_is_to_come_again(service: Service) -> None:
    billing = Billing(service)
    billing.may_go_on.clear()
    async with requests_to(receiver_of(billing), billing) as client:
        posts = [
            asyncio.create_task(client.post("/", **signed(Message.new("orders.created", {"n": n}, key="k"))))
            for n in range(2)
        ]
        [run] = billing.consumer._active
        await wait_for(lambda: run.intake.in_flight == 2)
        billing.consumer.stop()
        await asyncio.sleep(0)
        billing.may_go_on.set()
        answers = sorted([(await post).status_code for post in posts])
    assert answers == [204, 503]
    assert len(billing.handled) == 1


def test_a_secret_that_is_none_is_refused_and_not_shown(service: Service) -> None:
    with pytest.raises(InvalidSetting, match="whsec_ and base64") as raised:
        Receiver(Billing(service).consumer, secret="my-secret!")  # noqa: S106 - none
    assert "my-secret" not in str(raised.value)


async def test_behind_a_server_it_receives_what_a_relay_posts(service: Service, ready_database: FreshDatabase) -> None:
    billing = Billing(service)
    port = free_port()
    application = Receiver(billing.consumer, secret=SECRET)
    server = uvicorn.Server(uvicorn.Config(application, port=port, log_level="warning", ws="none"))
    serving = asyncio.create_task(server.serve())
    with closing(Service(ready_database("sqlite"))) as shop:
        shop.commit(*(Message.new("orders.created", {"n": n}, key=f"k{n % 3}") for n in range(60)))
        await wait_for(lambda: server.started)
        url = f"http://127.0.0.1:{port}/hooks?postroom.private=true&postroom.secret={SECRET}"
        started = time.monotonic()
        report = await Relay(shop.url, url, broker_timeout_ms=20_000).run_until_empty()
        assert report.sent == 60, time.monotonic() - started
    server.should_exit = True
    await serving
    for key in range(3):
        numbers = [one.json()["n"] for one in billing.handled if one.key == f"k{key}"]
        assert numbers == list(range(key, 60, 3))


async def test_a_consumer_that_cannot_start_fails_the_server(tmp_path: Any) -> None:
    consumer = Consumer("billing", database=f"sqlite:///{tmp_path}/none.db")

    @consumer.handler("*")
    def bill(message: Incoming) -> None: ...

    events = iter([{"type": "lifespan.startup"}])
    sent: list[Any] = []

    async def receive() -> Any:
        return next(events)

    async def send(event: Any) -> None:
        sent.append(event)

    await Receiver(consumer, secret=None)({"type": "lifespan"}, receive, send)
    assert sent[0]["type"] == "lifespan.startup.failed"
    assert "there is no database file" in sent[0]["message"]


async def test_I_1_a_signed_message_cannot_be_sent_again_under_another_id(service: Service) -> None:
    """Where attributes need no signature, webhook-id is signed, and tells a repetition."""
    billing = Billing(service)
    request = signed(Message.new("orders.created", {"n": 1}))
    async with requests_to(receiver_of(billing, unsigned_attributes=True), billing) as client:
        for change in ({"ce-id": "1"}, {"ce-id": "2"}, {"ce-source": "/other"}, {"ce-topic": "orders.paid"}):
            again = await client.post("/", **{**request, "headers": {**request["headers"], **change}})
            assert again.status_code == 204
    assert [one.id for one in billing.handled] == [request["headers"]["webhook-id"]]

"""The dashboard without a browser: what each page tells, what wrong input does, and a database that is slow or away."""

from __future__ import annotations

import asyncio
import re
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from postroom import Admin, Message, Relay
from postroom.web import Dashboard
from postroom.web.dashboard import database as behind
from tests.acceptance.dashboard_shop import ERRORS, SECRET, TRACE, Shop, filled
from tests.acceptance.dashboard_visitor import OURS, PAGES, TOKEN, Visitor
from tests.acceptance.service import Service
from tests.services.databases import need
from tests.services.postgresql import PostgreSQL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from postroom.admin import Overview
    from tests.conftest import FreshDatabase

XSS = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"


on_every_database = pytest.mark.parametrize("shop", ["sqlite", "postgresql", "mariadb"], indirect=True)


@pytest.fixture(scope="module")
def shop(request: pytest.FixtureRequest, module_database: FreshDatabase) -> Shop:
    return filled(module_database(getattr(request, "param", "sqlite")))


@pytest.fixture(scope="module")
def dashboard(shop: Shop) -> Iterator[Dashboard]:
    app = Dashboard(shop.url, token=TOKEN, trace_link="https://traces.example/{trace_id}")
    yield app
    app._database.close()


@pytest.fixture
async def ada(dashboard: Dashboard) -> AsyncIterator[Visitor]:
    async with Visitor(dashboard) as visitor:
        assert (await visitor.log_in()).status_code == 200
        yield visitor


@on_every_database
async def test_V_4_payloads_and_headers_are_masked_shown_by_right_and_audited(
    ada: Visitor, shop: Shop, dashboard: Dashboard
) -> None:
    for page in (*PAGES, f"message?id={shop.sent}", f"message?id={shop.dead[0]}", "saga?name=place_order&id=order-2"):
        assert SECRET not in (await ada.get(page)).text
    shown = await ada.post("message", {"id": shop.sent})
    assert shown.text.count(SECRET) == 2
    saga = await ada.post("saga", {"name": "place_order", "id": "order-2"})
    assert SECRET in saga.text
    assert SECRET not in (await ada.get("lookup?key=key-8")).text
    assert (await ada.post("lookup", {"key": "key-8", "scope": ""})).text.count(SECRET) == 2
    with Admin(shop.url) as admin:
        entries = admin.audit(action="shown", actor="ada").items
        assert entries[0].details["what"] == "ledger response of key 'key-8' in scope ''"
    assert [entry.message_id for entry in entries][-1] == shop.sent
    trace = f'href="https://traces.example/{TRACE}"'
    assert trace in (await ada.get(f"message?id={shop.sent}")).text


@on_every_database
async def test_V_4_every_page_tells_what_it_is_for(ada: Visitor, shop: Shop) -> None:
    overview = (await ada.get("")).text
    assert "Needs attention" in overview
    assert "1 parked: saga place_order" in overview
    assert "3 transactions not settled" in overview
    groups = (await ada.get("dead")).text
    for topic, (code, _) in ERRORS.items():
        assert topic in groups
        assert code in groups
    assert groups.count("data-row") == 4  # the fourth is the parked saga
    pending = (await ada.get(f"message?id={shop.held.id}")).text
    assert "held behind message" in pending
    assert f"message?id={shop.dead[0]}" in pending
    assert "Timeline" in pending
    saga = (await ada.get("saga?name=place_order&id=order-2")).text
    assert "undoing reserve failed for good" in saga
    assert "CARD_DECLINED" in saga
    assert "bank" in (await ada.get(f"transaction?id={shop.in_doubt}")).text
    assert "billing" in (await ada.get("lookup?message=message-7")).text
    assert "in_progress" in (await ada.get("lookup?key=key-7")).text.replace("in progress", "in_progress")
    found = await ada.get("search?q=topic%3Aorders.created+state%3Apending")
    assert (found.status_code, found.text.count("data-row")) == (200, 1)
    assert str(found.url).endswith("messages?topic=orders.created&state=pending")
    plain = await ada.get("search?q=can't C:\\x")
    assert str(plain.url).endswith("messages?error=can%27t+C%3A%5Cx")
    assert str((await ada.get(f"search?q={shop.sent}")).url).endswith(f"message?id={shop.sent}")
    assert (await ada.client.head("messages")).status_code == 200


@on_every_database
async def test_V_4_filters_and_pages(ada: Visitor) -> None:
    async def rows(query: str) -> int:
        answer = await ada.get(f"messages?{query}")
        assert answer.status_code == 200, answer.text
        return answer.text.count("data-row")

    assert await rows("state=dead&topic=payments.captured") == 4
    assert await rows("state=dead&error=EMAIL") == 4
    assert await rows("state=dead&payload=4111") == 13  # a parked saga is one
    assert await rows("type=OrderCreated") == 1
    assert await rows("key=k-1&since=1h") == 1
    assert await rows("key=k-1&until=1h") == 0
    assert await rows("state=sent&topic=orders.created") == 20
    first = await ada.get("messages")
    following = re.search(r'rel="next" href="([^"]*)"', first.text)
    if following:  # fewer messages than a page has
        assert (await ada.get(following[1])).status_code == 200
    assert (await ada.get("messages?before=1")).text.count("data-row") == 0


BAD = {
    "messages": ["since=0001-01-01", "until=9999-12-31T23:59:59",
                 "state=gone", "since=soon", "until=x", "before=0", "before=-1", "before=x", "before=" + "9" * 20,
                 "topic=" + "x" * 2000, "topic=%00", "key=%00", "error=%00", "payload=%00", "since=1h&until=2h",
                 "code=X&state=sent", "fingerprint=x&state=pending", "fingerprint=%5Cu0000", "queue=%00", "type=%00"],
    "dead": ["state=sent", "since=x", "topic=%00", "look=0", "look=x"],
    "": ["range=2y", "queue=%00"],
    "search": ["q=%22", "q=id:7"],
    "message": ["", "id=", "id=7", "id=%00"],
    "sagas": ["state=gone", "before=x", "name=%00", "code=%00"],
    "saga": ["", "name=x", "id=x", "name=%00&id=x"],
    "transactions": ["state=gone", "before=%00"],
    "transaction": ["", "id=%00"],
    "lookup": ["message=%00", "key=%00", "scope=" + "x" * 300, "consumer=%00&message=x", "after=%00&scope=x"],
    "audit": ["action=stole", "actor=%00", "message=7", "before=x"],
}  # fmt: skip


@on_every_database
async def test_V_4_wrong_input_is_told_and_never_breaks_a_page(ada: Visitor, shop: Shop) -> None:
    for page, queries in BAD.items():
        for query in queries:
            answer = await ada.get(f"{page}?{query}")
            assert answer.status_code == 400, (page, query, answer.status_code)
            assert "This cannot be asked" in answer.text
    missing = ("message?id=01a1eb10-74c7-720d-8c25-80e68eaa5ad2", "saga?name=a&id=b", "transaction?id=x", "none", "a/b")
    for page in missing:
        assert (await ada.get(page)).status_code == 404
    forms: dict[str, list[dict[str, Any]]] = {
        "confirm": [
            {},
            {"do": "requeue"},
            {"do": "explode filter", "as_of": "2026-01-01"},
            {"do": "requeue filter"},
            {"do": "requeue filter", "as_of": "now"},
            {"do": "requeue filter", "as_of": "0001-01-01T00:00:00+14:00"},
            {"do": "abort filter", "as_of": "9999-12-31T23:59:59-14:00"},
            {"do": "requeue selection", "as_of": "2026-01-01"},
            {"do": "requeue selection", "as_of": "2026-01-01", "id": "7"},
            {"do": "resume selection", "as_of": "2026-01-01", "id": "7"},
            {"do": "resume selection", "as_of": "2026-01-01", "id": '["a\\u0000", "b"]'},
            {"do": "requeue filter", "as_of": "2026-01-01", "state": "gone"},
            {"do": "cancel filter", "as_of": "2026-01-01", "fingerprint": "x"},
            {"do": "cancel filter", "as_of": "2026-01-01", "state": "sent"},
            {"do": "requeue filter", "as_of": "2026-01-01", "state": "pending"},
        ],
        "act": [{}, {"do": "requeue filter", "as_of": "2026-01-01", "total": "x"}],
        "decide": [{"id": shop.in_doubt, "action": "explode"}, {"action": "abort"}],
        "replay": [{"id": "7"}, {"id": shop.dead[0], "new_id": shop.dead[0], "headers": "no colon"}],
        "theme": [{"theme": "pink"}],
    }
    for page, given in forms.items():
        for form in given:
            answer = await ada.post(page, form)
            assert answer.status_code == 400, (page, form, answer.status_code, answer.text)
    many = "&".join(f"a{n}=1" for n in range(6000))
    assert (await ada.client.post("act", content=many, headers=OURS)).status_code == 400
    assert (await ada.client.post("act", content=b"\xff=\xfe", headers=OURS)).status_code == 400


async def test_V_4_nothing_that_somebody_wrote_becomes_html(fresh_database: FreshDatabase) -> None:
    url = fresh_database("sqlite")

    def refuse(message: Message) -> dict[str, str]:
        return {"status": "error", "reason_code": "INVALID_TARGET", "message": XSS}

    with closing(Service(url)) as service:
        [made] = service.commit(
            Message.new(XSS.replace(" ", "")[:60], {"x": XSS}, key=XSS, type="T<b>", headers={"x-a": XSS})
        )
        await Relay(url, refuse).run_once()
    app = Dashboard(url, token=TOKEN)
    async with Visitor(app) as visitor:
        await visitor.log_in(XSS)
        pages = [await visitor.get(page) for page in (*PAGES, f"message?id={made.id}", "messages?error=" + XSS[:30])]
        pages.append(await visitor.post("message", {"id": str(made.id)}))
        pages.append(await visitor.post("edit", {"id": str(made.id)}))
        pages.append(await visitor.press("messages?state=dead", "discard filter"))
        for page in pages:
            assert page.status_code == 200
            assert "<script>alert" not in page.text
            assert "<img" not in page.text
            assert "T<b>" not in page.text
    await app.close()


async def test_V_4_it_works_under_any_prefix(shop: Shop) -> None:
    from fastapi import FastAPI
    from litestar import Litestar, asgi
    from starlette.applications import Starlette
    from starlette.routing import Mount

    inner = Dashboard(shop.url, token=TOKEN)
    fast = FastAPI()
    fast.mount("/ops/postroom", inner)
    mounted: Any = asgi("/ops/postroom", is_mount=True, copy_scope=True)(inner)
    for app in (fast, Starlette(routes=[Mount("/ops", routes=[Mount("/postroom", inner)])]), Litestar([mounted])):
        async with Visitor(app, "/ops/postroom") as visitor:
            assert (await visitor.log_in()).status_code == 200, app
            [cookie] = list(visitor.client.cookies.jar)
            assert cookie.path == "/ops/postroom"
            page = await visitor.get("messages")
            assert (page.status_code, "Messages" in page.text) == (200, True)
            assert not re.search(r'(?:href|action|src)="/', page.text)
            assert (await visitor.get("static/dashboard.css")).status_code == 200
            # Without its slash, or with one too many, a page is sent to where its addresses are right.
            first = await visitor.client.get("http://shop.example/ops/postroom")
            assert str(first.url) == "http://shop.example/ops/postroom/"
            assert (await visitor.get("messages/?state=dead")).url.path == "/ops/postroom/messages"
    await inner.close()


async def test_V_4_a_database_that_is_away_has_a_page_and_comes_back(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    app = Dashboard(url, token=TOKEN)  # before the tables are there
    async with Visitor(app) as ada:
        answer = await ada.log_in()
        assert answer.status_code == 503
        assert "run `postroom init`" in answer.text.replace("<code>", "`").replace("</code>", "`")
        with closing(Service(url)):
            assert (await ada.get("")).status_code == 200
    await app.close()


async def test_V_4_a_server_that_dies_is_used_again_when_it_is_back() -> None:
    server = need(PostgreSQL, PostgreSQL())
    with closing(server), closing(Service(server.url("postgres"))) as service:
        app = Dashboard(service.url, token=TOKEN)
        async with Visitor(app) as ada:
            await ada.log_in()
            assert {page.status_code for page in await asyncio.gather(*(ada.get("audit") for _ in range(6)))} == {200}
            await asyncio.to_thread(server.stop, kill=True)
            away = await ada.get("messages")
            assert (away.status_code, "The database is away" in away.text) == (503, True)
            await asyncio.to_thread(server.start)
            assert {page.status_code for page in await asyncio.gather(*(ada.get("audit") for _ in range(6)))} == {200}
        await app.close()


async def test_V_4_a_slow_database_costs_one_page_and_not_the_loop(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(behind, "PATIENCE", 0.05)
    app = Dashboard(shop.url, token=TOKEN)
    hanging = threading.Event()
    blocked = [app._database._readers.submit(lambda admin: hanging.wait(20)) for _ in range(behind.READERS)]
    async with Visitor(app) as ada:
        answer = await ada.log_in()
        assert (answer.status_code, "has not answered within" in answer.text) == (503, True)
        hanging.set()
        for one in blocked:
            one.result()
        monkeypatch.undo()
        assert (await ada.get("")).status_code == 200
    await app.close()


async def test_V_4_ten_tabs_ask_the_database_once(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    overview = Admin.overview

    def counted(admin: Admin) -> Overview:
        asked.append("overview")
        return overview(admin)

    monkeypatch.setattr(Admin, "overview", counted)
    app = Dashboard(shop.url, token=TOKEN)
    async with Visitor(app) as ada:
        await ada.log_in()
        asked.clear()
        app._database.forget_shared()
        answers = await asyncio.gather(*(ada.get("lookup") for _ in range(10)))
        assert {answer.status_code for answer in answers} == {200}
        assert len(asked) == 1
    await app.close()


async def test_V_4_a_slow_database_is_not_asked_for_what_nobody_waits_for(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(behind, "PATIENCE", 0.05)
    asked: list[str] = []
    hanging = threading.Event()

    def slow(admin: Admin) -> str:
        asked.append("shared")
        hanging.wait(20)
        return "answer"

    database = behind.Database(shop.url)
    blocked = [database._readers.submit(lambda admin: hanging.wait(20)) for _ in range(behind.READERS - 1)]
    for _ in range(2):  # ten tabs, which come again
        waiting = [database.shared("name", 0.0, slow) for _ in range(10)]
        answers = await asyncio.gather(*waiting, *(database.read(slow) for _ in range(10)), return_exceptions=True)
        assert {type(answer) for answer in answers} == {behind.Away}
    monkeypatch.undo()
    hanging.set()
    for one in blocked:
        one.result()
    # What took long is kept for longer.
    assert await database.shared("name", 0.0, slow) == "answer"
    assert asked == ["shared"]
    database.close()

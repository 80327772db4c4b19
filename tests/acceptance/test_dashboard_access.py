"""Who comes into the dashboard, with which rights, and what those try who should not."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse

from postroom import Admin
from postroom.errors import InvalidSetting, UnsupportedDatabase
from postroom.web import Access, Dashboard
from postroom.web.dashboard.access import Sessions
from postroom.web.dashboard.guards import SECURITY_HEADERS
from postroom.web.dashboard.routes import ROUTES
from tests.acceptance.dashboard_shop import Shop, filled
from tests.acceptance.dashboard_visitor import OURS, PAGES, TOKEN, Visitor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from starlette.requests import Request
    from starlette.responses import Response

    from tests.conftest import FreshDatabase


@pytest.fixture(scope="module")
def shop(module_database: FreshDatabase) -> Shop:
    return filled(module_database("sqlite"))


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


async def test_V_4_strangers_see_nothing(dashboard: Dashboard) -> None:
    async with Visitor(dashboard) as visitor:
        for page in (*PAGES, *(path.removeprefix("/") for path in ROUTES), "no/such/page"):
            answer = await visitor.get(page)
            assert answer.status_code == 401
            assert 'name="token"' in answer.text
            assert "payments" not in answer.text
        assert (await visitor.post("act", {"do": "discard filter"})).status_code == 401
        assert (await visitor.log_in(token="x" * 30)).status_code == 401
        assert (await visitor.log_in(token="")).status_code == 401
        assert not visitor.client.cookies
        assert (await visitor.get("events", **{"hx-request": "true"})).headers["hx-refresh"] == "true"


async def test_V_4_the_cookie_is_locked_up_and_cannot_be_made_elsewhere(dashboard: Dashboard) -> None:
    async with Visitor(dashboard, "") as visitor:
        visitor.client.follow_redirects = False
        entered = await visitor.log_in("Eve \N{SNOWMAN}")
        cookie = entered.headers["set-cookie"].lower()
        assert entered.headers["location"] == "./"
        assert all(word in cookie for word in ("httponly", "samesite=strict", "max-age=43200"))
        assert "path=" not in cookie
        assert "secure" not in cookie
        visitor.client.base_url = httpx.URL("https://shop.example/")
        assert "secure" in (await visitor.log_in()).headers["set-cookie"].lower()
        for forged in (
            Sessions("some other token, as long").cookie("ada", time.time() + 100),
            Sessions(TOKEN).cookie("ada", time.time() - 1),
            "9999999999.YWRh.0000",
        ):
            visitor.client.cookies.clear()
            answer = await visitor.get("messages", cookie=f"{Sessions(TOKEN).cookie_name}={forged}")
            assert answer.status_code == 401
        valid = Sessions(TOKEN).cookie("ada", time.time() + 100)
        assert (await visitor.get("messages", cookie=f"{Sessions(TOKEN).cookie_name}={valid}")).status_code == 200
        # A link on another site leads to a page that comes again, this time with the cookie.
        again = await visitor.get("messages", **{"sec-fetch-site": "cross-site"})
        assert (again.status_code, 'http-equiv="refresh"' in again.text) == (200, True)


async def test_V_4_other_sites_change_nothing(ada: Visitor, shop: Shop) -> None:
    for headers in (
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site", "origin": "http://shop.example"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {},
    ):
        for path in ("act", "confirm", "login", "logout", "theme", "message"):
            assert (await ada.post(path, {"id": shop.sent}, headers)).status_code == 403
    assert (await ada.post("message", {"id": shop.sent}, {"origin": "http://shop.example"})).status_code == 200
    for path, methods in ROUTES.items():
        if "GET" not in methods:
            assert (await ada.get(path)).status_code == 405


async def test_V_4_every_response_is_locked_down(ada: Visitor, shop: Shop) -> None:
    for page in (*PAGES, f"message?id={shop.sent}", "nowhere", "messages?state=x"):
        answer = await ada.get(page)
        for name, value in SECURITY_HEADERS.items():
            assert answer.headers[name] == value
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; ")
        assert "unsafe" not in policy
        assert not re.search(r"<script(?![^>]* src=)|\son\w+=|\sstyle=|javascript:|https?://(?!traces)", answer.text)
    file = await ada.get("static/dashboard.css")
    assert "immutable" in file.headers["cache-control"]
    for wrong in ("static/../dashboard.py", "static/%2e%2e/access.py", "static/"):
        assert (await ada.get(wrong)).status_code == 404
    assert (await ada.client.put("messages")).status_code == 405


async def test_V_4_an_application_decides_who_may_do_what(shop: Shop) -> None:
    seen: list[str] = []

    async def authorize(request: Request) -> Access | Response | None:
        seen.append(request.headers.get("x-user", ""))
        if "x-user" not in request.headers:
            return RedirectResponse("/login-of-the-shop")
        rights = {"reader": Access("reader"), "actor": Access("actor", actions=True)}
        return rights.get(request.headers.get("x-user", ""))

    app = Dashboard(shop.url, authorize=authorize)
    async with Visitor(app) as visitor:
        visitor.client.follow_redirects = False
        assert (await visitor.get("messages")).headers["location"] == "/login-of-the-shop"
        assert (await visitor.get("messages", **{"x-user": "eve"})).status_code == 403
        page = await visitor.get("messages?state=dead", **{"x-user": "reader"})
        assert "read only" in page.text
        assert "Log out" not in page.text
        assert 'name="do"' not in page.text
        for path, form in {
            "confirm": {"do": "requeue filter", "as_of": "2026-01-01"},
            "act": {"do": "discard selection", "id": shop.dead[0], "as_of": "2099-01-01"},
            "edit": {"id": shop.dead[0]},
            "replay": {"id": shop.dead[0]},
            "message": {"id": shop.dead[0]},
            "decide": {"id": shop.in_doubt, "action": "abort"},
        }.items():
            assert (await visitor.post(path, form, {**OURS, "x-user": "reader"})).status_code == 403
        assert (await visitor.post("message", {"id": shop.dead[0]}, {**OURS, "x-user": "actor"})).status_code == 403
        confirm = {"do": "requeue selection", "id": shop.dead[0], "as_of": "2099-01-01"}
        assert (await visitor.post("confirm", confirm, {**OURS, "x-user": "actor"})).status_code == 200
    await app.close()
    only_reads = Dashboard(shop.url, authorize=lambda request: Access("ada", actions=True), read_only=True)
    async with Visitor(only_reads) as visitor:
        assert (await visitor.post("confirm", confirm)).status_code == 403
    await only_reads.close()
    wrong = Dashboard(shop.url, authorize=lambda request: True)  # type: ignore[arg-type, return-value]  # wrong on purpose
    async with Visitor(wrong) as visitor:
        assert (await visitor.get("")).status_code == 500
    await wrong.close()


async def test_V_4_who_may_not_see_payloads_cannot_ask_what_is_in_them(shop: Shop) -> None:
    app = Dashboard(shop.url, authorize=lambda _: Access("eve", actions=True))
    async with Visitor(app) as eve:
        for page in ("messages?payload=4111", "messages?state=dead&payload=4111", "dead?payload=4111"):
            refused = await eve.get(page)
            assert (refused.status_code, "may not see payloads" in refused.text) == (403, True), page
        for action in ("requeue", "discard", "cancel"):
            form = {"do": f"{action} filter", "as_of": "2099-01-01", "payload": "4111"}
            assert (await eve.post("confirm", form)).status_code == 403
            assert (await eve.post("act", form)).status_code == 403
        assert 'name="payload"' not in (await eve.get("messages")).text
    await app.close()
    app = Dashboard(shop.url, authorize=lambda _: Access("ida", payloads=True))
    async with Visitor(app) as ida:
        assert (await ida.get("messages?payload=4111", **{"hx-request": "true"})).status_code == 200
        assert (await ida.get("messages?payload=4111")).status_code == 200
    with Admin(shop.url) as admin:
        [looked] = admin.audit(actor="ida")
        assert looked.details["what"] == "a search in payloads"
    await app.close()


async def test_V_4_a_mistake_in_the_own_login_lets_nobody_in(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    def refuses(request: Request) -> None:
        raise HTTPException(401, "who are you?", {"www-authenticate": "Basic"})

    def breaks(request: Request) -> None:
        raise PermissionError("the password of the directory is hunter2")

    odd: list[Any] = [
        *(lambda _: False, lambda _: ("ada",), lambda _: Access),
        *(lambda _: Access(42), lambda _: Access(" ")),  # type: ignore[arg-type]  # wrong on purpose
    ]
    odd += [lambda _: Access("a\x00b"), lambda _: Access("\ud800"), breaks]
    for authorize in odd:
        app = Dashboard(shop.url, authorize=authorize)
        async with Visitor(app) as visitor:
            for answer in (await visitor.get(""), await visitor.post("act", {"do": "discard filter"})):
                assert (answer.status_code, "You cannot come in" in answer.text) == (500, True)
                assert "hunter2" not in answer.text
        await app.close()
    assert "hunter2" in caplog.text
    app = Dashboard(shop.url, authorize=refuses)
    async with Visitor(app) as visitor:
        answer = await visitor.get("messages")
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Basic")
    await app.close()


async def test_V_4_two_dashboards_on_one_host_do_not_log_each_other_out(shop: Shop) -> None:
    other = "another token that nobody guesses"
    here, there = Dashboard(shop.url, token=TOKEN), Dashboard(shop.url, token=other)
    async with Visitor(here) as ada, Visitor(there) as same_browser:
        await ada.log_in()
        same_browser.client.cookies = ada.client.cookies
        assert (await same_browser.get("")).status_code == 401
        assert (await same_browser.log_in(token=other)).status_code == 200
        assert (await ada.get("")).status_code == 200
    await here.close()
    await there.close()


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({}, InvalidSetting),
        ({"token": "short"}, InvalidSetting),
        ({"token": TOKEN, "session_hours": 0}, InvalidSetting),
        ({"token": TOKEN, "trace_link": "javascript:{trace_id}"}, InvalidSetting),
        ({"token": TOKEN, "database": "oracle://x"}, UnsupportedDatabase),
        ({"token": TOKEN, "database": None}, InvalidSetting),
    ],
)
def test_V_4_it_is_closed_by_default_and_refuses_wrong_settings(wrong: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        Dashboard(**{"database": "sqlite:///nowhere.db", **wrong})

"""The dashboard in a browser: everything is clicked; an error in the console or a violated policy fails the test."""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from postroom import Admin, Message, Relay
from postroom.admin import Filter, SagaFilter, SagaState
from postroom.web import Dashboard
from tests.acceptance.dashboard_shop import SECRET, Shop, saga
from tests.acceptance.dashboard_sites import PREFIX, in_django, in_fastapi, in_flask, served, served_by_wsgi
from tests.acceptance.dashboard_visitor import TOKEN
from tests.acceptance.service import Service
from tests.services.chromium import Chromium
from tests.services.databases import need

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import FreshDatabase

expect.set_options(timeout=20_000)
PAGES = ("./", "messages", "messages?state=dead", "dead", "sagas", "transactions", "lookup", "audit")
HIDING = """hidden => {
    Object.defineProperty(document, "hidden", {configurable: true, get: () => hidden === "true"});
    document.dispatchEvent(new Event("visibilitychange"));
}"""
LOUD = "window.violations = []; addEventListener('securitypolicyviolation', e => violations.push(e.violatedDirective))"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for the module: while Playwright runs, no other event loop can run in its thread."""
    chromium = need(Chromium)
    with sync_playwright() as playwright:
        connected = playwright.chromium.connect_over_cdp(chromium.url)
        yield connected
        connected.close()


def elsewhere(call: Callable[[], Any]) -> Any:
    """Call what runs an event loop of its own, in a thread."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(call).result()


class Desk:
    """A page of the browser, somebody who is logged in, and the database behind it."""

    def __init__(self, page: Page, address: str, shop: Shop) -> None:
        self.page = page
        self.address = address
        self.shop = shop

    def open(self, path: str) -> None:
        self.page.goto(f"{self.address}{PREFIX}/{path}")

    def log_in(self) -> None:
        self.open("")
        self.page.fill("#token", TOKEN)
        self.page.fill("#name", "ada")
        self.page.click("text=Log in")
        expect(self.page.locator("h1")).to_have_text("Overview")

    def press(self, name: str) -> None:
        self.page.get_by_role("button", name=name, exact=True).click()

    def confirm(self, question: str, done: str, reason: str = "because") -> None:
        """Read the question, answer it, and read the result."""
        expect(self.page.locator("h1")).to_have_text(question)
        self.page.fill("#reason", reason)
        self.page.locator(".confirm button").click()
        expect(self.page.locator(".step h1").last).to_have_text(done)


@dataclass
class House:
    """A shop whose one dashboard is mounted in several frameworks."""

    shop: Shop
    dashboard: Dashboard
    addresses: dict[str, str]


@contextmanager
def housed(url: str, *mounts: Callable[[Dashboard], Any]) -> Iterator[House]:
    """Serve it."""
    shop = elsewhere(lambda: Shop(url))
    with ExitStack() as servers:
        dashboard = Dashboard(url, token=TOKEN)
        servers.callback(dashboard._database.close)
        addresses = {
            mount.__name__: servers.enter_context((served if mount is in_fastapi else served_by_wsgi)(mount(dashboard)))
            for mount in mounts
        }
        yield House(shop, dashboard, addresses)


@pytest.fixture(scope="module")
def house(browser: Browser, module_database: FreshDatabase) -> Iterator[House]:
    """For tests that leave alone what others count on: each has topics of its own."""
    with housed(module_database("sqlite"), in_fastapi, in_flask, in_django) as made:
        yield made


@contextmanager
def desk(browser: Browser, house: House, mount: str = "in_fastapi", **context: Any) -> Iterator[Desk]:
    """Somebody logs in."""
    with quiet_page(browser, **context) as page:
        made = Desk(page, house.addresses[mount], house.shop)
        made.log_in()
        yield made


@contextmanager
def quiet_page(browser: Browser, **context: Any) -> Iterator[Page]:
    """A page whose console stays empty, and whose policy nothing violates."""
    noise: list[str] = []

    def heard(message: ConsoleMessage) -> None:
        # A login page is a 401, which browsers mention.
        if message.type in {"error", "warning"} and "401 (Unauthorized)" not in message.text:
            noise.append(message.text)

    opened = browser.new_context(**context)
    opened.set_default_timeout(20_000)
    page = opened.new_page()
    page.add_init_script(LOUD)
    page.on("console", heard)
    page.on("pageerror", lambda error: noise.append(str(error)))
    page.on("dialog", lambda dialog: noise.append(dialog.message))
    yield page
    if context.get("java_script_enabled", True):
        noise.extend(page.evaluate("window.violations"))
    opened.close()
    assert noise == []


def test_V_4_every_act_on_messages_by_clicking(browser: Browser, fresh_database: FreshDatabase) -> None:
    with (
        housed(fresh_database("postgresql"), in_fastapi) as house,
        desk(browser, house) as at,
        Admin(house.shop.url) as admin,
    ):
        page, shop = at.page, at.shop
        at.open("messages?state=dead&topic=payments.captured")
        page.locator("[data-pick]").nth(0).check()
        page.locator("[data-pick]").nth(1).check()
        expect(page.locator("[data-picked]")).to_have_text("2 selected:")
        expect(page.locator("#pulse")).to_have_text("Paused")
        at.press("Requeue")
        at.confirm("Requeue 2 dead letters?", "2 requeued", "the account is open again")
        expect(page.locator(".step.card tbody tr")).to_have_count(2)
        assert admin.audit(action="requeue").items[0].reason == "the account is open again"
        at.open("messages?state=dead&topic=mails.welcome")
        at.press("Discard all of this filter…")
        at.confirm("Discard 4 dead letters?", "4 discarded")
        assert admin.count_dead_letters(Filter(topic="mails.welcome")).total == 0
        at.open("dead")
        page.locator(".group", has_text="invoices.issued").get_by_role("button", name="Requeue").click()
        at.confirm("Requeue 4 dead letters?", "4 requeued")
        at.open(f"message?id={shop.waiting.id}")
        at.press("Cancel…")
        at.confirm("Cancel 1 unsent message?", "1 cancelled")
        at.open("messages?topic=orders.created&state=pending")
        at.press("Cancel all pending of this filter…")
        at.confirm("Cancel 1 pending message?", "1 cancelled")
        [letter] = admin.dead_letters(Filter(topic="payments.captured"), limit=1)
        at.open(f"message?id={letter.id}")
        assert SECRET not in page.content()
        at.press("Show")
        expect(page.locator("pre")).to_contain_text(SECRET)
        at.press("Edit and replay…")
        page.fill("#payload", '{"mended": true}')
        page.check("text=Discard the original")
        page.fill("#reason", "mended by hand")
        at.press("Replay")
        expect(page.locator("h1")).to_have_text("Replayed")
        page.click("text=Open the new message")
        expect(page.locator("#facts + dl")).to_contain_text("Replay of")
        at.press("Show")
        expect(page.locator("pre")).to_contain_text("mended")
        at.open("audit")
        assert {entry.action for entry in admin.audit()} >= {"requeue", "discard", "cancel", "replay", "shown"}
        expect(page.locator("tbody tr").first).to_contain_text("shown")


def test_V_4_every_act_on_sagas_and_transactions_by_clicking(browser: Browser, house: House) -> None:
    with desk(browser, house) as at, Admin(house.shop.url) as admin:
        page, shop = at.page, at.shop
        at.open("sagas?state=parked")
        page.locator("[data-pick]").check()
        at.press("Resume")
        at.confirm("Resume 1 saga?", "1 resumed")
        elsewhere(lambda: _run_sagas(shop))
        at.open("sagas?state=parked")
        page.click("text=place_order >> nth=-1")
        at.press("Fork…")
        page.fill("#new_id", "order-2-again")
        page.fill("#reason", "the warehouse answers again")
        page.locator(".confirm button").click()
        expect(page.locator("#facts + dl")).to_contain_text("Forked from")
        assert admin.saga("place_order", "order-2-again").fork_of == "order-2"
        at.open("sagas?state=parked")
        at.press("Skip step of all of this filter…")
        at.confirm("Skip the failing step of 1 saga?", "1 skipped")
        elsewhere(lambda: _start_saga(shop, "order-9"))
        at.open("saga?name=place_order&id=order-9")
        at.press("Show")
        at.press("Abort…")
        at.confirm("Abort 1 saga?", "1 aborted")
        assert admin.saga("place_order", "order-9").aborted_by == "ada"
        elsewhere(lambda: _start_saga(shop, "order-10"))
        at.open("sagas")
        at.press("Abort all…")
        expect(page.locator("h1")).to_contain_text("Abort")
        page.click("text=Back")
        assert admin.count_sagas(SagaFilter(states=[SagaState.STARTED])).total >= 1
        at.open("transactions")
        expect(page.locator("tbody tr")).to_have_count(3)
        page.click(f"text={shop.in_doubt}")
        at.press("Abort…")
        page.fill("#reason", "the bank says no")
        at.press("Abort")
        expect(page.locator("h1")).to_contain_text("aborting")
        at.open("transactions?state=stuck")
        page.locator("tbody a").click()
        at.press("Forget…")
        at.press("Forget")
        expect(page.locator("h1")).to_contain_text("forgotten")
        assert [entry.action for entry in admin.audit(limit=2)] == ["transaction_forgotten", "transaction_decided"]


@pytest.mark.parametrize(("mount", "topic"), [("in_flask", "mails.welcome"), ("in_django", "invoices.issued")])
def test_V_4_mounted_under_wsgi_it_polls(mount: str, topic: str, browser: Browser, house: House) -> None:
    with desk(browser, house, mount) as at:
        page = at.page
        at.open("")
        assert page.locator("#live").get_attribute("hx-trigger") == "refresh, every 5s"
        at.open(f"messages?state=dead&topic={topic}")
        at.press("Requeue all of this filter…")
        at.confirm("Requeue 4 dead letters?", "4 requeued")
        at.open(f"messages?state=dead&topic={topic}")
        expect(page.locator("[data-row]")).to_have_count(0)
        if mount == "in_flask":
            _fail(at.shop, topic)
            expect(page.locator("[data-row]")).to_have_count(1)


def test_V_4_pages_follow_what_happens_and_keys_move(
    browser: Browser, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroom.web.dashboard.pages.live.EVERY", 0.2)
    monkeypatch.setattr("postroom.web.dashboard.pages.live.LONGEST", 0.5)
    with desk(browser, house) as at:
        page = at.page
        with page.expect_event("request", lambda request: request.url.endswith("/events")):
            at.open("messages?state=dead&topic=late")
        # A stream ends now and then, and the next one begins.
        page.wait_for_event("request", lambda request: request.url.endswith("/events"))
        expect(page.locator("[data-row]")).to_have_count(0)
        _fail(at.shop, "late")
        expect(page.locator("[data-row]")).to_have_count(1)
        page.evaluate(HIDING, "true")
        _fail(at.shop, "late")
        expect(page.locator("[data-row]")).to_have_count(1)
        page.evaluate(HIDING, "false")
        expect(page.locator("[data-row]")).to_have_count(2)
        at.open("messages?state=dead")
        page.keyboard.press("j")
        page.keyboard.press("j")
        page.keyboard.press("k")
        page.keyboard.press("j")
        expect(page.locator("[data-row]").nth(1)).to_have_class(re.compile("current"))
        page.keyboard.press("x")
        expect(page.locator("[data-picked]")).to_have_text("1 selected:")
        page.keyboard.press("?")
        expect(page.locator("#help")).to_be_visible()
        page.keyboard.press("Escape")
        page.keyboard.press("/")
        expect(page.locator("#q")).to_be_focused()
        page.keyboard.type("state:waiting")
        page.keyboard.press("Enter")
        expect(page.locator("[data-row]")).to_have_count(1)
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        expect(page.locator("#why")).to_have_text("Why it has not left yet")
        page.keyboard.press("g")
        page.keyboard.press("a")
        expect(page.locator("h1")).to_have_text("Audit")


def test_V_4_without_scripts_everything_can_be_read_and_done(browser: Browser, house: House) -> None:
    with desk(browser, house, java_script_enabled=False) as at:
        page = at.page
        for path in PAGES:
            at.open(path)
            expect(page.locator("h1")).to_be_visible()
            expect(page.locator("#pulse")).to_be_hidden()
        at.open("messages")
        page.select_option("#f-state", "dead")
        page.fill("#f-topic", "payments.captured")
        at.press("Filter")
        expect(page.locator("[data-row]")).to_have_count(4)
        page.locator("[data-pick]").first.check()
        page.get_by_role("button", name="Discard", exact=True).click()
        at.confirm("Discard 1 dead letter?", "1 discarded")
        page.locator("form[action=theme] button").click()
        assert page.locator("html").get_attribute("data-theme") == "dark"
        at.press("Log out")
        expect(page.locator("#token")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_V_4_it_fits_a_phone_in_both_themes(scheme: str, browser: Browser, house: House) -> None:
    backgrounds = set()
    with desk(browser, house, viewport={"width": 390, "height": 844}, color_scheme=scheme) as at:
        for path in (*PAGES, f"message?id={at.shop.dead[0]}", "saga?name=place_order&id=order-2"):
            at.open(path)
            assert at.page.evaluate("document.documentElement.scrollWidth") <= 390, path
            backgrounds.add(at.page.evaluate("getComputedStyle(document.body).backgroundColor"))
            unlabelled = at.page.evaluate(
                """[...document.querySelectorAll('input:not([type=hidden]), select, textarea, button, a')].filter(e =>
                !e.labels?.length && !e.getAttribute('aria-label') && !e.textContent.trim()).map(e => e.outerHTML)"""
            )
            assert unlabelled == []
        [background] = backgrounds
        red = int(re.findall(r"\d+", background)[0])
        assert (red < 60) is (scheme == "dark")


def _refuse_new(message: Message) -> dict[str, str] | None:
    if message.key is not None:
        return None
    return {"status": "error", "reason_code": "INVALID_TARGET", "message": "no such account"}


def _fail(shop: Shop, topic: str) -> None:
    """A message of this topic fails."""

    def fail() -> None:
        with closing(Service(shop.url)) as service:
            service.commit(Message.new(topic, {}))
        asyncio.run(Relay(shop.url, _refuse_new).run_once())

    elsewhere(fail)


def _run_sagas(shop: Shop) -> None:
    asyncio.run(Relay(shop.url, sagas=[saga]).run_once())


def _start_saga(shop: Shop, id: str) -> None:
    with closing(Service(shop.url)) as service, service.engine.begin() as connection:
        saga.start(connection, {}, id=id)

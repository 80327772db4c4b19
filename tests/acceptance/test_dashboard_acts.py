"""What is done from the dashboard: it asks first, acts on what was shown, once, and tells each result."""

from __future__ import annotations

import re
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from postroom import Admin, Message, Relay
from postroom.admin import Filter
from postroom.errors import DatabaseUnreachable
from tests.acceptance.dashboard_shop import Shop, filled
from tests.acceptance.dashboard_visitor import hidden, visiting
from tests.acceptance.service import Service

if TYPE_CHECKING:
    from postroom.admin import ActResult
    from tests.conftest import FreshDatabase


@pytest.fixture(scope="module")
def shop(module_database: FreshDatabase) -> Shop:
    return filled(module_database("sqlite"))


async def test_V_4_acts_ask_first_and_tell_each_result(fresh_database: FreshDatabase) -> None:
    url = fresh_database("sqlite")
    shop = filled(url)
    async with visiting(url) as ada:
        with Admin(url) as admin:
            as_of = admin.dead_letters().as_of.isoformat()
            form = {"do": "requeue filter", "as_of": as_of, "state": "dead", "topic": "mails.welcome"}
            asked = await ada.post("confirm", form)
            assert "Requeue 4 dead letters?" in asked.text
            done = await ada.post("act", {**form, "reason": "mended", "total": "4"})
            assert "4 requeued" in done.text
            assert admin.audit(action="requeue", actor="ada").items[0].reason == "mended"
            assert "Nothing to requeue" in (await ada.post("confirm", form)).text
            both = {"do": "discard selection", "as_of": as_of, "id": [shop.dead[0], shop.sent]}
            done = await ada.post("act", both)
            assert "1 discarded, 1 left alone" in done.text
            assert "<td>sent</td>" in done.text
            # Of what is unsent, only what the filter showed.
            waiting = await ada.press("messages?state=waiting", "cancel filter")
            assert "Cancel 1 waiting message?" in waiting.text
            assert "1 cancelled" in (await ada.post("act", hidden(waiting.text))).text
            assert admin.message(shop.pending.id).status == "pending"
            # What failed after the page was shown is not swept along.
            earlier = {**form, "as_of": "2020-01-01T00:00:00+00:00", "topic": "invoices.issued"}
            assert "0 requeued" in (await ada.post("act", earlier)).text
            assert admin.count_dead_letters(Filter(topic="invoices.issued")).total == 4


async def test_V_4_a_form_that_is_sent_twice_makes_one_copy_and_a_wrong_one_comes_back(
    fresh_database: FreshDatabase,
) -> None:
    shop = filled(fresh_database("sqlite"))
    async with visiting(shop.url) as ada:
        asked = await ada.post("edit", {"id": shop.dead[0]})
        form = {**hidden(asked.text), "topic": "payments.mended", "payload": '{"mended": tru', "reason": "typo"}
        wrong = await ada.post("replay", form)
        assert wrong.status_code == 400
        assert "Nothing was sent: the payload is not JSON" in wrong.text
        assert "{&#34;mended&#34;: tru</textarea>" in wrong.text
        assert 'value="payments.mended"' in wrong.text
        form |= {"payload": '{"mended": true}', "discard": "yes"}
        first, second = await ada.post("replay", form), await ada.post("replay", form)
        assert (first.status_code, second.status_code) == (200, 200)
        assert "Replayed" in second.text
        with Admin(shop.url) as admin:
            assert len(admin.messages(topic="payments.mended")) == 1
        assert (await ada.post("replay", {**form, "id": shop.dead[1]})).status_code == 409


async def test_V_4_a_fork_that_is_sent_twice_starts_one_saga(shop: Shop) -> None:
    async with visiting(shop.url) as ada:
        saga = {"name": "place_order", "id": "order-0"}
        asked = await ada.post("fork", saga)
        assert re.findall(r"<option.*?>(\w+)</option>", asked.text) == ["reserve", "charge", "ship"]
        form = {**saga, "step": "ship", "new_id": "again/\N{SNOWMAN}", "reason": "lost"}
        first, second = await ada.post("fork", form), await ada.post("fork", form)
        assert (first.status_code, second.status_code, first.url) == (200, 200, second.url)
        assert "Forked from" in second.text
        assert (await ada.post("fork", {**form, "new_id": "order-1"})).status_code == 409
        assert "Nothing to fork" in (await ada.post("fork", {**saga, "id": "again/\N{SNOWMAN}"})).text
        with Admin(shop.url) as admin:
            assert admin.audit(action="saga_forked").items[0].reason == "lost"
            admin.abort_saga("place_order", "again/\N{SNOWMAN}", actor="ada")


async def test_V_4_an_act_shows_progress_and_says_how_it_failed(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroom.web.dashboard.pages.acts.EVERY", 0.01)
    seen = threading.Event()

    def slow(admin: Admin, which: Filter, *, actor: str, reason: str, progress: Any) -> ActResult:
        progress(1500)
        seen.wait(0.2)
        raise DatabaseUnreachable("the database shop cannot be reached: gone")

    monkeypatch.setattr(Admin, "discard", slow)
    async with visiting(shop.url) as ada:
        form = {"do": "discard filter", "as_of": "2099-01-01", "state": "dead", "total": "3000"}
        done = await ada.post("act", form)
        assert "1,500 of about 3,000 done" in done.text
        assert "The database is away" in done.text
        assert "Do it again for the rest" in done.text
        assert done.text.rstrip().endswith("</html>")


async def test_V_4_a_requeue_older_than_the_inboxes_remember_is_warned_of(fresh_database: FreshDatabase) -> None:
    url = fresh_database("sqlite")

    def refuse(message: Message) -> dict[str, str]:
        return {"status": "error", "reason_code": "INVALID_TARGET", "message": "no"}

    with closing(Service(url)) as service:
        service.commit(Message.new("a", {}))
        await Relay(url, refuse).run_once()
        service.execute(f"UPDATE {service.table('outbox')} SET created_at = '2020-01-01 00:00:00'")
    async with visiting(url) as ada:
        asked = await ada.post("confirm", {"do": "requeue filter", "as_of": "2099-01-01", "state": "dead"})
        assert "1 letter is older than what inboxes remember" in asked.text

"""How a project with an outbox is tested."""

from __future__ import annotations

import io
from typing import Any

from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase

from orders.models import Bill, Order
from orders.postroom_handlers import billing
from orders.views import save_order
from postroom.django import outbox
from postroom.django.testing import recorded
from postroom.errors import NotInTransaction
from postroom.testing import InMemoryConsumer

KEYED = {"idempotency-key": "7f9c", "authorization": "ada"}


class Orders(TestCase):
    """Each test is a transaction that is rolled back; what counts as one in production counts here."""

    def test_an_order_is_announced_with_its_transaction(self) -> None:
        with recorded() as published:
            order = save_order(1990)
        published.assert_published("orders.created", key=order.pk, payload={"order_id": order.pk, "cents": 1990})
        published.assert_published("warehouse.pick", count=1)

    def test_outside_of_a_transaction_nothing_is_added(self) -> None:
        with self.assertRaisesRegex(NotInTransaction, "transaction.atomic"):
            outbox.add("orders.lost", {})
        with transaction.atomic():
            assert outbox.add("orders.kept", {}).topic == "orders.kept"

    def test_a_plain_create_and_a_form_announce_too_but_no_bulk_create(self) -> None:
        with recorded() as published:
            Order.objects.create(cents=5)
            Order.objects.bulk_create([Order(cents=6)])
            Order.objects.update(cents=7)
        assert [one.topic for one in published.messages] == ["orders.created"]

    def test_a_handler_bills_once(self) -> None:
        consumer = InMemoryConsumer(billing)
        for _ in range(2):
            consumer.receive("orders.created", {"order_id": 7, "cents": 5}, type="OrderCreated", id=ID)
        assert Bill.objects.get().order_id == 7

    def test_a_request_with_the_same_key_runs_once(self) -> None:
        for path in ("/orders", "/async-orders"):
            with recorded() as published:
                answers = [
                    self.client.post(path, {"cents": 5}, "application/json", headers=KEYED | {"authorization": path})
                    for _ in range(2)
                ]
            assert [one.json() for one in answers] == [{"order": Order.objects.latest("pk").pk}] * 2
            published.assert_published("orders.created", count=1)

    async def test_async_code_adds_too(self) -> None:
        with self.assertRaises(NotInTransaction):
            await outbox.aadd("orders.lost", {})
        answers = [
            await self.async_client.post("/async-orders", {"cents": 5}, "application/json", headers=KEYED)
            for _ in range(2)
        ]
        assert answers[0].json() == answers[1].json()


ID = "018f3e9c-0000-7000-8000-000000000001"


class Operators(TestCase):
    """Pages of the admin, for those who may see them."""

    def login(self, *permissions: str) -> None:
        user = User.objects.create_user("grace", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        self.client.force_login(user)

    def get(self, path: str) -> Any:
        return self.client.get(f"/admin/postroom/{path}")

    def test_messages_are_shown_without_their_payload(self) -> None:
        with transaction.atomic():
            message = outbox.add("orders.secret", {"card": "4111"}, type="Secret", headers={"token": "hush"})
        self.login("view_message")
        assert str(message.id) in self.get("message/?topic=orders.secret").content.decode()
        assert str(message.id) not in self.get("message/?status=dead").content.decode()
        assert "is not valid: use pending" in self.get("message/?status=lost").content.decode()
        page = f"message/{message.id}/change/"
        told = self.get(page).content.decode()
        assert "orders.secret" in told
        assert "4111" not in told
        assert "hush" not in told
        assert self.client.post(f"/admin/postroom/{page}", {"payload": "yes"}).status_code == 403
        assert self.get("deadletter/").status_code == 403
        assert self.get(f"message/{ID}/change/").status_code == 404
        assert str(message.id) in self.get("message/?topic=orders.sec%00ret&error=%00").content.decode()

    def test_who_may_sees_a_payload_which_is_on_record(self) -> None:
        with transaction.atomic():
            message = outbox.add("orders.secret", {"card": "4111"})
        self.login("view_message", "view_message_payload")
        page = f"/admin/postroom/message/{message.id}/change/"
        assert "4111" in self.client.post(page, {"payload": "yes"}).content.decode()
        assert "django:grace" in self.get(f"message/{message.id}/change/").content.decode()

    def test_dead_letters_are_requeued_and_discarded_by_those_who_may(self) -> None:
        first, second = dead_letter(), dead_letter()
        page = "/admin/postroom/deadletter/"
        self.login("view_deadletter", "requeue_deadletter")
        assert "POISON" in self.get("deadletter/?code=POISON").content.decode()
        assert "Discard selected" not in self.get("deadletter/").content.decode()
        assert self.client.post(page, {"action": "discard", "id": first}).status_code == 403
        told = self.client.post(page, {"action": "requeue", "id": [first, ID], "reason": "fixed"}, follow=True)
        assert "1 requeued" in told.content.decode()
        assert f"{ID} was left alone" in told.content.decode()
        User.objects.get().user_permissions.add(Permission.objects.get(codename="discard_deadletter"))
        asked = self.client.post(page, {"action": "discard", "id": second})
        assert "Discard 1 dead letter for good?" in asked.content.decode()
        told = self.client.post(page, {"action": "discard", "id": second, "confirmed": "yes"}, follow=True)
        assert "1 discarded" in told.content.decode()
        assert "No dead letters" in told.content.decode()


def dead_letter() -> str:
    """A message that has failed for good, as a relay would leave it."""
    with transaction.atomic():
        message = outbox.add("orders.dead", {})
    table = '"postroom".outbox' if connection.vendor == "postgresql" else "postroom_outbox"
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {table}_delivery SET state = 3, error_code = 'POISON' WHERE state = 0")  # noqa: S608 - ours
    return str(message.id)


class Committed(TransactionTestCase):
    """Tests that commit. Postroom's tables are emptied after each, like all others."""

    def test_what_is_rolled_back_is_not_there(self) -> None:
        with transaction.atomic():
            outbox.add("orders.kept", {})
        with transaction.atomic():
            outbox.add("orders.lost", {})
            transaction.set_rollback(True)
        assert in_outbox() == 1
        with self.assertRaises(NotInTransaction):
            outbox.add("orders.lost", {})

    def test_a_create_whose_event_cannot_be_published_saves_nothing(self) -> None:
        assert in_outbox() == 0
        with self.assertRaises(Exception), recorded(store=False):  # noqa: B017 - whatever it is
            Order.objects.create(cents=object())
        Order.objects.create(cents=5)
        assert (Order.objects.count(), in_outbox()) == (1, 1)

    def test_a_command_finds_the_test_database(self) -> None:
        if connection.vendor != "sqlite":  # where it is in memory
            call_command("postroom", "status", stdout=(told := io.StringIO()))
            assert "pending" in told.getvalue()


def in_outbox() -> int:
    """How many messages there are."""
    table = '"postroom".outbox' if connection.vendor == "postgresql" else "postroom_outbox"
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT count(*) FROM {table}")  # noqa: S608 - ours
        return int(cursor.fetchone()[0])

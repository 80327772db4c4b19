"""What `postroom.django` promises, on the database that the shop's settings name: run after `django.setup()`."""

from __future__ import annotations

import asyncio
import io
import os
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connection, connections, models, transaction
from django.db.migrations.autodetector import MigrationAutodetector
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.state import ProjectState
from django.db.transaction import TransactionManagementError
from django.test import Client, override_settings

from orders.models import Bill, Order
from postroom.admin import Filter
from postroom.consumer.outcomes import Fate
from postroom.django import Consumer, outbox, publishes
from postroom.django.apps import check_settings
from postroom.django.consumers import discover
from postroom.django.operating import DjangoAdmin
from postroom.django.operations import CreateTables, UpgradeTables
from postroom.django.testing import empty
from postroom.errors import InvalidSetting, NotInTransaction, SchemaError
from postroom.events import event
from postroom.incoming import Incoming
from postroom.settings import Settings
from postroom.store.schema.migrations import LATEST
from postroom.testing import InMemoryConsumer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def raises(kind: type[Exception], text: str) -> Iterator[None]:
    said = None
    try:
        yield
    except kind as error:
        said = str(error)
    assert said is not None, f"{kind.__name__} was not raised"
    assert text in said, said


def told(*command: str) -> str:
    out = io.StringIO()
    call_command(*command, stdout=out)
    return out.getvalue()


def check_migrations() -> None:
    """They make the tables once, in one database; refuse to lose messages; and are those of the newest version."""
    assert "CREATE TABLE" in told("sqlmigrate", "postroom", "0001")
    assert "DROP TABLE" in told("sqlmigrate", "postroom", "0001", "--backwards")
    call_command("postroom", "init", stdout=io.StringIO())
    call_command("migrate", verbosity=0)  # finds that the tables are there
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)
    state = ProjectState.from_apps(apps)
    changes = MigrationAutodetector(MigrationLoader(None).project_state(), state).changes(MigrationLoader(None).graph)
    assert "postroom" not in changes
    operations = [
        one
        for key, found in MigrationLoader(None).disk_migrations.items()
        for one in found.operations
        if key[0] == "postroom"
    ]
    newest = max([7, *(one.to for one in operations if isinstance(one, UpgradeTables))])
    assert newest == LATEST, "add a migration with UpgradeTables for the newest version of the tables"
    assert sum(isinstance(one, CreateTables) for one in operations) == 1
    with transaction.atomic():
        outbox.add("orders.waiting", {})
    with raises(SchemaError, "1 messages of"):
        call_command("migrate", "postroom", "zero", verbosity=0)
    empty()
    call_command("migrate", "postroom", "zero", verbosity=0)
    with raises(CommandError, "postroom status has failed"):
        call_command("postroom", "status", stderr=(said := io.StringIO()))
    assert "run `postroom init`" in said.getvalue()
    operator = Client()
    operator.force_login(User.objects.create_superuser("root"))
    for page in ("message/", "deadletter/", f"message/{ID}/change/"):
        assert (
            "tables are not in this database" in operator.get(f"/admin/postroom/{page}", follow=True).content.decode()
        )
    with override_settings(MIGRATION_MODULES={"postroom": None}):  # as tests do with TEST = {"MIGRATE": False}
        call_command("migrate", run_syncdb=True, verbosity=0)
    assert '"pending"' in told("postroom", "status", "--json")
    call_command("migrate", verbosity=0)
    call_command("migrate", database="other", verbosity=0)
    assert not any("outbox" in table for table in connections["other"].introspection.table_names())


def check_settings_of_django() -> None:
    """The dict is validated, and everything in the process uses it."""
    assert Settings.load().broker == settings.POSTROOM["BROKER"]
    assert "nowhere" not in str(Settings.load().database)
    assert check_settings() == []
    for wrong, text in (
        ({"BROKERR": "x"}, "did you mean 'broker'?"),
        ({"broker": "x"}, "in capitals"),
        ({"DATABASE": "lost"}, "there are default, other"),
        ({"DATABASE": "postgresql://u:secret@host/shop"}, "an alias in DATABASES, not a URL"),
        ({"MASK": "no.such.function"}, "cannot be loaded"),
        ({"MASK": 7}, "is no function"),
        ({"LOCK_KEYS": "yes"}, "use True or False"),
        ({"MAX_ATTEMPTS": 0}, "max_attempts = 0 is not valid"),
        ("broker", "give a dict"),
    ):
        with override_settings(POSTROOM=wrong):
            [found] = check_settings()
            assert text in found.msg, found
            assert "secret" not in found.msg
    with override_settings(POSTROOM={"MASK": lambda topic, payload: {**payload, "card": "…"}}), transaction.atomic():
        assert b"4111" not in (outbox.add("cards", {"card": "4111"}).payload or b"")
        transaction.set_rollback(True)


def check_outbox() -> None:
    """It writes in the current block, and nowhere else."""
    with raises(NotInTransaction, "put both into `with transaction.atomic():`"):
        outbox.add("orders.lost", {})
    with transaction.atomic():
        transaction.set_rollback(True)  # as an error does that somebody swallows
        with raises(TransactionManagementError, "until the end of the 'atomic' block"):
            outbox.add("orders.lost", {})
    with transaction.atomic():
        with suppress(ZeroDivisionError), transaction.atomic():
            outbox.add("orders.undone", {})
            raise ZeroDivisionError
        outbox.add_many([outbox.message("orders.kept", {"n": n}) for n in range(3)])
    with DjangoAdmin() as admin:
        assert [one.topic for one in admin.messages()] == ["orders.kept"] * 3
        cancelled = admin.cancel(Filter(topic="orders.kept"), actor="ada")
        assert (cancelled.count, len(admin.messages())) == (3, 0)
        assert {one.actor for one in admin.audit(action="cancel")} == {"ada"}


@event("orders.deleted", key="order_id")
@dataclass
class Deleted:
    order_id: int


def check_publishing() -> None:
    """Subclasses publish, deletes publish, fixtures do not; what cannot be published is not saved."""
    publishes(lambda order: Deleted(order.pk), on="deleted")(Order)
    changed: list[int] = []
    publishes(lambda order: changed.append(order.cents), on="updated")(Order)

    class Urgent(Order):
        class Meta:
            proxy = True
            app_label = "orders"

    assert issubclass(Urgent, models.Model)
    topics = published(lambda: Urgent.objects.create(cents=1))
    assert topics == ["orders.created"]
    assert published(lambda: Order.objects.filter(cents=1).delete()) == ["orders.deleted"]
    order = Order.objects.create(cents=2)
    order.cents = 3
    order.save()
    assert changed == [3]
    with override_settings(POSTROOM={"MAX_PAYLOAD_BYTES": 1}), raises(Exception, "max_payload_bytes"):
        Order.objects.create(cents=99)
    assert not Order.objects.filter(cents=99).exists()
    fixture = Path(os.environ["SHOP_FOLDER"]) / "orders.json"
    fixture.write_text(told("dumpdata", "--all", "orders.Order"))
    assert published(lambda: call_command("loaddata", str(fixture), verbosity=0)) == []
    with raises(InvalidSetting, "on = 'never' is not valid"):
        publishes(print, on="never")  # type: ignore[arg-type]  # as users may
    with raises(InvalidSetting, "no model with a table"):
        publishes(print)(int)


def published(act: Callable[[], object]) -> list[str | None]:
    with DjangoAdmin() as admin:
        before = {one.position for one in admin.messages()}
        act()
        return [one.topic for one in admin.messages() if one.position not in before]


def billed() -> list[int]:
    return sorted(Bill.objects.values_list("order_id", flat=True))


def check_handlers() -> None:
    """What a handler does through the ORM commits with its mark, or not at all; no rollback is silent."""
    shop = Consumer("checks")

    @shop.handler("fine")
    def fine(message: Any) -> None:
        Bill.objects.create(order_id=1, cents=1)
        outbox.add("bills.made", {})

    @shop.handler("async")
    async def fine_too(connection: Any, message: Any) -> None:
        assert connection.in_atomic_block
        await Bill.objects.acreate(order_id=2, cents=2)
        await outbox.aadd("bills.made", {})

    @shop.handler("raises")
    def raises_late(message: Any) -> None:
        Bill.objects.create(order_id=3, cents=3)
        raise LookupError("late")

    @shop.handler("swallows")
    def swallows(message: Any) -> None:
        Bill.objects.create(order_id=4, cents=4)
        with suppress(IntegrityError):
            Bill.objects.create(order_id=4, cents=None)

    @shop.handler("swallows-sql")
    def swallows_sql(message: Any) -> None:
        with suppress(Exception), connection.cursor() as cursor:
            cursor.execute("SELECT nonsense")
        Bill.objects.filter(order_id=-1).exists() if connection.vendor != "postgresql" else None

    @shop.handler("ends")
    def ends(message: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("/* so */ commit")

    @shop.handler("closes")
    def closes(message: Any) -> None:
        Bill.objects.create(order_id=6, cents=6)
        connection.close()

    @shop.handler("savepoint")
    def with_savepoint(message: Any) -> None:
        with suppress(IntegrityError), transaction.atomic():
            Bill.objects.create(order_id=5, cents=None)
        Bill.objects.create(order_id=5, cents=5)

    testing = InMemoryConsumer(shop, catch=True)
    before = billed()
    received = [testing.receive(topic, {}, id=ID) for topic in ("fine", "fine")]
    assert received == [Fate.HANDLED, Fate.DUPLICATE]
    assert [testing.receive(topic, {}) for topic in ("async", "savepoint")] == [Fate.HANDLED] * 2
    assert billed() == sorted([*before, 1, 2, 5])
    wrong = ["raises", "swallows", "ends", "closes", *(["swallows-sql"] if connection.vendor == "postgresql" else [])]
    assert {testing.receive(topic, {}) for topic in wrong} == {Fate.PARKED}
    assert billed() == sorted([*before, 1, 2, 5])
    said = " ".join(one.said for one in testing.parked)
    assert "late" in said
    assert "Django undoes such a transaction" in said
    assert "the handler executed COMMIT" in said
    assert "the handler closed the connection" in said
    with DjangoAdmin() as admin:
        assert sum(one.topic == "bills.made" for one in admin.messages()) == 2
    assert [one.name for one in discover()] == ["billing"]


def check_running_consumers() -> None:
    """They use the database that is there when they run: tests have another than when modules are imported."""
    name = connection.settings_dict["NAME"]
    connection.settings_dict["NAME"] = "not_yet_there"
    late = Consumer("late", "http:")
    connection.settings_dict["NAME"] = name
    handled: list[bool] = []

    @late.handler("late")
    def handle(connection: Any, message: Any) -> None:
        handled.append(connection.in_atomic_block)

    async def run() -> None:
        async with late:
            fate = await late.handle(Incoming(id=ID, topic="late", payload=b"", content_type="text/plain"))
            assert fate is Fate.HANDLED

    asyncio.run(run())
    assert handled == [True]


ID = "018f3e9c-0000-7000-8000-000000000002"


def check_commands() -> None:
    """They run in this process, too, and fail as Django's own do."""
    assert '"pending"' in told("postroom", "status", "--json")
    assert "--broker" in told("postroom", "relay", "--help")
    with raises(CommandError, "postroom lost has failed"):
        call_command("postroom", "lost")


def check_all() -> None:
    for check in (
        check_migrations,
        check_settings_of_django,
        check_outbox,
        check_publishing,
        check_handlers,
        check_running_consumers,
        check_commands,
    ):
        print(check.__name__, flush=True)  # noqa: T201 - who reads a failure wants to know
        check()

"""An outbox in Debezium's mode, without Debezium: a slot that is advanced by hand says what was sent."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from postroom import Admin, AsyncAdmin, Ledger, Outbox
from postroom.errors import InvalidSetting
from postroom.idempotency import Run
from postroom.rules.stream.modes import Mode
from postroom.store.admin.partitions import Partitions
from postroom.store.schema.partitions import partition
from postroom.store.stream.debezium import SLOT, Debezium
from postroom.store.stream.leadership import Leadership
from tests.contract.waiting import Background, wait_until
from tests.contract.write_support import Database

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import FreshDatabase

outbox = Outbox(cdc=True)


class Shop:
    """A database in Debezium's mode."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.database = Database(url)
        self.admin = Admin(url)

    def add(self, topic: str = "orders", payload: object = None, **fields: Any) -> None:
        with psycopg.connect(self.url) as connection:
            outbox.add(connection, topic, payload, **fields)

    def one(self, text: str) -> Any:
        [[value]] = self.database.rows(text)
        return value

    @property
    def mode(self) -> str:
        return str(self.one("SELECT mode FROM {stream}"))

    def confirm(self) -> None:
        """As Debezium does when Kafka has everything."""
        self.one(f"SELECT pg_replication_slot_advance('{SLOT}', pg_current_wal_insert_lsn())::text")

    def read(self) -> int:
        """How many messages Debezium would read now."""
        return int(
            self.one(
                f"SELECT count(*) FROM pg_logical_slot_peek_binary_changes('{SLOT}', NULL, NULL, 'proto_version', '1', "
                "'publication_names', 'postroom_outbox') WHERE get_byte(data, 0) = ascii('I')"
            )
        )

    def receipts(self) -> int:
        self.admin.cleanup()
        return int(self.one("SELECT count(*) FROM {receipt}"))

    def deliveries(self) -> int:
        return int(self.one("SELECT count(*) FROM {delivery}"))

    def close(self) -> None:
        self.admin.close()
        self.database.store.close()


@pytest.fixture
def shop(fresh_database: FreshDatabase) -> Iterator[Shop]:
    with closing(Shop(fresh_database("postgresql"))) as shop:
        yield shop


def test_what_debezium_cannot_do_has_a_delivery(shop: Shop) -> None:
    shop.add()
    assert shop.deliveries() == 1
    shop.admin.debezium_on()
    shop.admin.debezium_on()  # changes nothing
    soon = datetime.now(UTC) + timedelta(hours=1)
    brokers = Outbox(cdc=True, brokers=["payments.*"])
    with psycopg.connect(shop.url) as connection:
        run = Ledger().begin(connection, "key", "0" * 64)
        assert isinstance(run, Run)
        outbox.add(connection, "orders", 0, ledger=run.entry)
        outbox.add(connection, "orders", 1, deliver_at=soon)
        outbox.add(connection, "orders", 2, expires_at=soon)
        brokers.add(connection, "payments.card", 3)
        outbox.add_many(connection, [outbox.message("orders", n, expires_at=soon if n else None) for n in (8, 0)])
        connection.execute("SELECT postroom.add('orders', '6', expires_at => now() + interval '1 hour')")
        connection.execute("SELECT postroom.add('orders', '7', deliver_at => now() + interval '1 hour')")
        assert shop.deliveries() == 1
    assert shop.deliveries() == 1 + 7
    found = shop.database.rows("SELECT convert_from(payload, 'UTF8'), type FROM {outbox} WHERE streamed")
    assert found == [("0", "orders")]
    assert shop.database.rows("SELECT count(*) FROM {outbox} WHERE NOT streamed AND type IS NOT NULL") == [(0,)]
    shop.database.store.run(Debezium(shop.database.store.names).leave())
    assert shop.mode == Mode.CLOSING  # and Debezium still sends
    shop.add(payload="last")
    shop.add(payload="expires", expires_at=soon)
    shop.one("SELECT postroom.add('orders', '8')")
    shop.one("SELECT postroom.add('orders', '9', expires_at => now() + interval '1 hour')")
    assert shop.deliveries() == 1 + 7 + 2
    assert shop.one("SELECT count(*) FROM {outbox} WHERE streamed AND type = topic") == 3


def test_no_relay_reads_what_is_debeziums(shop: Shop) -> None:
    shop.admin.debezium_on()
    leadership = Leadership(shop.database.store.names)
    assert shop.database.store.run(leadership.take("relay", 60)) is None
    assert not shop.database.store.run(leadership.lanes_rest())


def test_a_cleanup_settles_what_debezium_has_confirmed_and_removes_it_when_it_is_old(shop: Shop) -> None:
    shop.admin.debezium_on()
    for n in range(3):
        shop.add(payload=n)
    assert shop.receipts() == 0
    with psycopg.connect(shop.url) as late:
        outbox.add(late, "orders", "an early position, committed late")
        shop.add(payload="later")
        shop.confirm()
        assert shop.receipts() == 3  # what was marked by the first cleanup
        assert shop.receipts() == 3  # not before the open transaction has ended
        shop.confirm()
        assert shop.receipts() == 3
    assert shop.receipts() == 3  # marked, but not confirmed
    shop.confirm()
    assert shop.receipts() == 5
    assert shop.one("SELECT count(*) FROM {outbox}") == 5
    shop.add(payload="new")
    assert shop.admin.cleanup(days=0).messages == 5
    assert shop.database.rows("SELECT convert_from(payload, 'UTF8') FROM {outbox}") == [("new",)]


def test_a_cleanup_settles_many_page_by_page_and_none_twice(shop: Shop) -> None:
    shop.admin.debezium_on()
    with psycopg.connect(shop.url) as connection:
        outbox.add_many(connection, [outbox.message("orders", n) for n in range(12_000)])
    assert shop.receipts() == 0
    shop.confirm()
    assert shop.receipts() == 12_000
    assert shop.receipts() == 12_000


def test_what_is_put_back_into_its_partition_is_not_sent_again(shop: Shop) -> None:
    store = shop.database.store
    assert store.call(lambda connection: partition(connection, store.names))
    parts = Partitions(store.names)
    [first, *_] = store.run(parts.existing())
    shop.one(f"SELECT setval(pg_get_serial_sequence('{{outbox}}', 'position'), {first.range.start})")
    shop.admin.debezium_on()
    shop.add(payload="settled")
    shop.receipts()
    shop.confirm()
    assert shop.receipts() == 1
    shop.add(payload="stays")
    shop.confirm()
    assert store.run(parts.transaction(parts.empty, first, 0)) == 1
    assert shop.database.rows("SELECT convert_from(payload, 'UTF8'), streamed FROM {outbox}") == [("stays", True)]
    assert shop.read() == 0
    shop.add(payload="new")
    assert shop.read() == 1


def test_the_way_back_waits_for_debezium_and_leaves_nothing_to_send_again(shop: Shop) -> None:
    shop.admin.debezium_on()
    shop.add(key="7")
    told: list[str] = []
    with psycopg.connect(shop.url) as late:
        outbox.add(late, "orders", "late", key="7")
        with pytest.raises(TimeoutError, match="open transactions"):
            shop.admin.debezium_off(timeout=0)
        off = Background(lambda: shop.admin.debezium_off(progress=told.append))
        wait_until(lambda: any("open transactions" in one for one in told))
        assert shop.mode == Mode.DRAINING
        shop.add(key="7")  # waits in its lane
    wait_until(lambda: any("not confirmed" in one and SLOT in one for one in told))
    assert (shop.mode, shop.deliveries()) == (Mode.DRAINING, 1)
    shop.confirm()
    off.result()
    assert (shop.mode, shop.deliveries()) == (Mode.TABLE, 1)
    assert shop.one("SELECT count(*) FROM {receipt} r JOIN {outbox} m USING (position) WHERE m.streamed") == 2
    assert shop.one("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()") == 0


async def test_without_waiting_relays_send_what_has_no_receipt(shop: Shop) -> None:
    shop.admin.debezium_on()
    shop.add(payload="sent", key="7")
    shop.receipts()
    shop.confirm()
    assert shop.receipts() == 1
    shop.add(payload="lost with the slot", key="7")
    shop.one(f"SELECT pg_drop_replication_slot('{SLOT}')::text")
    assert shop.receipts() == 1
    async with AsyncAdmin(shop.url) as admin:
        await admin.debezium_off(wait=False)
        assert (shop.mode, shop.deliveries()) == (Mode.TABLE, 1)
        await admin.debezium_off()
        assert len(await admin.debezium_sql()) == 4


def test_the_printed_statements_do_the_same(shop: Shop) -> None:
    with psycopg.connect(shop.url, autocommit=True) as connection:
        for statement in shop.admin.debezium_sql("another"):
            connection.execute(statement.encode())
    shop.add()
    assert (shop.mode, shop.deliveries()) == (Mode.DEBEZIUM, 0)
    assert shop.one("SELECT slot FROM {stream}") == "another"


def test_it_says_why_it_cannot(shop: Shop, fresh_database: FreshDatabase) -> None:
    with pytest.raises(InvalidSetting, match="slot = 'No;slot' is not valid"):
        shop.admin.debezium_on("No;slot")
    shop.database.store.run(Leadership(shop.database.store.names).change_mode([Mode.TABLE], Mode.STREAM))
    with pytest.raises(InvalidSetting, match="in the mode stream"):
        shop.admin.debezium_on()
    other = Database(fresh_database("sqlite"))
    with closing(other.store), Admin(other.url.render_as_string()) as admin:
        with pytest.raises(InvalidSetting, match="PostgreSQL only, and this is sqlite"):
            admin.debezium_on()
        admin.cleanup()

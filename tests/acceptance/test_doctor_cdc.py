"""V-7: `postroom doctor` and the stream: set up in part, read by nobody, read past, and on its way back."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from postroom import Admin, Outbox, Relay
from postroom.store.admin.inspection import streams
from tests.acceptance.clinic import FAIL, OK, SKIP, WARN, Clinic
from tests.acceptance.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

    from postroom.doctor import Verdict
    from tests.conftest import FreshDatabase

CODES = ("SERVER", "PUBLICATION", "SLOT", "WAL", "READER", "MODE", "MISSED", "PRODUCERS")


@pytest.fixture
def clinic(fresh_database: FreshDatabase) -> Iterator[Clinic]:
    with Clinic(fresh_database("postgresql")) as clinic:
        yield clinic
        clinic.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()"
        )


def found(clinic: Clinic, **settings: object) -> dict[str, Verdict]:
    """What each check finds that is not well."""
    report = clinic.examine("CDC_*", **settings)
    assert [result.code for result in report] == [f"CDC_{code}" for code in CODES]
    return {result.code: result.verdict for result in report if result.verdict not in {OK, SKIP}}


def add(clinic: Clinic, *, cdc: bool) -> None:
    def record(connection: Connection) -> None:
        Outbox(cdc=cdc).add(connection, "orders", {"n": 1}, key="a")
        connection.commit()

    clinic.store.call(record)


async def test_V_7_a_stream_that_nobody_reads(clinic: Clinic) -> None:
    assert {result.verdict for result in clinic.examine("CDC_*")} == {SKIP, OK}
    assert found(clinic, cdc=True) == {"CDC_PUBLICATION": WARN}
    with Admin(clinic.url) as admin:
        admin.set_up_cdc(actor="ada")
        assert found(clinic) == {"CDC_SLOT": FAIL}, "it keeps log for nobody"
        await Relay(clinic.url, lambda _: None, cdc=True).run_once()
        add(clinic, cdc=True)
        assert found(clinic) == {"CDC_SLOT": FAIL, "CDC_READER": WARN}
        assert clinic.verdict("FLOW_INCOMPLETE") is OK, "what is in the stream needs no delivery"
        clinic.execute("UPDATE {stream} SET changed_at = changed_at - interval '1 hour'")
        assert clinic.verdict("CDC_READER") is FAIL
        clinic.execute(
            "DROP PUBLICATION postroom_outbox",
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()",
        )
        assert found(clinic) == {"CDC_PUBLICATION": FAIL, "CDC_SLOT": FAIL, "CDC_READER": FAIL}
        clinic.execute("UPDATE {stream} SET mode = 'draining'")
        assert clinic.verdict("CDC_MODE") is FAIL
        clinic.execute("UPDATE {stream} SET mode = 'table'")
        assert found(clinic) == {"CDC_MISSED": FAIL}
        assert admin.sweep_cdc(actor="ada") == 1
        assert found(clinic) == {}


async def test_V_7_a_stream_that_is_read(clinic: Clinic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "SLACK", 0.0)
    sent: list[object] = []
    relay = Relay(clinic.url, sent.append, cdc=True, worker="reader", poll_interval_sec=0.02)
    running = threading.Thread(target=lambda: asyncio.run(relay.run()))
    running.start()
    try:
        await wait_for(lambda: clinic.verdict("CDC_READER") is OK)
        add(clinic, cdc=True)
        await wait_for(lambda: len(sent) == 1)
        await wait_for(lambda: found(clinic, cdc=True) == {})
        add(clinic, cdc=False)
        await wait_for(lambda: len(sent) == 2)
        await wait_for(lambda: clinic.verdict("CDC_PRODUCERS") is WARN)
        clinic.execute("DELETE FROM {receipt} WHERE position = (SELECT min(position) FROM {receipt})")
        assert clinic.verdict("CDC_MISSED") is FAIL
    finally:
        relay.stop()
        running.join()


def test_V_7_an_outbox_that_debezium_reads(clinic: Clinic) -> None:
    with Admin(clinic.url) as admin:
        admin.debezium_on(actor="ada", reason="Kafka")
        add(clinic, cdc=True)
        assert found(clinic) == {"CDC_SLOT": WARN}, "its connector is not started yet"
        assert {result.verdict for result in clinic.examine("FLOW_*")} <= {OK, SKIP}
        admin.cleanup()
        admin.cleanup()
        clinic.execute(
            "UPDATE {stream} SET changed_at = changed_at - interval '1 hour'",
            "UPDATE {outbox} SET created_at = created_at - interval '1 hour'",
        )
        assert found(clinic) == {"CDC_SLOT": FAIL, "CDC_READER": FAIL}, "what a cleanup has noted is not confirmed"
        clinic.execute("SELECT pg_drop_replication_slot('postroom_debezium')")
        assert found(clinic) == {"CDC_SLOT": FAIL}
        admin.debezium_off(wait=False, actor="ada")
        assert [(one.action, one.actor) for one in admin.audit()] == [("debezium_off", "ada"), ("debezium_on", "ada")]

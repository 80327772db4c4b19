"""V-7: `postroom doctor` on real databases, healthy ones and such as have been made sick."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from sqlalchemy import create_engine

from postroom import Admin, Ledger, schema
from postroom.admin import ALL
from postroom.cli import main
from postroom.doctor import CHECKS, Verdict, as_json, examine
from postroom.errors import InvalidSetting
from postroom.rules.lifecycle import Stored
from postroom.rules.saga_state import STEP_MISSING
from postroom.rules.twophase_ids import transaction_id
from postroom.rules.twophase_plan import Decision
from postroom.store.connections.urls import resolve
from postroom.store.outbox.leases import Dead, Postponed, Sent
from postroom.store.saga.saga_store import SagaStore
from postroom.store.sql.dialect import DIALECTS
from postroom.store.twophase.log import TwoPhaseLog
from tests.acceptance.clinic import FAIL, OK, SKIP, WARN, Clinic
from tests.contract import clock
from tests.contract.stored_sagas import start_message

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from tests.conftest import FreshDatabase

DAY = 86_400


pytestmark = pytest.mark.usefixtures("no_settings")


def test_V_7_a_healthy_system_passes_every_check(clinic: Clinic) -> None:
    clinic.add("orders", "orders", key="ada")
    clinic.add("orders")
    clinic.settle(*(Sent(one, None) for one in clinic.claim()))
    clinic.beat("relay-1")
    report = clinic.examine(broker="stdout:")
    assert [check.code for check in CHECKS] == [result.code for result in report]
    not_ok = {result.code: result.evidence for result in report if result.verdict in (WARN, FAIL)}
    durable = clinic.names.dialect == "sqlite"  # the tests' servers do not write to disk before they answer
    assert set(not_ok) == (set() if durable else {"DB_DURABILITY"}), not_ok
    told = as_json(report)
    assert sum(told["counts"].values()) == len(report)
    assert json.loads(json.dumps(told))["checks"][0]["code"] == "DB_REACHABLE"


def test_V_7_tables_that_somebody_changed_are_found_and_repaired(clinic: Clinic) -> None:
    drop_index = {"mysql": " ON {audit}"}.get(clinic.names.dialect, "")
    schema_name = "postroom." if clinic.names.schema else ""
    index = f"{schema_name}{clinic.names.bare('audit_position')}"
    clinic.execute("DROP VIEW {status_view}", "DELETE FROM {lane} WHERE lane > 11")
    clinic.execute("INSERT INTO {lane} (queue, lane) VALUES ('topic:a', 0)")
    assert [clinic.verdict(code) for code in ("SCHEMA_VIEW", "SCHEMA_LANES")] == [FAIL, FAIL]
    assert clinic.result("SCHEMA_LANES").figures == {"lanes": {"default": 12, "topic:a": 1}}
    match clinic.names.dialect:
        case "postgresql":
            clinic.execute(
                "ALTER TABLE {delivery} RESET (fillfactor, autovacuum_vacuum_threshold)",
                'GRANT EXECUTE ON FUNCTION "postroom"."add" TO PUBLIC',
            )
            assert "fillfactor is not set" in clinic.result("SCHEMA_STORAGE").evidence
            assert "every role" in clinic.result("SCHEMA_FUNCTION").evidence
            clinic.execute('ALTER FUNCTION "postroom"."add" SECURITY INVOKER')
            assert "not this version's" in clinic.result("SCHEMA_FUNCTION").evidence
            clinic.execute('DROP FUNCTION "postroom"."add"')
            assert clinic.verdict("SCHEMA_FUNCTION") is FAIL
        case "mysql":
            clinic.execute("ALTER TABLE {audit} ENGINE = Aria")
            assert "Aria" in clinic.result("SCHEMA_STORAGE").evidence
            clinic.execute("ALTER TABLE {audit} ENGINE = InnoDB")
        case _:
            pass
    if clinic.names.dialect != "mysql":
        of_table = " ON {outbox}" if clinic.names.dialect == "postgresql" else ""
        clinic.execute(f"DROP TRIGGER {clinic.names.quoted(clinic.names.bare('outbox_check'))}{of_table}")
        assert clinic.verdict("SCHEMA_GUARDS") is WARN
    assert main(["init", "--repair", "--database", clinic.url]) == 0
    repaired = clinic.examine("SCHEMA_*")
    assert {one.code: one.evidence for one in repaired if one.verdict in (WARN, FAIL)} == {}
    clinic.execute(f"DROP INDEX {index}{drop_index}")
    assert "audit_position" in clinic.result("SCHEMA_TABLES").evidence
    if clinic.names.dialect == "mysql":
        name = clinic.names.bare("outbox_delivery_check")
        clinic.execute(f"ALTER TABLE {{delivery}} DROP CONSTRAINT {name}")
        assert name in clinic.result("SCHEMA_GUARDS").evidence


def test_V_7_tables_of_another_version_or_of_none(clinic: Clinic) -> None:
    table = clinic.names.table("schema_version")
    for version, verdict, words in ((99, FAIL, "upgrade postroom"), (1, FAIL, "postroom init"), (0, FAIL, "init")):
        clinic.execute(f"DELETE FROM {table}", f"INSERT INTO {table} (version) VALUES ({version})")
        result = clinic.result("SCHEMA_VERSION")
        assert (result.verdict, words in result.remedy) == (verdict, True)
    clinic.execute(f"DELETE FROM {table}")
    assert "no version is on record" in clinic.result("SCHEMA_VERSION").evidence
    empty = examine(clinic.url, only=["SCHEMA_*", "FLOW_*", "SAGA_*", "TX_*"], table_prefix="none_")
    verdicts = {result.code: result.verdict for result in empty}
    assert verdicts.pop("SCHEMA_VERSION") is FAIL
    assert verdicts.pop("TX_PREPARED") in (OK, SKIP)
    assert set(verdicts.values()) == {SKIP}
    server = examine(clinic.url, only=["DB_*"], table_prefix="none_")
    assert {one.code for one in server if one.verdict is FAIL} <= {"DB_DURABILITY"}, "no check breaks"


def test_V_7_tables_that_alembic_made_are_incomplete_until_they_are_adopted(
    fresh_database: FreshDatabase,
) -> None:
    url = fresh_database("postgresql")
    engine = create_engine(resolve(url))
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA postroom")
        schema.metadata("postgresql").create_all(connection)
    engine.dispose()

    def found() -> dict[str, Verdict]:
        return {one.code: one.verdict for one in examine(url, only=["SCHEMA_*"]) if one.verdict is not OK}

    assert found() == {
        **dict.fromkeys(("SCHEMA_VIEW", "SCHEMA_FUNCTION", "SCHEMA_LANES"), FAIL),
        **dict.fromkeys(("SCHEMA_VERSION", "SCHEMA_STORAGE", "SCHEMA_GUARDS"), WARN),
    }
    assert main(["init", "--database", url]) == 0
    assert found() == {}


def test_V_7_messages_that_do_not_move(clinic: Clinic) -> None:
    clinic.add("orders")
    unserved = clinic.result("FLOW_NO_WORKER")
    assert (unserved.verdict, unserved.figures) == (FAIL, {"unserved": {"default": 1}})
    clinic.beat("relay-1")
    assert [clinic.verdict(code) for code in ("FLOW_NO_WORKER", "FLOW_OLDEST", "SETTINGS_ENABLED")] == [OK] * 3
    assert clinic.verdict("SETTINGS_ENABLED", enabled=False) is WARN
    clock.advance(clinic.store, 100)
    assert clinic.verdict("FLOW_OLDEST") is WARN
    clock.advance(clinic.store, 1000)
    assert "18 min" in clinic.result("FLOW_OLDEST").evidence
    assert clinic.verdict("FLOW_LEASES") is OK
    clinic.claim()
    clinic.add("orders", key="ada")
    now = DIALECTS[clinic.names.dialect].now
    clinic.execute(f"UPDATE {{lane}} SET owner = 'relay-2', leased_until = {now}")
    clock.advance(clinic.store, 600)
    assert clinic.result("FLOW_LEASES").figures["stale"] == 2, "a message's and a lane's, as a crash leaves them"


def test_V_7_dead_letters_and_what_they_hold_back(clinic: Clinic) -> None:
    first, _, _ = clinic.add("orders", "orders", "orders", key="ada")
    clinic.add("mails", "mails")
    clinic.settle(*(Dead(one, "UNDECODABLE", "not JSON") for one in clinic.claim()))
    clinic.execute(
        f"UPDATE {{delivery}} SET state = {int(Stored.DEAD)}, error_code = 'TIMEOUT' "
        "WHERE position = (SELECT position FROM {outbox} WHERE id = '" + str(first) + "')"
    )
    dead = clinic.result("FLOW_DEAD")
    assert dead.figures == {"dead": 3, "codes": {"UNDECODABLE": 2, "TIMEOUT": 1}}
    held = clinic.result("FLOW_HELD_KEYS")
    assert held.figures == {"keys": [{"queue": "default", "waiting": 2, "blocker": str(first)}]}
    assert f"postroom dead requeue {first}" in held.remedy
    assert clinic.verdict("FLOW_HELD_KEYS", order="skip") is OK
    assert clinic.verdict("SETTINGS_INBOX") is OK
    clock.advance(clinic.store, 8 * DAY)
    assert clinic.verdict("SETTINGS_INBOX") is WARN, "requeued, it could take effect twice"
    assert clinic.verdict("SETTINGS_INBOX", inbox_retention_days=30) is OK
    assert clinic.verdict("SETTINGS_INBOX", inbox_retention_days=0) is FAIL
    with Admin(clinic.url) as admin:
        admin.requeue(ALL, actor="ada")
    assert clinic.verdict("FLOW_DEAD") is OK
    assert clinic.verdict("FLOW_HELD_KEYS") is OK


def test_V_7_topics_and_brokers_that_workers_cannot_use(clinic: Clinic) -> None:
    clinic.add("orders")
    clinic.settle(*(Postponed(one, 60, "TARGET_UNAVAILABLE", "no such queue") for one in clinic.claim()))
    assert "orders (1 waiting): no such queue" in clinic.result("FLOW_TARGETS").evidence
    clinic.beat("relay-1")
    clinic.beat("relay-2", down="connection refused")
    assert [clinic.verdict(code) for code in ("FLOW_BROKER_DOWN", "SETTINGS_RELAYS")] == [WARN, WARN]
    clinic.beat("relay-1", down="connection refused")
    assert clinic.verdict("FLOW_BROKER_DOWN") is FAIL
    clinic.leave("relay-2")
    clinic.beat("relay-1")
    assert [clinic.verdict(code) for code in ("FLOW_BROKER_DOWN", "SETTINGS_RELAYS")] == [OK, OK]
    clinic.beat("relay-3", "topic:*", "topic:mails.*")
    assert "relay-3 alone serves" in clinic.result("SETTINGS_RELAYS").evidence


def test_V_7_what_is_old_half_written_or_left_in_progress(clinic: Clinic) -> None:
    clinic.add("orders")
    clinic.settle(*(Sent(one, None) for one in clinic.claim()))

    def begin(connection: Connection) -> None:
        Ledger().begin(connection, "k", "d" * 64, scope="s")
        connection.commit()

    clinic.store.call(begin)
    assert [clinic.verdict(code) for code in ("FLOW_RETENTION", "FLOW_LEDGER", "FLOW_INCOMPLETE")] == [OK] * 3
    clock.advance(clinic.store, 2 * 3600)
    assert clinic.result("FLOW_LEDGER").figures["unfinished"] == 1
    clock.advance(clinic.store, 9 * DAY)
    late = clinic.result("FLOW_RETENTION")
    assert (late.verdict, "messages settled" in late.evidence, "cleanup" in late.remedy) == (WARN, True, True)
    with Admin(clinic.url) as admin:
        admin.cleanup()
    assert clinic.verdict("FLOW_RETENTION") is OK
    [half, _] = clinic.add("orders", "orders")
    clinic.execute(f"DELETE FROM {{delivery}} WHERE position = (SELECT position FROM {{outbox}} WHERE id = '{half}')")
    assert str(half) in clinic.result("FLOW_INCOMPLETE").evidence


def test_V_7_sagas_and_two_phase_commits_that_wait_for_somebody(clinic: Clinic) -> None:
    sagas = SagaStore(clinic.names, "place_order")
    for number in range(2):
        clinic.store.run(sagas.sql.transaction(sagas.start, start_message(f"order-{number}"), None))
    assert [clinic.verdict(code) for code in ("SAGA_PARKED", "SAGA_STRANDED", "TX_IN_DOUBT")] == [OK] * 3
    clinic.execute(f"UPDATE {{delivery}} SET state = {int(Stored.DEAD)}, error_code = 'TIMEOUT'")
    assert clinic.result("SAGA_PARKED").figures == {"parked": {"place_order": 2}}
    assert clinic.verdict("FLOW_DEAD") is OK, "a parked saga is no dead letter"
    clinic.execute(f"UPDATE {{delivery}} SET state = {int(Stored.RETRY)}, error_code = '{STEP_MISSING}'")
    assert clinic.verdict("SAGA_STRANDED") is FAIL
    log = TwoPhaseLog(clinic.names)
    now_ms = clinic.store.run(log.clock())
    tx = transaction_id(now_ms - 1000, uuid4().hex[:12])
    clinic.store.run(log.open(tx, {"shop": "", "bank": "pr1:0a0b0c0d:x:bank"}, now_ms - 1000))
    assert clinic.verdict("TX_IN_DOUBT") is OK, "recovery has its time"
    clock.advance(clinic.store, 1000)
    assert clinic.verdict("TX_IN_DOUBT") is WARN
    clinic.store.run(log.resolve_open(tx, Decision.COMMIT))
    clinic.store.run(log.note_problem(tx, "only a superuser may finish it"))
    assert f"postroom transactions show {tx}" in clinic.result("TX_IN_DOUBT").remedy


def test_V_7_options_and_exit_codes(fresh_database: FreshDatabase, capsys: pytest.CaptureFixture[str]) -> None:
    with Clinic(fresh_database("sqlite")) as clinic:
        clinic.add("orders")
        clinic.settle(*(Dead(one, "REJECTED", "no") for one in clinic.claim()))

        def run(*arguments: str) -> tuple[int, str, str]:
            code = main(["doctor", "--database", clinic.url, *arguments])
            return code, *capsys.readouterr()

        code, out, _ = run("--only", "FLOW_DEAD")
        assert (code, out.count("\n"), "WARN  FLOW_DEAD  1 dead letter: 1 REJECTED" in out) == (0, 5, True)
        assert "→ look at them with `postroom dead list`" in out
        assert "see docs/guide/troubleshooting.md#dead-letters-pile-up" in out
        assert run("--only", "flow_*", "--strict")[0] == 1
        assert run("--only", "FLOW_*", "--skip", "FLOW_DEAD", "--strict")[0] == 0
        code, out, _ = run("--json", "--only", "FLOW_DEAD", "--only", "DB_JOURNAL")
        told = json.loads(out)
        assert (code, told["verdict"], told["counts"]) == (0, "WARN", {"FAIL": 0, "WARN": 1, "OK": 1, "SKIP": 0})
        code, out, _ = run("--list", "--json")
        assert (code, [one["code"] for one in json.loads(out)]) == (0, [check.code for check in CHECKS])
        assert "FLOW_DEAD" in run("--list", "--only", "FLOW_*")[1]
        for arguments in (
            ["--only", "NOTHING"],
            ["--skip", "X"],
            ["--only", "FLOW_*", "--skip", "FLOW_*"],
            ["--broker", "ftp://x"],
            ["--broker-for", "x"],
            ["--timeout", "0"],
        ):
            code, out, err = run(*arguments)
            assert (code, out, err.startswith("postroom: ")) == (2, "", True)
        assert main(["doctor"]) == 2
        with pytest.raises(InvalidSetting, match="purposes"):
            clinic.examine(purposes=["nobody"])
        with pytest.raises(InvalidSetting, match="limit"):
            clinic.examine(limit=0)


def test_V_7_settings_that_contradict(fresh_database: FreshDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    with Clinic(fresh_database("sqlite")) as clinic:
        assert clinic.verdict("SETTINGS_LEASE", lock_lease_sec=2) is FAIL
        assert clinic.verdict("SETTINGS_LEASE", lane_lease_sec=4) is WARN
        monkeypatch.setenv("POSTROOM_BATCHSIZE", "5")
        assert "POSTROOM_BATCHSIZE" in clinic.result("SETTINGS_NAMES").evidence
        monkeypatch.delenv("POSTROOM_BATCHSIZE")
        assert clinic.verdict("SETTINGS_EXTRAS", broker="nats://127.0.0.1:1") is OK
        for name in ("postroom.brokers.nats", "postroom.brokers.inspection.nats"):
            monkeypatch.delitem(sys.modules, name, raising=False)
            monkeypatch.delattr(name, raising=False)
        monkeypatch.setitem(sys.modules, "nats", None)  # as if it were not installed
        missing = clinic.result("SETTINGS_EXTRAS", broker="nats://127.0.0.1:1")
        assert (missing.verdict, "postroom[nats]" in missing.remedy) == (FAIL, True)
        assert clinic.verdict("BROKER_REACHABLE", broker="nats://127.0.0.1:1") is SKIP

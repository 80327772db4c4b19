"""V-7: `postroom doctor` on real databases, healthy ones and such as have been made sick."""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, make_url

from postroom import Admin, Ledger, schema
from postroom.admin import ALL
from postroom.cli import main
from postroom.doctor import CHECKS, Verdict, as_json, examine
from postroom.errors import InvalidSetting
from postroom.rules.checks import database as database_rules
from postroom.rules.checks import unfinished as unfinished_rules
from postroom.rules.lifecycle import Stored
from postroom.rules.saga_state import STEP_MISSING
from postroom.rules.twophase_ids import transaction_id
from postroom.rules.twophase_plan import Decision
from postroom.store.admin.inspection import sqlite as sqlite_inspection
from postroom.store.connections.urls import resolve
from postroom.store.outbox.leases import Dead, Postponed, Sent
from postroom.store.saga.saga_store import SagaStore
from postroom.store.schema.grants import grant_statements
from postroom.store.schema.purposes import Purpose
from postroom.store.sql.dialect import DIALECTS
from postroom.store.twophase.log import TwoPhaseLog
from tests.acceptance.clinic import FAIL, OK, SKIP, WARN, Clinic
from tests.contract import clock
from tests.contract.stored_sagas import start_message
from tests.services.databases import KINDS, need
from tests.services.ports import free_port
from tests.services.postgresql import PostgreSQL

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqlalchemy import Connection

    from tests.conftest import FreshDatabase
    from tests.services.pgbouncer import PgBouncer

DAY = 86_400
PASSWORD = "hidden-7f3a"  # noqa: S105 - of nobody
SECRET = "aGlkZGVuLTdmM2EtaGlkZGVuLTdmM2E="  # noqa: S105 - as above


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith(("POSTROOM_", "OUTBOX_", "INBOX_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(params=KINDS)
def clinic(request: pytest.FixtureRequest, fresh_database: FreshDatabase) -> Iterator[Clinic]:
    with Clinic(fresh_database(request.param)) as opened:
        yield opened


def of(kind: str, fresh_database: FreshDatabase) -> Clinic:
    return Clinic(fresh_database(kind))


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
            clinic.execute('DROP TRIGGER "postroom_outbox_check"')
            assert clinic.verdict("SCHEMA_GUARDS") is WARN
    assert main(["init", "--repair", "--database", clinic.url]) == 0
    repaired = clinic.examine("SCHEMA_*")
    assert {one.code: one.evidence for one in repaired if one.verdict in (WARN, FAIL)} == {}
    clinic.execute(f"DROP INDEX {index}{drop_index}")
    assert "audit_position" in clinic.result("SCHEMA_TABLES").evidence
    if clinic.names.dialect != "sqlite":
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
        **dict.fromkeys(("SCHEMA_VERSION", "SCHEMA_STORAGE"), WARN),
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


def test_V_7_old_snapshots_and_prepared_transactions(
    fresh_database: FreshDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    with of("postgresql", fresh_database) as clinic, clinic.session() as run:
        run("BEGIN ISOLATION LEVEL REPEATABLE READ")
        run("SELECT count(*) FROM pg_class")
        assert clinic.verdict("DB_SNAPSHOTS") is OK, "it is young"
        monkeypatch.setattr(database_rules, "OLD_SNAPSHOT", 0.0)
        held = clinic.result("DB_SNAPSHOTS")
        assert (held.verdict, "pg_terminate_backend" in held.remedy) == (WARN, True)
        run("COMMIT")
        run("BEGIN")
        run(f"UPDATE {clinic.names.table('outbox_lane')} SET read_to = 0")
        run("PREPARE TRANSACTION 'left-behind'")
        assert "prepared transaction left-behind" in clinic.result("DB_SNAPSHOTS").evidence
        assert clinic.verdict("TX_PREPARED") is OK, "it is young"
        monkeypatch.setattr(unfinished_rules, "SETTLING", 0.0)
        assert "ROLLBACK PREPARED" in clinic.result("TX_PREPARED").remedy
        run("ROLLBACK PREPARED 'left-behind'")
        assert clinic.verdict("TX_PREPARED") is OK
        clinic.execute("ALTER TABLE {delivery} SET (autovacuum_enabled = false)")
        assert clinic.verdict("DB_VACUUM") is FAIL


def test_V_7_a_mariadb_server_that_is_not_as_it_should_be(
    fresh_database: FreshDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    with of("mariadb", fresh_database) as clinic, clinic.session() as run:
        run("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        run(f"SELECT count(*) FROM {clinic.names.table('outbox_lane')}")
        monkeypatch.setattr(database_rules, "OLD_SNAPSHOT", 0.0)
        assert "KILL" in clinic.result("DB_SNAPSHOTS").remedy
        assert clinic.verdict("DB_VACUUM") is OK
        clinic.execute("UPDATE {lane} SET read_to = read_to + 1")
        monkeypatch.setattr(database_rules, "MOST_HISTORY", 0)
        assert clinic.verdict("DB_VACUUM") is WARN, "purge waits for the snapshot"
        run("COMMIT")
        run("XA START 'somebody', 'else', 7")
        run(f"UPDATE {clinic.names.table('outbox_lane')} SET read_to = 1")
        run("XA END 'somebody', 'else', 7")
        run("XA PREPARE 'somebody', 'else', 7")
        assert clinic.verdict("TX_PREPARED") is WARN
        run("XA ROLLBACK 'somebody', 'else', 7")
        assert clinic.verdict("TX_PREPARED") is OK
        flush = run("SELECT @@innodb_flush_log_at_trx_commit").scalar()
        try:
            run("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
            assert clinic.verdict("DB_DURABILITY") is FAIL
            run("SET GLOBAL innodb_flush_log_at_trx_commit = 1")
            assert "doublewrite" in clinic.result("DB_DURABILITY").evidence, "which the tests' server does without"
            run("SET GLOBAL read_only = ON")
            assert clinic.verdict("DB_WRITABLE") is FAIL
            run("SET GLOBAL max_connections = 10")
            with ExitStack() as others:
                for _ in range(8):
                    others.enter_context(clinic.session())
                assert clinic.verdict("DB_CONNECTIONS") in (WARN, FAIL)
        finally:
            run("SET GLOBAL max_connections = 200")
            run("SET GLOBAL read_only = OFF")
            run(f"SET GLOBAL innodb_flush_log_at_trx_commit = {flush}")
        assert [clinic.verdict(code) for code in ("DB_WRITABLE", "DB_CONNECTIONS")] == [OK, OK]


def test_V_7_a_postgresql_server_that_is_not_as_it_should_be(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(PostgreSQL(durable=True)) as server:
        need(PostgreSQL, server)
        server.create_database("shop")
        with Clinic(server.url("shop")) as clinic:
            healthy = clinic.examine("DB_*")
            assert {one.code for one in healthy if one.verdict not in (OK, SKIP)} == set()
            clinic.store.run(TwoPhaseLog(clinic.names).scope())
            assert clinic.verdict("DB_PREPARES") is OK
            with clinic.session() as run:
                run("ALTER SYSTEM SET max_prepared_transactions = 0")
                run("ALTER SYSTEM SET max_connections = 20")
                run("ALTER SYSTEM SET fsync = off")
                run("ALTER DATABASE shop SET synchronous_commit = off")
                run("SELECT pg_create_logical_replication_slot('forgotten', 'pgoutput')")
        with Clinic(server.url("shop")) as clinic:
            assert "synchronous_commit is off" in clinic.result("DB_DURABILITY").evidence
            assert clinic.verdict("DB_SLOTS") is OK
            monkeypatch.setattr(database_rules, "SLOT_BYTES", 1)
            assert "pg_drop_replication_slot('forgotten')" in clinic.result("DB_SLOTS").remedy
        server.stop()
        server.start()
        with Clinic(server.url("shop")) as clinic:
            assert [clinic.verdict(code) for code in ("DB_PREPARES", "DB_DURABILITY")] == [FAIL, FAIL]
            with ExitStack() as others:
                for _ in range(14):
                    others.enter_context(clinic.session())
                assert clinic.verdict("DB_CONNECTIONS") in (WARN, FAIL)
            clinic.execute("ALTER DATABASE shop SET default_transaction_read_only = on")
        assert examine(server.url("shop"), only=["DB_WRITABLE"]).failed()


def test_V_7_sqlite_on_the_wrong_disk_and_without_a_log(
    fresh_database: FreshDatabase, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with of("sqlite", fresh_database) as clinic:
        mounts = tmp_path / "mounts"
        mounts.write_text("/dev/sda1 / ext4 rw 0 0\nserver:/shop /tmp nfs4 rw 0 0\nbroken\n")
        monkeypatch.setattr(sqlite_inspection, "MOUNTS", mounts)
        assert "nfs4" in clinic.result("DB_DISK").evidence
        monkeypatch.setattr(sqlite_inspection, "MOUNTS", tmp_path / "none")
        assert clinic.verdict("DB_DISK") is SKIP
        clinic.execute("PRAGMA journal_mode = DELETE")
        assert clinic.verdict("DB_JOURNAL") is WARN


def test_V_7_a_clock_that_is_wrong(clinic: Clinic, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setattr("postroom.doctor.database_checks.now", lambda: time.time() + 60)
    assert "ahead of the database's" in clinic.result("DB_CLOCK").evidence


def test_V_7_notifications_behind_a_pooler(fresh_database: FreshDatabase, pgbouncer: PgBouncer) -> None:
    with of("postgresql", fresh_database) as clinic:
        assert clinic.verdict("SETTINGS_NOTIFY", notify=True) is OK
        behind = make_url(clinic.url).set(port=pgbouncer.port, host="127.0.0.1")
        url = behind.render_as_string(hide_password=False)
        [result] = examine(url, only=["SETTINGS_NOTIFY"], notify=True)
        assert result.verdict is WARN
        report = examine(url, skip=["DB_DURABILITY"])
        assert {one.code for one in report if one.verdict is FAIL} == set()


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_V_7_privileges_that_are_missing_are_named_and_nothing_breaks(kind: str, fresh_database: FreshDatabase) -> None:
    with of(kind, fresh_database) as clinic:
        role = f"role_{uuid4().hex[:12]}"
        on_postgresql = kind == "postgresql"
        engine = create_engine(resolve(clinic.url))
        url = make_url(clinic.url).set(username=role).render_as_string(hide_password=False)

        def grant(*statements: str) -> None:
            with engine.begin() as connection:
                for statement in statements:
                    connection.exec_driver_sql(statement.replace("%", "%%"))

        grant(f"CREATE ROLE {role} LOGIN" if on_postgresql else f"CREATE USER '{role}'@'%'")
        try:
            granted = grant_statements(clinic.names, role, [Purpose.RELAY])
            grant(granted[0])
            if not on_postgresql:  # without any right, it may not even connect to the database
                grant(
                    f"REVOKE ALL PRIVILEGES, GRANT OPTION FROM {role}",
                    f"GRANT CREATE VIEW ON {clinic.names.table('audit')} TO {role}",
                )
            report = examine(url)
            assert {one.code: one.evidence for one in report if "itself failed" in one.evidence} == {}
            assert {one.code for one in report if one.verdict is FAIL} >= {"SCHEMA_PRIVILEGES"}
            grant(*granted)
            assert not examine(url, only=["SCHEMA_PRIVILEGES"]).failed()
            assert not examine(url, only=["FLOW_NO_WORKER", "FLOW_DEAD", "FLOW_LEASES"]).failed()
            [other] = examine(url, only=["SCHEMA_PRIVILEGES"], purposes=["operator"])
            assert (other.verdict, "--for operator" in other.remedy) == (FAIL, True)
            grant(*grant_statements(clinic.names, role, [Purpose.DASHBOARD]))
            reader = examine(url, purposes=["dashboard"])
            assert {one.code for one in reader if one.verdict is FAIL} == {"DB_DURABILITY"}
            hidden = set() if on_postgresql else {"DB_SNAPSHOTS", "DB_VACUUM"}
            assert {one.code for one in reader if "may not look" in one.evidence} == hidden
            grant(f"REVOKE DELETE ON {clinic.names.table('outbox_delivery')} FROM {role}")
            [result] = examine(url, only=["SCHEMA_PRIVILEGES"])
            assert "DELETE on outbox_delivery" in result.evidence
        finally:
            grant(*([f"DROP OWNED BY {role}", f"DROP ROLE {role}"] if on_postgresql else [f"DROP USER '{role}'@'%'"]))
            engine.dispose()


def test_V_7_a_check_that_gets_no_answer_ends_in_time_and_the_others_go_on(fresh_database: FreshDatabase) -> None:
    with of("postgresql", fresh_database) as clinic, clinic.session() as run:
        run("BEGIN")
        run(f"LOCK TABLE {clinic.names.table('outbox_delivery')} IN ACCESS EXCLUSIVE MODE")
        report = clinic.examine("DB_REACHABLE", "FLOW_DEAD", "FLOW_RETENTION", "SETTINGS_LEASE", limit=2)
        verdicts = {one.code: (one.verdict, one.seconds < 8) for one in report}
        assert verdicts == {
            "DB_REACHABLE": (OK, True),
            "FLOW_DEAD": (FAIL, True),
            "FLOW_RETENTION": (OK, True),
            "SETTINGS_LEASE": (OK, True),
        }
        assert "no answer within 2 s" in report.results[1].evidence
        run("ROLLBACK")


def test_V_7_a_server_that_hangs_is_left_alone() -> None:
    with closing(PostgreSQL()) as server:
        need(PostgreSQL, server)
        server.create_database("shop")
        Clinic(server.url("shop")).store.close()
        with server.hung():
            report = examine(server.url("shop"), only=["DB_REACHABLE", "FLOW_DEAD", "SCHEMA_VERSION"], limit=1.5)
        assert [one.verdict for one in report] == [FAIL, SKIP, SKIP]
        assert sum(one.seconds for one in report) < 10


@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
def test_V_7_the_database_and_the_broker_are_away_and_no_password_is_shown(
    scheme: str, capsys: pytest.CaptureFixture[str]
) -> None:
    here = f"127.0.0.1:{free_port()}"
    database = f"{scheme}://ada:{PASSWORD}@{here}/shop"
    brokers = {f"{n}.*": f"{kind}://ada:{PASSWORD}@{here}" for n, kind in enumerate(("nats", "amqp", "redis", "http"))}
    given = " ".join(f"{pattern}={url}" for pattern, url in brokers.items())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "POSTROOM_BROKERS",
            given + f" webhooks=https://{here}/?postroom.private=true&postroom.secret=whsec_{SECRET}",
        )
        code = main(["doctor", "--database", database, "--timeout", "3", "--json"])
        out, err = capsys.readouterr()
        assert (code, err) == (1, "")
        assert main(["doctor", "--database", database, "--timeout", "3"]) == 1
        plain = capsys.readouterr().out
    assert PASSWORD not in out + plain
    assert SECRET not in out + plain
    assert "Traceback" not in out + plain
    found = {(one["code"], one["subject"]): one["verdict"] for one in json.loads(out)["checks"]}
    assert found["DB_REACHABLE", None] == "FAIL"
    assert found["SCHEMA_VERSION", None] == "SKIP"
    assert [verdict for (check, _), verdict in found.items() if check == "BROKER_REACHABLE"] == ["FAIL"] * 5


def test_V_7_options_and_exit_codes(fresh_database: FreshDatabase, capsys: pytest.CaptureFixture[str]) -> None:
    with of("sqlite", fresh_database) as clinic:
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
    with of("sqlite", fresh_database) as clinic:
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

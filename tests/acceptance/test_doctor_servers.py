"""V-7: `postroom doctor` and database servers: set up badly, behind a pooler, with few privileges, silent or away."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, make_url

from postroom.cli import main
from postroom.doctor import examine
from postroom.rules.checks import database as database_rules
from postroom.rules.checks import unfinished as unfinished_rules
from postroom.store.admin.inspection import sqlite as sqlite_inspection
from postroom.store.connections.urls import resolve
from postroom.store.schema.grants import grant_statements
from postroom.store.schema.purposes import Purpose
from postroom.store.twophase.log import TwoPhaseLog
from tests.acceptance.clinic import FAIL, OK, SKIP, WARN, Clinic
from tests.services.databases import KINDS, need
from tests.services.ports import free_port
from tests.services.postgresql import PostgreSQL

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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
def clinic(request: pytest.FixtureRequest, ready_database: FreshDatabase) -> Iterator[Clinic]:
    with Clinic(ready_database(request.param)) as opened:
        yield opened


def of(kind: str, ready_database: FreshDatabase) -> Clinic:
    return Clinic(ready_database(kind))


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
        with server.hung():
            report = examine(server.url("shop"), only=["DB_REACHABLE", "FLOW_DEAD", "SCHEMA_VERSION"], limit=1.5)
        assert {one.code: one.verdict for one in report} == {
            **dict.fromkeys(("FLOW_DEAD", "SCHEMA_VERSION"), SKIP),
            "DB_REACHABLE": FAIL,
        }


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

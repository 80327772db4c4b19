"""Branches on real servers, with every driver: what the commands of two-phase commit do, and where they mislead."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from postroom.rules.twophase_ids import read_gid
from postroom.rules.twophase_settling import Said, meaning
from postroom.store.sql.db_errors import code_of
from postroom.store.twophase.branches import Ended
from tests.contract.twophase_support import (
    KINDS,
    MARIADB,
    OTHER_SCOPE,
    SCOPE,
    Wire,
    begun_with_a_row,
    new_branch,
    on_each_database,
    on_every_driver,
    on_postgresql,
    swept,
    wires,
)
from tests.contract.waiting import wait_until
from tests.contract.write_support import Database, business_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import FreshDatabase
    from tests.contract.write_support import Databases


@pytest.fixture
def database(driver: str, databases: Databases) -> Iterator[Database]:
    with swept(driver, databases) as database:
        yield database


# ── the way of a branch


@on_every_driver
def test_a_prepared_branch_outlives_its_connection_and_commits_from_another(driver: str, database: Database) -> None:
    with wires(driver, database, 1) as [first]:
        branch, row = begun_with_a_row(first)
        assert first.run(first.branches.listed(SCOPE)) == []
        first.run(first.branches.prepare(branch))
    with wires(driver, database, 1) as [second]:
        branches = second.branches
        wait_until(lambda: [listed.id for listed in second.run(branches.listed(SCOPE))] == [branch])
        assert not database.has_business(row)
        assert not second.run(branches.is_marked(branch))
        commit_when_free(second, branch)
        assert second.run(branches.listed(SCOPE)) == []
        assert database.has_business(row)
        assert second.run(branches.is_marked(branch))


def commit_when_free(wire: Wire, branch: str) -> None:
    """Commit it once the server has noticed that the connection that prepared it is gone."""

    def committed() -> bool:
        if wire.run(wire.branches.is_attached(branch)):
            return False
        try:
            wire.run(wire.branches.commit_prepared(branch))
        except Exception as error:
            if code_of(error) != 1397:
                raise
            return False
        return True

    wait_until(committed)


@on_every_driver
def test_a_branch_commits_or_rolls_back_where_it_was_prepared(driver: str, database: Database) -> None:
    with wires(driver, database, 1) as [wire]:
        for end in (wire.branches.commit_prepared, wire.branches.roll_back_prepared):
            branch, row = begun_with_a_row(wire)
            wire.run(wire.branches.prepare(branch))
            wire.run(end(branch))
            wire.run(wire.branches.restore())
            assert database.has_business(row) is (end == wire.branches.commit_prepared)
            with pytest.raises(Exception, match=r".") as refused:
                wire.run(end(branch))
            assert meaning(code_of(refused.value), listed=False) is Said.GONE


@on_every_driver
def test_a_branch_that_is_not_prepared_rolls_back(driver: str, database: Database) -> None:
    with wires(driver, database, 1) as [wire]:
        branch, row = begun_with_a_row(wire)
        wire.run(wire.branches.roll_back(branch))
        assert not database.has_business(row)
        again, _ = begun_with_a_row(wire)  # the connection is free
        wire.run(wire.branches.roll_back(again))


@on_every_driver
def test_a_branch_that_only_read_commits_like_others(driver: str, database: Database) -> None:
    with wires(driver, database, 1) as [wire]:
        branch = wire.run(wire.branches.begin(new_branch(), 30))
        wire.sql("SELECT count(*) FROM business")
        wire.run(wire.branches.prepare(branch))
    with wires(driver, database, 1) as [other]:
        commit_when_free(other, branch)
        assert other.run(other.branches.is_marked(branch))


@on_each_database
def test_only_branches_of_the_scope_and_database_are_listed(
    driver: str, database: Database, fresh_database: FreshDatabase
) -> None:
    """Others' ids may hold any bytes; and two databases of a cluster have branches of one transaction."""
    with wires(driver, database, 3) as [ours, theirs, reader]:
        one, other = new_branch("bank"), new_branch("bank", OTHER_SCOPE)
        for wire, branch in ((ours, one), (theirs, other)):
            wire.run(wire.branches.prepare(wire.run(wire.branches.begin(branch, 30))))
        if KINDS[driver] == "mariadb":
            foreign = Wire(driver, database)
            for command in ("START", "END", "PREPARE"):
                foreign.sql(f"XA {command} X'70723100ff27',X'3afe',20562", script=True)
            _check_listed(reader, {SCOPE: "bank", OTHER_SCOPE: "bank"})
            foreign.sql("XA ROLLBACK X'70723100ff27',X'3afe',20562", script=True)
            foreign.close()
        else:
            elsewhere = Database(fresh_database("postgresql"))
            with wires(driver, elsewhere, 1) as [shop]:
                prepared = shop.run(shop.branches.begin(one._replace(participant="shop"), 30))
                shop.run(shop.branches.prepare(prepared))
                _check_listed(reader, {SCOPE: "bank", OTHER_SCOPE: "bank"})
                _check_listed(shop, {SCOPE: "shop"})
                shop.run(shop.branches.roll_back_prepared(prepared))
            elsewhere.store.close()
        for wire in (ours, theirs):
            for scope in (SCOPE, OTHER_SCOPE):
                for found in wire.run(wire.branches.listed(scope)):
                    with suppress(Exception):  # each can only end its own, on MariaDB
                        wire.run(wire.branches.roll_back_prepared(found.id))


def _check_listed(wire: Wire, expected: dict[str, str]) -> None:
    for scope, participant in expected.items():
        [found] = wire.run(wire.branches.listed(scope))
        assert (found.branch.scope, found.branch.participant) == (scope, participant)


# ── where the commands mislead


@on_postgresql
def test_a_failed_transaction_is_not_prepared(driver: str, database: Database) -> None:
    """PREPARE TRANSACTION answers ROLLBACK then, and no error."""
    with wires(driver, database, 1) as [wire]:
        branch, row = begun_with_a_row(wire)
        with pytest.raises(Exception, match="division by zero"):
            wire.sql("SELECT 1 / 0")
        with pytest.raises(Exception, match="aborted"):
            wire.run(wire.branches.prepare(branch))
        wire.run(wire.branches.roll_back(branch))
        assert wire.run(wire.branches.listed(SCOPE)) == []
        assert not database.has_business(row)


ENDINGS = ("COMMIT", "ROLLBACK", "COMMIT; BEGIN", "ROLLBACK; BEGIN", "COMMIT AND CHAIN")


@on_postgresql
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_transaction_that_the_code_has_ended_is_not_prepared(driver: str, ending: str, database: Database) -> None:
    """PREPARE TRANSACTION outside of a transaction only warns; in another one it would prepare that."""
    with wires(driver, database, 1) as [wire]:
        branch, _ = begun_with_a_row(wire)
        wire.sql(ending, script=True)
        with pytest.raises(Ended, match="do not commit or roll back"):
            wire.run(wire.branches.prepare(branch))
        with suppress(Exception):
            wire.sql("ROLLBACK", script=True)
        assert wire.run(wire.branches.listed(SCOPE)) == []


@pytest.mark.parametrize("driver", MARIADB)
@pytest.mark.parametrize("ending", ["COMMIT", "ROLLBACK", "START TRANSACTION", "CREATE TABLE implicit_commit (id int)"])
def test_mariadb_refuses_to_end_a_branch_by_other_commands(driver: str, ending: str, database: Database) -> None:
    with wires(driver, database, 1) as [wire]:
        branch, row = begun_with_a_row(wire)
        with pytest.raises(Exception, match="XAER_RMFAIL"):
            wire.sql(ending, script=True)
        wire.run(wire.branches.prepare(branch))
        wire.run(wire.branches.commit_prepared(branch))
        assert database.has_business(row)


@on_postgresql
@pytest.mark.parametrize("ending", ["", "COMMIT", "ROLLBACK", "COMMIT; BEGIN", "ROLLBACK; BEGIN"])
def test_a_plain_transaction_that_the_code_has_ended_is_not_confirmed(
    driver: str, ending: str, database: Database
) -> None:
    with wires(driver, database, 1) as [wire]:
        for _ in range(7):  # a driver that keeps prepared statements would prepare it now
            wire.run(wire.branches.begin_plain("tx", 30))
            wire.run(wire.branches.confirm("tx"))
            wire.run(wire.branches.roll_back_plain("tx"))
        wire.run(wire.branches.begin_plain("tx", 30))
        statement, row = business_row()
        wire.sql(statement)
        for command in filter(None, ending.split("; ")):
            wire.sql(command, script=True)
        if ending:
            with pytest.raises(Ended):
                wire.run(wire.branches.confirm("tx"))
            wire.run(wire.branches.roll_back_plain("tx"))
        else:
            wire.run(wire.branches.confirm("tx"))
            wire.run(wire.branches.commit("tx"))
        assert database.has_business(row) is (not ending or "COMMIT" in ending)
        wire.run(wire.branches.restore())


@pytest.mark.parametrize("driver", MARIADB)
@pytest.mark.parametrize("ending", ["COMMIT", "ROLLBACK", "BEGIN", "CREATE TABLE not_now (id INTEGER)"])
def test_nothing_ends_a_plain_transaction_of_mariadb_before_its_time(
    driver: str, ending: str, database: Database
) -> None:
    """An ordinary one would be committed in part, and each statement after that by itself."""
    with wires(driver, database, 1) as [wire]:
        for commits in (False, True):
            wire.run(wire.branches.begin_plain("tx", 30))
            statement, row = business_row()
            wire.sql(statement)
            with pytest.raises(Exception, match="XAER_RMFAIL"):
                wire.sql(ending, script=True)
            wire.run(wire.branches.confirm("tx"))
            wire.run((wire.branches.commit if commits else wire.branches.roll_back_plain)("tx"))
            assert database.has_business(row) is commits
        wire.run(wire.branches.restore())


@pytest.mark.parametrize("driver", ["PyMySQL"])
def test_no_statement_after_a_deadlock_in_a_plain_transaction_of_mariadb_commits(
    driver: str, database: Database
) -> None:
    with wires(driver, database, 2) as [one, other]:
        rows: dict[Wire, str] = {}
        for wire, identity in ((one, "one"), (other, "other")):
            wire.run(wire.branches.begin_plain(identity, 30))
            statement, rows[wire] = business_row()
            wire.sql(statement)
        victims: list[Wire] = []

        def want(wire: Wire, row: str) -> None:
            try:
                wire.sql(f"SELECT id FROM business WHERE id = '{row}' FOR UPDATE")
            except Exception as error:  # noqa: BLE001 - looked at here
                if code_of(error) == 1213:
                    victims.append(wire)

        crossing = [
            threading.Thread(target=want, args=(one, rows[other])),
            threading.Thread(target=want, args=(other, rows[one])),
        ]
        for thread in crossing:
            thread.start()
        wait_until(lambda: victims)
        [victim] = victims
        statement, row = business_row()
        with pytest.raises(Exception, match="ROLLBACK ONLY"):
            victim.sql(statement)
        with pytest.raises(Ended):
            victim.run(victim.branches.confirm("one"))
        for thread in crossing:
            thread.join()
        one.run(one.branches.roll_back_plain("one"))
        other.run(other.branches.roll_back_plain("other"))
        assert not database.has_business(row)


@pytest.mark.parametrize("driver", MARIADB)
def test_not_found_does_not_mean_done_while_the_connection_is_open(driver: str, database: Database) -> None:
    """MariaDB answers 1397 to others as long as the connection that prepared the branch is there: KILL ends it."""
    with wires(driver, database, 2) as [holder, recovery]:
        branch, row = begun_with_a_row(holder)
        holder.run(holder.branches.prepare(branch))
        with pytest.raises(Exception, match="XAER_NOTA") as refused:
            recovery.run(recovery.branches.commit_prepared(branch))
        [found] = recovery.run(recovery.branches.listed(SCOPE))
        assert meaning(code_of(refused.value), listed=found.id == branch) is Said.BUSY
        recovery.run(recovery.branches.kill(found.id))
        commit_when_free(recovery, branch)
        assert database.has_business(row)
        recovery.run(recovery.branches.kill(found.id))  # it is gone, which is what was wanted
        with suppress(Exception):
            holder.sql("SELECT 1")


@pytest.mark.parametrize("driver", ["PyMySQL"])
def test_T_2_a_connection_that_has_the_same_id_after_a_restart_is_left_alone(driver: str, database: Database) -> None:
    with wires(driver, database, 2) as [innocent, recovery]:
        [[connection]] = innocent.sql("SELECT CONNECTION_ID()")
        began = recovery.run(recovery.branches.begin(new_branch(), 30))
        recovery.run(recovery.branches.roll_back(began))
        branch = read_gid(began)
        assert branch is not None
        of_this_life = branch._replace(connection=connection)
        assert recovery.run(recovery.branches.is_attached(of_this_life.text))
        of_another = of_this_life._replace(started=branch.started - 60)
        assert not recovery.run(recovery.branches.is_attached(of_another.text))
        recovery.run(recovery.branches.kill(of_another.text))
        assert innocent.sql("SELECT CONNECTION_ID()") == [(connection,)]


@pytest.mark.parametrize("driver", MARIADB)
def test_T_1_a_holder_whose_driver_has_connected_again_does_not_decide(driver: str, database: Database) -> None:
    with wires(driver, database, 2) as [holder, other]:
        holder.run(holder.branches.begin_plain("one", 30))
        holder.run(holder.branches.confirm("one"))
        with pytest.raises(Ended):
            other.run(
                other.branches.confirm("one")
            )  # a session that knows nothing of it, as after ping(reconnect=True)
        holder.run(holder.branches.roll_back_plain("one"))


@pytest.mark.parametrize("driver", ["PyMySQL"])
def test_after_a_failed_statement_a_mariadb_branch_prepares_but_not_after_a_deadlock(
    driver: str, database: Database
) -> None:
    with wires(driver, database, 2) as [one, other]:
        [first, second] = (begun_with_a_row(wire) for wire in (one, other))
        with pytest.raises(Exception, match="Duplicate entry"):
            one.sql(f"INSERT INTO business (id) VALUES ('{first[1]}')")
        errors: dict[Wire, Exception] = {}

        def want(wire: Wire, row: str) -> None:
            try:
                wire.sql(f"SELECT id FROM business WHERE id = '{row}' FOR UPDATE")
            except Exception as error:  # noqa: BLE001 - looked at below
                errors[wire] = error

        crossing = [
            threading.Thread(target=want, args=(one, second[1])),
            threading.Thread(target=want, args=(other, first[1])),
        ]
        for thread in crossing:
            thread.start()
        wait_until(lambda: errors)
        [[victim, error]] = errors.items()
        assert code_of(error) == 1213
        undone, kept = (first[0], second[0]) if victim is one else (second[0], first[0])
        survivor = other if victim is one else one
        with pytest.raises(Ended):
            victim.run(victim.branches.prepare(undone))
        victim.run(victim.branches.roll_back(undone))
        for thread in crossing:
            thread.join()
        survivor.run(survivor.branches.prepare(kept))
        survivor.run(survivor.branches.commit_prepared(kept))

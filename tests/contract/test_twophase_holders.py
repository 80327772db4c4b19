"""The holder of a two-phase commit's log beside a resource that needs a row in it before anybody prepares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, text

from postroom import TwoPhaseCommit
from postroom.errors import TransactionAborted
from postroom.store.connections.urls import resolve
from tests.contract.twophase_ways import url_text
from tests.contract.write_support import business_row

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.contract.write_support import Databases

IDENTITY = {"postgresql": "SELECT pg_backend_pid()", "mariadb": "SELECT CONNECTION_ID()"}
KILL = {"postgresql": "SELECT pg_terminate_backend({})", "mariadb": "KILL {}"}


class Files:
    """A resource that cannot list what is prepared."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.before_prepare: Callable[[], object] = lambda: None

    def prepare(self, id: str) -> None:
        del id
        self.before_prepare()
        self.calls.append("prepare")

    def commit(self, id: str) -> None:
        del id
        self.calls.append("commit")

    def abort(self, id: str) -> None:
        del id
        self.calls.append("abort")


@pytest.mark.parametrize("level", [None, "REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_holder_decides_on_its_only_connection_at_every_isolation_level(
    kind: str, level: str | None, databases: Databases
) -> None:
    options: dict[str, Any] = {} if level is None else {"isolation_level": level}
    engine = create_engine(
        resolve(url_text(databases[kind].url)), pool_size=1, max_overflow=0, pool_timeout=1, **options
    )
    files = Files()
    transfers = TwoPhaseCommit(log="shop", participants={"shop": engine, "files": files}, timeout=20)

    def order() -> str:
        with transfers.begin() as transaction:
            connection = transaction["shop"]
            transaction["shop"].execute(text("SELECT count(*) FROM business"))  # the level's snapshot is taken now
            identities.append(connection.execute(text(IDENTITY[kind])).scalar_one())
            statement, row = business_row()
            rows.append(row)
            connection.execute(text(statement))
        return row

    rows: list[str] = []
    identities: list[int] = []
    assert databases[kind].has_business(order())
    assert files.calls == ["prepare", "commit"]

    files.before_prepare = lambda: databases[kind].rows(KILL[kind].format(identities[-1]))
    with pytest.raises(TransactionAborted):  # the log is asked on a connection that takes the lost one's place
        order()
    assert not databases[kind].has_business(rows[-1])
    assert files.calls == ["prepare", "commit", "prepare", "abort"]
    [[unsettled]] = databases[kind].rows(
        f"SELECT count(*) FROM {databases[kind].store.names.table('twophase')} WHERE settled_at IS NULL"
    )
    assert unsettled == 0
    engine.dispose()

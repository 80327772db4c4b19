"""A system that the doctor looks at, and ways to make it sick."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from sqlalchemy import create_engine

from postroom import Outbox, schema
from postroom.doctor import Report, Result, Verdict, examine
from postroom.store.connections.stores import Store
from postroom.store.connections.urls import resolve
from postroom.store.outbox.queue_store import QueueStore
from postroom.store.outbox.workers import Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from uuid import UUID

    from sqlalchemy import Connection

    from postroom.store.outbox.leases import Claimed

OK, WARN, FAIL, SKIP = Verdict.OK, Verdict.WARN, Verdict.FAIL, Verdict.SKIP


class Clinic:
    """A database with Postroom's tables."""

    def __init__(self, url: str) -> None:
        self.url = url
        schema.create(url)
        self.store = Store(url)
        self.names = self.store.names

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()

    def examine(self, *codes: str, **settings: Any) -> Report:
        return examine(self.url, only=codes, **settings)

    def result(self, code: str, **settings: Any) -> Result:
        """What one check finds."""
        [result] = self.examine(code, **settings)
        assert result.code == code
        assert bool(result.remedy) == (result.verdict in (WARN, FAIL))
        return result

    def verdict(self, code: str, **settings: Any) -> Verdict:
        return self.result(code, **settings).verdict

    def execute(self, *statements: str) -> None:
        """What somebody does in plain SQL; `{outbox}` and the like are the tables."""

        def run(connection: Connection) -> None:
            for statement in statements:
                connection.exec_driver_sql(statement.format(**self.names.mapping()))
            connection.commit()

        self.store.call(run)

    @contextmanager
    def session(self) -> Iterator[Callable[[str], Any]]:
        """Another program's session, in whatever transaction it begins."""
        engine = create_engine(resolve(self.url), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            yield connection.exec_driver_sql
        engine.dispose()

    def add(self, *topics: str, key: str | None = None) -> list[UUID]:
        def record(connection: Connection) -> list[UUID]:
            added = [Outbox().add(connection, topic, {"n": 1}, key=key).id for topic in topics]
            connection.commit()
            return added

        return self.store.call(record)

    def claim(self, seconds: float = 30) -> list[Claimed]:
        return self.store.run(QueueStore(self.names).rows.claim("relay", 1000, seconds)).messages

    def settle(self, *settlements: Any) -> None:
        assert self.store.run(QueueStore(self.names).settlements.settle(list(settlements))) == []

    def beat(self, worker: str, *queues: str, down: str = "") -> None:
        """A relay that is alive."""
        for queue in queues or ("default",):
            self.store.run(Workers(self.names, queue).beat(worker, 0, 0, down))

    def leave(self, worker: str, *queues: str) -> None:
        for queue in queues or ("default",):
            self.store.run(Workers(self.names, queue).leave(worker))

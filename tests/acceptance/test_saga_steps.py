"""S-1: a step's transaction carries effect and log together, on every kind of connection, whatever happens to it."""

from __future__ import annotations

from contextlib import asynccontextmanager, closing, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, event, make_url, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import sessionmaker

from postroom import RetryPolicy, Saga
from postroom.compose.transactions import Transactions
from postroom.rules.saga_plan import Direction, SagaOutcome, StepOutcome
from postroom.saga.context import SagaContext
from postroom.saga.running.journal import Record
from postroom.saga.running.step_calls import StepCall
from postroom.saga.running.step_failures import StepMisused
from postroom.saga.running.step_transactions import StepTransactions
from postroom.store.connections.kinds import async_kind
from postroom.store.connections.stores import Store
from postroom.store.connections.urls import resolve
from postroom.store.outbox.queue_store import QueueStore
from postroom.store.saga.saga_store import SagaStore
from postroom.store.saga.values import Entry, Logged
from postroom.store.sql.steps import Query
from tests.acceptance.saga_support import EFFECTS, Sagas, at_work, write
from tests.acceptance.service import Service
from tests.contract.connection_kinds import KINDS, Kind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from tests.conftest import FreshDatabase
    from tests.contract.connection_callers import Caller


def opened(url: str) -> Iterator[Sagas]:
    with closing(Service(url)) as service:
        service.execute(EFFECTS[service.engine.dialect.name])
        yield Sagas(service)


@pytest.fixture
def sagas(kind: str, ready_database: FreshDatabase) -> Iterator[Sagas]:
    yield from opened(ready_database(kind))


on_every_database = pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])
REPRESENTATIVES = {
    *("sqlite3", "psycopg", "psycopg2", "PyMySQL", "Django proxy, postgresql", "Django wrapper, mariadb"),
    *("Connection, pysqlite", "Connection, psycopg", "Session, pymysql", "scoped_session, psycopg2"),
    *("asyncpg", "asyncpg pool", "psycopg async", "aiosqlite", "asyncmy", "aiomysql"),
    *("AsyncConnection, asyncpg", "AsyncSession, aiosqlite", "AsyncSession, asyncmy", "async_scoped_session, psycopg"),
}
"""One of each class, so that each database has some."""
on_every_kind = pytest.mark.parametrize(
    ("each", "kind"),
    [pytest.param(kind, kind.database, id=kind.name) for kind in KINDS if kind.name in REPRESENTATIVES],
)
EFFECT = "INSERT INTO effect (what) VALUES ('step')"


class OneStep:
    """A saga of one step, claimed by a worker that is about to run it on this connection."""

    def __init__(self, sagas: Sagas, caller: Caller) -> None:
        self.saga: Saga[Any] = Saga("kinds")
        self.saga.step(name="only")(self.astep if caller.runner else self.step)
        self._sagas = sagas
        self._caller = caller
        self._misuse = ""
        self._then: tuple[str, ...] = ()
        sagas.start(self.saga, "one")
        with closing(Store(sagas.service.url)) as store:
            self.store = SagaStore(store.names, "kinds")
            rows = QueueStore(store.names, "saga:kinds").rows
            (self.claimed,) = store.run(rows.claim("w", 10, 120)).messages

    def step(self, _saga: Any) -> None:
        for statement in (EFFECT, *self._then):
            self._caller.sql(statement)
        if self._misuse:
            getattr(self._caller.connection, self._misuse)()

    async def astep(self, saga: Any) -> None:
        kind = await async_kind(saga.connection, "saga.astart")
        for statement in (EFFECT, *self._then):
            await kind.execute(Query(statement, script=True))
        if self._misuse:
            if hasattr(saga.connection, self._misuse):
                await getattr(saga.connection, self._misuse)()
            else:
                await saga.connection.execute(self._misuse)  # asyncpg

    def run(self, token: int | None = None, misuse: str = "", then: tuple[str, ...] = ()) -> Logged:
        """Run the step in a transaction of the application's. `then`: statements that follow its effect."""
        self._misuse, self._then = misuse, then
        import msgspec

        claimed = self.claimed if token is None else msgspec.structs.replace(self.claimed, token=token)
        call = StepCall(
            *(claimed, self.saga.steps["only"], "only", Direction.FORWARD), timeout=30, context=self._context
        )
        entry = Entry(Direction.FORWARD, "only", StepOutcome.DONE, worker="w")
        record = Record([entry], SagaOutcome.COMPLETED)
        self._caller.begin()
        try:
            logged: Logged = self._caller.wait(self._run(call, record))
        except BaseException:
            self._end("rollback")
            raise
        self._end("commit" if logged is Logged.WRITTEN else "rollback")
        return logged

    def _run(self, call: StepCall, record: Record) -> Any:
        connection = self._caller.connection

        @asynccontextmanager
        async def waiting() -> AsyncIterator[Any]:
            yield connection

        @contextmanager
        def blocking() -> Iterator[Any]:
            yield connection

        transactions = StepTransactions(self.store, Transactions(waiting if self._caller.runner else blocking, None))
        return (transactions.arun if self._caller.runner else transactions.run)(call, lambda _: record)

    def _end(self, how: str) -> None:
        try:
            getattr(self._caller, how)()
        except Exception:
            if not self._misuse and not self._then:
                raise

    def _context(self, step: str, direction: Direction, connection: Any) -> SagaContext[Any]:
        from datetime import UTC, datetime

        return SagaContext(
            name="kinds",
            id="one",
            step=step,
            direction=direction,
            attempt=1,
            data={},
            connection=connection,
            started_at=datetime.now(UTC),
            deadline=None,
            steps=self.saga.steps,
            results={},
        )


@on_every_kind
def test_S_1_effect_and_log_commit_together_on_every_kind_of_connection(sagas: Sagas, each: Kind) -> None:
    with each.open(make_url(sagas.service.url)) as caller:
        one = OneStep(sagas, caller)
        assert one.run(token=1) is Logged.LEASE_LOST
        assert (sagas.effects(), sagas.steps("one")) == ([], [])
        for misuse in ("rollback", "commit"):  # a function that ends its transaction has failed
            with pytest.raises(Exception, match=r"leave its end to the saga|atomic") as raised:
                one.run(misuse=misuse)
            assert isinstance(raised.value, StepMisused) or each.name.startswith("Django")
            assert sagas.steps("one") == []
        before = sagas.effects()
        assert one.run() is Logged.WRITTEN
        assert one.run() is Logged.LEASE_LOST  # the delivery is gone
    assert sagas.effects() == [*before, "step"]
    assert sagas.outcomes() == {"one": "completed"}


@on_every_kind
def test_S_1_a_transaction_that_is_ended_as_sql_text_is_noticed(sagas: Sagas, each: Kind) -> None:
    endings = [("ROLLBACK",), ("COMMIT", EFFECT), ("ROLLBACK", "BEGIN", EFFECT), ("/* so */ COMMIT AND CHAIN",)]
    with each.open(make_url(sagas.service.url)) as caller:
        one = OneStep(sagas, caller)
        for then in endings[:3] if each.database == "sqlite" else endings:  # which cannot chain
            with pytest.raises(StepMisused, match="leave its end to the saga"):
                one.run(then=then)
            assert sagas.steps("one") == []
        before = sagas.effects()
        assert one.run(then=("SAVEPOINT mine", EFFECT, "ROLLBACK TO SAVEPOINT mine")) is Logged.WRITTEN
    assert sagas.effects() == [*before, "step"]


def losing_answers(engine: Any, lost: list[int], *, before: bool) -> Callable[[], Any]:
    """Transactions whose first commit is answered by a broken connection."""

    @contextmanager
    def transaction() -> Iterator[Any]:
        with engine.connect() as connection:
            begun = connection.begin()
            try:
                yield connection
            except BaseException:
                begun.rollback()
                raise
            if lost == [0]:  # a step has run
                lost.append(1)
                begun.rollback() if before else begun.commit()
                raise OperationalError("COMMIT", {}, Exception("gone"), connection_invalidated=True)
            begun.commit()

    return transaction


@on_every_database
@pytest.mark.parametrize("before", [True, False], ids=["not committed", "committed"])
@pytest.mark.parametrize("steps", [1, 2], ids=["at the end", "before the end"])
async def test_S_1_a_lost_answer_to_the_commit_repeats_no_effect(sagas: Sagas, *, before: bool, steps: int) -> None:
    engine = create_engine(resolve(sagas.service.url))
    lost: list[int] = []
    saga: Saga[Any] = Saga("lost", transactions=losing_answers(engine, lost, before=before))
    attempts: list[int] = []

    def step(saga: SagaContext[Any]) -> None:
        attempts.append(saga.attempt)
        lost[:] = lost or [0]
        write(saga, saga.step)

    for number in range(steps):
        saga.step(name=f"step{number}")(step)
    sagas.start(saga, "one")
    async with at_work(sagas.service, saga):
        await sagas.ended(one="completed")
    assert lost == [0, 1]
    assert sagas.effects() == [f"step{number}" for number in range(steps)]
    assert attempts == [1] * (steps + before)  # no attempt is burnt
    engine.dispose()


@pytest.mark.parametrize("kind", ["postgresql"])
@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
async def test_S_1_a_heartbeat_in_mid_step_burns_no_attempt_above_read_committed(sagas: Sagas, isolation: str) -> None:
    engine = create_engine(resolve(sagas.service.url), isolation_level=isolation)
    saga: Saga[Any] = Saga("isolated", transactions=engine)
    attempts: list[int] = []

    @saga.step(retry=RetryPolicy(max_attempts=1))
    def step(saga: SagaContext[Any]) -> None:
        saga.connection.execute(text("SELECT 1"))  # takes the snapshot
        attempts.append(saga.attempt)
        if len(attempts) < 8:  # as a heartbeat renews the lease
            sagas.service.execute(f"UPDATE {sagas.service.table('delivery')} SET leased_until = leased_until")
        write(saga, "step")

    sagas.start(saga, "one")
    async with at_work(sagas.service, saga):
        await sagas.ended(one="completed")
    assert attempts == [1] * 8
    assert sagas.effects() == ["step"]
    engine.dispose()


@pytest.mark.parametrize("kind", ["sqlite"])
async def test_S_1_a_step_that_commits_and_goes_on_is_not_repeated(sagas: Sagas) -> None:
    saga: Saga[Any] = Saga("hasty")

    @saga.step
    def step(saga: SagaContext[Any]) -> None:
        write(saga, "committed")
        saga.connection.commit()
        write(saga, "refused")

    sagas.start(saga, "one")
    async with at_work(sagas.service, saga):
        await sagas.ended(one="compensated")
    assert sagas.effects() == ["committed"]


@pytest.mark.parametrize("kind", ["postgresql"])
@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "asyncpg"])
async def test_S_1_a_commit_through_the_drivers_own_cursor_is_noticed(sagas: Sagas, driver: str) -> None:
    saga: Saga[Any] = Saga("raw")
    url = make_url(sagas.service.url).set(drivername=f"postgresql+{driver}")

    def step(saga: SagaContext[Any]) -> None:
        write(saga, "committed")
        with saga.connection.connection.cursor() as cursor:
            cursor.execute("COMMIT")
        if saga.id == "goes-on":
            write(saga, "refused")

    async def astep(saga: SagaContext[Any]) -> None:
        effect = text("INSERT INTO effect (what) VALUES (:what)")
        await saga.connection.execute(effect, {"what": "committed"})
        raw = await saga.connection.get_raw_connection()
        await raw.driver_connection.execute("COMMIT")
        if saga.id == "goes-on":
            await saga.connection.execute(effect, {"what": "refused"})

    engine: Any = create_async_engine(url) if driver == "asyncpg" else create_engine(url)
    saga.transactions = engine
    saga.step(name="step")(astep if driver == "asyncpg" else step)
    for one in ("ends", "goes-on"):
        sagas.start(saga, one)
    async with at_work(sagas.service, saga):
        await sagas.ended(**{"ends": "compensated", "goes-on": "compensated"})
    assert sagas.effects() == ["committed"] * 2  # neither is repeated
    assert "leave its end to the saga" in sagas.instance("ends")["error_message"]
    disposed = engine.dispose()
    if driver == "asyncpg":
        await disposed


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
async def test_S_2_a_step_that_keeps_losing_its_connection_while_the_database_answers_is_given_up(sagas: Sagas) -> None:
    """It may be the cause itself: if no attempt counted, it would be tried for ever."""
    saga: Saga[Any] = Saga("fatal")
    attempts: list[int] = []

    @saga.step(retry=RetryPolicy.table([0], max_attempts=2))
    def step(saga: SagaContext[Any]) -> None:
        attempts.append(saga.attempt)
        write(saga, "rolled back")
        end = {"postgresql": "SELECT pg_terminate_backend(pg_backend_pid())", "mysql": "KILL CONNECTION_ID()"}
        saga.connection.execute(text(end[saga.connection.dialect.name]))

    sagas.start(saga, "one")
    async with at_work(sagas.service, saga):
        await sagas.ended(one="compensated")
    assert (attempts, sagas.effects()) == ([1, 2], [])
    assert sagas.instance("one")["error_code"] == "CONNECTION"


@pytest.mark.parametrize("kind", ["sqlite"])
async def test_S_1_a_step_that_reads_first_can_still_write_on_sqlite(sagas: Sagas) -> None:
    """Without a write before it, a heartbeat in between would make the database refuse at once."""
    saga: Saga[Any] = Saga("reading")
    attempts: list[int] = []

    @saga.step(retry=RetryPolicy(max_attempts=1))
    def step(saga: SagaContext[Any]) -> None:
        attempts.append(saga.attempt)
        saga.connection.execute(text("SELECT count(*) FROM effect")).all()
        with pytest.raises(OperationalError, match="locked"), quick.begin() as heartbeat:
            heartbeat.execute(text(f"UPDATE {sagas.service.table('delivery')} SET claims = claims"))
        write(saga, "step")

    quick = create_engine(resolve(sagas.service.url), connect_args={"timeout": 0})
    sagas.start(saga, "one")
    async with at_work(sagas.service, saga):
        await sagas.ended(one="completed")
    assert attempts == [1]
    quick.dispose()


@on_every_database
async def test_S_1_a_swallowed_database_error_fails_the_step(sagas: Sagas) -> None:
    saga: Saga[Any] = Saga("swallowing")

    @saga.step(retry=RetryPolicy(max_attempts=1))
    def step(saga: SagaContext[Any]) -> None:
        write(saga, "before")
        with pytest.raises(Exception, match="nothing"):
            saga.connection.execute(text("SELECT * FROM nothing"))

    sagas.start(saga, "one")
    async with at_work(sagas.service, saga):
        if sagas.service.engine.dialect.name != "postgresql":  # which undoes the transaction
            await sagas.ended(one="completed")
            return
        await sagas.ended(one="compensated")
    assert sagas.effects() == []
    assert "went on after a statement had failed" in sagas.instance("one")["error_message"]


@pytest.mark.parametrize("kind", ["sqlite"])
async def test_S_1_steps_on_another_database_are_not_run_and_say_why(
    sagas: Sagas, ready_database: FreshDatabase
) -> None:
    with closing(Service(ready_database("sqlite"))) as other:
        other.execute(EFFECTS["sqlite"])
        saga: Saga[Any] = Saga("elsewhere", transactions=other.engine)
        saga.step(name="step")(lambda saga: write(saga, "step"))
        sagas.start(saga, "one")
        async with at_work(sagas.service, saga):
            delivery = await sagas.state("one", 2)
        assert (delivery["error_code"], delivery["attempts"]) == ("WRONG_DATABASE", 0)
        assert "let `transactions` open those of the database that the relay reads" in delivery["error_message"]
        assert other.rows("SELECT * FROM effect") == []


@on_every_database
async def test_S_3_a_step_whose_transaction_cannot_be_opened_is_not_tried_and_loses_no_attempt(sagas: Sagas) -> None:
    engine = create_engine(sagas.service.engine.url, pool_size=1, max_overflow=0, pool_timeout=0.05)
    saga: Saga[Any] = Saga("pooled", transactions=sessionmaker(engine))

    @saga.step(retry=RetryPolicy(max_attempts=1))
    def first(saga: SagaContext[Any]) -> None:
        write(saga, "first")

    async with at_work(sagas.service, saga):
        with engine.connect():  # the pool has no other
            sagas.start(saga, "7")
            found = await sagas.state("7", 2)
        assert (found["attempts"], found["error_code"]) == (0, "CONNECTION")
        assert "'first' cannot be opened: TimeoutError: QueuePool limit" in found["error_message"]
        await sagas.ended(**{"7": "completed"})
    engine.dispose()


IMPATIENT = {
    "postgresql": {"options": "-c lock_timeout=50ms"},
    "mysql": {"init_command": "SET innodb_lock_wait_timeout = 1"},
}


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
async def test_S_3_a_lock_on_the_saga_that_outlasts_a_time_limit_of_the_server_costs_no_attempt(sagas: Sagas) -> None:
    service = sagas.service
    engine = create_engine(service.engine.url, connect_args=IMPATIENT[service.engine.dialect.name])
    saga: Saga[Any] = Saga("locked", transactions=engine)
    operator, calls = service.engine.connect(), []

    @saga.step(retry=RetryPolicy(max_attempts=1))
    def first(saga: SagaContext[Any]) -> None:
        write(saga, "first")
        calls.append(saga.attempt)
        if len(calls) == 1:
            operator.execute(text(f"SELECT position FROM {service.table('delivery')} FOR UPDATE"))
            event.listen(engine, "rollback", lambda _: operator.rollback())

    async with at_work(service, saga):
        sagas.start(saga, "7")
        await sagas.ended(**{"7": "completed"})
    assert calls == [1, 1]
    assert sagas.effects() == ["first"]
    operator.close()
    engine.dispose()

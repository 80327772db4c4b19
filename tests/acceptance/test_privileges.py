"""The smallest privileges: each part of a service works under a role that has what `schema --grants` prints, alone."""

from __future__ import annotations

import re
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Connection, create_engine, make_url, text
from sqlalchemy.exc import DBAPIError

from postroom import Admin, Consumer, Message, Outbox, Relay, RetryPolicy, Saga, TwoPhaseCommit, schema
from postroom.admin import ALL, Filter, Mode, SagaState, TransactionState
from postroom.cli import main
from postroom.errors import IdempotencyConflict, InvalidSetting, PrivilegeMissing, Refused
from postroom.idempotency import Ledger
from postroom.rules.twophase_ids import transaction_id
from postroom.store.admin.backlog import BacklogReader
from postroom.store.connections.stores import Store
from postroom.store.connections.urls import resolve
from postroom.store.outbox.workers import Workers
from postroom.store.schema.grants import grant_statements, missing_rights, rights_for
from postroom.store.schema.purposes import Purpose
from postroom.store.stream.slots import Slots
from postroom.store.twophase.log import TwoPhaseLog
from postroom.telemetry.events import Denied, Event, Reachability
from tests.acceptance.service import Service
from tests.acceptance.test_consumer import published
from tests.acceptance.waiting import wait_for
from tests.contract import clock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

    from postroom.incoming import Incoming
    from postroom.saga import SagaContext
    from postroom.store.sql.names import Names
    from tests.conftest import FreshDatabase

pytestmark = pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
QUICK: dict[str, Any] = {"poll_interval_sec": 0.02}
DENIED = r"permission denied|command denied"


class Roles:
    """A service's database, and roles that have been granted what is printed for a purpose."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.names: Names = service._store.names
        self._made: list[str] = []

    def make(self, *purposes: Purpose) -> str:
        """A role for these purposes; returns its URL."""
        role = f"role_{uuid4().hex[:12]}"
        self._made.append(role)
        create = "CREATE ROLE {} LOGIN" if self.names.dialect == "postgresql" else "CREATE USER '{}'@'%'"
        self.execute(create.format(role), *grant_statements(self.names, role, purposes))
        return make_url(self.service.url).set(username=role).render_as_string(hide_password=False)

    def execute(self, *statements: str) -> None:
        with self.service.engine.begin() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement.replace("%", "%%") if self.names.dialect == "mysql" else statement)

    def revoke(self, url: str, what: str, table: str) -> None:
        role = make_url(url).username
        self.execute(f"REVOKE {what} ON {self.names.table(table)} FROM {role}")

    def drop(self) -> None:
        for role in self._made:
            owned = [f"DROP OWNED BY {role}"] if self.names.dialect == "postgresql" else []
            drop = "DROP ROLE {}" if self.names.dialect == "postgresql" else "DROP USER '{}'@'%'"
            self.execute(*owned, drop.format(role))


@pytest.fixture
def roles(kind: str, fresh_database: FreshDatabase) -> Iterator[Roles]:
    with closing(Service(fresh_database(kind))) as service:
        roles = Roles(service)
        yield roles
        roles.drop()


@contextmanager
def engine_of(url: str) -> Iterator[Engine]:
    engine = create_engine(resolve(url))
    try:
        yield engine
    finally:
        engine.dispose()


def test_a_producer_adds_and_can_do_nothing_else(roles: Roles) -> None:
    outbox = Outbox()
    with engine_of(roles.make(Purpose.PRODUCER)) as engine:
        with engine.begin() as connection:
            first = outbox.add(connection, "orders", {"n": 1}, key="7", idempotency_key="a", headers={"a": "b"})
            assert outbox.add(connection, "orders", {"n": 1}, key="7", idempotency_key="a").id == first.id
            outbox.add_many(connection, [Message.new("orders", n) for n in range(3)])
        with engine.connect() as connection, pytest.raises(IdempotencyConflict, match="was used"):
            outbox.add_many(connection, [Message.new("orders", 7), Message.new("orders", 8, idempotency_key="a")])
        assert roles.service.status().pending == 4
        tables = roles.names.mapping()
        for forbidden in (
            f"SELECT payload FROM {tables['outbox']}",
            f"DELETE FROM {tables['outbox']}",
            f"UPDATE {tables['delivery']} SET state = 3",
            f"INSERT INTO {tables['delivery']} (position, leased_until) VALUES (1, '2999-01-01')",
            f"SELECT * FROM {tables['idempotency']}",
        ):
            with engine.connect() as connection, pytest.raises(DBAPIError, match=DENIED):
                connection.execute(text(forbidden))


def test_who_may_not_even_read_the_tables_version_is_told_what_to_do(
    roles: Roles, capsys: pytest.CaptureFixture[str]
) -> None:
    url = roles.make(Purpose.SQL_PRODUCER)
    with engine_of(url) as engine, pytest.raises(PrivilegeMissing, match="have the tables' owner run what"):
        schema.create(engine)
    assert main(["status", "--database", url]) == 1
    assert "--grants ROLE" in capsys.readouterr().err


def test_O_3_a_batch_that_is_refused_leaves_nothing_though_the_producer_may_not_delete(roles: Roles) -> None:
    outbox = Outbox()
    with engine_of(roles.make(Purpose.PRODUCER)) as engine:
        with engine.begin() as connection:
            outbox.add(connection, "orders", 1, idempotency_key="a")
        with engine.connect() as connection:
            with pytest.raises(IdempotencyConflict):
                outbox.add_many(connection, [Message.new("orders", 7), Message.new("orders", 8, idempotency_key="a")])
            connection.commit()  # as one does who goes on after a conflict: PostgreSQL rolls back instead
    assert roles.service.status().pending == 1


def test_a_producer_in_plain_sql_needs_no_more_than_the_function_or_the_pages_statements(roles: Roles) -> None:
    url = roles.make(Purpose.SQL_PRODUCER)
    outbox, delivery = roles.names.table("outbox"), roles.names.table("outbox_delivery")
    with engine_of(url) as engine, engine.begin() as connection:
        if roles.names.dialect == "postgresql":
            connection.execute(text("SELECT postroom.add('orders', '{}', key => '7')"))
        else:
            connection.execute(
                text(f"INSERT INTO {outbox} (id, topic, payload, content_type) VALUES (uuid(), 'a', '', 'text/plain')")
            )
            connection.execute(
                text(
                    f"INSERT INTO {delivery} (position) SELECT position FROM {outbox} WHERE position = last_insert_id()"
                )
            )
    assert roles.service.status().pending == 1
    if roles.names.dialect == "postgresql":
        with engine_of(url) as engine, engine.connect() as connection, pytest.raises(DBAPIError, match=DENIED):
            connection.execute(
                text(f"INSERT INTO {outbox} (id, topic, content_type) VALUES (gen_random_uuid(), 'a', 'b')")
            )
        stranger = roles.make(Purpose.DASHBOARD)
        with engine_of(stranger) as engine, engine.connect() as connection, pytest.raises(DBAPIError, match=DENIED):
            connection.execute(text("SELECT postroom.add('orders', '{}')"))


async def test_a_relay_does_all_its_work(roles: Roles) -> None:
    service = roles.service
    ledger = Ledger()
    with service.engine.begin() as connection:
        run = ledger.begin(connection, "k", scope="s", digest="0" * 64)
        Outbox().add(connection, "orders.1", 0, ledger=run.entry)  # type: ignore[union-attr]  # it is the first
    service.commit(
        *(Message.new("orders.1", n, key=f"{n % 3}") for n in range(20)),
        *(Message.new("orders.2", n) for n in range(20)),
        Message.new("orders.2", 19),
        Message.new("bad", 0, key="bad"),
        Message.new("bad", 1, key="bad"),
    )
    sent: list[str] = []
    events: list[Event] = []

    def send(message: Message) -> None:
        if message.topic == "bad":
            raise ValueError
        sent.append(message.topic)

    relay = Relay(
        roles.make(Purpose.RELAY),
        send,
        brokers={"orders.1": send},
        dedup=True,
        max_attempts=1,
        hook=events.append,
        **QUICK,
    )
    report = await relay.run_once()
    assert (len(sent), report.dead) == (41, 1)
    assert service.status().dead == 1
    assert not [event for event in events if isinstance(event, Denied | Reachability)]
    [[status]] = service.rows(f"SELECT status FROM {service.table('idempotency')}")
    assert status == "succeeded"


async def test_a_consumer_does_all_its_work(roles: Roles) -> None:
    service = roles.service
    service.execute("CREATE TABLE bill (number INTEGER)")
    url = roles.make(Purpose.CONSUMER)
    roles.execute(f"GRANT INSERT ON bill TO {make_url(url).username}")
    broker = await published(
        *(Message.new("orders", n, key=f"{n % 5}") for n in range(20)), Message.new("bad", 1, key="7")
    )
    consumer = Consumer("billing", broker, database=url, **QUICK)
    tries: list[int] = []

    @consumer.handler("orders", delays=[0])
    def bill(connection: Connection, message: Incoming) -> None:
        connection.execute(text("INSERT INTO bill VALUES (:n)"), {"n": message.json()})

    @consumer.handler("bad", attempts=2, delays=[0])
    def fail(connection: Connection, message: Incoming) -> None:
        tries.append(1)
        raise ValueError

    report = await consumer.run_once()
    assert (report.handled, report.dead, len(tries)) == (20, 1, 2)
    assert len(service.rows("SELECT number FROM bill")) == 20
    assert service.status().dead == 1


async def test_a_relay_of_sagas_does_all_its_work(roles: Roles) -> None:  # noqa: C901 - one function for each kind of step
    """Forward and back, a child that tells its parent, an event, a retry and a parked saga."""
    once = RetryPolicy.table([0], max_attempts=2)
    parent, child, broken = Saga[Any]("parent"), Saga[Any]("child"), Saga[Any]("broken")

    @parent.step
    def begin(saga: SagaContext[Any]) -> None:
        child.start(saga.connection, {}, id=f"{saga.id}/child", tell=(saga, "done"))

    @parent.call(retry=once)
    async def call(saga: SagaContext[Any]) -> None:
        if saga.attempt == 1:
            raise RuntimeError("not yet")

    @parent.wait("done", timeout=600)
    def done(saga: SagaContext[Any], event: Any) -> None:
        assert event

    @parent.wait("parcel", timeout=600)
    def parcel(saga: SagaContext[Any], event: Any) -> None:
        assert (saga.id, event) == ("1", 7)

    @child.step
    async def only(saga: SagaContext[Any]) -> None:
        assert saga.id == "1/child"

    @broken.step
    def first(saga: SagaContext[Any]) -> None:
        assert saga.connection is not None

    @first.compensation(retry=once)
    def undo(saga: SagaContext[Any]) -> None:
        raise RuntimeError(saga.id)

    @broken.step
    def second(saga: SagaContext[Any]) -> None:
        raise Refused("NO")

    with engine_of(roles.make(Purpose.PRODUCER)) as engine, engine.begin() as connection:
        for saga in (parent, broken):
            saga.start(connection, {}, id="1")
        parent.signal(connection, "1", "parcel", 7)
        with pytest.raises(IdempotencyConflict):
            parent.start(connection, {"other": 1}, id="1")
    with pytest.raises(PrivilegeMissing, match=r"saga"):
        await Relay(roles.make(Purpose.RELAY), sagas=[parent]).run_once()
    events: list[Event] = []
    url = roles.make(Purpose.SAGAS)
    async with Relay(url, sagas=[parent, child, broken], hook=events.append, **QUICK) as relay:
        await wait_for(lambda: (relay.report.completed, relay.report.parked) == (2, 1))
    assert not [event for event in events if isinstance(event, Denied)]


def test_a_dashboard_sees_everything_and_changes_nothing(roles: Roles) -> None:
    [message] = roles.service.commit(Message.new("orders", 1, key="7"))
    url = roles.make(Purpose.DASHBOARD)
    with Admin(url) as admin, closing(Store(url)) as store:
        assert admin.status().pending == 1
        assert len(admin.messages()) == 1
        assert admin.message(message.id).topic == "orders"
        assert len(admin.dead_letters()) == len(admin.audit()) == 0
        assert (admin.count_dead_letters().total, admin.count_unsent().total) == (0, 1)
        assert store.run(BacklogReader(store.names).backlog())["default"].pending == 1
        with pytest.raises(PrivilegeMissing, match=f"({DENIED}).*postroom schema --grants ROLE"):
            store.run(Workers(store.names).beat("intruder", 0, 0))


async def test_an_operator_acts_on_dead_letters_and_cleans_up(roles: Roles) -> None:
    service = roles.service
    service.commit(*(Message.new("bad", n, key=f"{n}") for n in range(3)), Message.new("orders", 1))

    def send(message: Message) -> None:
        if message.topic == "bad":
            raise ValueError

    await Relay(service.url, send, max_attempts=1, **QUICK).run_once()
    ids = [UUID(letter.id) for letter in service.dead()]
    with Admin(roles.make(Purpose.OPERATOR)) as admin:
        assert admin.requeue(Filter(ids[:1]), actor="ada").count == 1
        assert admin.discard(Filter(ids[1:]), actor="ada").count == 2
        admin.release_expired()
        ledger = Ledger()
        with service.engine.begin() as connection:
            run = ledger.begin(connection, "k", scope="s", digest="0" * 64)
            Outbox().add(connection, "orders", 0, key="8", ledger=run.entry)  # type: ignore[union-attr]  # it is the first
        assert admin.cancel(ALL, actor="ada").count == 2
        assert admin.cleanup(days=0, inbox_days=0).messages == 1


async def test_an_operator_acts_on_sagas_and_a_dashboard_looks_at_them(roles: Roles) -> None:
    order: Saga[Any] = Saga("order")

    @order.step
    def reserve(saga: Any) -> None: ...

    @reserve.compensation(retry=RetryPolicy.table([0], max_attempts=1))
    def release(saga: Any) -> None:
        raise ValueError

    @order.step
    def ship(saga: Any) -> None:
        raise Refused("NO")

    with roles.service.engine.begin() as connection:
        for n in range(3):
            order.start(connection, {}, id=str(n))
    await Relay(roles.service.url, sagas=[order], **QUICK).run_until_empty()
    with roles.service.engine.begin() as connection:
        order.start(connection, {}, id="new")
    with Admin(roles.make(Purpose.OPERATOR)) as admin:
        admin.resume_saga("order", "0", actor="ada")
        admin.skip_saga_step("order", "1", actor="ada")
        assert admin.fork_saga("order", "2", step="ship", actor="ada").kept == ("reserve",)
        admin.abort_saga("order", "new", actor="ada")
    with Admin(roles.make(Purpose.DASHBOARD)) as looking:
        assert len(looking.sagas()) == 5
        assert looking.saga("order", "2").state is SagaState.PARKED
        assert sum(one.count for one in looking.status().sagas) == 5
        with pytest.raises(PrivilegeMissing, match=DENIED):
            looking.resume_saga("order", "2", actor="eve")


async def test_a_coordinator_and_a_relay_that_recovers_do_all_their_work(roles: Roles) -> None:
    class Elsewhere:
        """A resource without a list of what is prepared, so that the log has open rows."""

        prepare = abort = lambda *_: None

        def commit(self, _id: str) -> None:
            if fails:
                raise OSError("away")

    fails, resource = True, Elsewhere()
    roles.service.execute("CREATE TABLE bill (number INTEGER)")
    coordinator, relay = roles.make(Purpose.TRANSACTIONS), roles.make(Purpose.RELAY, Purpose.TRANSACTIONS)
    for role in (coordinator, relay):
        roles.execute(f"GRANT INSERT ON bill TO {make_url(role).username}")
    transfers = TwoPhaseCommit(log=coordinator, participants={"shop": coordinator, "elsewhere": resource})
    with transfers.begin() as transaction:
        transaction["shop"].execute(text("INSERT INTO bill VALUES (1)"))
        Outbox().add(transaction["shop"], "orders", 1)
    assert transaction.unsettled == ("elsewhere",)
    transfers.close()
    fails = False
    clock.advance(roles.service._store, 60)
    recovering = TwoPhaseCommit(log=relay, participants={"shop": relay, "elsewhere": resource})
    events: list[Event] = []
    with pytest.raises(PrivilegeMissing, match=r"INSERT on twophase, .*--for transactions"):
        await Relay(roles.make(Purpose.RELAY), transactions=[recovering]).run_once()
    with Admin(roles.make(Purpose.OPERATOR)) as admin:
        assert [one.state for one in admin.transactions()] == [TransactionState.COMMITTING]
        async with Relay(relay, transactions=[recovering], hook=events.append, **QUICK):
            await wait_for(lambda: not admin.transactions())
    await recovering.aclose()
    assert not [event for event in events if isinstance(event, Denied)]


def test_an_operator_acts_on_two_phase_commits_and_a_dashboard_looks_at_them(roles: Roles) -> None:
    store = roles.service._store
    log = TwoPhaseLog(store.names)
    ended = store.run(log.clock()) - 1
    undecided, stuck = (transaction_id(ended, f"{n:012x}") for n in range(2))
    for tx in (undecided, stuck):
        store.run(log.open(tx, {"bank": "1"}, ended))
    with Admin(roles.make(Purpose.DASHBOARD)) as looking, Admin(roles.make(Purpose.OPERATOR)) as admin:
        assert len(looking.transactions()) == sum(one.count for one in looking.status().transactions) == 2
        for act in (looking.forget_transaction, partial(looking.decide_transaction, decision="commit")):
            with pytest.raises(PrivilegeMissing, match=DENIED):
                act(stuck, actor="eve")
        admin.decide_transaction(undecided, "commit", actor="ada")
        admin.forget_transaction(stuck, actor="ada")
        assert looking.transaction(stuck).transaction.state is TransactionState.FORGOTTEN
        assert admin.cleanup(days=0).transactions == 1


def test_a_ledger_keeps_its_entries(roles: Roles) -> None:
    ledger = Ledger()
    with engine_of(roles.make(Purpose.LEDGER)) as engine, engine.begin() as connection:
        run = ledger.begin(connection, "k", scope="s", digest="0" * 64)
        ledger.fail(connection, run.entry)  # type: ignore[union-attr]  # it is the first


@pytest.mark.parametrize("purpose", [Purpose.RELAY, Purpose.CONSUMER, Purpose.TRANSACTIONS, Purpose.LEDGER])
def test_each_privilege_that_is_missing_is_named(roles: Roles, purpose: Purpose) -> None:
    url = roles.make(purpose)
    with closing(Store(url)) as store:
        assert store.run(missing_rights(roles.names, purpose)) == []
        for right in rights_for(roles.names, purpose):
            columns = f" ({', '.join(right.columns)})" if right.columns else ""
            roles.revoke(url, f"{right.privilege}{columns}", right.table)
            assert str(right) in store.run(missing_rights(roles.names, purpose))
            roles.execute(*grant_statements(roles.names, str(make_url(url).username), [purpose]))


async def test_a_relay_that_lacks_a_privilege_says_which_and_does_not_start(roles: Roles) -> None:
    url = roles.make(Purpose.RELAY)
    roles.revoke(url, "DELETE", "outbox_delivery")
    with pytest.raises(PrivilegeMissing, match=r"DELETE on outbox_delivery: .*--grants ROLE --for relay"):
        await Relay(url, lambda _: None).run_once()
    stranger = roles.make(Purpose.LEDGER)
    with pytest.raises(PrivilegeMissing, match=r"SELECT on outbox, .*INSERT on inbox, .*--for consumer"):
        await silent_consumer(stranger).run_once()


def silent_consumer(url: str) -> Consumer:
    consumer = Consumer("billing", database=url)
    consumer.handler("orders")(lambda _connection, _message: None)
    return consumer


async def test_R_5_a_relay_that_loses_a_privilege_says_so_once_and_goes_on_when_it_is_granted(roles: Roles) -> None:
    url = roles.make(Purpose.RELAY)
    sent: list[object] = []
    events: list[Event] = []
    async with Relay(url, lambda message: sent.append(message.json()), hook=events.append, **QUICK):
        roles.service.commit(Message.new("orders", 1))
        await wait_for(lambda: sent == [1])
        roles.revoke(url, "UPDATE", "outbox_delivery")
        roles.service.commit(Message.new("orders", 2))
        await wait_for(lambda: any(isinstance(event, Denied) for event in events))
        roles.execute(*grant_statements(roles.names, str(make_url(url).username), [Purpose.RELAY]))
        await wait_for(lambda: sent == [1, 2])
    denials = [event.reason for event in events if isinstance(event, Denied)]
    assert len(denials) == len(set(denials))
    assert all(re.search(f"({DENIED}).*outbox_delivery", reason) for reason in denials)
    assert not [event for event in events if isinstance(event, Reachability)]


async def test_R_7_a_relay_reads_the_log_under_a_role_of_its_own(roles: Roles, kind: str) -> None:
    if kind != "postgresql":
        with pytest.raises(InvalidSetting, match="write-ahead log, and this is mysql"):
            grant_statements(roles.names, "relay", [Purpose.RELAY, Purpose.CDC])
        return
    sent: list[str] = []
    url = roles.make(Purpose.RELAY, Purpose.CDC)
    relay = partial(Relay, url, lambda message: sent.append(message.topic), cdc=True)
    with pytest.raises(PrivilegeMissing, match="CREATE PUBLICATION"):
        await relay().run_once()
    roles.execute(*Slots(roles.names).publication_statements())
    await relay().run_once()
    with engine_of(roles.make(Purpose.PRODUCER)) as engine, engine.begin() as connection:
        Outbox(cdc=True).add(connection, "orders", {"n": 1}, key="a")
    await relay().run_until_empty()
    assert sent == ["orders"]
    with Admin(roles.make(Purpose.DASHBOARD)) as admin:
        assert (admin.cdc_status().mode, admin.cdc_status().may_replicate) == (Mode.STREAM, False)
    with Admin(roles.make(Purpose.OPERATOR)) as admin:
        assert admin.sweep_cdc(actor="ada") == 0
        with pytest.raises(PrivilegeMissing, match="pg_drop_replication_slot"):
            admin.switch_cdc_off(actor="ada")
        assert admin.cdc_status().mode is Mode.TABLE
    with Admin(roles.make(Purpose.OPERATOR, Purpose.CDC)) as admin:
        assert not admin.switch_cdc_off(actor="ada")
        assert admin.cdc_status().slot is None

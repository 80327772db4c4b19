"""All that is stored of one saga's instances, put together: which part does what, and how each database does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from postroom.store.saga.aborting import Aborting
from postroom.store.saga.postgresql_starting import PostgreSQLStarting
from postroom.store.saga.postgresql_step_log import PostgreSQLStepLog
from postroom.store.saga.reading import Reading
from postroom.store.saga.starting import Starting
from postroom.store.saga.step_log import StepLog
from postroom.store.saga.tables import SagaTables
from postroom.store.saga.turning import Turning
from postroom.store.saga.waiting import WaitingForEvents

if TYPE_CHECKING:
    from postroom.store.sql.names import Names


class _Parts(NamedTuple):
    """What differs between databases. By default a statement for each thing that is done."""

    starting: type[Starting] = Starting
    log: type[StepLog] = StepLog


_PARTS = {
    "sqlite": _Parts(),
    "mysql": _Parts(),  # and MariaDB
    "postgresql": _Parts(PostgreSQLStarting, PostgreSQLStepLog),
}


class SagaStore:
    """Instances of one saga.

    `start`, `begin`, `log` and `abort` run in the transaction that is open on the caller's connection; the others run
    transactions of their own. What is written for a claimed instance is written only while its token holds the
    delivery.
    """

    def __init__(self, names: Names, name: str, *, notify: bool = False) -> None:
        """`notify`: wake listening relays of what is added here, where the database can."""
        self.sql = SagaTables(names, name, notify=notify)
        parts = _PARTS[names.dialect]
        starting = parts.starting(self.sql)
        reading = Reading(self.sql)
        log = parts.log(self.sql)
        turning = Turning(log)
        waiting = WaitingForEvents(log, starting)
        self.start = starting.start
        self.position_of = starting.position_of
        self.read = reading.read
        self.read_held = reading.read_held
        self.holds = reading.holds
        self.begin = reading.begin
        self.log = log.log
        self.log_many = log.log_many
        self.turn = turning.turn
        self.park = turning.park
        self.put_back = turning.put_back
        self.wait = waiting.wait
        self.receive = waiting.receive
        self.abort = Aborting(log).abort

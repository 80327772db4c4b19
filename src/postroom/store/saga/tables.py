"""What all operations on instances share: the tables, and locking an instance's delivery, which is its one lock."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, TypeVar

from postroom.errors import DatabaseUnreachable
from postroom.rules.lifecycle import Stored
from postroom.rules.naming import SAGA_QUEUE
from postroom.rules.ordering import NO_LANE
from postroom.rules.saga_plan import SagaOutcome
from postroom.store.outbox.postgresql.given import numbers
from postroom.store.saga.values import LOCKED, Locked
from postroom.store.sql.dialect import whole_numbers
from postroom.store.sql.operations import Operations, chunks
from postroom.store.sql.states import in_state, ready, unsettled
from postroom.store.sql.steps import Query, Row, Steps

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from postroom.store.outbox.leases import Claimed, Lease
    from postroom.store.sql.names import Names

T = TypeVar("T")
P = ParamSpec("P")

_MOST_ROUNDS = 10


class Held(NamedTuple):
    """A delivery that is locked, under the token that was asked for."""

    position: int
    token: int
    attempts: int
    claims: int
    error_code: str

    @property
    def clean(self) -> bool:
        """Nothing has failed and nobody else has claimed it since it last made progress."""
        return not self.attempts and self.claims == 1 and not self.error_code


class _DeliveryLocked(Exception):
    """Somebody else has locked the delivery."""


class SagaTables(Operations):
    """The tables of one saga's instances. Its queue has nothing but their starts and signals, all without a key."""

    def __init__(self, names: Names, name: str, *, notify: bool = False) -> None:
        """`notify`: wake listening relays of what is added here, where the database can."""
        super().__init__(names, f"{SAGA_QUEUE}{name}")
        self.saga_name = name
        self.notify = notify
        self.saga, self.step, self.event = (self.tables[table] for table in ("saga", "saga_step", "saga_event"))
        self.one = f"queue = :queue AND lane = {NO_LANE} AND position = :position"
        """The condition for one delivery, next to its state."""
        self._locks_rows = bool(self.dialect.for_update)
        self.latest = " LOCK IN SHARE MODE" if names.dialect == "mysql" else ""
        """Ends a SELECT in a caller's transaction: under REPEATABLE READ, MySQL would show how it was at its first."""

    def place(self, position: int) -> dict[str, object]:
        """The parameters of `one`."""
        return {"queue": self.queue, "position": position}

    def bytes_of(self, parameter: str) -> str:
        """A parameter for bytes: see `as_bytes`."""
        return {"mysql": f"unhex(:{parameter})", "postgresql": f":{parameter}::bytea"}.get(
            self.names.dialect, f":{parameter}"
        )

    def as_bytes(self, value: bytes | None) -> bytes | str | None:
        """Bytes as a parameter. On MySQL in hexadecimal: drivers differ in how they write bytes into a statement."""
        return value.hex() if value is not None and self.names.dialect == "mysql" else value

    def at(self, table: str, positions: Sequence[int]) -> tuple[str, dict[str, object]]:
        """FROM and WHERE for the rows of a table at these positions, called `s`, and the parameters.

        On PostgreSQL one probe for each, whatever the statistics: without any, it would read the whole table. And the
        text is always the same, so that it is planned once.
        """
        if self.names.dialect != "postgresql":
            return f"FROM {table} s WHERE s.position IN ({whole_numbers(positions)})", {}
        given, probed = "unnest(:positions::text::bigint[]) AS these (at)", f"{table} t WHERE t.position = these.at"
        source = f"FROM {given} CROSS JOIN LATERAL (SELECT * FROM {probed} OFFSET 0) s WHERE true"
        return source, {"positions": numbers(positions)}

    def lock(self, claimed: Sequence[Claimed], *, skip_locked: bool = False) -> Steps[dict[Lease, Held]]:
        """Lock the deliveries that are still held under their tokens.

        The token alone decides: late work counts if nobody has taken it over. SQLite, which locks no rows, writes: from
        then on nobody else can. `skip_locked`: leave out those that somebody else has locked.
        """
        held: dict[Lease, Held] = {}
        for some in chunks(sorted(claimed, key=attrgetter("position"))):  # so that two of these do not deadlock
            if self._locks_rows:
                query = self._look(some, self.dialect.skip_locked if skip_locked else self.dialect.for_update)
            else:
                query = Query(
                    f"UPDATE {self.delivery} SET token = token WHERE {ready()} AND queue = :queue "
                    f"AND {self.places(some)} RETURNING {', '.join(Held._fields)}",
                    {"queue": self.queue},
                )
            held |= _under_their_tokens(some, (yield query).rows)
        return held

    def unless_locked(self, operation: Callable[P, Steps[T]], *args: P.args, **kwargs: P.kwargs) -> Steps[T | Locked]:
        """`transaction` for an operation that begins with `lock_now`: `LOCKED` if somebody else has locked a delivery.

        Who waits for a lock holds up all that comes after it on the connection. Who comes again does not.
        """
        try:
            return (yield from self.transaction(operation, *args, **kwargs))
        except _DeliveryLocked:
            return LOCKED

    def lock_now(self, claimed: Claimed) -> Steps[Held | None]:
        """Lock a delivery that is still held under its token; None if it is not. Only in `unless_locked`."""
        held = (yield from self.lock([claimed], skip_locked=True)).get(claimed.lease)
        if held is None and self._locks_rows and (yield from self.held([claimed])):
            raise _DeliveryLocked
        return held

    def held(self, claimed: Sequence[Claimed]) -> Steps[dict[Lease, Held]]:
        """Look which deliveries are still held under their tokens, without a lock."""
        held: dict[Lease, Held] = {}
        for some in chunks(claimed):
            held |= _under_their_tokens(some, (yield self._look(some)).rows)
        return held

    def _look(self, claimed: Sequence[Claimed], lock: str = "") -> Query:
        source, these = self.only_deliveries(claimed)
        return Query(
            f"SELECT {', '.join(f'd.{column}' for column in Held._fields)} FROM {source} "
            f"WHERE {ready('d')} AND d.queue = :queue AND {these} ORDER BY d.position{lock}",
            {"queue": self.queue},
        )

    def lock_in_any_state(self, position: int, *, now: bool = False) -> Steps[Stored | None]:
        """Lock an instance's delivery, whoever holds it; returns its stored state, or None if there is none.

        `now`: do not wait for the lock. Only in `unless_locked`.

        The state is part of the key, so a delivery moves when it changes. A scan over all states could miss it: one
        looks where it is, locks it there by its whole key, and if it is gone looks again.
        """
        if not self._locks_rows:
            found = yield Query(
                f"UPDATE {self.delivery} SET token = token WHERE {unsettled()} AND {self.one} RETURNING state",
                self.place(position),
            )
            return Stored(found.rows[0][0]) if found.rows else None
        for turn in range(_MOST_ROUNDS):
            found = yield Query(
                f"SELECT state FROM {self.delivery} WHERE {unsettled()} AND {self.one}", self.place(position)
            )
            # Under REPEATABLE READ, MySQL shows for ever where it was: from the second round on, all places are tried.
            states = [Stored(row[0]) for row in found.rows] if turn == 0 else list(Stored)
            for state in states:
                if (yield from self._lock_in(state, position, skip_locked=now)):
                    return state
            if now and found.rows:
                raise _DeliveryLocked  # or it has moved: who comes again finds it
            if not found.rows or (yield from self._has_ended(position)):
                return None
        raise DatabaseUnreachable(
            f"the delivery {position} of queue {self.queue} could not be locked in {_MOST_ROUNDS} rounds: try again"
        )

    def _lock_in(self, state: Stored, position: int, *, skip_locked: bool) -> Steps[bool]:
        locked = yield Query(
            f"SELECT position FROM {self.delivery_by_key} WHERE {in_state(state)} AND {self.one}"
            f"{self.dialect.skip_locked if skip_locked else self.dialect.for_update}",
            self.place(position),
        )
        return bool(locked.rows)

    def _has_ended(self, position: int) -> Steps[bool]:
        found = yield Query(
            f"SELECT outcome FROM {self.saga} WHERE position = :position{self.latest}", {"position": position}
        )
        return not found.rows or found.rows[0][0] != SagaOutcome.OPEN

    def free(self) -> str:
        """The assignments that end a lease."""
        return f"token = 0, owner = '', leased_until = {self.dialect.never}"


def _under_their_tokens(claimed: Sequence[Claimed], rows: Sequence[Row]) -> dict[Lease, Held]:
    leases = {one.lease for one in claimed}
    return {(row[0], row[1]): Held(*row) for row in rows if (row[0], row[1]) in leases}

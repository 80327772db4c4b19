"""Branches on PostgreSQL: ``PREPARE TRANSACTION``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from postroom.errors import TwoPhaseUnavailable
from postroom.rules.twophase_ids import gtrid, read_gid
from postroom.store.outbox.postgresql.writer import NOTIFY_LATER, TELL
from postroom.store.sql.db_errors import code_of
from postroom.store.sql.steps import Query, Steps
from postroom.store.twophase.branches import WITNESS, Branches, Ended, Listed, has_tables, milliseconds

if TYPE_CHECKING:
    from postroom.rules.twophase_ids import BranchId
    from postroom.store.sql.names import Names

_DIVISION_BY_ZERO = "22012"
_SETTINGS = """
    SELECT name, setting FROM pg_settings
    WHERE name IN ('max_prepared_transactions', 'lock_timeout', 'idle_in_transaction_session_timeout')"""


class PostgreSQLBranches(Branches):
    """All commands are simple queries: they take no parameters, and no statement is kept prepared for them."""

    def __init__(self, names: Names, *, witness: bool, own_limits: dict[str, int] | None = None) -> None:
        super().__init__(names, witness=witness)
        self._inbox = names.mapping()["inbox"]
        self._own_limits = own_limits or {}

    @classmethod
    def check(cls, names: Names, *, prepares: bool = True) -> Steps[Self]:
        found = {name: int(setting) for name, setting in (yield Query(_SETTINGS)).rows}
        if prepares and found.pop("max_prepared_transactions") == 0:
            raise TwoPhaseUnavailable(
                "this PostgreSQL server prepares no transactions: set max_prepared_transactions in postgresql.conf to "
                "at least max_connections, and restart the server"
            )
        witness = yield from has_tables(names)
        return cls(names, witness=witness, own_limits=found)

    def begin(self, branch: BranchId, seconds_left: float, isolation: str | None = None) -> Steps[str]:
        branch = branch._replace(marked=self.witness)
        # PREPARE TRANSACTION refuses one that notifies: see `restore`.
        yield self._begin(branch.text, seconds_left, isolation, f"; {NOTIFY_LATER}")
        return branch.text

    def begin_plain(self, identity: str, seconds_left: float, isolation: str | None = None) -> Steps[None]:
        yield self._begin(identity, seconds_left, isolation)

    def _begin(self, identity: str, seconds_left: float, isolation: str | None, more: str = "") -> Query:
        # SET takes no snapshot, so code may still choose an isolation level. It ends with the transaction, and so tells
        # this one from another that the code has begun.
        level = f" ISOLATION LEVEL {isolation}" if isolation else ""
        idle, lock = (
            self._limit(name, milliseconds(seconds_left))
            for name in ("idle_in_transaction_session_timeout", "lock_timeout")
        )
        return Query(
            f"BEGIN{level}; SET LOCAL idle_in_transaction_session_timeout = {idle}; SET LOCAL lock_timeout = {lock}; "
            f"SET LOCAL postroom.transaction = '{identity}'{more}",
            script=True,
        )

    def _limit(self, name: str, left: int) -> int:
        """What is left, or the server's own limit if that is shorter."""
        return min(left, self._own_limits.get(name) or left)

    def confirm(self, identity: str) -> Steps[None]:
        yield from _unless_ended(_is_open(identity))

    def is_confirmed(self, identity: str) -> Query:
        return Query("current_setting('postroom.transaction', true) = :identity", {"identity": identity})

    def prepare(self, id: str) -> Steps[None]:
        # In one message with a SELECT: PREPARE TRANSACTION of a failed transaction, or outside of one, is no error.
        mark = (
            f"INSERT INTO {self._inbox} (consumer, message_id) VALUES ('{WITNESS}', '{id}'); " if self.witness else ""
        )
        yield from _unless_ended(f"{_is_open(id)}; {mark}PREPARE TRANSACTION '{id}'")

    def commit_prepared(self, id: str) -> Steps[None]:
        yield Query(f"COMMIT PREPARED '{id}'", script=True)

    def roll_back_prepared(self, id: str) -> Steps[None]:
        yield Query(f"ROLLBACK PREPARED '{id}'", script=True)

    def roll_back(self, id: str) -> Steps[None]:
        del id
        yield Query("ROLLBACK", script=True)

    def restore(self, *, prepares: bool = True) -> Steps[None]:
        if prepares and self.witness:  # and so perhaps an outbox
            yield Query(TELL, script=True)

    def listed(self, scope: str) -> Steps[list[Listed]]:
        found = yield Query(
            "SELECT gid::text FROM pg_prepared_xacts WHERE database = current_database() AND starts_with(gid, :prefix)",
            {"prefix": gtrid(scope, "").decode("ascii")},
        )
        branches = (read_gid(gid) for [gid] in found.rows)
        return [Listed(branch.text, branch) for branch in branches if branch is not None]


def _is_open(identity: str) -> str:
    return f"SELECT 1 / (coalesce(current_setting('postroom.transaction', true), '') = '{identity}')::integer"


def _unless_ended(script: str) -> Steps[None]:
    try:
        yield Query(script, script=True)
    except Exception as error:
        if code_of(error) == _DIVISION_BY_ZERO:
            raise Ended from error
        raise

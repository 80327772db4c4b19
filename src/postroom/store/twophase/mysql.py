"""Branches on MariaDB and MySQL: XA."""

from __future__ import annotations

import math
import re
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Self

from postroom.errors import TwoPhaseUnavailable
from postroom.rules.twophase_ids import FORMAT_ID, BranchId, bqual, gtrid, read_gid, read_xid
from postroom.store.sql.db_errors import code_of, is_lost_connection, reason
from postroom.store.sql.dialect import text
from postroom.store.sql.steps import Query, Steps
from postroom.store.twophase.branches import WITNESS, Branches, Ended, Listed, has_tables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postroom.store.sql.names import Names

_NO_SUCH_SAVEPOINT = 1305
_NO_SUCH_THREAD = 1094
_NOT_ACTIVE = {1397, 1399, 1402, 1613, 1614}
"""There is no such branch on this connection, or it is in another state, such as after a deadlock."""
_SAVEPOINT = "postroom_twophase"
_STARTED = "UUID_SHORT() >> 24 & 4294967295"
"""The second in which the server was started, as it was known then: later changes of its clock do not matter.

Every 16,777,216 calls of the function, it is a second more.
"""
_HEXADECIMAL = re.compile(r"X'([0-9A-Fa-f]*)',X'([0-9A-Fa-f]*)',\d+")
_PLAIN = re.compile(r"'([^']*)','([^']*)',\d+")


class MySQLBranches(Branches):
    """MySQL itself."""

    recover = "XA RECOVER CONVERT XID"
    limits: tuple[str, ...] = ("wait_timeout", "innodb_lock_wait_timeout")
    """Session variables with the seconds that a silent client, or a lock, may take."""

    @classmethod
    def check(cls, names: Names, *, prepares: bool = True) -> Steps[Self]:
        [[version]] = (yield Query("SELECT VERSION()")).rows
        kind: type[MySQLBranches] = MariaDBBranches if "mariadb" in text(version).lower() else MySQLBranches
        cluster = (yield Query("SHOW VARIABLES LIKE 'wsrep_on'")).rows
        if cluster and text(cluster[0][1]).upper() == "ON":
            kind = GaleraBranches
        if prepares:
            if kind is GaleraBranches:
                raise TwoPhaseUnavailable(
                    "this server is a node of a Galera cluster (wsrep_on = ON), which has no XA: use a server outside "
                    "of the cluster, make this database the log's, or use a saga"
                )
            try:
                yield Query(kind.recover)
            except Exception as error:
                if is_lost_connection(error) or isinstance(error, OSError):
                    raise
                raise TwoPhaseUnavailable(
                    f"the database's user may not list prepared XA transactions: {reason(error)}: on MySQL, GRANT "
                    "XA_RECOVER_ADMIN ON *.* to it"
                ) from error
        witness = yield from has_tables(names)
        return kind(names, witness=witness)  # type: ignore[return-value]  # one of the two, whichever was asked

    def begin(self, branch: BranchId, seconds_left: float, isolation: str | None = None) -> Steps[str]:
        [[connection, started]] = (yield Query(f"SELECT CONNECTION_ID(), {_STARTED}")).rows
        yield from self._limit(seconds_left, isolation)
        branch = branch._replace(connection=int(connection), started=int(started), marked=self.witness)
        yield Query(f"XA START {_xid(branch)}", script=True)
        return branch.text

    def begin_plain(self, identity: str, seconds_left: float, isolation: str | None = None) -> Steps[None]:
        # A branch that never prepares: what would end an ordinary transaction behind our back is refused in it, be it
        # COMMIT, a CREATE TABLE, or a statement after a deadlock, which would commit by itself.
        yield from self._limit(seconds_left, isolation, f", @postroom_transaction = '{identity}'")
        yield Query(f"XA START {_plain_xid(identity)}", script=True)

    def _limit(self, seconds_left: float, isolation: str | None, more: str = "") -> Steps[None]:
        """Make the server end what a silent client leaves open. A limit of its own that is shorter stays.

        `more` is set with it.
        """
        left = max(1, math.ceil(seconds_left))
        kept = ", ".join(f"@postroom_{name} = @@SESSION.{name}" for name in self.limits)
        set_ = ", ".join(
            f"SESSION {name} = IF(@@SESSION.{name} = 0, {left}, LEAST(@@SESSION.{name}, {left}))"
            for name in self.limits
        )
        yield Query(f"SET {kept}, {set_}{more}", script=True)
        if isolation:
            yield Query(f"SET TRANSACTION ISOLATION LEVEL {isolation}", script=True)

    def confirm(self, identity: str) -> Steps[None]:
        # A variable ends with its session, and so tells this one from that of a driver that has connected again.
        with _unless_ended(_NOT_ACTIVE):
            found = yield Query(  # a SELECT without FROM is answered after a deadlock, too
                "SELECT 1 FROM (SELECT 1) branch WHERE @postroom_transaction = :identity", {"identity": identity}
            )
        if not found.rows:
            raise Ended

    def commit(self, identity: str) -> Steps[None]:
        yield Query(f"XA END {_plain_xid(identity)}", script=True)
        yield Query(f"XA COMMIT {_plain_xid(identity)} ONE PHASE", script=True)

    def roll_back_plain(self, identity: str) -> Steps[None]:
        yield from self._roll_back(_plain_xid(identity))

    def prepare(self, id: str) -> Steps[None]:
        xid = _xid_of(id)
        with _unless_ended(_NOT_ACTIVE):
            if self.witness:
                yield from self._marker.mark(WITNESS, id)
            yield Query(f"XA END {xid}", script=True)
        yield Query(f"XA PREPARE {xid}", script=True)

    def commit_prepared(self, id: str) -> Steps[None]:
        yield Query(f"XA COMMIT {_xid_of(id)}", script=True)

    def roll_back_prepared(self, id: str) -> Steps[None]:
        yield Query(f"XA ROLLBACK {_xid_of(id)}", script=True)

    def roll_back(self, id: str) -> Steps[None]:
        yield from self._roll_back(_xid_of(id))

    def _roll_back(self, xid: str) -> Steps[None]:
        with suppress(Exception):  # it has ended already, or can only be rolled back; what matters comes next
            yield Query(f"XA END {xid}", script=True)
        yield Query(f"XA ROLLBACK {xid}", script=True)

    def listed(self, scope: str) -> Steps[list[Listed]]:
        found = yield Query(self.recover)
        branches = (
            read_xid(int(format_id), *self._parts(text(data), int(gtrid_length)))
            for format_id, gtrid_length, _, data in found.rows
        )
        return [Listed(branch.text, branch) for branch in branches if branch is not None and branch.scope == scope]

    def _parts(self, data: str, gtrid_length: int) -> tuple[bytes, bytes]:
        whole = bytes.fromhex(data.removeprefix("0x"))
        return whole[:gtrid_length], whole[gtrid_length:]

    def is_attached(self, id: str) -> Steps[bool]:
        # An XA COMMIT that arrives while the server takes leave of that connection may succeed and do nothing: the
        # branch is gone from XA RECOVER, its rows are missing and its locks stay until a restart lists it again.
        branch = read_gid(id)
        if branch is None:
            return False
        found = yield Query(
            "SELECT 1 FROM information_schema.processlist "
            f"WHERE id = :id AND {_STARTED} BETWEEN :started AND :started + 1",
            {"id": branch.connection, "started": branch.started},
        )
        return bool(found.rows)

    def kill(self, id: str) -> Steps[None]:
        branch = read_gid(id)
        if branch is None or not (yield from self.is_attached(id)):
            return
        try:
            yield Query(f"KILL {branch.connection}", script=True)
        except Exception as error:
            if code_of(error) != _NO_SUCH_THREAD:
                raise

    def restore(self, *, prepares: bool = True) -> Steps[None]:
        del prepares
        kept = ", ".join(f"SESSION {name} = @postroom_{name}" for name in self.limits)
        yield Query(f"SET {kept}", script=True)


class MariaDBBranches(MySQLBranches):
    recover = "XA RECOVER FORMAT='SQL'"
    limits = (*MySQLBranches.limits, "idle_write_transaction_timeout")

    def _parts(self, data: str, gtrid_length: int) -> tuple[bytes, bytes]:
        del gtrid_length
        if match := _HEXADECIMAL.fullmatch(data):
            return bytes.fromhex(match[1]), bytes.fromhex(match[2])
        if match := _PLAIN.fullmatch(data):  # as versions before 10.11 write what is printable
            return match[1].encode(), match[2].encode()
        return b"", b""  # not one of ours


class GaleraBranches(MariaDBBranches):
    """A cluster, which has no XA, and so can only hold the log."""

    def begin_plain(self, identity: str, seconds_left: float, isolation: str | None = None) -> Steps[None]:
        del identity
        yield from self._limit(seconds_left, isolation)
        yield Query("START TRANSACTION", script=True)
        yield Query(f"SAVEPOINT {_SAVEPOINT}", script=True)

    def confirm(self, identity: str) -> Steps[None]:
        # A savepoint ends with its transaction, and so tells this one from another that the code has begun.
        del identity
        with _unless_ended({_NO_SUCH_SAVEPOINT}):
            yield Query(f"RELEASE SAVEPOINT {_SAVEPOINT}", script=True)

    def commit(self, identity: str) -> Steps[None]:
        del identity
        yield Query("COMMIT", script=True)

    def roll_back_plain(self, identity: str) -> Steps[None]:
        del identity
        yield Query("ROLLBACK", script=True)


@contextmanager
def _unless_ended(codes: set[int]) -> Iterator[None]:
    """Raise `Ended` for these errors."""
    try:
        yield
    except Exception as error:
        if code_of(error) in codes:
            raise Ended from error
        raise


def _plain_xid(identity: str) -> str:
    return f"X'{identity.encode('ascii').hex()}',X'',{FORMAT_ID}"


def _xid(branch: BranchId) -> str:
    global_part, own_part = gtrid(branch.scope, branch.tx), bqual(branch)
    return f"X'{global_part.hex()}',X'{own_part.hex()}',{FORMAT_ID}"


def _xid_of(id: str) -> str:
    branch = read_gid(id)
    if branch is None:
        raise ValueError(f"{id!r} is not the id of a branch")
    return _xid(branch)

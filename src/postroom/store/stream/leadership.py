"""Leadership: the lease by which one relay reads the stream, and what it leaves to the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from postroom.rules.stream.modes import STREAM, Mode
from postroom.store.outbox.leases import new_token
from postroom.store.sql.operations import Operations
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Term:
    """A lease on the stream, and what the last reader left."""

    token: int
    mode: Mode
    slot: str
    """The slot that was read last; empty if none ever was."""
    system_id: str
    """The server that `done` is a place of."""
    publication: int
    """The publication that was read."""
    done: int
    read_to: int
    """Beyond this place, the last reader read nothing; 0 if that is not known."""
    interrupted: bool
    """The last reader's lease ran out: what it was sending may have killed it."""


@dataclass(frozen=True, slots=True)
class StreamState:
    """The row of the stream."""

    mode: Mode
    slot: str
    owner: str
    """Who reads it; empty if nobody does."""
    done: int


class Leadership(Operations):
    """The row of the stream. Whoever holds its lease writes by its token, and nobody else does."""

    def take(self, owner: str, seconds: float, *, begin: bool = True) -> Steps[Term | None]:
        """Lease the stream, unless somebody has it, or is giving it up; without `begin`, only if it is in use."""
        token = new_token()
        modes = [str(mode) for mode in ((Mode.TABLE, Mode.STREAM) if begin else (Mode.STREAM,))]
        rows = yield from self.statement(
            f"""
            WITH free AS (
                SELECT token FROM {self.tables["stream"]}
                WHERE name = '{STREAM}' AND leased_until <= {self.now} AND mode = ANY(:modes::text[])
                FOR UPDATE SKIP LOCKED
            )
            UPDATE {self.tables["stream"]} s
            SET token = :token, owner = :owner, leased_until = {self.dialect.later(":seconds")}
            FROM free WHERE s.name = '{STREAM}' AND s.token = free.token
            RETURNING s.mode, s.slot, s.system_id, s.publication, s.done, s.read_to, free.token""",
            {"token": token, "owner": owner[:255], "seconds": float(seconds), "modes": modes},
        )
        if not rows:
            return None
        [(mode, slot, system_id, publication, done, read_to, previous)] = rows
        is_interrupted = previous != 0
        return Term(token, Mode(mode), slot, system_id, publication, done, read_to, is_interrupted)

    def renew(self, token: int, seconds: float, done: int) -> Steps[Mode | None]:
        """Extend the lease, and record how far the stream was read; None if it was lost."""
        rows = yield from self.statement(
            f"UPDATE {self.tables['stream']} SET leased_until = {self.dialect.later(':seconds')}, "
            f"done = greatest(done, :done) "
            f"WHERE name = '{STREAM}' AND token = :token AND leased_until > {self.now} RETURNING mode",
            {"token": token, "seconds": float(seconds), "done": done},
        )
        return Mode(rows[0][0]) if rows else None

    def begin(self, token: int, slot: str, system_id: str, publication: int, done: int) -> Steps[bool]:
        """Record what is read from where: from now on the outbox is in the stream.

        Returns False if the lease was lost, or somebody takes the outbox out of the stream.
        """
        rows = yield from self.statement(
            f"UPDATE {self.tables['stream']} SET slot = :slot, system_id = :system_id, "
            f"publication = :publication, done = :done, read_to = 0, "
            f"mode = '{Mode.STREAM}', "
            f"changed_at = CASE WHEN mode = '{Mode.STREAM}' THEN changed_at ELSE {self.now} END "
            f"WHERE name = '{STREAM}' AND token = :token AND leased_until > {self.now} "
            f"AND mode IN ('{Mode.TABLE}', '{Mode.STREAM}') RETURNING 1",
            {"token": token, "slot": slot, "system_id": system_id, "publication": publication, "done": done},
        )
        return bool(rows)

    def release(self, token: int, done: int, read_to: int = 0) -> Steps[None]:
        """End the lease, with nothing in flight. `read_to`: beyond this place, nothing was read."""
        yield from self.statement(
            f"UPDATE {self.tables['stream']} SET token = 0, owner = '', leased_until = {self.dialect.never}, "
            f"done = greatest(done, :done), read_to = :read_to WHERE name = '{STREAM}' AND token = :token",
            {"token": token, "done": done, "read_to": read_to},
        )

    def state(self) -> Steps[StreamState]:
        """What the row says."""
        found = yield Query(
            f"SELECT mode, slot, CASE WHEN leased_until > {self.now} THEN owner ELSE '' END, done "
            f"FROM {self.tables['stream']} WHERE name = '{STREAM}'"
        )
        if not found.rows:
            return StreamState(Mode.TABLE, "", "", 0)
        [(mode, slot, owner, done)] = found.rows
        return StreamState(Mode(mode), slot, owner, done)

    def change_mode(self, before: Sequence[Mode], after: Mode) -> Steps[bool]:
        """Change the mode; returns False if it was another one."""
        rows = yield from self.statement(
            f"UPDATE {self.tables['stream']} SET mode = :after, changed_at = {self.now} "
            f"WHERE name = '{STREAM}' AND mode = ANY(:before::text[]) RETURNING 1",
            {"before": [str(mode) for mode in before], "after": str(after)},
        )
        return bool(rows)

    def lanes_rest(self) -> Steps[bool]:
        """Whether relays must hold no lanes."""
        found = yield Query(
            f"SELECT 1 FROM {self.tables['stream']} WHERE name = '{STREAM}' AND mode = ANY(:resting::text[])",
            {"resting": _resting()},
        )
        return bool(found.rows)


def _resting() -> list[str]:
    return [str(mode) for mode in Mode if mode.lanes_rest]

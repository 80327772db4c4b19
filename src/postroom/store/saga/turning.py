"""What stops an instance's way forward: it turns back, is parked, or is put back until its code is there again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postroom.rules.failures import CODE_LENGTH, cut
from postroom.rules.lifecycle import Transition
from postroom.rules.saga_plan import Direction
from postroom.store.admin.audit import Note, audit
from postroom.store.saga.step_log import repeats
from postroom.store.sql.states import becomes, ready
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.store.outbox.leases import Claimed
    from postroom.store.saga.step_log import StepLog
    from postroom.store.saga.values import Entry, Locked

PARKED = "saga_parked"


class Turning:
    def __init__(self, log: StepLog) -> None:
        self._sql = log.sql
        self._log = log

    def turn(
        self,
        claimed: Claimed,
        entries: Sequence[Entry],
        failed_step: str,
        code: str,
        text: str,
        *,
        token: int,
        aborted_by: str = "",
    ) -> Steps[bool | Locked]:
        """Change the direction to back, in a transaction of its own. The lease stays, under a new token.

        A function that timed out may still be running, and would commit its step under the old token, never to be
        undone. False if nothing was written: the lease is lost, or a step of these entries is on record after all.
        Read the instance again then.
        """
        sql = self._sql
        reason = {"step": failed_step, "code": cut(code, CODE_LENGTH), "text": cut(text), "by": cut(aborted_by, 255)}
        return (yield from sql.unless_locked(self._turn, claimed, entries, token, reason))

    def _turn(self, claimed: Claimed, entries: Sequence[Entry], token: int, reason: dict[str, str]) -> Steps[bool]:
        sql = self._sql
        held = yield from sql.lock_now(claimed)
        if held is None:
            return False
        known = (yield from self._log.on_record([claimed.position]))[claimed.position]
        if repeats(entries, known):
            return False
        yield from self._log.write_entries(held, known, entries)
        yield Query(
            f"UPDATE {sql.saga} SET direction = {int(Direction.BACK)}, failed_step = :step, error_code = :code, "
            "error_message = :text, aborted_by = :by WHERE position = :position",
            {**reason, "position": claimed.position},
        )
        yield Query(
            f"UPDATE {sql.delivery_by_key} SET token = :token, attempts = 0, claims = 1, error_code = '', "
            f"error_message = '', failed_at = {sql.dialect.never} WHERE {ready()} AND {sql.one}",
            {**sql.place(claimed.position), "token": token},
        )
        return True

    def park(self, claimed: Claimed, step: str, code: str, text: str, attempted: bool) -> Steps[bool | Locked]:  # noqa: FBT001 - as in `Dead`
        """Leave the instance to an operator, with an audit record; False if the lease is lost."""
        return (yield from self._sql.unless_locked(self._park, claimed, step, code, text, attempted))

    def _park(self, claimed: Claimed, step: str, code: str, text: str, attempted: bool) -> Steps[bool]:  # noqa: FBT001
        sql = self._sql
        held = yield from sql.lock_now(claimed)
        if held is None:
            return False
        attempts = held.attempts + int(attempted)
        error = {"code": cut(code, CODE_LENGTH), "text": cut(text)}
        yield Query(
            f"UPDATE {sql.delivery_by_key} SET {becomes(Transition.EXHAUST)}, attempts = :attempts, claims = 0, "
            f"failed_at = {sql.now}, error_code = :code, error_message = :text, {sql.free()} "
            f"WHERE {ready()} AND {sql.one}",
            {**sql.place(claimed.position), **error, "attempts": attempts},
        )
        details: dict[str, Any] = {
            "saga": sql.saga_name,
            "step": step,
            "attempts": attempts,
            "error_code": error["code"],
            "error_message": error["text"],
        }
        yield from audit(sql.names, PARKED, Note(), [(claimed.position, str(claimed.message.id), details)])
        return True

    def put_back(
        self, claimed: Claimed, code: str, text: str, seconds: float, *, tried: bool = False
    ) -> Steps[bool | Locked]:
        """Give up the lease for some seconds: neither an attempt nor this claim counts. False if the lease is lost.

        `tried`: one claim stays, however often that happens, so that the next one is not taken for the first to try.
        """
        return (yield from self._sql.unless_locked(self._put_back, claimed, code, text, seconds, int(tried)))

    def _put_back(self, claimed: Claimed, code: str, text: str, seconds: float, least: int) -> Steps[bool]:
        sql = self._sql
        held = yield from sql.lock_now(claimed)
        if held is None:
            return False
        yield Query(
            f"UPDATE {sql.delivery_by_key} SET {becomes(Transition.WAIT)}, due = {sql.dialect.later(':seconds')}, "
            f"claims = CASE WHEN claims > {least} THEN claims - 1 ELSE {least} END, "
            f"failed_at = {sql.now}, error_code = :code, error_message = :text, {sql.free()} "
            f"WHERE {ready()} AND {sql.one}",
            {
                **sql.place(claimed.position),
                "seconds": float(seconds),
                "code": cut(code, CODE_LENGTH),
                "text": cut(text),
            },
        )
        return True

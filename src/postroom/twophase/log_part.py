"""The log as the coordinator uses it: on the holder's connection, or on one of its own."""

from __future__ import annotations

import secrets
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from postroom.rules.twophase_ids import transaction_id
from postroom.rules.twophase_plan import Decision
from postroom.store.twophase.log import TwoPhaseLog
from postroom.twophase.errands import Errand
from postroom.twophase.parts import DatabaseParticipant, Part, State

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from postroom.store.sql.names import Names
    from postroom.store.sql.steps import Query, Steps
    from postroom.twophase.lines import Line, Opener

T = TypeVar("T")


class LogPart(Part):
    """The log, on the holder's connection or on one of its own."""

    name = "log"

    def __init__(self, opener: Opener, names: Callable[[str], Names], *, asynchronous: bool) -> None:
        self._opener = opener
        self._names = names
        self._asynchronous = asynchronous
        self._holder: DatabaseParticipant | None = None
        self._own = DatabaseParticipant(self.name, opener, names, asynchronous=asynchronous)
        self.id = ""
        self.scope = ""
        self._deadline = 0
        self.row_is_open = False
        """There is a row without a decision."""
        self._errand: Errand[Any] | None = None

    @property
    def is_open(self) -> bool:  # type: ignore[override]  # it follows from the connection
        """Whether it has a connection of its own."""
        return self._own.is_open

    @property
    def thread_bound(self) -> bool:  # type: ignore[override]
        """Whether its calls must be made in the thread that opened it."""
        return self._line.thread_bound

    @property
    def _line(self) -> DatabaseParticipant:
        return self._holder or self._own

    def open(self) -> Any:
        """Connect, because no participant has the log."""
        return self._own.open()

    def ride_on(self, holder: DatabaseParticipant) -> None:
        """Use the holder's connection."""
        self._holder = holder

    def start_unasked(self, timeout: float) -> bool:
        """`start` without a word to the log, if enough is known of it; returns whether it is."""
        now = self._opener.clock.believed()
        if now is None or not self._opener.scope:
            return False
        self._draw(now, timeout)
        return True

    def start(self, timeout: float) -> Any:
        """Draw the transaction's id, which has its deadline by the log's clock."""
        return self._line.run(self._start(timeout))

    def _start(self, timeout: float) -> Steps[None]:
        log = self._log()
        self._opener.scope = self._opener.scope or (yield from log.scope())
        self._draw((yield from self._opener.clock.ask(log)), timeout)

    def _draw(self, now: int, timeout: float) -> None:
        self.scope = self._opener.scope
        self._deadline = now + round(timeout * 1000)
        self.id = transaction_id(self._deadline, secrets.token_hex(6))

    def _log(self) -> TwoPhaseLog:
        return self._log_of(self._line.line)

    def _log_of(self, line: Line) -> TwoPhaseLog:
        if self._opener.log is None:
            self._opener.log = TwoPhaseLog(self._names(line.dialect))
        return self._opener.log

    def decide(self, participants: Mapping[str, str]) -> Any:
        """Log the decision to commit, and commit the holder with it; returns whether it was in time."""
        return self._line.run(self._decide(participants))

    def _decide(self, participants: Mapping[str, str]) -> Steps[bool]:
        decide = partial(self._decision, participants)
        decided = False
        try:
            decided = yield from (decide() if self._holder is None else self._holder.deciding(decide))
        finally:
            if not decided:  # perhaps because its clock is not what it was, or it is another server now
                self._opener.clock.forget()
        return decided

    def _decision(self, participants: Mapping[str, str], only_if: Query | None = None) -> Steps[bool]:
        log = self._log()
        if self.row_is_open:
            return log.decide_open(self.id, Decision.COMMIT, only_if)
        return log.decide(self.id, participants, self._deadline, only_if)

    def settle(self) -> Any:
        """Put on record that all have committed."""
        return self._run(lambda log: log.settle(self.id))

    def finish(self) -> Any:
        """`settle`, and then give the connection back, the holder's if it is that one's."""
        return self._afinish() if self._asynchronous else self._finish()

    def _finish(self) -> None:
        try:
            self.settle()
        finally:
            if self._line.is_open:
                (self._holder or self).release()

    async def _afinish(self) -> None:
        try:
            await self.settle()
        finally:
            if self._line.is_open:
                await (self._holder or self).release()

    def open_row(self, participants: Mapping[str, str]) -> Any:
        """Put the transaction on record before anybody prepares, and before the holder begins."""
        self.row_is_open = True
        return self._run(lambda log: log.open(self.id, participants, self._deadline))

    def resolve(self, wanted: Decision) -> Any:
        """Ask the log what was decided; if nothing was, it becomes what is `wanted`."""
        if self.row_is_open:
            return self._run(lambda log: log.resolve_open(self.id, wanted))
        return self._run(lambda log: log.resolve(self.id, self._deadline))

    def _run(self, operation: Callable[[TwoPhaseLog], Steps[T]]) -> Any:
        """Do it on the connection, or on a new one if that was given up."""
        if self._line.is_open and self._line.state in {State.OPEN, State.ENDED}:
            return self._line.run(operation(self._log()))
        errand = self._errand = Errand(self._opener, lambda line: operation(self._log_of(line)))
        return errand.arun() if self._asynchronous else errand.run()

    def let_go(self) -> Any:
        """Give up a connection that was broken off, so that its place in a pool is free."""
        return self._line.release() if self._line.is_open else None

    def release(self) -> Any:
        """Give its own connection back."""
        self._own.state = State.ENDED if self._own.state is State.OPEN else self._own.state
        return self._own.release()

    def break_off(self) -> None:
        """Close the connections that it uses."""
        self._line.break_off()
        if self._errand is not None:
            self._errand.give_up()

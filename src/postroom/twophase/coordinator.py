"""The coordinator: the protocol of one transaction, from its beginning to the answers of all participants."""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from postroom.errors import InvalidSetting, PostroomError, Refused, TransactionAborted, TransactionInDoubt
from postroom.rules import twophase_plan as plan
from postroom.rules.twophase_ids import LAST
from postroom.rules.twophase_plan import Act, Course, Decision
from postroom.store.sql.db_errors import code_of, is_lost_connection, is_of_sqlite, reason
from postroom.twophase.parts import DatabaseParticipant, State
from postroom.twophase.resources import aborted
from postroom.twophase.rounds import Answer, Call, Round, Rounds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from postroom.twophase.log_part import LogPart
    from postroom.twophase.parts import Part, Participant
    from postroom.twophase.resources import LastPart

P = TypeVar("P", bound="Part")

CLOSING = 10.0
"""Seconds for each round that follows a decision: commits, roll-backs, and giving connections back."""
ASKING = 3
"""How often the log is asked for a decision whose answer was lost."""

_AFTER_LAST = {
    True: "Recovery asks it again, and finishes: do not repeat the work",
    False: "It has no abort(), so find out, then `postroom transactions decide {} commit` or `abort`",
}
"""What follows if nobody knows what the last resource did, by whether it can abort."""

_log = logging.getLogger("postroom")


class Coordinator:
    """Runs one transaction. `beginning`, `committing` and `aborting` are protocols for `drive` or `adrive`."""

    def __init__(
        self,
        log: LogPart,
        participants: Mapping[str, Participant],
        *,
        timeout: float,
        holder: str | None,
        last: LastPart | None,
    ) -> None:
        """`holder` names the participant whose database has the log."""
        self.log = log
        self._participants = participants
        self._holder = holder
        self._last = last
        self._timeout = timeout
        self._until = 0.0
        self._course = Course(())
        self.unsettled: tuple[str, ...] = ()
        """Participants that did not confirm a commit that was decided: recovery commits them."""

    @property
    def _everybody(self) -> Sequence[Participant]:
        return tuple(self._participants.values())

    @property
    def _prepared(self) -> Sequence[Participant]:
        return [self._participants[name] for name in self._course.prepare]

    def participant(self, name: str) -> Participant:
        """The one with this name. Raises `InvalidSetting` if there is none."""
        if name not in self._participants:
            known = ", ".join(map(repr, self._participants))
            raise InvalidSetting(f"there is no participant {name!r}: use {known}")
        return self._participants[name]

    def beginning(self) -> Rounds[None]:
        """Connect to all participants, and begin their branches. Raises what stands in the way."""
        self._until = time.monotonic() + self._timeout  # before the log's clock is asked, so not later than its end
        try:
            log_is_apart = self._last is not None or (self._holder is None and len(self._participants) > 1)
            opened: list[Participant | LogPart] = [*self._everybody, *([self.log] if log_is_apart else [])]
            yield from self._require(opened, lambda part: part.open)
            abilities = {name: part.abilities for name, part in self._participants.items()}
            self._course = plan.course(abilities, holder=self._holder, has_last=self._last is not None)
            yield from self._start_log()
            yield from self._begin_branches()
        except BaseException:
            yield from self._roll_back()
            raise

    def _start_log(self) -> Rounds[None]:
        decider = self._participants.get(self._course.decided_by or "")
        if self._course.alone:
            return
        if isinstance(decider, DatabaseParticipant):
            self.log.ride_on(decider)
        elif not self.log.is_open:
            yield from self._require([self.log], lambda log: log.open)
        if not self.log.start_unasked(self._timeout):
            yield from self._require([self.log], lambda log: partial(log.start, self._timeout))

    def _begin_branches(self) -> Rounds[None]:
        holder = self._participants.get(self._course.decided_by or "")
        if not self._course.open_row or holder is None:
            yield from self._require(self._everybody, self._begin)
            return
        # A holder that has begun may not see a row that is written later; on SQLite it keeps others from writing one.
        yield from self._require([part for part in self._everybody if part is not holder], self._begin)
        yield from self._open_row()
        yield from self._require([holder], self._begin)

    def _open_row(self) -> Rounds[None]:
        if self._course.open_row and not self.log.row_is_open:
            yield from self._require([self.log], lambda log: partial(log.open_row, self._on_record))

    def _begin(self, part: Participant) -> Callable[[], object]:
        prepares = part.name in self._course.prepare
        return partial(part.begin, self.log.scope, self.log.id, self._left, prepares=prepares)

    def committing(self) -> Rounds[None]:
        """Commit all branches, or none. Raises `TransactionAborted`, `TransactionInDoubt`, or a flush's own error."""
        try:
            yield from self._require([part for part in self._everybody if part.flushes], lambda part: part.flush)
            if self._course.alone:
                yield from self._commit_alone()
                return
            yield from self._prepare()
        except BaseException:
            yield from self._roll_back()
            raise
        try:  # whatever interrupts it from here on, only the log or the last resource can say what was decided
            yield from self._call_last()
            yield from self._decide()
            yield from self._commit()
        except BaseException:
            yield from self._break_off()
            raise

    def _commit_alone(self) -> Rounds[None]:
        """Commit the only participant, as it would by itself."""
        (part,) = self._everybody
        (answer,) = yield self._round([part], lambda part: part.commit)
        if isinstance(answer.error, TimeoutError):
            raise TransactionInDoubt(
                f"participant {part.name!r}, the only one, did not answer its COMMIT in time: look at its data before "
                "you repeat the work",
                self.log.id,
            ) from answer.error
        if answer.error is not None:
            raise answer.error
        yield from self._release()

    def aborting(self) -> Rounds[None]:
        """Roll all branches back. A failure is logged, and the others are still rolled back."""
        yield from self._roll_back()

    def _prepare(self) -> Rounds[None]:
        yield from self._open_row()
        parts = self._prepared
        answers = yield self._round(parts, lambda part: part.prepare)
        if plan.after_prepare(map(_prepared, answers)) is not Act.ROLL_BACK:
            return
        pairs = zip(parts, answers, strict=True)
        part, answer = next(pair for pair in pairs if _prepared(pair[1]) is not plan.Answer.YES)
        why = "it returned False" if answer.error is None else _reason(answer.error)
        if self._left <= 0:  # then its server has ended the branch, and its own words would mislead
            why = f"{self._late} ({why})"
        self._abort(f"participant {part.name!r} cannot commit: {why}", part.name, answer)

    def _call_last(self) -> Rounds[None]:
        """Have the resource that cannot prepare do its work: whether it does decides."""
        last = self._last
        if last is None:
            return
        (answer,) = yield self._round([last], lambda part: partial(part.commit, self.log.id))
        act = plan.after_last(_refused(answer), can_abort=last.can_abort)
        if act is Act.ASK_LAST:
            (asked,) = yield Round([_call(last, partial(last.abort, self.log.id))], CLOSING)
            act = plan.after_asking_last(aborted(asked))
        match act:
            case Act.DECIDE_COMMIT:
                return
            case Act.LEAVE:
                raise TransactionInDoubt(
                    f"transaction {self.log.id} waits for its last resource, which may have done its work: "
                    f"{_reason(answer.error)}. {_AFTER_LAST[last.can_abort].format(self.log.id)}",
                    self.log.id,
                ) from answer.error
            case _:
                yield from self._roll_back()
                self._abort(f"the last resource refused: {_reason(answer.error)}", LAST, answer)

    def _decide(self) -> Rounds[None]:
        """Log the decision to commit; the holder commits with it. From here on, the log says what happens."""
        (answer,) = yield self._round([self.log], lambda log: partial(log.decide, self._on_record))
        act = plan.after_decision(_decided(answer), has_last=self._last is not None)
        if act not in {Act.COMMIT, Act.ROLL_BACK}:
            # A decision that is still open there would keep the log from answering, and the connection a small pool.
            self.log.break_off()
            yield Round([_call(self.log, self.log.let_go)], CLOSING)
            wanted = Decision.COMMIT if act is Act.DECIDE_COMMIT else Decision.ABORT
            act = plan.act_on((yield from self._ask_log(wanted, answer)), past_deadline=True)
        if act is Act.COMMIT:
            return
        yield from self._roll_back()
        if self._last is not None:
            self._abort("somebody decided so while its last resource did its work: undo that by hand", LAST, answer)
        if answer.error is None:
            self._abort(self._late, None, answer)
        why = f"the decision was not logged: {_reason(answer.error)}"
        if self._left <= 0:
            why = f"{self._late} ({why})"
        self._abort(why, self._course.decided_by, answer)

    def _ask_log(self, wanted: Decision, lost: Answer) -> Rounds[Decision]:
        """Ask on a new connection what was decided; if nothing was, decide what is `wanted`."""
        for _ in range(ASKING):
            (answer,) = yield Round([_call(self.log, partial(self.log.resolve, wanted))], CLOSING)
            if answer.error is None:
                return Decision(answer.value)
        raise TransactionInDoubt(
            f"whether transaction {self.log.id} was decided is not known, because its log does not answer: "
            f"{_reason(lost.error)}. Recovery finishes it; do not repeat its work before "
            f"`postroom transactions show {self.log.id}` says how it ended",
            self.log.id,
        ) from lost.error

    def _commit(self) -> Rounds[None]:
        parts = self._prepared
        answers = yield Round([_call(part, part.commit) for part in parts], CLOSING)
        failed = [(part.name, answer.error) for part, answer in zip(parts, answers, strict=True) if answer.error]
        self.unsettled = tuple(name for name, _ in failed)
        for name, error in failed:
            _log.warning(
                "transaction %s is committed, but participant %r did not confirm it, which is left to recovery: %s",
                *(self.log.id, name, _reason(error)),
            )
        if not failed:  # recovery settles it if this fails; meanwhile the others give their connections back
            returning = [_call(part, part.release) for part in parts if part.is_open]
            yield Round([_call(self.log, self.log.finish), *returning], CLOSING)
        yield from self._release()

    def _roll_back(self) -> Rounds[None]:
        begun = [part for part in self._everybody if part.state in {State.BEGUN, State.PREPARED}]
        answers = yield Round([_call(part, part.roll_back) for part in begun], CLOSING)
        for part, answer in zip(begun, answers, strict=True):
            if answer.error is not None:
                _log.warning(
                    "participant %r could not be told to roll back transaction %s; its server or recovery does it: %s",
                    *(part.name, self.log.id, _reason(answer.error)),
                )
        if self.log.row_is_open:
            (answer,) = yield Round([_call(self.log, partial(self.log.resolve, Decision.ABORT))], CLOSING)
            answers = [*answers, answer]
            if all(answer.error is None for answer in answers):
                yield Round([_call(self.log, self.log.settle)], CLOSING)  # recovery does it if this fails
        yield from self._release()

    def _release(self) -> Rounds[None]:
        """Give the connections back. One that fails is closed, and that is all."""
        open_ = [part for part in (*self._everybody, self.log) if part.is_open]
        if open_:
            yield Round([_call(part, part.release) for part in open_], CLOSING)

    def _break_off(self) -> Rounds[None]:
        """Close all connections, and leave what is prepared to recovery."""
        for part in (*self._everybody, self.log):
            part.break_off()
        yield from self._release()

    @property
    def _on_record(self) -> dict[str, str]:
        """Who takes part, for the log: the id of each branch, and nothing for whom the decision itself commits."""
        branches = {name: part.branch for name, part in self._participants.items()}
        return branches if self._last is None else {**branches, LAST: self._last.identity}

    def _require(self, parts: Sequence[P], act: Callable[[P], Callable[[], Any]]) -> Rounds[None]:
        """One round, whose first error is raised as it is; but who is silent has no error of its own."""
        if not parts:
            return
        answers = yield self._round(parts, act)
        for part, answer in zip(parts, answers, strict=True):
            if isinstance(answer.error, TimeoutError):
                self._abort(f"{part.name!r} did not answer in time", part.name, answer)
            if answer.error is not None:
                answer.error.add_note(f"from {part.name!r} in a two-phase commit")
                raise answer.error

    def _round(self, parts: Sequence[P], act: Callable[[P], Callable[[], Any]]) -> Round:
        return Round([_call(part, act(part)) for part in parts], max(0.1, self._left))

    @property
    def _late(self) -> str:
        return f"it was not ready within {self._timeout:g} s: give it a longer timeout"

    @property
    def _left(self) -> float:
        return self._until - time.monotonic()

    def _abort(self, why: str, participant: str | None, answer: Answer) -> NoReturn:
        which = f"transaction {self.log.id}" if self.log.id else "the transaction"
        raise TransactionAborted(f"{which} is rolled back: {why}", participant) from answer.error


def _call(part: Part, make: Callable[[], object]) -> Call:
    return Call(part.name, make, part.break_off, part.thread_bound)


def _prepared(answer: Answer) -> plan.Answer:
    """Whether a participant is ready. A user's resource may also return False to refuse."""
    return plan.Answer.YES if answer.error is None and answer.value is not False else plan.Answer.NO


def _decided(answer: Answer) -> plan.Answer:
    """Whether the decision was written."""
    error = answer.error
    if error is None:
        return plan.Answer.YES if answer.value else plan.Answer.NO
    is_lost = isinstance(error, TimeoutError | OSError) or is_lost_connection(error)
    if (isinstance(error, PostroomError) or is_of_sqlite(error)) and not is_lost:
        return plan.Answer.NO  # raised before the COMMIT, or by a server that refused the statement
    return plan.answer_to_decision(code_of(error), lost=is_lost)


def _refused(answer: Answer) -> plan.Answer:
    """What the last resource said. Only `Refused` is a no: any other error may come after the effect."""
    if answer.error is None:
        return plan.Answer.YES
    return plan.Answer.NO if isinstance(answer.error, Refused) else plan.Answer.LOST


def _reason(error: BaseException | None) -> str:
    return "" if error is None else reason(error)

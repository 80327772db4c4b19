"""Recovery: finds transactions that their coordinators left behind, and finishes them as the log says.

It keeps nothing between two scans, so any number may run at once. All decisions are those of `rules.twophase_plan`
and `rules.twophase_settling`.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Any

from postroom.errors import InvalidSetting
from postroom.rules import twophase_plan as plan
from postroom.rules.twophase_ids import LAST, deadline_of, read_gid
from postroom.rules.twophase_plan import Act, Decision
from postroom.rules.twophase_settling import Again, Confirmed, Quarantine, Settling, Trouble, problem, together
from postroom.store.sql.db_errors import reason
from postroom.store.twophase.log import LogRow, StillDeciding, TwoPhaseLog
from postroom.twophase.errands import Errand
from postroom.twophase.findings import Listing, Recovered, Settled
from postroom.twophase.resources import LastPart, aborted, called
from postroom.twophase.rounds import Call, Round, Rounds
from postroom.twophase.settling import Ended, finish, list_branches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from postroom.store.sql.names import Names
    from postroom.store.sql.steps import Steps
    from postroom.twophase.lines import Line, Opener
    from postroom.twophase.two_phase_commit import TwoPhaseCommit

ANSWERING = 10.0
"""Seconds for a participant, or the log, to answer."""
MOST = 1000
"""Rows of the log that are read in one go."""
AT_ONCE = 100
"""Transactions that are finished in one go: a user's own resource is called for all of them at the same time."""
SETTLING = 5.0
"""Seconds after a decision in which its coordinator is left to settle it."""


class Recovery:
    """Recovers the transactions of one log. Its methods are protocols for `drive` or `adrive`."""

    def __init__(
        self,
        log: Opener,
        names: Callable[[str], Names],
        databases: Mapping[str, Opener],
        resources: Mapping[str, Any],
        last: Any,
        *,
        asynchronous: bool,
    ) -> None:
        self._log = log
        self._names = names
        self._databases = databases
        self._resources = resources
        self._last = None if last is None else LastPart(last, asynchronous=asynchronous)
        self._asynchronous = asynchronous

    def recover(self) -> Rounds[Recovered]:
        """Finish all that can be finished now. Raises if the log cannot be asked."""
        listing = first = yield from self.look()
        results = yield from self._settle_all(listing)
        while listing.after:  # those that cannot be settled must not hide those behind them
            listing = yield from self.look_on(listing.after, listing.unreachable)
            results += yield from self._settle_all(listing)
        ended = [one for one in results if isinstance(one.settling, Confirmed)]
        return Recovered(
            committed=tuple(one.id for one in ended if one.decision is Decision.COMMIT),
            rolled_back=tuple(one.id for one in ended if one.decision is not Decision.COMMIT),
            waiting=tuple(one.id for one in results if isinstance(one.settling, Again)),
            problems={one.id: one.problem for one in results if isinstance(one.settling, Quarantine)},
            unreachable=first.unreachable,
        )

    def _settle_all(self, listing: Listing) -> Rounds[list[Settled]]:
        results: list[Settled] = []
        txs = self.in_doubt(listing)
        for start in range(0, len(txs), AT_ONCE):
            results += yield from self.settle(txs[start : start + AT_ONCE], listing)
        return results

    def look(self, txs: Sequence[str] = ()) -> Rounds[Listing]:
        """Ask all participants, then the log: a branch that is prepared later may belong to a later decision.

        `txs`: transactions to look up even if nobody lists them.
        """
        scope = yield from self._ask_log(lambda log: log.scope())
        calls = [
            self._errand(name, opener, partial(list_branches, self._names, opener, scope))
            for name, opener in self._databases.items()
        ]
        calls += [
            self._call(name, partial(called, resource.in_doubt, asynchronous=self._asynchronous))
            for name, resource in self._resources.items()
            if hasattr(resource, "in_doubt")
        ]
        answers = yield Round(calls, ANSWERING)
        branches: dict[str, list[str]] = {tx: [] for tx in txs}
        unreachable: dict[str, str] = {}
        for (name, *_), answer in zip(calls, answers, strict=True):
            if answer.error is not None:
                unreachable[name] = reason(answer.error)
                continue
            ids = answer.value
            if isinstance(ids, str) or not isinstance(ids, Collection) or not all(isinstance(id_, str) for id_ in ids):
                unreachable[name] = f"in_doubt() returned {type(ids).__name__}: return a list of ids"
                continue
            for id_ in ids:
                branch = read_gid(id_)
                if branch is not None and branch.scope == scope and branch.participant == name:
                    branches.setdefault(branch.tx, []).append(id_)
        rows, now_ms, after = yield from self._ask_log(lambda log: self._read(log, list(branches)))
        return Listing(branches, rows, now_ms, unreachable, after)

    def look_on(self, after: str, unreachable: Mapping[str, str]) -> Rounds[Listing]:
        """What else the log has that is not settled, behind this transaction."""
        rows, now_ms, more = yield from self._ask_log(lambda log: self._read(log, [], after))
        return Listing({}, rows, now_ms, unreachable, more)

    def _read(self, log: TwoPhaseLog, txs: Sequence[str], after: str = "") -> Steps[tuple[dict[str, LogRow], int, str]]:
        rows = yield from log.rows(txs)
        page = yield from log.unsettled(MOST, after=after, seconds=SETTLING)
        for row in page:
            rows.setdefault(row.id, row)
        return rows, (yield from log.clock()), page[-1].id if len(page) == MOST else ""

    def in_doubt(self, listing: Listing) -> list[str]:
        """The transactions that recovery has something to do with, those with the earliest deadlines first."""
        known = {*listing.branches, *(tx for tx, row in listing.rows.items() if row.settled_at is None)}
        return sorted(tx for tx in known if self._act(tx, listing) is not Act.LEAVE)

    def _act(self, tx: str, listing: Listing) -> Act:
        row = listing.rows.get(tx)
        if row is not None and row.decision is Decision.OPEN and row.settled_at is not None:
            return Act.LEAVE  # an operator had it forgotten
        return plan.act_on(
            None if row is None else row.decision,
            past_deadline=listing.age(tx) >= 0,
            has_last=row is not None and LAST in row.participants,
            last_can_abort=row is not None and self._can_ask_last(row),
        )

    def _can_ask_last(self, row: LogRow) -> bool:
        """Whether the last resource here is the transaction's own: another would say that nothing has happened."""
        return self._last is not None and self._last.can_abort and row.participants.get(LAST) == self._last.identity

    def settle(self, txs: Iterable[str], listing: Listing) -> Rounds[list[Settled]]:
        """Finish these transactions; returns what became of each.

        Those that need a user's own code come last: if it hangs, the others are on record already.
        """
        parts: dict[bool, list[str]] = {False: [], True: []}
        for tx in txs:
            parts[self._needs_own_code(tx, listing)].append(tx)
        results: list[Settled] = []
        for some in (parts[False], parts[True]):
            settled = yield from self._settle(some, listing)
            yield from self._record(settled, listing)
            results += settled
        return results

    def _needs_own_code(self, tx: str, listing: Listing) -> bool:
        row = listing.rows.get(tx)
        takes_part = {branch.participant for id_ in listing.branches.get(tx, ()) if (branch := read_gid(id_))}
        takes_part |= set() if row is None else row.participants.keys()
        return not takes_part.isdisjoint({*self._resources, LAST})

    def _settle(self, txs: Sequence[str], listing: Listing) -> Rounds[list[Settled]]:
        acts = {tx: self._act(tx, listing) for tx in txs}
        acts |= yield from self._ask_last([tx for tx, act in acts.items() if act is Act.ASK_LAST])
        undecided: list[Settled] = []
        decided: dict[str, Decision] = {}
        for tx, act in acts.items():
            decision = yield from self._decide(tx, act, listing)
            if decision is not None:
                decided[tx] = decision
            elif act is Act.QUARANTINE:
                trouble = Trouble.LAST_UNKNOWN
                undecided.append(Settled(tx, None, Quarantine(trouble), problem(trouble, LAST)))
            else:
                undecided.append(Settled(tx, None, Again()))
        return undecided + (yield from self._finish(decided, listing))

    def _ask_last(self, txs: Sequence[str]) -> Rounds[dict[str, Act]]:
        """Have the last resource abort these, all at once; returns what follows for each."""
        last = self._last
        if last is None or not txs:
            return {}
        answers = yield Round([self._call(LAST, partial(last.abort, tx)) for tx in txs], ANSWERING)
        return {tx: plan.after_asking_last(aborted(answer)) for tx, answer in zip(txs, answers, strict=True)}

    def _decide(self, tx: str, act: Act, listing: Listing) -> Rounds[Decision | None]:
        """What the log says, after what recovery must do for it to say something; None: not yet."""
        match act:
            case Act.COMMIT:
                return Decision.COMMIT
            case Act.ROLL_BACK:
                return Decision.ABORT
            case Act.DECIDE_ABORT | Act.DECIDE_COMMIT:
                wanted = Decision.COMMIT if act is Act.DECIDE_COMMIT else Decision.ABORT
                return (yield from self._write(tx, wanted, listing))
            case _:
                return None

    def _write(self, tx: str, wanted: Decision, listing: Listing) -> Rounds[Decision | None]:
        row = listing.rows.get(tx)
        try:
            if row is None:
                decision = yield from self._ask_log(lambda log: log.resolve(tx, deadline_of(tx) or 0))
            else:
                decision = yield from self._ask_log(lambda log: log.resolve_open(tx, wanted))
        except StillDeciding:
            return None
        return None if decision is Decision.OPEN else decision

    def _finish(self, decided: Mapping[str, Decision], listing: Listing) -> Rounds[list[Settled]]:
        """Commit or roll back all branches of what is decided: all participants at once, each its own in a row."""
        ends: dict[str, list[Ended]] = {}
        settlings: dict[str, dict[str, Settling]] = {tx: {} for tx in decided}
        for tx, decision in decided.items():
            for participant, id_ in self._branches(tx, decision, listing):
                ends.setdefault(participant, []).append(Ended(tx, id_, decision, listing.age(tx)))
                known = participant in self._databases or participant in self._resources
                settlings[tx][participant] = Again() if known else Quarantine(Trouble.NOT_CONFIGURED)
        reached = [name for name in ends if name in self._databases and name not in listing.unreachable]
        calls = [self._finishing(name, ends[name]) for name in reached]
        calls += [
            self._call(name, partial(self._end_resource, name, end))
            for name, branches in ends.items()
            if name in self._resources
            for end in branches
        ]
        answers = yield Round(calls, ANSWERING)
        for call, answer in zip(calls, answers, strict=True):
            if answer.error is None:
                for tx, settling in answer.value.items():
                    settlings[tx][call.who] = settling
        for tx, decision in decided.items():
            if decision is Decision.COMMIT and tx not in listing.rows:
                settlings[tx][""] = Again()  # decided just now: who takes part is in a row that has not been read
        return [self._result(tx, decision, settlings[tx]) for tx, decision in decided.items()]

    def _branches(self, tx: str, decision: Decision, listing: Listing) -> list[tuple[str, str]]:
        """Participants and their branches: those on record, and those that are listed.

        Of an abort, a database has only what it lists; one that is prepared later will be listed then.
        """
        row = listing.rows.get(tx)
        on_record = {} if row is None else row.participants
        found = {name: id_ for name, id_ in on_record.items() if id_ and name != LAST}
        if decision is Decision.ABORT:
            found = {name: id_ for name, id_ in found.items() if name not in self._databases}
        pairs = list(found.items())
        pairs += [
            (branch.participant, id_)
            for id_ in listing.branches.get(tx, ())
            if (branch := read_gid(id_)) is not None and found.get(branch.participant) != id_
        ]
        return pairs

    def _finishing(self, name: str, branches: Sequence[Ended]) -> Call:
        opener = self._databases[name]
        return self._errand(name, opener, partial(finish, self._names, opener, branches))

    def _end_resource(self, name: str, end: Ended) -> Any:
        resource = self._resources[name]
        function = resource.commit if end.decision is Decision.COMMIT else resource.abort
        if self._asynchronous:
            return self._aend_resource(function, end)
        called(function, end.id, asynchronous=False)
        return {end.tx: Confirmed()}

    async def _aend_resource(self, function: Callable[..., Any], end: Ended) -> Any:
        await called(function, end.id, asynchronous=True)
        return {end.tx: Confirmed()}

    def _result(self, tx: str, decision: Decision, branches: Mapping[str, Settling]) -> Settled:
        whole = together(branches)
        said = ""
        if isinstance(whole, Quarantine):
            participant = next(name for name, one in branches.items() if one == whole)
            said = problem(whole.trouble, participant)
        waits_for = tuple(name for name, one in branches.items() if name and isinstance(one, Again))
        return Settled(tx, decision, whole, said, waits_for)

    def _record(self, results: Sequence[Settled], listing: Listing) -> Rounds[None]:
        settled = [one.id for one in results if isinstance(one.settling, Confirmed)]
        if settled:
            yield from self._ask_log(lambda log: log.settle(*settled))
        for one in results:
            row = listing.rows.get(one.id)
            is_forgotten = row is not None and row.settled_at is not None and bool(row.problem)
            if one.problem and not is_forgotten and (row is None or row.problem != one.problem):
                yield from self._ask_log(partial(_note, one))

    def _ask_log(self, operation: Callable[[TwoPhaseLog], Steps[Any]]) -> Rounds[Any]:
        errand = self._errand("log", self._log, lambda line: operation(TwoPhaseLog(self._names(line.dialect))))
        (answer,) = yield Round([errand], ANSWERING)
        if answer.error is not None:
            raise answer.error
        return answer.value

    def _errand(self, name: str, opener: Opener, operation: Callable[[Line], Steps[Any]]) -> Call:
        errand = Errand(opener, operation)
        return Call(name, errand.arun if self._asynchronous else errand.run, errand.give_up, opener.thread_bound)

    def _call(self, name: str, make: Callable[[], Any]) -> Call:
        return Call(name, make, lambda: None)


def recovery_of(transactions: Sequence[TwoPhaseCommit], *, asynchronous: bool) -> Recovery:
    """The recovery of all these, which share a log. Raises `InvalidSetting` if a name means two participants."""
    databases: dict[str, Opener] = {}
    resources: dict[str, Any] = {}
    given: dict[str, object] = {}
    for one in transactions:
        for name, what in one.participants.items():
            if given.setdefault(name, what) != what:
                raise InvalidSetting(f"participant {name!r} is given twice, as different things: name one differently")
        databases |= one.openers
        resources |= one.resources
    lasts = [one.last for one in transactions if one.last is not None]
    if len(lasts) > 1:
        raise InvalidSetting(
            "two of the given TwoPhaseCommits have a last resource: recover them in relays of their own"
        )
    log, names = transactions[0].log, transactions[0].names
    return Recovery(log, names, databases, resources, lasts[0] if lasts else None, asynchronous=asynchronous)


def _note(one: Settled, log: TwoPhaseLog) -> Steps[None]:
    yield from log.note_problem(one.id, one.problem)

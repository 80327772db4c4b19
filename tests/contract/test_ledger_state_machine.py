"""A state machine: whatever runs, zombies, relays, clean-ups and time do to the ledger, it and a small model agree."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from postroom.rules.replay import (
    LONGEST_WAIT,
    Conflict,
    Entry,
    InProgress,
    Replay,
    Response,
    Run,
    Start,
    Status,
    Verdict,
)
from postroom.store.admin.retention import expired_entries, swept
from postroom.store.ledger.confirmations import Confirmation, Confirmations
from postroom.store.ledger.entries import LEDGER_ENTRIES, UNTIL_CONFIRMED, Terms
from postroom.store.outbox.leases import new_token
from tests.contract.store_drivers import Room, only_on

EXAMPLES = {"sqlite": 25, "postgresql": 15, "mariadb": 15}
STEPS = 40

MINUTE, HOUR = 60.0, 3600.0

# As in the deliveries' state machine: a step takes a minute and all else whole hours, so no two moments are the same.
waits = st.sampled_from([0] * 4 + [HOUR, 2 * HOUR, 4 * HOUR])
terms = st.builds(Terms, st.sampled_from([HOUR, 3 * HOUR]), st.sampled_from([2 * HOUR, 5 * HOUR]))
identities = st.sampled_from([("", "1"), ("", "2"), ("shop", "1")])
digests = st.sampled_from(["a" * 64, "a" * 64, "b" * 64])
answers = st.sampled_from([None, Response(201, (("a", "b"),), b"c"), Response(502)])
endings = st.sampled_from([Status.SUCCEEDED, Status.FAILED])


@dataclass
class Row:
    """What the model holds for a key."""

    digest: str
    status: Status
    token: int
    leased_until: float
    expires_at: float
    response: Response | None = None


class LedgerMachine(RuleBasedStateMachine):
    """Each step lets some time pass, does the same to ledger and model, and compares what they answer."""

    room: ClassVar[Room]

    @initialize()
    def start(self) -> None:
        self.room.empty()
        self.ledger = LEDGER_ENTRIES[self.room.names.dialect](self.room.names)
        self.confirming = Confirmations(self.room.names)
        self.transaction = self.room.deliveries.sql.transaction
        self.now = 0.0
        self.rows: dict[tuple[str, str], Row] = {}
        self.entries: list[Entry] = []
        """All that ever ran: runs that hold their lease, whose lease has ended, that were taken over."""

    def pass_time(self, wait: float) -> None:
        self.room.advance(MINUTE + wait)
        self.now += MINUTE + wait

    @rule(wait=waits, identity=identities, digest=digests, lasting=terms, replay_failures=st.booleans())
    def begin(
        self,
        wait: float,
        identity: tuple[str, str],
        digest: str,
        lasting: Terms,
        replay_failures: bool,  # noqa: FBT001 - drawn
    ) -> None:
        self.pass_time(wait)
        entry = Entry(*identity, digest, new_token())
        begin = partial(self.ledger.begin, replay_failures=replay_failures)
        decision = self.room.run(self.transaction(begin, entry, lasting))
        row = self.rows.get(identity)
        match decision:
            case Run():
                assert decision == Run(entry, self._start(row, digest, replay_failures=replay_failures))
                self.entries.append(entry)
                until, kept = self.now + lasting.lease, self.now + lasting.keep
                self.rows[identity] = Row(digest, Status.IN_PROGRESS, entry.token, until, kept)
            case Replay():
                assert row is not None
                assert row.digest == digest
                assert row.expires_at > self.now or row.leased_until > self.now
                if row.status is Status.IN_PROGRESS:  # handed over, with an answer for the meantime
                    assert row.leased_until > self.now
                    assert row.response is not None
                assert decision.failed == (row.status is Status.FAILED)
                assert decision.response == (row.response or Response(500 if decision.failed else 200))
            case InProgress():
                assert row is not None
                assert row.digest == digest
                assert row.status is Status.IN_PROGRESS
                assert row.response is None
                left = min(row.leased_until - self.now, LONGEST_WAIT)
                assert abs(left - decision.retry_after) < MINUTE / 2
            case Conflict():
                assert row is not None
                assert row.digest != digest
                assert max(row.expires_at, row.leased_until) > self.now

    def _start(self, row: Row | None, digest: str, *, replay_failures: bool) -> Start:
        if row is None:
            return Start.NEW
        assert row.leased_until <= self.now
        if row.expires_at <= self.now:
            return Start.EXPIRED
        assert row.digest == digest
        if row.status is Status.FAILED:
            assert row.response is None
            assert not replay_failures
            return Start.FAILED
        assert row.status is Status.IN_PROGRESS
        return Start.ABANDONED

    def held(self, entry: Entry) -> Row | None:
        """The row that is still this run's."""
        row = self.rows.get((entry.scope, entry.key))
        return row if row and row.token == entry.token and row.status is Status.IN_PROGRESS else None

    @rule(wait=waits, status=endings, response=answers, lasting=terms, data=st.data())
    def end(self, wait: float, status: Status, response: Response | None, lasting: Terms, data: st.DataObject) -> None:
        if not self.entries:
            return
        self.pass_time(wait)
        entry = data.draw(st.sampled_from(self.entries[-6:]))
        row = self.held(entry)
        assert self.room.run(self.ledger.end(entry, status, response, lasting.keep)) == (row is not None)
        if row:
            self._settle(row, status, response, lasting.keep)

    def _settle(self, row: Row, status: Status, response: Response | None, keep: float) -> None:
        row.status, row.response = status, response
        row.leased_until, row.expires_at = 0.0, self.now + keep

    @rule(wait=waits, lasting=terms, data=st.data())
    def renew(self, wait: float, lasting: Terms, data: st.DataObject) -> None:
        if not self.entries:
            return
        self.pass_time(wait)
        entry = data.draw(st.sampled_from(self.entries[-6:]))
        row = self.held(entry)
        assert self.room.run(self.ledger.renew(entry, lasting.lease)) == (row is not None)
        if row:
            row.leased_until = self.now + lasting.lease

    @rule(wait=waits, response=answers, data=st.data())
    def hand_over(self, wait: float, response: Response | None, data: st.DataObject) -> None:
        if not self.entries:
            return
        self.pass_time(wait)
        entry = data.draw(st.sampled_from(self.entries[-6:]))
        heir = replace(entry, token=new_token())
        row = self.held(entry)
        assert self.room.run(self.ledger.hand_over(entry, heir.token, response)) == (row is not None)
        if row:
            row.token, row.leased_until, row.response = heir.token, self.now + UNTIL_CONFIRMED, response
            self.entries.append(heir)

    @rule(wait=waits, keys=st.lists(identities, min_size=1, unique=True), digest=digests)
    def reopen(self, wait: float, keys: list[tuple[str, str]], digest: str) -> None:
        self.pass_time(wait)
        outcomes = [Confirmation(*key, digest, succeeded=False, response=Response(503)) for key in keys]
        self.room.run(self.transaction(self.confirming.reopen, outcomes))
        until = self.now + UNTIL_CONFIRMED
        for key in keys:
            row = self.rows.get(key)
            if row and row.digest == digest and row.status is Status.FAILED:
                self.rows[key] = Row(digest, Status.IN_PROGRESS, 0, until, until)

    @rule(wait=waits, keys=st.lists(identities, min_size=1, unique=True), digest=digests, succeeded=st.booleans())
    def confirm(self, wait: float, keys: list[tuple[str, str]], digest: str, succeeded: bool) -> None:  # noqa: FBT001 - drawn
        self.pass_time(wait)
        outcomes = [Confirmation(*key, digest, succeeded, Response(200 if succeeded else 503)) for key in keys]
        foreseen = self.room.run(self.confirming.foresee(outcomes))
        verdicts = self.room.run(self.transaction(self.confirming.confirm, outcomes, 5 * HOUR))
        assert foreseen == verdicts == [self._verdict(self.rows.get(key), digest) for key in keys]
        for key, outcome, verdict in zip(keys, outcomes, verdicts, strict=True):
            if verdict is Verdict.ABSENT:
                self.rows[key] = Row(digest, outcome.status, 0, 0.0, 0.0)
            if verdict in (Verdict.ABSENT, Verdict.CONFIRMED):
                self._settle(self.rows[key], outcome.status, outcome.response, 5 * HOUR)

    def _verdict(self, row: Row | None, digest: str) -> Verdict:
        if row is None:
            return Verdict.ABSENT
        if row.digest == digest:
            return Verdict.ALREADY_SUCCEEDED if row.status is Status.SUCCEEDED else Verdict.CONFIRMED
        gone = max(row.expires_at, row.leased_until) <= self.now
        return Verdict.ABSENT if gone else Verdict.OTHER_DIGEST

    @rule(wait=waits, batch=st.integers(1, 3))
    def clean(self, wait: float, batch: int) -> None:
        self.pass_time(wait)
        gone = [key for key, row in self.rows.items() if max(row.expires_at, row.leased_until) <= self.now]
        assert self.room.run(swept(expired_entries(self.room.names), batch)) == len(gone)
        for key in gone:
            del self.rows[key]

    @invariant()
    def what_is_stored_is_what_the_model_holds(self) -> None:
        if not hasattr(self, "rows"):
            return
        stored = self.room.select("SELECT scope, idempotency_key, digest, status, http_status FROM {idempotency}")
        assert sorted(stored, key=str) == sorted(
            (
                (*key, row.digest, row.status.value, row.response.status if row.response else None)
                for key, row in self.rows.items()
            ),
            key=str,
        )


@only_on("sqlite3", "asyncpg", "pymysql")
def test_K_1_ledger_and_model_agree_whatever_happens(room: Room) -> None:
    class Machine(LedgerMachine):
        pass

    Machine.room = room
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=EXAMPLES[room.driver.kind],
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )

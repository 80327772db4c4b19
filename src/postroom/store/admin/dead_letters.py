"""Dead letters of all queues: list, count, re-queue and discard them; each act is audited."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from postroom.rules.lifecycle import Stored, Transition
from postroom.rules.ordering import NO_LANE
from postroom.store.admin.audit import audit
from postroom.store.ledger.confirming import Confirming
from postroom.store.ledger.ledgered import failure_of
from postroom.store.sql.dialect import ALL_LANES, whole_numbers
from postroom.store.sql.operations import CHUNK, chunks
from postroom.store.sql.rows import headers_of, shown, uuid_of
from postroom.store.sql.states import becomes, before, dead
from postroom.store.sql.steps import Query, Row, Steps
from postroom.store.sql.walking import Walking

if TYPE_CHECKING:
    from uuid import UUID

    from postroom.store.sql.names import Names


@dataclass(frozen=True, slots=True)
class Choice:
    """Which dead letters: those that fit all that is given; all of them where nothing is."""

    ids: Collection[UUID] | None = None
    topic: str | None = None
    key: str | None = None
    code: str | None = None
    older_than: float | None = None
    """Seconds since it failed."""


ALL = Choice()


class DeadLetter(NamedTuple):
    """A delivery that is dead. What is the message's is None where that is gone."""

    position: int
    queue: str
    lane: int
    attempts: int
    failed_at: Any
    error_code: str
    error_message: str
    id: str | None
    topic: str | None
    type: str | None
    key: str | None
    created_at: Any


COLUMNS = (
    "d.position, d.queue, d.lane, d.attempts, nullif({failed_at}, {never}), d.error_code, d.error_message, "
    "m.id, m.topic, m.type, m.ordering_key, {created_at}"
)


class Counted(NamedTuple):
    """How many dead letters there are, and how many of them were recorded longer ago than was asked for."""

    all: int
    old: int


@dataclass(frozen=True, slots=True)
class Done:
    """How many dead letters were acted on, and the ids of those that have one, in the messages' order."""

    count: int
    ids: list[UUID]


Tell = Callable[[int], None]
Act = Callable[[str, Sequence[DeadLetter]], Steps[None]]


class Place(NamedTuple):
    """A part of the primary key, and which positions in it."""

    queue: str
    lane: int
    which: str


class DeadLetters(Walking):
    """Dead letters of all queues, or of one."""

    def __init__(self, names: Names, only: str | None = None) -> None:
        super().__init__(names)
        self._only = only
        moments = {
            name: self.dialect.readable(f"{table}.{name}") for table, name in (("d", "failed_at"), ("m", "created_at"))
        }
        self._columns = COLUMNS.format(never=self.dialect.never, **moments)
        # A LEFT JOIN, which no planner turns round: it would start at all messages, sent ones included.
        self._from = f"FROM {self.delivery} d LEFT JOIN {self.outbox} m ON m.position = d.position"

    def listed(self, choice: Choice = ALL, limit: int = 50, before: int | None = None) -> Steps[list[DeadLetter]]:
        """Dead letters, newest first; `before` pages on behind a position."""
        chosen, params = self._chosen(choice)
        found = yield Query(
            f"SELECT {self._columns} {self._from} WHERE {dead('d')} AND d.position < :before {chosen}"
            f"ORDER BY d.position DESC LIMIT :limit",
            {**params, "before": before if before is not None else 2**63 - 1, "limit": limit},
        )
        return [self._letter(row) for row in found.rows]

    def count(self, choice: Choice = ALL, old: float = 0) -> Steps[Counted]:
        """How many there are, and how many of their messages were recorded more than `old` seconds ago."""
        chosen, params = self._chosen(choice)
        places = [""] if choice.ids is None else []
        for n, at in enumerate([] if choice.ids is None else (yield from self._places(choice.ids))):
            places.append(f"AND d.queue = :queue_{n} AND d.lane = {at.lane} AND {at.which} ")
            params[f"queue_{n}"] = at.queue
        counted, old_ones = 0, 0
        for place in places:
            found = yield Query(
                f"SELECT count(*), coalesce(sum(CASE WHEN m.created_at <= {self.dialect.later(':old')} "
                f"THEN 1 ELSE 0 END), 0) {self._from} WHERE {dead('d')} {place}{chosen}",
                {**params, "old": -float(old)},
            )
            counted += int(found.rows[0][0])
            old_ones += int(found.rows[0][1])
        return Counted(counted, old_ones)

    def requeue(self, choice: Choice = ALL, actor: str = "", tell: Tell | None = None) -> Steps[Done]:
        """Send dead messages after all: attempts, error and due time are cleared. What is not dead is left alone.

        A keyed request that had failed with its message is in progress again. In batches, each a transaction; `tell`
        hears how many are done after each.
        """
        return (yield from self._act_on(choice, "requeue", actor, self._revive, tell))

    def discard(self, choice: Choice = ALL, actor: str = "", tell: Tell | None = None) -> Steps[Done]:
        """Remove dead messages for good; as `requeue` does it."""
        return (yield from self._act_on(choice, "discard", actor, self._remove, tell))

    def _act_on(self, choice: Choice, action: str, actor: str, act: Act, tell: Tell | None) -> Steps[Done]:
        count = 0
        ids: dict[int, UUID] = {}

        def note(letters: Sequence[DeadLetter]) -> None:
            nonlocal count
            count += len(letters)
            ids.update((letter.position, found) for letter in letters if (found := uuid_of(letter.id)))
            if tell:
                tell(len(letters))

        if choice.ids is not None:
            for place in (yield from self._places(choice.ids)):
                note((yield from self.transaction(self._batch, place, choice, action, actor, act)))
        else:
            for queue in [self._only] if self._only else (yield from self.queues_with(Stored.DEAD)):
                for lane in (yield from self.lanes_with(Stored.DEAD, queue)):
                    after: int | None = 0
                    while after is not None:
                        place = Place(queue, lane, f"d.position > {after}")
                        letters = yield from self.transaction(self._batch, place, choice, action, actor, act)
                        note(letters)
                        after = letters[-1].position if len(letters) == CHUNK else None
        return Done(count, [ids[position] for position in sorted(ids)])

    def _places(self, ids: Collection[UUID]) -> Steps[list[Place]]:
        """Where these messages may lie dead: in any queue, for they may have been sorted since they were added."""
        places: list[Place] = []
        queues = [self._only] if self._only else (yield from self.queues_with(Stored.DEAD))
        for chunk in chunks(sorted(map(str, ids))):
            names = ", ".join(f":id_{n}" for n in range(len(chunk)))
            found = yield Query(
                f"SELECT position FROM {self.outbox} WHERE id IN ({names})",
                {f"id_{n}": one for n, one in enumerate(chunk)},
            )
            wanted = whole_numbers(sorted(position for [position] in found.rows))
            for queue in queues:
                lying = yield Query(
                    f"SELECT lane, position FROM {self.delivery} WHERE {dead()} AND queue = :queue "
                    f"AND lane IN ({ALL_LANES}) AND position IN ({wanted})",
                    {"queue": queue},
                )
                positions: dict[int, list[int]] = {}
                for lane, position in lying.rows:
                    positions.setdefault(lane, []).append(position)
                places += [
                    Place(queue, lane, f"d.position IN ({whole_numbers(sorted(some))})")
                    for lane, some in sorted(positions.items())
                ]
        return places

    def _batch(self, place: Place, choice: Choice, action: str, actor: str, act: Act) -> Steps[list[DeadLetter]]:
        if action == "discard" and place.lane != NO_LANE:  # those behind them on their keys may go
            yield from self.begin_anew(place.queue, [place.lane])
        chosen, params = self._chosen(choice)
        found = yield Query(
            f"SELECT {self._columns} {self._from} WHERE {dead('d')} AND d.queue = :queue AND d.lane = {place.lane} "
            f"AND {place.which} {chosen}ORDER BY d.position LIMIT {CHUNK}{self.dialect.for_update_of('d')}",
            {**params, "queue": place.queue},
        )
        letters = [self._letter(row) for row in found.rows]
        if letters:
            yield from act(place.queue, letters)
            entries = [(letter.position, letter.id, _details(letter)) for letter in letters]
            yield from audit(self.names, action, actor, entries)
        return letters

    def _chosen(self, choice: Choice) -> tuple[str, dict[str, Any]]:
        conditions = {
            # So that it stays a LEFT JOIN.
            "topic": ("coalesce(m.topic, '') = :topic", choice.topic),
            "key": ("coalesce(m.ordering_key, '') = :key", choice.key),
            "code": ("d.error_code = :code", choice.code),
            "older": (
                f"d.failed_at <= {self.dialect.later(':older')}",
                None if choice.older_than is None else -float(choice.older_than),
            ),
            "only": ("d.queue = :only", self._only),
        }
        given = {name: condition for name, condition in conditions.items() if condition[1] is not None}
        text = "".join(f"AND {text} " for text, _ in given.values())
        return text, {name: value for name, (_, value) in given.items()}

    def _letter(self, row: Row) -> DeadLetter:
        letter = DeadLetter(*row)
        return letter._replace(
            id=shown(letter.id),
            topic=shown(letter.topic),
            type=shown(letter.type),
            key=shown(letter.key),
            failed_at=self.dialect.read_moment(letter.failed_at),
            created_at=self.dialect.read_moment(letter.created_at),
        )

    def _revive(self, queue: str, letters: Sequence[DeadLetter]) -> Steps[None]:
        # Through the retry state, so that it goes before what is held behind it on its key.
        yield Query(
            f"UPDATE {self.delivery} SET {becomes(Transition.REQUEUE)}, due = {self.dialect.never}, attempts = 0, "
            f"claims = 0, error_code = '', error_message = '' "
            f"WHERE {before(Transition.REQUEUE)} AND queue = :queue AND {self.places(letters)}",
            {"queue": queue},
        )
        yield from self._reopen(letters)

    def _reopen(self, letters: Sequence[DeadLetter]) -> Steps[None]:
        """Keyed requests that had failed with these messages are in progress again."""
        positions = whole_numbers([letter.position for letter in letters])
        found = yield Query(
            f"SELECT headers FROM {self.outbox} WHERE position IN ({positions}) AND headers IS NOT NULL"
        )
        failures = [failure_of(headers_of(headers)) for [headers] in found.rows]
        if told := [failure for failure in failures if failure is not None]:
            yield from Confirming(self.names).reopen(told)

    def _remove(self, queue: str, letters: Sequence[DeadLetter]) -> Steps[None]:
        yield Query(
            f"DELETE FROM {self.delivery} "
            f"WHERE {before(Transition.DISCARD)} AND queue = :queue AND {self.places(letters)}",
            {"queue": queue},
        )
        positions = whole_numbers([letter.position for letter in letters])
        yield Query(f"DELETE FROM {self.outbox} WHERE position IN ({positions})")


def _details(letter: DeadLetter) -> dict[str, Any]:
    return {
        "topic": letter.topic,
        "key": letter.key,
        "attempts": letter.attempts,
        "error_code": letter.error_code,
        "error_message": letter.error_message,
        "failed_at": letter.failed_at,
    }

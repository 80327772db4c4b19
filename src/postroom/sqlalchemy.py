"""Events that domain objects record: the session adds them to the outbox when it flushes, in its own transaction.

::

    Sessions = publish_events(sessionmaker(engine), Outbox())

    class Order(RecordsEvents, Base):
        def place(self):
            self.record_event(lambda: OrderPlaced(self.id, self.cents))

    with Sessions.begin() as session:
        order = Order(cents=1990)
        order.place()
        session.add(order)      # the event is committed with the order, or not at all
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from sqlalchemy import event, inspect
from sqlalchemy.exc import NoInspectionAvailable
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import InstanceState, Session, object_session, scoped_session, sessionmaker

from postroom.errors import InvalidMessage, InvalidSetting
from postroom.events import declared_event
from postroom.message import Message

if TYPE_CHECKING:
    from sqlalchemy.orm import SessionTransaction, UOWTransaction

    from postroom.outbox import Outbox

__all__ = ["RecordsEvents", "publish_events", "record_event"]

T = TypeVar("T")
Recorded: TypeAlias = object | Callable[[], object]
"""An event, a message, or a function that makes one when the object's primary key is known."""

_OUTBOX = "postroom outbox"
_PENDING = "postroom events"


class _Pending(NamedTuple):
    """An event that waits for the next flush."""

    instance: object
    """Keeps the object alive until then."""
    recorded: Recorded
    depth: int
    """In how many savepoints it was recorded."""


class RecordsEvents:
    """A mixin for mapped classes whose objects record events."""

    def record_event(self, event: Recorded) -> None:
        """Have the session add this event to the outbox when it flushes; see `record_event`."""
        record_event(self, event)


def record_event(instance: object, event: Recorded) -> None:
    """Have the session of a mapped object add an event to the outbox when it flushes; at the latest at commit.

    ``event`` is an object whose class is an `postroom.event`, a `Message`, or a function without parameters that
    returns one: it is called when the object has been flushed, so that it has its primary key. If the object has no
    session yet, the event waits until it is added to one. What is rolled back is forgotten. Raises `InvalidMessage` if
    it is no event, and `InvalidSetting` if the object is not mapped.
    """
    try:
        state = inspect(instance)
    except NoInspectionAvailable:
        state = None
    if not isinstance(state, InstanceState):
        raise InvalidSetting(f"{type(instance).__name__} is not mapped by SQLAlchemy: events are for mapped objects")
    if not callable(event):
        _check(event)
    session = object_session(instance)
    if session is None:
        state.info.setdefault(_PENDING, []).append(event)
    else:
        _wait(session, instance, event)


def publish_events(sessions: T, outbox: Outbox) -> T:
    """Have sessions add recorded events to this outbox; returns what was given.

    ``sessions`` is a sessionmaker, async_sessionmaker or scoped_session, for all sessions that it makes from now on, or
    one Session or AsyncSession. Raises `InvalidSetting` for anything else.
    """
    match sessions:
        case scoped_session() | async_scoped_session():
            publish_events(sessions.session_factory, outbox)
        case sessionmaker() | async_sessionmaker():
            sessions.configure(info={**sessions.kw.get("info", {}), _OUTBOX: outbox})
        case Session() | AsyncSession():
            sessions.info[_OUTBOX] = outbox
        case _:
            raise InvalidSetting(
                f"publish_events takes a sessionmaker, a scoped_session or a session of SQLAlchemy, not "
                f"{type(sessions).__name__}"
            )
    return sessions


def _check(recorded: object) -> object:
    if not isinstance(recorded, Message) and declared_event(recorded.__class__) is None:
        raise InvalidMessage(
            f"a {type(recorded).__name__} is no event: record an object whose class is decorated with @event(topic), "
            "a message made with Message.new, or a function that returns one"
        )
    return recorded


def _wait(session: Session, instance: object, recorded: Recorded) -> None:
    depth = _depth(session.get_nested_transaction())
    session.info.setdefault(_PENDING, []).append(_Pending(instance, recorded, depth))


def _depth(transaction: SessionTransaction | None) -> int:
    """In how many savepoints this is, itself counted."""
    depth = 0
    while transaction is not None:
        depth += transaction.nested
        transaction = transaction.parent
    return depth


def _publish(session: Session) -> None:
    pending: list[_Pending] = session.info.get(_PENDING, [])
    if not pending:
        return
    outbox: Outbox | None = session.info.get(_OUTBOX)
    if outbox is None:
        raise InvalidSetting(
            f"{type(pending[0].instance).__name__} recorded an event, and the session has no outbox: call "
            "publish_events(sessionmaker, outbox) where the sessions are made"
        )
    session.info[_PENDING] = []
    made = [_check(one.recorded() if callable(one.recorded) else one.recorded) for one in pending]
    outbox.add_many(session, [one if isinstance(one, Message) else outbox.message_of(one) for one in made])


@event.listens_for(Session, "after_attach")
def _attached(session: Session, instance: object) -> None:
    state: InstanceState[Any] = inspect(instance)
    for recorded in state.info.pop(_PENDING, ()):
        _wait(session, instance, recorded)


@event.listens_for(Session, "after_flush")
def _flushed(session: Session, _context: UOWTransaction) -> None:
    _publish(session)


@event.listens_for(Session, "before_commit")
def _before_commit(session: Session) -> None:
    if session.info.get(_PENDING):
        session.flush()
        _publish(session)  # what objects recorded that need no flush


@event.listens_for(Session, "after_soft_rollback")
def _rolled_back(session: Session, previous: SessionTransaction) -> None:
    depth = _depth(previous)
    session.info[_PENDING] = [one for one in session.info.get(_PENDING, []) if one.depth < depth]


@event.listens_for(Session, "after_transaction_end")
def _ended(session: Session, transaction: SessionTransaction) -> None:
    if transaction.parent is None:
        session.info.pop(_PENDING, None)

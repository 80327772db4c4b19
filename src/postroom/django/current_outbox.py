"""``from postroom.django import outbox``: the outbox on the current ``atomic`` block."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Unpack

from asgiref.sync import sync_to_async
from django.db import connections

from postroom.bound_outbox import BoundOutbox
from postroom.django import configuration
from postroom.errors import NotInTransaction
from postroom.outbox import Outbox

if TYPE_CHECKING:
    from collections.abc import Iterable

    from postroom.message import Fields, Message


class CurrentOutbox(BoundOutbox):
    """The methods of an `Outbox`, without their first parameter, on Django's connection to the database of the tables.

    Each writes in the current ``atomic`` block of that database, and raises `NotInTransaction` outside of one. The
    block that a ``TestCase`` puts around each test does not count: there is none in production.
    """

    def __init__(self) -> None:
        """Nothing is read yet: Django's settings may not be there."""

    async def aadd(self, topic: str | None, payload: object = None, **fields: Unpack[Fields]) -> Message:
        """`add` for async code, in the thread that Django's ORM uses there."""
        return await sync_to_async(self.add)(topic, payload, **fields)

    async def aadd_many(self, messages: Iterable[Message]) -> list[Message]:
        """`add_many` for async code."""
        return await sync_to_async(self.add_many)(messages)

    async def apublish(self, event: object, **fields: Unpack[Fields]) -> Message:
        """`publish` for async code."""
        return await sync_to_async(self.publish)(event, **fields)

    def message(self, topic: str | None, payload: object = None, **fields: Unpack[Fields]) -> Message:
        """Make a message for `add_many`: `Outbox.message`."""
        return self._outbox.message(topic, payload, **fields)

    def message_of(self, event: object, **fields: Unpack[Fields]) -> Message:
        """Make a message of an event for `add_many`: `Outbox.message_of`."""
        return self._outbox.message_of(event, **fields)

    @property
    def _outbox(self) -> Outbox:  # type: ignore[override]  # read anew, so that changed settings and tests have their way
        return REPLACED[-1] if REPLACED else the_outbox()

    @property
    def _connection(self) -> object:  # type: ignore[override]  # each thread has its own
        connection = connections[configuration.alias()]
        require_atomic(connection)
        connection.validate_no_broken_transaction()  # as Django's cursors do: the message would be lost without a word
        return connection


REPLACED: list[Outbox] = []
"""What tests have put in the outbox's place, the last one first."""

outbox = CurrentOutbox()
"""The outbox of the current `atomic()` block."""


def new_outbox() -> Outbox:
    """An outbox by Django's settings. Raises `InvalidSetting`."""
    return Outbox(mask=configuration.mask(), lock_keys=configuration.lock_keys())


@cache
def the_outbox() -> Outbox:
    """The only one, as long as the settings stay."""
    return new_outbox()


def forget_settings(*, setting: str, **_: Any) -> None:
    """Read the settings again: a test has changed one."""
    if setting in {"POSTROOM", "DATABASES"}:
        the_outbox.cache_clear()


def require_atomic(connection: Any) -> None:
    """Raise `NotInTransaction` unless an ``atomic`` block is open that is there in production, too."""
    blocks = connection.atomic_blocks
    of_test = bool(blocks) and getattr(blocks[-1], "_from_testcase", False)
    if not connection.settings_dict["AUTOCOMMIT"] or (blocks and not of_test):
        return
    if not blocks and not connection.get_autocommit():
        return  # the caller manages transactions without `atomic`
    using = "" if connection.alias == "default" else f'using="{connection.alias}"'
    raise NotInTransaction(
        f"no transaction is open on the database {connection.alias!r}, so the message would commit without the "
        f"business rows: put both into `with transaction.atomic({using}):`, in async code in a function that you call "
        "with sync_to_async" + (" (the block around a TestCase's test does not count)" if of_test else "")
    )

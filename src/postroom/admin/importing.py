"""`ImportActs`: the part of `Admin` that takes over the messages of another outbox."""

from __future__ import annotations

import time
from abc import abstractmethod
from typing import TYPE_CHECKING, TypeVar, Unpack

from postroom.admin.import_steps import Imported, ImportOptions, Told
from postroom.store.admin.audit import Note

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from postroom.admin.import_steps import ImportFields, Importing, Problem
    from postroom.rules.importing.layouts import Format
    from postroom.store.sql.steps import Steps

T = TypeVar("T")
LONGEST_NAP = 0.2
"""Seconds until a pause notices that it has to stop."""


def naps(pause: float, stop: Callable[[], bool] | None) -> Iterator[float]:
    """A pause in pieces, until it is over or has to stop."""
    while pause > 0 and not (stop and stop()):
        piece = min(pause, LONGEST_NAP)
        yield piece
        pause -= piece


class ImportActs:
    """Imports from other outboxes."""

    def __init__(self, new_import: Callable[..., Importing]) -> None:
        self._new_import = new_import

    @abstractmethod
    def _run(self, steps: Steps[T]) -> T: ...

    def import_messages(
        self,
        format: Format | str,
        table: str | None = None,
        *,
        actor: str,
        reason: str = "",
        stop: Callable[[], bool] | None = None,
        progress: Callable[[int], None] | None = None,
        problem: Problem | None = None,
        trouble: Callable[[str], None] | None = None,
        **options: Unpack[ImportFields],
    ) -> Imported:
        """Take over the unsent rows of another outbox's table in the same database, in their order.

        Each row becomes one message. It is added in the transaction that marks the row as sent there, or deletes it, as
        that outbox does: whatever happens, it is in one of the two, and run again, nothing is added twice. A row that
        cannot become a message stays as it is; ``problem`` gets it, with the reason, once.

        ``format`` is ``django-outbox-pattern``, ``faststream-outbox``, ``txoutbox`` or ``debezium``. ``table`` is its
        table, with its schema if need be. ``columns`` names those that are called otherwise there, ``headers`` columns
        to send as headers: the header's name → the column. ``topic`` makes the topic from the row's own:
        ``"legacy.{topic}"``. ``only`` takes rows that go to one of these alone. ``take_leased`` takes also what the
        other outbox has leased: stop it first.

        Works in batches, each a transaction; ``progress`` gets the size of each. With ``follow`` it goes on with what
        is written later, until ``stop`` returns True; when the database is gone for a while, it waits, and ``trouble``
        gets the reason. With ``dry_run`` it writes nothing, and says what it would do.

        Raises `InvalidSetting` or `InvalidIdentifier`, also if the table is none of this format; then nothing was
        written. When anything else is raised, the batches before have been done: call it again.
        """
        chosen, told = ImportOptions(table=table, **options), Told(progress, problem, trouble)
        importing = self._new_import(format, chosen, Note(actor, reason), told)
        while not (importing.done or (stop and stop())):
            try:
                pause = self._run(importing.batch())
            except Exception as error:  # noqa: BLE001 - raised again, unless the database is gone for a while
                pause = importing.rest_after(error)
            for nap in naps(pause, stop):
                time.sleep(nap)
        return self._run(importing.result())

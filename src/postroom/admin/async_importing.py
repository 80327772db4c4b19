"""`AsyncImportActs`: `ImportActs` for async code."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from typing import TYPE_CHECKING, TypeVar, Unpack

from postroom.admin.import_steps import Imported, ImportOptions, Told
from postroom.admin.importing import naps
from postroom.store.admin.audit import Note

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.admin.import_steps import ImportFields, Importing, Problem
    from postroom.rules.importing.layouts import Format
    from postroom.store.sql.steps import Steps

T = TypeVar("T")


class AsyncImportActs:
    """Imports from other outboxes."""

    def __init__(self, new_import: Callable[..., Importing]) -> None:
        self._new_import = new_import

    @abstractmethod
    async def _run(self, steps: Steps[T]) -> T: ...

    async def import_messages(
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
        """`Admin.import_messages`."""
        chosen, told = ImportOptions(table=table, **options), Told(progress, problem, trouble)
        importing = self._new_import(format, chosen, Note(actor, reason), told)
        while not (importing.done or (stop and stop())):
            try:
                pause = await self._run(importing.batch())
            except Exception as error:  # noqa: BLE001 - raised again, unless the database is gone for a while
                pause = importing.rest_after(error)
            for nap in naps(pause, stop):
                await asyncio.sleep(nap)
        return await self._run(importing.result())

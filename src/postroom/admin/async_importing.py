"""`AsyncImportActs`: `ImportActs` for async code."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from typing import TYPE_CHECKING, TypeVar

from postroom.admin.import_steps import BATCH, Imported, ImportOptions, Told
from postroom.admin.importing import naps
from postroom.store.admin.audit import Note

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from postroom.admin.import_steps import Importing, Problem
    from postroom.rules.importing.layouts import Format
    from postroom.store.sql.steps import Steps

T = TypeVar("T")


class AsyncImportActs:
    """Imports from other outboxes."""

    def __init__(self, new_import: Callable[..., Importing]) -> None:
        self._new_import = new_import

    @abstractmethod
    async def _run(self, steps: Steps[T]) -> T: ...

    async def import_messages(  # noqa: PLR0913 - as `Admin` has it
        self,
        format: Format | str,
        table: str | None = None,
        *,
        actor: str,
        reason: str = "",
        columns: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        topic: str | None = None,
        content_type: str | None = None,
        only: Collection[str] = (),
        take_leased: bool = False,
        batch: int = BATCH,
        follow: bool = False,
        dry_run: bool = False,
        stop: Callable[[], bool] | None = None,
        progress: Callable[[int], None] | None = None,
        problem: Problem | None = None,
        trouble: Callable[[str], None] | None = None,
    ) -> Imported:
        """`Admin.import_messages`."""
        options = ImportOptions(
            table=table,
            columns=columns or {},
            headers=headers or {},
            topic=topic,
            content_type=content_type,
            only=only,
            take_leased=take_leased,
            batch=batch,
            follow=follow,
            dry_run=dry_run,
        )
        importing = self._new_import(format, options, Note(actor, reason), Told(progress, problem, trouble))
        while not (importing.done or (stop and stop())):
            try:
                pause = await self._run(importing.batch())
            except Exception as error:  # noqa: BLE001 - raised again, unless the database is gone for a while
                pause = importing.rest_after(error)
            for nap in naps(pause, stop):
                await asyncio.sleep(nap)
        return await self._run(importing.result())

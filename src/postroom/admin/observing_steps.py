"""What `Admin` and `AsyncAdmin` read for a dashboard, written once: cheap and bounded, however much is stored."""
# ruff: noqa: D102 - `Observing` documents each method

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.admin.flow import Flow, chosen_span, flow_of
from postroom.admin.pages import one_more
from postroom.errors import InvalidSetting
from postroom.store.admin.change_token import ChangeToken
from postroom.store.admin.dead_letter_groups import DeadLetterGroups, GroupedDeadLetters
from postroom.store.admin.inbox_ledger_lookup import InboxLookup, InboxMark, LedgerEntry, LedgerLookup
from postroom.store.admin.overview import Overview, OverviewReader
from postroom.store.outbox import flow as stored_flow

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from postroom.rules.ordering import Order
    from postroom.store.admin.message_filter import Filter
    from postroom.store.sql.names import Names
    from postroom.store.sql.steps import Steps


class ObservingSteps:
    """The operations of someone who watches. `Observing` documents each."""

    def __init__(self, names: Names, order: Order) -> None:
        self._names = names
        self._overview = OverviewReader(names, order)
        self._grouped = GroupedDeadLetters(names)

    def overview(self) -> Steps[Overview]:
        return (yield from self._overview.overview())

    def flow(self, since: datetime | timedelta, minutes: int | None, queue: str | None) -> Steps[Flow]:
        now = yield from self._overview.clock()
        first, width = chosen_span(since, minutes, now)
        table = stored_flow.Flow(self._names)
        counts = yield from table.by_minute(first, width, queue)
        return flow_of(counts, first, width, now, queue, (yield from table.queues_since(first)))

    def dead_letter_groups(self, which: Filter, most: int) -> Steps[DeadLetterGroups]:
        if most < 1:
            raise InvalidSetting(f"most = {most!r} is not valid: give 1 or more")
        return (yield from self._grouped.groups(which, most))

    def inbox_marks(self, message_id: str, consumer: str | None) -> Steps[tuple[InboxMark, ...]]:
        return tuple((yield from InboxLookup(self._names).marks(str(message_id), consumer)))

    def ledger_entries(
        self, key: str | None, scope: str | None, limit: int, after: str | None, *, body: bool
    ) -> Steps[tuple[LedgerEntry, ...]]:
        if key is None and scope is None:
            raise InvalidSetting("neither key nor scope is given: give one of them, or both")
        one_more(limit)
        return tuple((yield from LedgerLookup(self._names).entries(key, scope, limit, after, body=body)))

    def change_token(self) -> Steps[str]:
        return (yield from ChangeToken(self._names).read())

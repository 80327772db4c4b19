"""What `Admin` and `AsyncAdmin` read for a dashboard, written once: cheap and bounded, however much is stored."""
# ruff: noqa: D102 - `Observing` documents each method

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.admin.flow import Flow, chosen_span, flow_of
from postroom.store.admin.overview import Overview, OverviewReader
from postroom.store.outbox import flow as stored_flow

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from postroom.rules.ordering import Order
    from postroom.store.sql.names import Names
    from postroom.store.sql.steps import Steps


class ObservingSteps:
    """The operations of someone who watches. `Observing` documents each."""

    def __init__(self, names: Names, order: Order) -> None:
        self._names = names
        self._overview = OverviewReader(names, order)

    def overview(self) -> Steps[Overview]:
        return (yield from self._overview.overview())

    def flow(self, since: datetime | timedelta, minutes: int | None, queue: str | None) -> Steps[Flow]:
        now = yield from self._overview.clock()
        first, width = chosen_span(since, minutes, now)
        table = stored_flow.Flow(self._names)
        counts = yield from table.by_minute(first, width, queue)
        return flow_of(counts, first, width, now, queue, (yield from table.queues_since(first)))

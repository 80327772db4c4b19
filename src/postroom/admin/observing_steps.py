"""What `Admin` and `AsyncAdmin` read for a dashboard, written once: cheap and bounded, however much is stored."""
# ruff: noqa: D102 - `Observing` documents each method

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.store.admin.overview import Overview, OverviewReader

if TYPE_CHECKING:
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

"""The ledger on Django's own connections: so the entries are in the transactions of Django's tests, too."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from django.db import connections, transaction

from postroom.errors import InvalidSetting
from postroom.store.connections.kinds import sync_kind
from postroom.store.sql.dialect import DIALECTS
from postroom.store.sql.steps import run
from postroom.web.idempotency.core import Core
from postroom.web.idempotency.keyed_flow import Do

if TYPE_CHECKING:
    from postroom.web.idempotency.keyed_flow import Flow

T = TypeVar("T")

USING = "default"


class DjangoConnections:
    """Django opens and closes the connections, one for each thread.

    Outside a transaction each step commits. Inside one, such as a test's or an outer middleware's, it is part of it.
    """

    def __init__(self, alias: str) -> None:
        self.alias = alias

    @property
    def in_transaction(self) -> bool:
        """Whether this thread's connection has an open transaction: nobody else sees the entry then."""
        return bool(connections[self.alias].in_atomic_block)

    def drive(self, flow: Flow[T]) -> T:
        """Run the flow to its end."""
        return run(flow, self._act)  # type: ignore[arg-type]  # steps of another kind, pushed in the same way

    def close(self) -> None:
        """Close this thread's connection."""
        connections[self.alias].close()

    def _act(self, action: Any) -> Any:
        if not isinstance(action, Do):
            time.sleep(action.seconds)
            return None
        with transaction.atomic(using=self.alias):
            return run(action.steps, sync_kind(connections[self.alias], "").execute)


def core_of(given: object) -> tuple[Core, DjangoConnections]:
    """The core and connections for the options in Django's settings. Raises `InvalidSetting`."""
    if not isinstance(given, Mapping):
        raise InvalidSetting(f"POSTROOM_IDEMPOTENCY is of the type {type(given).__name__}: give a dict of options")
    options = dict(given)
    using = options.pop("using", USING)
    if using not in list(connections):
        raise InvalidSetting(f"using = {using!r} is not one of Django's DATABASES: there are {', '.join(connections)}")
    if options.pop("database", None) is not None:
        raise InvalidSetting(
            "the option database is not for Django, whose tests would write there: leave it out, or give the alias of "
            "one of Django's DATABASES as using"
        )
    vendor: str = connections[using].vendor
    if vendor not in DIALECTS:
        raise InvalidSetting(f"using = {using!r} is a database of {vendor}: use PostgreSQL, MySQL/MariaDB or SQLite")
    return Core(options, vendor), DjangoConnections(using)

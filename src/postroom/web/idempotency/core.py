"""The core of the middleware, which the adapters for all frameworks share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postroom.idempotency import Ledger
from postroom.store.connections.urls import dialect_of_url
from postroom.store.ledger.entries import Terms
from postroom.store.ledger.keyed_requests import KeyedRequests
from postroom.store.sql.names import Names
from postroom.web.idempotency.keyed_flow import KeyedFlow
from postroom.web.idempotency.keyed_request import KeyedRequest
from postroom.web.idempotency.options import Options
from postroom.web.idempotency.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from postroom.rules.replay import Run


class Core:
    """What the options amount to: the policy for requests, and their flow through the ledger.

    Give a ``dialect`` if the connections are the framework's, which then gives each step its transaction. Raises
    `InvalidSetting` or `UnsupportedDatabase`.
    """

    def __init__(self, given: Mapping[str, Any], dialect: str | None = None) -> None:
        options = Options.of(given)
        self.settings = options.settings(needs_database=dialect is None)
        self.policy = Policy(options)
        self.lease: float = self.settings.idempotency_lease_sec
        schema, prefix, keep = self.settings.schema, self.settings.table_prefix, self.settings.idempotency_keep_sec
        names = Names.of(dialect or dialect_of_url(str(self.settings.database)), schema, prefix)
        failures, borrowed = self.settings.replay_failures, dialect is not None
        terms = Terms(self.lease, keep)
        self.requests = KeyedRequests(names, terms, replay_failures=failures, in_transaction=borrowed)
        self.flow = KeyedFlow(self.policy, self.requests, options.hook)
        self._ledger = Ledger(schema=schema, table_prefix=prefix, lease_seconds=self.lease, keep_seconds=keep)

    def keyed_request(self, run: Run) -> KeyedRequest:
        """What the handler of this run gets."""
        return KeyedRequest(run, self.policy, self._ledger)
